"""Which parts of a Bigtable table are to be read as a snapshot: the same for the fake and for the emulator."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta

import pytest

from services.bigtable_reader.adapters.snapshot.snapshot_row import BigtableSnapshotStore
from services.bigtable_reader.adapters.stream.partition_rows import PartitionRows
from services.bigtable_reader.adapters.stream.partition_schema import create_partition_table
from services.bigtable_reader.core.snapshot.snapshot import PartProgress, PartState, Snapshot, SnapshotPart
from services.bigtable_reader.core.stream.records import ALL_KEYS, KeyRange, Microseconds
from services.bigtable_reader.ports import TableSnapshotStore
from shared.contracts.errors import MisconfiguredError, TransientError
from tests.contract.bigtable_partitions import PARTITION_TABLE, BreakingChannels, a_stream, span
from tests.fakes.bigtable_snapshots import FakeSnapshotStore, SnapshotTable

NOON = Microseconds(1_700_000_000_000_000)
LEASE = timedelta(seconds=10)
CUT = [(span("-b"), 7), (span("b-d"), 8), (span("d-"), 9)]


@dataclass
class Both:
    """Two readers' views of one store, which is empty, and their clock."""

    ours: TableSnapshotStore
    theirs: TableSnapshotStore
    monotonic: list[float]

    async def asked(self, *, again: bool = False) -> None:
        assert await self.ours.request([ALL_KEYS], NOON, again=again, whole=True)

    async def found(self) -> Snapshot:
        found = await self.theirs.survey()
        assert found is not None
        return found

    async def take(self) -> tuple[int, SnapshotPart]:
        run, (part,) = await self.ours.claim([0], 1)
        return run, part


