"""Which ranges are to be read as snapshots: the same for the fake and for Spanner."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta

import pytest

from deploy.local.platform.source import SpannerDatabase
from services.spanner_reader.adapters.snapshot.snapshot_table import SpannerSnapshotStore
from services.spanner_reader.core.snapshot.snapshot import (
    KeyText,
    RangeState,
    SnapshotRange,
    complete_snapshots,
    mergeable,
)
from services.spanner_reader.ports import DatabaseSnapshotStore, RangeProgress
from shared.contracts.timestamps import Nanoseconds, parse_timestamp
from tests.contract.spanner_tables import partition_table
from tests.fakes.snapshots import FakeSnapshotStore, SnapshotTable

NOON = parse_timestamp("2026-11-21T12:00:00Z")
LATER = Nanoseconds(NOON + 1_000)
KEYS = [KeyText('["10","é",null]'), KeyText('["20","\\"",1.5]')]
LEASE = timedelta(seconds=3)
WHOLE = ("Planes", 0)


@dataclass
class Both:
    """Two readers' views of one store, which is empty, and how to wait until a lease is over."""

    ours: DatabaseSnapshotStore
    theirs: DatabaseSnapshotStore
    pass_lease: Callable[[], Awaitable[None]]

    async def claimed(self, *others: str) -> SnapshotRange:
        """Ask for Planes, and for others; return what we have claimed: all of Planes."""
        await self.ours.request(["Planes", *others], NOON, again=False)
        (claimed,) = await self.ours.claim([WHOLE])
        return claimed

    async def cut(self, claimed: SnapshotRange) -> SnapshotRange:
        """Cut what we have claimed at the keys; return its first part."""
        first = await self.ours.cut(claimed, KEYS)
        assert first is not None
        return first


