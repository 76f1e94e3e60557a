"""What was found that no record tells, kept with the key ranges: the same for the fake and for the emulator."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import pytest
from google.api_core.exceptions import FailedPrecondition

from services.bigtable_reader.adapters.bigtable.connection import TIMEOUT, Method, Table
from services.bigtable_reader.adapters.bigtable.errors import bigtable_errors
from services.bigtable_reader.adapters.schema.resync_cell import BigtableResyncStore
from services.bigtable_reader.adapters.stream.partition_rows import PartitionRows
from services.bigtable_reader.adapters.stream.partition_schema import create_partition_table
from services.bigtable_reader.core.schema.resync import BigtableResyncCause, BigtableResyncKind, Resync
from services.bigtable_reader.core.schema.watching import Watching
from services.bigtable_reader.core.stream.records import Microseconds
from services.bigtable_reader.ports import KeyRangePartitionStore, ResyncStore
from shared.contracts.errors import MisconfiguredError, TransientError
from tests.contract.bigtable_partitions import (
    LEASE,
    PARTITION_TABLE,
    BreakingChannels,
    a_store,
    a_stream,
    begun,
    span,
    until_known,
)
from tests.fakes.bigtable_partitions import FakePartitionStore, PartitionTable
from tests.fakes.bigtable_resync import FakeResyncStore

WATCHING = Watching()
NOON = Microseconds(1_700_000_000_000_000)
Found = list[tuple[str, tuple[str, ...], int]]


def all_of_them(_family: str) -> bool:
    """Watch all families."""
    return True


@dataclass
class Both:
    """Two readers' views of one store, and the key ranges beside it."""

    ours: ResyncStore
    theirs: ResyncStore
    stream_ranges: KeyRangePartitionStore
    allow: Callable[[bool], None]
    """Lets the app profile allow conditional writes, or not."""

    async def found(self) -> Found:
        """Return what is kept, as everybody sees it."""
        resync_request = await self.theirs.read()
        assert (await self.stream_ranges.survey()).resync_request == resync_request
        return [] if resync_request is None else [(one.kind, one.families, one.run) for one in resync_request.findings]