class SnapshotStoreContract:
    """What every store of snapshots promises."""

    async def test_what_is_asked_for_is_claimed_once_and_known_to_all(self, both: Both) -> None:
        assert await both.ours.survey() is None
        assert await both.ours.claim([0], 1) == (0, ())
        await both.asked()
        assert not await both.theirs.request([ALL_KEYS], NOON, again=False, whole=True)
        found = await both.found()
        assert (found.run, found.requested_at, found.whole, found.announced) == (1, NOON, True, False)
        assert [(part.number, part.range, part.state) for part in found.parts] == [(0, ALL_KEYS, PartState.REQUESTED)]
        run, part = await both.take()
        assert (run, part.fence, part.last, part.rows) == (1, 1, None, 0)
        assert await both.theirs.claim([0, 5], 2) == (0, ())

    async def test_a_snapshot_that_a_reader_with_other_options_requested_is_requested_again(self, both: Both) -> None:
        assert not await both.theirs.take_over([ALL_KEYS], NOON), "there is none"
        assert await both.ours.request([ALL_KEYS], NOON, again=True, whole=True)
        assert not await both.ours.take_over([ALL_KEYS], NOON)
        assert await both.theirs.take_over([span("-b")], NOON)
        assert not await both.theirs.take_over([span("-b")], NOON)
        found = await both.found()
        assert (found.run, found.watching, found.whole) == (2, "theirs", True)
        assert [part.range for part in found.parts] == [span("-b")]
        assert await both.theirs.cancel()
        assert not await both.ours.take_over([ALL_KEYS], NOON), "it was given up"

    async def test_its_parts_cover_it_and_are_free_but_for_the_first(self, both: Both) -> None:
        await both.asked(again=True)
        run, part = await both.take()
        first = await both.ours.cut(run, part, CUT)
        assert first is not None
        assert (first.range, first.above, first.state, first.again) == (span("-b"), 7, PartState.CUT, True)
        parts = (await both.found()).parts
        assert [(one.range, one.above) for one in parts] == CUT
        assert await both.ours.cut(run, part, [(ALL_KEYS, 1)]) == first  # whose answer was lost
        _run, claimed = await both.theirs.claim([2, 1, 0], 1)
        assert [one.range for one in claimed] == [span("d-")]
        _run, others = await both.theirs.claim([2, 1, 0], 5)
        assert [one.range for one in others] == [span("b-d")]

    async def test_progress_is_saved_released_and_taken_up_by_another(self, both: Both) -> None:
        await both.asked()
        run, part = await both.take()
        key = b"\xff\0 any bytes"
        assert await both.ours.save([PartProgress(part, run, key, 70, 7)]) == set()
        assert await both.theirs.claim([0], 1) == (0, ())
        assert await both.ours.save([PartProgress(part, run, key, 70, 9)], release=True) == set()
        _run, (theirs,) = await both.theirs.claim([0], 1)
        assert (theirs.last, theirs.min_version, theirs.rows, theirs.fence) == (key, 70, 9, 2)
        assert theirs.left == KeyRange(key + b"\0", b"")
        assert await both.ours.save([PartProgress(part, run, b"", 1, 1)]) == {0}
        assert await both.ours.cut(run, part, CUT) is None
        assert await both.theirs.save([PartProgress(theirs, run, b"z", 60, 10, done=True)]) == set()
        found = await both.found()
        assert (found.unfinished, found.complete_since) == ([], 60)
        await both.theirs.remember_announced(run)
        await both.theirs.remember_announced(run + 1)
        assert (await both.found()).announced
        assert await both.ours.claim([0], 1) == (0, ())

    async def test_a_part_that_stands_still_for_a_lease_is_free(self, both: Both) -> None:
        await both.asked()
        run, part = await both.take()
        for _renewal in range(3):
            await both.found()
            both.monotonic[0] += 0.7 * LEASE.total_seconds()
            assert await both.theirs.claim([0], 1) == (0, ())
            assert await both.ours.save([PartProgress(part, run, None, None, 0)]) == set()
        await both.found()
        both.monotonic[0] += 1.1 * LEASE.total_seconds()
        _run, (theirs,) = await both.theirs.claim([0], 1)
        assert theirs.fence == 2
        assert await both.ours.save([PartProgress(part, run, b"a", 1, 1)]) == {0}

    async def test_requested_again_it_restarts_and_the_reader_of_the_one_before_has_lost_it(self, both: Both) -> None:
        await both.asked()
        run, part = await both.take()
        assert await both.ours.cut(run, part, CUT) is not None
        assert await both.theirs.request([ALL_KEYS], NOON, again=True, whole=True)
        assert await both.ours.save([PartProgress(part, run, b"a", 1, 1)]) == {0}
        found = await both.found()
        assert (found.run, [one.range for one in found.parts]) == (2, [ALL_KEYS])
        again, part = await both.take()
        assert (again, part.range) == (2, ALL_KEYS)

    async def test_all_rows_are_asked_for_once_after_a_snapshot_whatever_becomes_of_that(self, both: Both) -> None:
        assert await both.ours.request_unless_after([ALL_KEYS], NOON, 0)
        assert not await both.theirs.request_unless_after([ALL_KEYS], NOON, 0)
        assert await both.theirs.request_unless_after([ALL_KEYS], NOON, 1)
        found = await both.found()
        assert (found.run, found.whole, [one.again for one in found.parts]) == (2, True, [True])
        assert await both.theirs.cancel()
        assert not await both.ours.request_unless_after([ALL_KEYS], NOON, 1)
        assert await both.ours.request([span("a-b")], NOON, again=True, whole=False)
        assert not await both.ours.request_unless_after([ALL_KEYS], NOON, 1), "some keys are no answer"
        assert (await both.found()).run == 3
        assert await both.ours.request_unless_after([ALL_KEYS], NOON, 2)
        assert (await both.found()).run == 4

    async def test_some_keys_are_read_beside_the_rest_and_alone_they_are_never_complete(self, both: Both) -> None:
        await both.asked()
        assert await both.theirs.request([span("a-b")], NOON, again=True, whole=False)
        found = await both.found()
        assert (found.run, found.whole) == (1, True)
        assert [(part.number, part.range, part.again) for part in found.parts] == [
            (0, ALL_KEYS, False),
            (1, span("a-b"), True),
        ]
        run, parts = await both.ours.claim([0, 1], 2)
        assert await both.ours.save([PartProgress(one, run, b"z", 5, 1, done=True) for one in parts]) == set()
        assert (await both.found()).complete_since == 5
        await both.ours.remember_announced(run)
        assert await both.theirs.request([span("a-b")], NOON, again=True, whole=False)
        run, (alone,) = await both.ours.claim([0], 1)
        await both.ours.save([PartProgress(alone, run, b"a", 5, 1, done=True)])
        found = await both.found()
        assert (found.run, found.unfinished, found.complete_since) == (2, [], None)

    async def test_some_keys_asked_for_before_an_end_is_announced_do_not_lose_that_end(self, both: Both) -> None:
        await both.asked()
        run, (part,) = await both.ours.claim([0], 1)
        await both.ours.save([PartProgress(part, run, b"z", 5, 1, done=True)])
        assert await both.theirs.request([span("a-b")], NOON, again=True, whole=False)
        assert await both.ours.claim([0], 1) == (0, ())
        same, (some,) = await both.ours.claim([1], 1)
        assert (same, (await both.found()).unannounced) == (run, False)
        await both.ours.save([PartProgress(some, run, b"a", 7, 1, done=True)])
        found = await both.found()
        assert (found.run, found.unannounced, found.complete_since) == (1, True, 5)

    async def test_what_is_given_up_is_over_and_was_not_complete(self, both: Both) -> None:
        assert not await both.theirs.cancel()
        await both.asked()
        run, part = await both.take()
        assert await both.theirs.cancel()
        assert not await both.theirs.cancel()
        assert await both.ours.save([PartProgress(part, run, b"a", 1, 1, done=True)]) == {0}
        assert await both.ours.claim([0], 1) == (0, ())
        found = await both.found()
        assert ([one.state for one in found.parts], found.complete_since) == ([PartState.CANCELLED], None)


