"""What a request makes of the snapshot that was asked for before: none is lost, and the end of none."""

from collections.abc import Sequence
from datetime import timedelta
from itertools import accumulate, pairwise

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from services.bigtable_reader.app.mirrored_rows import MirroredRows
from services.bigtable_reader.app.snapshot.snapshot_ends import BigtableSnapshotEnds
from services.bigtable_reader.app.snapshot.snapshot_source import OwnedPart
from services.bigtable_reader.app.stream.first_start import request_initial_snapshot
from services.bigtable_reader.core.snapshot.snapshot import (
    PartProgress,
    Snapshot,
    SnapshotPart,
    advanced,
    cancelled,
    claimed,
    cuts_of,
    requested,
)
from services.bigtable_reader.core.stream.records import ALL_KEYS, KeyRange, Microseconds
from shared.contracts.bigtable_options import BigtableOptions
from tests.fakes.bigtable_partitions import PartitionTable
from tests.fakes.bigtable_reader import FakePublisher, Topic
from tests.fakes.bigtable_resync import FakeResyncStore
from tests.fakes.bigtable_snapshots import FakeSnapshotStore, SnapshotTable
from tests.fakes.bigtable_table import EPOCH
from tests.unit.bigtable_reader.readings import image_maker

SOME = KeyRange(b"b", b"c")


def asked_for(
    before: Snapshot | None, ranges: Sequence[KeyRange] = (ALL_KEYS,), *, again: bool = True, whole: bool = True
) -> Snapshot:
    """Ask for ranges; there has to be something new."""
    after = requested(before, ranges, EPOCH, again=again, whole=whole)
    assert after is not None
    return after


def read(snapshot: Snapshot) -> Snapshot:
    """Read to the end what is left."""
    numbers = [part.number for part in snapshot.unfinished]
    owned = claimed(snapshot, numbers, len(numbers), "reader", lambda _part: True)
    assert owned is not None
    progress = [PartProgress(part, owned.run, b"x", EPOCH, 1, done=True) for part in owned.unfinished]
    after = advanced(owned, progress, release=False)
    assert after is not None
    return after


async def test_a_first_start_reads_all_rows_though_some_keys_were_asked_for_before_it() -> None:
    table = SnapshotTable()

    async def first_start() -> None:
        store = FakeSnapshotStore(table, "reader", timedelta(seconds=10))
        await request_initial_snapshot("weather", BigtableOptions(), store, EPOCH, wanted=True, mirrored=True)

    table.snapshot = asked_for(None, [SOME], whole=False)
    with structlog.testing.capture_logs() as logs:
        await first_start()
        assert table.snapshot.whole
        assert [part.range for part in table.snapshot.unfinished] == [ALL_KEYS]
        before = table.snapshot
        await first_start()  # it was killed before the stream was known
    assert table.snapshot is before
    assert [one["event"] for one in logs] == ["snapshot_requested", "snapshot_not_requested"]


@pytest.mark.parametrize("announced", [False, True])
def test_some_keys_are_read_beside_a_snapshot_whose_end_is_not_announced(announced: bool) -> None:
    whole = read(asked_for(None))
    if announced:
        whole = Snapshot(run=whole.run, requested_at=EPOCH, parts=whole.parts, whole=True, announced=True)
    beside = asked_for(whole, [SOME], whole=False)
    assert beside.whole is not announced
    assert (beside.run == whole.run) is not announced
    assert beside.complete_since is None
    assert (read(beside).complete_since is None) is announced


def test_what_was_cancelled_is_not_complete_though_nothing_is_left_to_read() -> None:
    asked = asked_for(None, [KeyRange(b"", b"m"), KeyRange(b"m", b"")])
    owned = claimed(asked, [0], 1, "reader", lambda _part: True)
    assert owned is not None
    begun = advanced(owned, [PartProgress(owned.parts[0], owned.run, b"x", EPOCH, 1, done=True)], release=False)
    ended = cancelled(begun)

    assert ended is not None
    assert not ended.unfinished
    assert (ended.complete_since, ended.unannounced) == (None, False)


def test_progress_under_an_earlier_claim_of_the_same_reader_is_not_saved() -> None:
    first = claimed(asked_for(None), [0], 1, "reader", lambda _part: True)
    assert first is not None
    second = claimed(first, [0], 1, "reader", lambda _part: True)
    progress = PartProgress(first.parts[0], first.run, b"x", EPOCH, 1, done=True)

    assert advanced(second, [progress], release=False) is None


@pytest.mark.parametrize(
    ("ranges", "announced"),
    [(["-"], True), (["-m", "m-"], True), (["-m"], False), (["m-"], False), (["-b", "c-"], False)],
)
async def test_the_end_of_one_that_leaves_out_keys_is_not_reported(ranges: Sequence[str], announced: bool) -> None:
    ends = BigtableSnapshotEnds(
        FakeSnapshotStore(SnapshotTable(), "reader", timedelta(seconds=10)),
        FakeResyncStore(PartitionTable()),
        MirroredRows(image_maker(), [ALL_KEYS]),
        FakePublisher(Topic()),
        automatic=False,
    )
    keys = [KeyRange(*(end.encode() for end in one.split("-"))) for one in ranges]
    assert ends.is_to_be_announced(read(asked_for(None, keys)), None) is announced


def test_what_it_is_complete_since_is_no_time_and_what_it_was_read_since_is_the_first_of_its_parts() -> None:
    ahead = EPOCH + 10**12
    owned = claimed(asked_for(None, [SOME, KeyRange(b"d", b"")]), [0, 1], 2, "r", lambda _part: True)
    assert owned is not None
    times = (Microseconds(EPOCH + 9), Microseconds(EPOCH + 7))
    progress = [
        PartProgress(part, owned.run, b"x", ahead, 1, True, at) for part, at in zip(owned.parts, times, strict=True)
    ]
    whole = advanced(owned, progress, release=False)
    assert whole is not None
    assert (whole.complete_since, whole.read_since) == (ahead, EPOCH + 7)


async def test_a_part_is_read_since_the_first_time_that_any_reader_read_of_it() -> None:
    def read_since_of(min_version: int | None, read_since: Microseconds | None) -> Microseconds | None:
        one = OwnedPart(1, SnapshotPart(number=0, range=SOME, min_version=min_version, read_since=read_since))
        one.reads_under(5, Microseconds(EPOCH + 5))
        one.reads_under(7, Microseconds(EPOCH + 7))
        return one.progress().read_since

    assert read_since_of(None, None) == EPOCH + 5
    assert read_since_of(9, Microseconds(EPOCH + 2)) == EPOCH + 2


@given(st.lists(st.integers(0, 50), max_size=30), st.integers(1, 100))
def test_no_part_is_smaller_than_it_is_worth_to_claim_one(sizes: Sequence[int], part_bytes: int) -> None:
    samples = [(b"%03d" % number, before) for number, before in enumerate(accumulate(sizes))]
    cuts = cuts_of([*samples, (b"", sum(sizes))], part_bytes)
    before = [0, *(dict(samples)[cut] for cut in cuts)]

    assert list(cuts) == sorted(cuts)
    assert all(later - one >= part_bytes for one, later in pairwise(before))
    assert sum(sizes) - before[-1] < part_bytes + max(sizes, default=0), "nor is any cut left out that is due"