class ResyncStoreContract:
    """What every store of findings promises."""

    @pytest.fixture
    @asynccontextmanager
    async def both(self, opened: AbstractAsyncContextManager[Both]) -> AsyncIterator[Both]:
        """Give a store whose stream has begun."""
        async with opened as both:
            await begun(both.stream_ranges, "-m", "m-")
            yield both

    async def test_of_a_stream_that_is_not_known_nothing_is_kept(self, opened: Both) -> None:
        await opened.ours.request(BigtableResyncKind.STREAM_DISABLED, NOON, 0)
        await opened.ours.compare(["f"], ["g"], all_of_them, NOON, 0, WATCHING)
        assert not await opened.ours.heal(9, WATCHING.digest)
        assert await opened.ours.read() is None
        assert (await opened.stream_ranges.survey()).stream_ranges == ()

    async def test_what_is_found_is_known_to_all_and_stays_until_a_later_snapshot_heals_it(self, both: Both) -> None:
        await both.ours.request(BigtableResyncKind.STREAM_DISABLED, NOON, 3)
        await both.theirs.request(BigtableResyncKind.ROUTED_ELSEWHERE, NOON, 4)
        assert await both.found() == [
            (BigtableResyncKind.STREAM_DISABLED, (), 3),
            (BigtableResyncKind.ROUTED_ELSEWHERE, (), 4),
        ]
        assert not await both.theirs.heal(3, WATCHING.digest)
        assert await both.theirs.heal(4, WATCHING.digest)
        assert await both.found() == [(BigtableResyncKind.ROUTED_ELSEWHERE, (), 4)]
        assert await both.ours.heal(5, WATCHING.digest)
        assert not await both.theirs.heal(5, WATCHING.digest)
        assert await both.found() == []

    async def test_the_same_again_is_kept_once_since_the_first_time_until_after_the_last(self, both: Both) -> None:
        await both.ours.request(BigtableResyncKind.ROUTED_ELSEWHERE, NOON, 1)
        await both.theirs.request(BigtableResyncKind.ROUTED_ELSEWHERE, Microseconds(NOON + 60), 2)
        await both.ours.request(BigtableResyncKind.ROUTED_ELSEWHERE, Microseconds(NOON + 90), 1)
        assert await both.found() == [(BigtableResyncKind.ROUTED_ELSEWHERE, (), 2)]
        resync_request = await both.ours.read()
        assert resync_request is not None
        assert (resync_request.since, resync_request.run) == (NOON, 2)

    async def test_families_are_compared_with_those_that_anybody_has_compared_before(self, both: Both) -> None:
        await both.ours.compare(None, ["f", "g", "h"], all_of_them, NOON, 0, WATCHING)
        assert await both.found() == []
        await both.theirs.compare(["f", "g", "h"], ["h"], lambda family: family != "g", NOON, 1, WATCHING)
        await both.ours.compare(["f", "g", "h"], ["h"], all_of_them, NOON, 2, WATCHING)
        assert await both.found() == [(BigtableResyncKind.FAMILIES_DROPPED, ("f",), 1)]
        await both.ours.compare(["h"], ["f", "h"], all_of_them, NOON, 2, WATCHING)
        await both.ours.compare(["h"], ["f"], all_of_them, NOON, 2, WATCHING)
        assert await both.found() == [(BigtableResyncKind.FAMILIES_DROPPED, ("f", "h"), 2)]

    async def test_the_first_comparison_is_with_what_is_known_otherwise(self, both: Both) -> None:
        await both.ours.compare(["f", "g"], ["g"], all_of_them, NOON, 0, WATCHING)
        assert await both.found() == [(BigtableResyncKind.FAMILIES_DROPPED, ("f",), 0)]

    async def test_by_hand_goes_what_was_shown_and_nothing_that_was_found_since(self, both: Both) -> None:
        await both.ours.request(BigtableResyncKind.STREAM_DISABLED, NOON, 0)
        await both.ours.request(BigtableResyncKind.ROUTED_ELSEWHERE, NOON, 0)
        resync_request = await both.ours.read()
        assert resync_request is not None
        await both.theirs.request(BigtableResyncKind.ROUTED_ELSEWHERE, NOON, 1)
        assert await both.ours.synced(resync_request)
        assert not await both.ours.synced(resync_request)
        assert await both.found() == [(BigtableResyncKind.ROUTED_ELSEWHERE, (), 1)]

    async def test_who_watches_more_than_the_last_one_marks_and_only_what_brings_that_heals(self, both: Both) -> None:
        narrow = Watching(key_prefixes=("a",))
        assert await both.ours.watching() is None
        await both.ours.request(BigtableResyncKind.STREAM_DISABLED, NOON, 0)
        await both.ours.compare(None, ["f"], all_of_them, NOON, 0, narrow)
        assert await both.theirs.watching() == narrow
        assert await both.found() == [(BigtableResyncKind.STREAM_DISABLED, (), 0)]
        await both.theirs.compare(None, ["f"], all_of_them, NOON, 3, WATCHING)
        assert await both.found() == [
            (BigtableResyncKind.STREAM_DISABLED, (), 0),
            (BigtableResyncKind.WATCHED_MORE, (), 3),
        ]
        await both.ours.compare(None, ["f"], all_of_them, NOON, 3, narrow)
        assert not await both.ours.heal(9, narrow.digest)
        assert await both.theirs.heal(9, WATCHING.digest)
        assert await both.found() == []

    async def test_what_no_condition_is_allowed_for_is_found_by_the_next_comparison(self, both: Both) -> None:
        await both.ours.compare(None, ["f"], all_of_them, NOON, 0, WATCHING)
        both.allow(False)
        await both.ours.request(BigtableResyncKind.ROUTED_ELSEWHERE, NOON, 0)
        await both.theirs.request(BigtableResyncKind.ROUTED_ELSEWHERE, NOON, 0)
        with pytest.raises(MisconfiguredError, match="FAILED_PRECONDITION"):
            await both.ours.compare(None, ["g"], all_of_them, NOON, 0, WATCHING)
        both.allow(True)
        assert not await both.ours.heal(1, WATCHING.digest), "it is no finding yet"
        await both.theirs.compare(None, ["f"], all_of_them, NOON, 1, WATCHING)
        assert await both.found() == [(BigtableResyncKind.ROUTED_ELSEWHERE, (), 1)]
        assert await both.ours.heal(2, WATCHING.digest)
        await both.theirs.compare(None, ["f"], all_of_them, NOON, 2, WATCHING)
        assert await both.found() == [], "a note is taken once"

    async def test_of_a_stream_that_is_not_known_nothing_is_noted(self, opened: Both) -> None:
        opened.allow(False)
        await opened.ours.request(BigtableResyncKind.ROUTED_ELSEWHERE, NOON, 0)
        opened.allow(True)
        await begun(opened.stream_ranges, "-")
        await opened.ours.compare(None, ["f"], all_of_them, NOON, 0, WATCHING)
        assert await opened.found() == []

    async def test_stream_ranges_pauses_and_what_was_seen_are_kept_beside_it(self, both: Both) -> None:
        await both.ours.request(BigtableResyncKind.STREAM_DISABLED, NOON, 0)
        before = await both.stream_ranges.survey()
        assert await both.stream_ranges.pause()
        assert await both.found() == [(BigtableResyncKind.STREAM_DISABLED, (), 0)]
        assert await both.stream_ranges.resume()
        assert not await both.stream_ranges.begin([span("-")], before.now)
        assert (await both.stream_ranges.survey()).stream_ranges == before.stream_ranges
        assert await both.found() == [(BigtableResyncKind.STREAM_DISABLED, (), 0)]