class SnapshotStoreContract:
    """What every store of snapshots promises."""

    async def test_what_is_asked_for_is_claimed_once_and_known_to_all(self, both: Both) -> None:
        assert (await both.ours.survey()).ranges == ()
        assert await both.ours.now() <= (await both.theirs.survey()).now <= await both.ours.now()
        assert await both.ours.request(["Planes", "Seats", "Planes"], NOON, again=False) == ["Planes", "Seats"]
        (planes, seats) = (await both.theirs.survey()).ranges
        assert (planes.place, planes.run, planes.read_at, planes.state) == (WHOLE, 1, NOON, RangeState.REQUESTED)
        (claimed,) = await both.ours.claim([WHOLE])
        assert (claimed.after, claimed.until, claimed.behind, claimed.rows) == (None, None, None, 0)
        assert await both.theirs.claim([WHOLE, ("Nothing", 0)]) == []
        (other,) = await both.theirs.claim([WHOLE, seats.place])
        assert other.place == seats.place

    async def test_one_that_is_there_is_kept_and_one_not_yet_begun_is_read_at_the_later_time(self, both: Both) -> None:
        await both.ours.request(["Planes"], LATER, again=False)
        assert await both.theirs.request(["Planes"], NOON, again=False) == []
        assert [one.read_at for one in (await both.ours.survey()).ranges] == [LATER]
        latest = Nanoseconds(LATER + 1_000)
        assert await both.theirs.request(["Planes"], latest, again=False) == []
        (one,) = await both.ours.claim([WHOLE])
        assert (one.read_at, one.first_read_at) == (latest, latest)
        await both.theirs.request(["Planes"], Nanoseconds(latest + 1_000), again=False)
        assert [one.read_at for one in (await both.ours.survey()).ranges] == [latest]

    async def test_requested_again_it_restarts_and_the_reader_of_the_one_before_has_lost_it(self, both: Both) -> None:
        claimed = await both.claimed()
        first = await both.cut(claimed)
        assert await both.theirs.request(["Planes"], LATER, again=True) == ["Planes"]
        assert await both.ours.save([RangeProgress(first, KEYS[0], 5, NOON)]) == {WHOLE}
        assert await both.ours.cut(claimed, KEYS) is None
        (one,) = (await both.theirs.survey()).ranges
        assert (one.place, one.run, one.state, one.last, one.rows) == (WHOLE, 2, RangeState.REQUESTED, None, 0)
        (again,) = await both.theirs.claim([WHOLE])
        assert (again.until, again.read_at) == (None, LATER)

    async def test_requested_again_with_an_earlier_time_it_is_read_no_earlier_than_the_one_before(
        self, both: Both
    ) -> None:
        await both.ours.request(["Planes"], LATER, again=True)
        assert await both.theirs.request(["Planes"], NOON, again=True) == ["Planes"]
        (one,) = (await both.ours.survey()).ranges
        assert (one.run, one.read_at, one.first_read_at) == (2, LATER, LATER)

    async def test_it_is_begun_again_for_a_resync_request_unless_one_is_read_or_is_later(self, both: Both) -> None:
        assert await both.ours.request_unless_since("Planes", NOON, LATER)
        assert not await both.theirs.request_unless_since("Planes", LATER, LATER), "one is read just now"
        await both.ours.cancel(["Planes"])
        assert not await both.ours.request_unless_since("Planes", LATER, Nanoseconds(NOON - 1))
        assert await both.theirs.request_unless_since("Planes", LATER, NOON)
        (one,) = (await both.ours.survey()).ranges
        assert (one.place, one.run, one.state, one.first_read_at) == (WHOLE, 2, RangeState.REQUESTED, LATER)

    async def test_its_parts_cover_it_and_are_free_but_for_the_first(self, both: Both) -> None:
        claimed = await both.claimed()
        first = await both.cut(claimed)
        assert (first.after, first.until, first.state) == (None, KEYS[0], RangeState.CUT)
        ranges = (await both.theirs.survey()).ranges
        assert [(one.after, one.until) for one in ranges] == [(None, KEYS[0]), tuple(KEYS), (KEYS[1], None)]
        others = await both.theirs.claim([one.place for one in ranges])
        assert [one.after for one in others] == KEYS
        assert await both.ours.cut(claimed, []) == (await both.ours.survey()).ranges[0]  # whose answer was lost

    async def test_progress_is_saved_released_and_taken_up_by_another(self, both: Both) -> None:
        claimed = await both.claimed()
        assert await both.ours.save([RangeProgress(claimed, KEYS[0], 7, LATER)]) == set()
        assert await both.theirs.claim([WHOLE]) == []
        assert await both.ours.save([RangeProgress(claimed, KEYS[1], 9, LATER)], release=True) == set()
        (theirs,) = await both.theirs.claim([WHOLE])
        assert (theirs.behind, theirs.rows, theirs.read_at, theirs.first_read_at) == (KEYS[1], 9, LATER, NOON)
        assert await both.ours.save([RangeProgress(claimed, KEYS[0], 1, NOON)]) == {WHOLE}
        assert await both.theirs.save([RangeProgress(theirs, KEYS[1], 9, LATER, done=True)]) == set()
        assert await both.ours.claim([WHOLE]) == []
        (done,) = (await both.ours.survey()).ranges
        assert (done.state, done.rows) == (RangeState.DONE, 9)
        assert theirs.finished_at is None
        assert done.finished_at is not None
        assert await both.theirs.save([RangeProgress(theirs, KEYS[0], 1, LATER)]) == set()
        assert (await both.ours.survey()).ranges == (done,)

    async def test_a_lease_that_ends_lets_another_go_on(self, both: Both) -> None:
        claimed = await both.claimed()
        await both.ours.save([RangeProgress(claimed, KEYS[0], 7, NOON)])
        await both.pass_lease()
        (theirs,) = await both.theirs.claim([WHOLE])
        assert (theirs.behind, theirs.rows) == (KEYS[0], 7)
        assert await both.ours.save([RangeProgress(claimed, KEYS[1], 9, NOON, done=True)]) == {WHOLE}

    async def test_some_keys_are_read_beside_the_whole_table_and_never_stand_for_it(self, both: Both) -> None:
        whole = await both.claimed()
        await both.theirs.request_keys("Planes", LATER, KEYS[0], KEYS[1])
        first, keys = (await both.ours.survey()).ranges
        assert first == whole  # and its claim goes on
        assert (keys.after, keys.until, keys.read_at, keys.state) == (*KEYS, LATER, RangeState.REQUESTED)
        (claimed,) = await both.theirs.claim([keys.place])
        cut = await both.theirs.cut(claimed, [])
        assert cut is not None
        assert (cut.after, cut.until) == tuple(KEYS)
        assert await both.theirs.save([RangeProgress(claimed, KEYS[1], 3, LATER, done=True)]) == set()
        assert list(complete_snapshots((await both.ours.survey()).ranges)) == []
        assert await both.ours.save([RangeProgress(whole, None, 9, NOON, done=True)]) == set()
        (complete,) = complete_snapshots((await both.ours.survey()).ranges)
        assert complete.since == NOON
        await both.ours.request_keys("Planes", LATER, None, KEYS[0])
        again = (await both.ours.survey()).ranges
        assert [(one.after, one.until) for one in again] == [(None, None), (None, KEYS[0])]
        assert len({one.run for one in again}) == 2
        await both.ours.request(["Planes"], LATER, again=True)
        assert [(one.after, one.until) for one in (await both.ours.survey()).ranges] == [(None, None)]

    async def test_ranges_that_are_read_to_their_ends_are_merged_and_nothing_is_lost(self, both: Both) -> None:
        claimed = await both.claimed("Seats")
        first = await both.cut(claimed)
        others = await both.ours.claim([("Planes", 1), ("Planes", 2)])
        done = [RangeProgress(one, None, 5, LATER, done=True) for one in (first, *others)]
        await both.ours.save(done[:2])
        before = (await both.ours.survey()).ranges
        await both.theirs.merge("Planes")
        assert (await both.ours.survey()).ranges == before, "something is left to read"
        await both.theirs.request_keys("Planes", LATER, KEYS[0], KEYS[1])
        await both.ours.save(done[2:])
        (complete,) = complete_snapshots((await both.ours.survey()).ranges)
        assert list(mergeable((await both.ours.survey()).ranges)) == ["Planes"]
        for _again in range(2):
            await both.theirs.merge("Planes")
            whole, keys, seats = (await both.ours.survey()).ranges
            assert list(complete_snapshots([whole, keys, seats])) == [complete]
            assert (whole.place, whole.rows, whole.after, whole.until) == (WHOLE, 15, None, None)
            assert (keys.after, seats.state) == (KEYS[0], RangeState.REQUESTED)
        assert list(mergeable((await both.ours.survey()).ranges)) == []
        assert not await both.ours.request_unless_since("Planes", LATER, Nanoseconds(NOON - 1))
        assert await both.ours.request(["Planes"], LATER, again=True) == ["Planes"]
        (again,) = await both.ours.claim([WHOLE])
        assert again.run > complete.run

    async def test_what_is_given_up_is_merged_and_stays_given_up(self, both: Both) -> None:
        claimed = await both.claimed()
        first = await both.cut(claimed)
        (second,) = await both.ours.claim([("Planes", 1)])
        await both.ours.save([RangeProgress(first, None, 5, NOON, done=True)])
        await both.theirs.cancel(["Planes"])
        await both.theirs.merge("Planes")
        (whole,) = (await both.ours.survey()).ranges
        assert (whole.place, whole.state, whole.rows) == (WHOLE, RangeState.CANCELLED, 5)
        assert await both.ours.save([RangeProgress(second, KEYS[1], 7, NOON)]) == {second.place}
        assert await both.ours.claim([WHOLE]) == []

    async def test_some_keys_do_not_keep_a_whole_table_from_being_asked_for(self, both: Both) -> None:
        await both.ours.request_keys("Planes", LATER, None, KEYS[0])
        (keys,) = (await both.ours.survey()).ranges
        assert not await both.theirs.request_unless_since("Planes", LATER, NOON)  # when that is read
        (claimed,) = await both.ours.claim([keys.place])
        await both.ours.save([RangeProgress(claimed, KEYS[0], 3, LATER, done=True)])
        assert await both.theirs.request_unless_since("Planes", LATER, NOON)
        assert [one.number for one in (await both.ours.survey()).ranges if one.until is None] == [0]

    async def test_what_is_cancelled_is_lost_to_its_reader_and_no_reader_claims_it(self, both: Both) -> None:
        claimed = await both.claimed("Seats")
        assert await both.theirs.cancel(["Planes", "Nothing"]) == ["Planes"]
        assert await both.theirs.cancel(["Planes"]) == []
        assert await both.ours.save([RangeProgress(claimed, KEYS[0], 7, NOON)]) == {WHOLE}
        assert [one.table for one in await both.ours.claim([WHOLE, ("Seats", 0)])] == ["Seats"]
        assert [one.state for one in (await both.ours.survey()).ranges] == [RangeState.CANCELLED, RangeState.REQUESTED]

    async def test_a_reader_gives_up_the_snapshot_it_reads_and_none_asked_for_since_or_beside(self, both: Both) -> None:
        late = await both.claimed("Seats")
        await both.theirs.request(["Planes"], LATER, again=True)
        before = (await both.ours.survey()).ranges
        assert not await both.ours.give_up(late)
        assert (await both.ours.survey()).ranges == before
        (claimed,) = await both.ours.claim([WHOLE])
        first = await both.cut(claimed)
        await both.theirs.request_keys("Planes", LATER, KEYS[0], KEYS[1])
        others = await both.theirs.claim([("Planes", 1)])
        assert await both.ours.save([RangeProgress(first, KEYS[0], 7, LATER, done=True)]) == set()
        assert not await both.ours.give_up(others[0]), "it is theirs"
        assert await both.theirs.give_up(others[0])
        assert not await both.theirs.give_up(others[0]), "it was given up"
        of = {one.place: one.state for one in (await both.ours.survey()).ranges}
        assert [of["Planes", number] for number in range(3)] == [RangeState.DONE, *[RangeState.CANCELLED] * 2]
        assert of["Planes", 3] is of["Seats", 0] is RangeState.REQUESTED


class TestFakeSnapshotStore(SnapshotStoreContract):
    @pytest.fixture
    def both(self) -> Both:
        table = SnapshotTable()

        async def pass_lease() -> None:
            table.clock.step(2 * LEASE)

        return Both(FakeSnapshotStore(table, "o", LEASE), FakeSnapshotStore(table, "t", LEASE), pass_lease)


@pytest.mark.integration
class TestSpannerSnapshotStore(SnapshotStoreContract):
    @pytest.fixture(params=["GoogleSQL", "PostgreSQL"])
    @asynccontextmanager
    async def both(
        self, request: pytest.FixtureRequest, database: Callable[..., SpannerDatabase]
    ) -> AsyncIterator[Both]:
        async def pass_lease() -> None:
            await asyncio.sleep(LEASE.total_seconds() + 0.1)  # a lease ends by Spanner's clock, which no test can set

        async with partition_table(database(postgresql=request.param == "PostgreSQL")) as shared:
            ours, theirs = (SpannerSnapshotStore(shared, "p", owner=owner, lease=LEASE) for owner in ("o", "t"))
            yield Both(ours, theirs, pass_lease)