class TestInMemory(SnapshotStoreContract):
    """In the fake."""

    @pytest.fixture
    def both(self) -> Both:
        table, monotonic = SnapshotTable(), [1_000.0]

        def store(owner: str) -> TableSnapshotStore:
            return FakeSnapshotStore(table, owner, LEASE, lambda: monotonic[0], watching=owner)

        return Both(store("ours"), store("theirs"), monotonic)


class TestInEmulator(SnapshotStoreContract):
    """In the Bigtable emulator."""

    @pytest.fixture
    @asynccontextmanager
    async def both(self, bigtable_emulator: str) -> AsyncIterator[Both]:
        self.channels = channels = BreakingChannels(bigtable_emulator)
        self.rows = rows = PartitionRows(channels, PARTITION_TABLE, a_stream())
        monotonic = [1_000.0]

        def store(owner: str) -> TableSnapshotStore:
            return BigtableSnapshotStore(rows, owner=owner, lease=LEASE, watching=owner, monotonic=lambda: monotonic[0])

        try:
            await create_partition_table(channels, rows)
            yield Both(store("ours"), store("theirs"), monotonic)
        finally:
            await channels.close()

    async def test_a_write_whose_answer_was_lost_is_known_and_a_late_one_changes_nothing(self, both: Both) -> None:
        self.channels.restart_counting({2: "after"})  # a look, then the write
        assert await both.ours.request([ALL_KEYS], NOON, again=False, whole=True)
        self.channels.restart_counting({2: "late"})
        with pytest.raises(TransientError):
            await both.ours.claim([0], 1)
        _run, (theirs,) = await both.theirs.claim([0], 1)
        await self.channels.deliver()
        assert (await both.found()).parts == (theirs,)

    async def test_other_rows_of_the_partition_table_are_read_as_ever(self, both: Both) -> None:
        await both.asked()
        scan = await self.rows.scan()
        assert (scan.topology, scan.partitions, scan.readers) == (None, {}, {})
        assert await self.rows.highest_version() >= 0
        await self.rows.write_snapshot((await self.version()), b"00000009 x", {("shape", b"snapshot"): b"{}"})
        with pytest.raises(MisconfiguredError, match="#snapshot is not what a reader wrote"):
            await both.ours.survey()

    async def version(self) -> bytes:
        return next(cell.value for cell in await self.rows.snapshot() if cell.qualifier == b"version")