class TestInMemory(ResyncStoreContract):
    """In the fake."""

    @pytest.fixture
    def opened(self) -> AbstractAsyncContextManager[Both]:
        table = PartitionTable(lambda: NOON)
        stream_ranges = FakePartitionStore(table, "o", LEASE, lambda: 0.0)

        def allow(allowed: bool) -> None:
            table.unconditional = not allowed

        return nullcontext(Both(FakeResyncStore(table), FakeResyncStore(table), stream_ranges, allow))


class Refusing(BreakingChannels):
    """A connection whose app profile may route to any cluster."""

    allowed = True

    async def call(self, method: Method, table: Table, request: Any, *, timeout: float = TIMEOUT) -> Any:  # noqa: ASYNC109
        """Refuse conditional writes."""
        if not self.allowed and method.name == "CheckAndMutateRow":
            with bigtable_errors(method.name):
                raise FailedPrecondition("Single-row transactions are not allowed")  # type: ignore[no-untyped-call]
        return await super().call(method, table, request, timeout=timeout)

    def allow(self, allowed: bool) -> None:
        """Allow them, or not."""
        self.allowed = allowed


class TestInEmulator(ResyncStoreContract):
    """In the Bigtable emulator."""

    @pytest.fixture
    @asynccontextmanager
    async def opened(self, bigtable_emulator: str) -> AsyncIterator[Both]:
        self.channels = channels = Refusing(bigtable_emulator)
        stream = a_stream()
        rows = self.rows = PartitionRows(channels, PARTITION_TABLE, stream)
        try:
            await create_partition_table(channels, rows)
            stream_ranges = a_store(channels, stream, "o", [0.0])
            yield Both(BigtableResyncStore(rows), BigtableResyncStore(rows), stream_ranges, channels.allow)
        finally:
            await channels.close()

    async def test_a_write_whose_answer_was_lost_is_known_and_a_late_one_changes_nothing(self, both: Both) -> None:
        self.channels.restart_counting({2: "after"})  # a look, then the write
        await both.ours.request(BigtableResyncKind.STREAM_DISABLED, NOON, 0)
        self.channels.restart_counting({2: "late"})
        with pytest.raises(TransientError):
            await both.ours.heal(1, WATCHING.digest)
        await both.theirs.request(BigtableResyncKind.ROUTED_ELSEWHERE, NOON, 1)
        await self.channels.deliver()
        assert await both.found() == [
            (BigtableResyncKind.STREAM_DISABLED, (), 0),
            (BigtableResyncKind.ROUTED_ELSEWHERE, (), 1),
        ]
        await until_known(lambda: both.ours.heal(1, WATCHING.digest))
        assert await both.found() == [(BigtableResyncKind.ROUTED_ELSEWHERE, (), 1)]

    async def test_however_many_families_there_are_a_condition_is_small(self, both: Both) -> None:
        families = [f"measurements of station {number:04}".replace(" ", "_") for number in range(2_000)]
        for dropped in range(1, 4):
            await both.ours.compare(families, families[dropped:], all_of_them, NOON, dropped, WATCHING)
        assert await both.found() == [(BigtableResyncKind.FAMILIES_DROPPED, tuple(families[:3]), 3)]
        assert await both.theirs.heal(4, WATCHING.digest)
        assert await both.found() == []
        assert 0 < self.channels.largest_condition < 20_000, "what Bigtable takes as a filter"

    async def test_what_a_first_start_wrote_without_a_writer_is_changed_only_as_it_was_read(self, both: Both) -> None:
        dropped = BigtableResyncCause(kind=BigtableResyncKind.FAMILIES_DROPPED, found_at=NOON, run=1, families=("f",))
        kept = Resync(families=("h",), findings=(dropped,))
        before = await self.rows.topology()
        assert before is not None
        assert await self.rows.write_resync(before.resync, kept)
        written = await self.rows.topology()
        assert written is not None
        assert written.resync is not None
        assert written.resync[1] == kept
        await both.ours.compare(None, ["i"], all_of_them, NOON, 2, WATCHING)
        assert await both.found() == [(BigtableResyncKind.FAMILIES_DROPPED, ("f", "h"), 2)]
        assert not await self.rows.write_resync(written.resync, kept)

    async def test_two_that_write_at_once_lose_nothing(self, both: Both) -> None:
        await asyncio.gather(
            both.ours.request(BigtableResyncKind.STREAM_DISABLED, NOON, 0),
            both.theirs.request(BigtableResyncKind.ROUTED_ELSEWHERE, NOON, 0),
            both.ours.compare(["f"], [], all_of_them, NOON, 0, WATCHING),
        )
        kinds = {
            BigtableResyncKind.STREAM_DISABLED,
            BigtableResyncKind.ROUTED_ELSEWHERE,
            BigtableResyncKind.FAMILIES_DROPPED,
        }
        assert {kind for kind, _families, _run in await both.found()} == kinds
