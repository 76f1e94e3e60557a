"""What a request makes of the snapshot that was asked for before: none is lost, and the end of none."""

from collections.abc import Sequence
from datetime import timedelta
from itertools import accumulate, pairwise

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from services.bigtable_reader.core.records import ALL_KEYS, KeyRange
from services.bigtable_reader.core.snapshot import PartProgress, Snapshot, advanced, claimed, cuts_of, requested
from services.bigtable_reader.first_snapshot import request_first_snapshot
from shared.contracts.bigtable_options import BigtableOptions
from tests.fakes.bigtable_snapshots import FakeSnapshotStore, SnapshotTable
from tests.fakes.bigtable_table import EPOCH
from tests.fakes.virtual_time import run_in_virtual_time

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
    held = claimed(snapshot, numbers, len(numbers), "reader", lambda _part: True)
    assert held is not None
    progress = [PartProgress(part, held.run, b"x", EPOCH, 1, done=True) for part in held.unfinished]
    after = advanced(held, progress, release=False)
    assert after is not None
    return after


def test_a_first_start_reads_all_rows_though_some_keys_were_asked_for_before_it() -> None:
    table = SnapshotTable()

    async def first_start() -> None:
        store = FakeSnapshotStore(table, "reader", timedelta(seconds=10), lambda: 0.0)
        await request_first_snapshot("weather", BigtableOptions(), store, EPOCH, wanted=True, mirrored=True)

    table.snapshot = asked_for(None, [SOME], whole=False)
    with structlog.testing.capture_logs() as logs:
        run_in_virtual_time(first_start())
        assert table.snapshot.whole
        assert [part.range for part in table.snapshot.unfinished] == [ALL_KEYS]
        before = table.snapshot
        run_in_virtual_time(first_start())  # it was killed before the stream was known
    assert table.snapshot is before
    assert [one["event"] for one in logs] == ["snapshot_requested", "snapshot_not_requested"]


@pytest.mark.parametrize("told", [False, True])
def test_some_keys_are_read_beside_a_snapshot_whose_end_is_not_told(told: bool) -> None:
    whole = read(asked_for(None))
    if told:
        whole = Snapshot(run=whole.run, requested_at=EPOCH, parts=whole.parts, whole=True, told=True)
    beside = asked_for(whole, [SOME], whole=False)
    assert beside.whole is not told
    assert (beside.run == whole.run) is not told
    assert beside.complete_since is None
    assert (read(beside).complete_since is None) is told


@given(st.lists(st.integers(0, 50), max_size=30), st.integers(1, 100))
def test_no_part_is_smaller_than_it_is_worth_to_claim_one(sizes: Sequence[int], part_bytes: int) -> None:
    samples = [(b"%03d" % number, before) for number, before in enumerate(accumulate(sizes))]
    cuts = cuts_of([*samples, (b"", sum(sizes))], part_bytes)
    before = [0, *(dict(samples)[cut] for cut in cuts)]

    assert list(cuts) == sorted(cuts)
    assert all(later - one >= part_bytes for one, later in pairwise(before))
    assert sum(sizes) - before[-1] < part_bytes + max(sizes, default=0), "nor is any cut left out that is due"
