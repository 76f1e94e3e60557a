"""What a PartitionStore promises, on the fake and on the partition table in the Bigtable emulator."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta

import pytest

from services.bigtable_reader.adapters.connection import Channels
from services.bigtable_reader.adapters.partition_rows import PartitionRows
from services.bigtable_reader.adapters.partition_schema import create_partition_table
from services.bigtable_reader.core.records import Microseconds, Position
from services.bigtable_reader.core.seen import Seen
from services.bigtable_reader.core.topology import Patience
from services.bigtable_reader.ports import PartitionStore, PositionLostError
from shared.contracts.errors import MisconfiguredError, TransientError
from tests.contract.bigtable_partitions import (
    LEASE,
    LONG,
    MINUTE,
    NO_PATIENCE,
    PARTITION_TABLE,
    Stores,
    a_store,
    a_stream,
    begun,
    child,
    pieces,
    reached,
    span,
    take,
    tokens,
    whole,
)
from tests.fakes.bigtable_partitions import FakePartitionStore, PartitionTable

NOON = 1_700_000_000_000_000


class PartitionStoreContract:
    """The promises. A subclass opens the stores."""

    def open(self) -> AbstractAsyncContextManager[Stores]:
        raise NotImplementedError

    def run(self, promise: Callable[[Stores], Awaitable[None]]) -> None:
        async def scenario() -> None:
            async with self.open() as stores:
                await promise(stores)

        asyncio.run(scenario())

    # The beginning

    def test_the_first_pieces_are_remembered_once(self) -> None:
        async def promise(stores: Stores) -> None:
            one, two = stores.open("one"), stores.open("two")
            assert (await one.survey()).pieces == ()
            now = (await one.survey()).now
            begun_by = await asyncio.gather(
                one.begin([span("-b"), span("b-")], now), two.begin([span("-c"), span("c-")], now)
            )
            assert sorted(begun_by) == [False, True]
            first = await pieces(one)
            assert first in (["-b:@", "b-:@"], ["-c:@", "c-:@"])
            assert not await two.begin([span("-")], now)
            survey = await whole(two)
            assert [piece.low_watermark for piece in survey.pieces] == [now, now]
            assert await pieces(two) == first

        self.run(promise)

    @pytest.mark.parametrize("ranges", [["-b"], ["-b", "c-"], ["-c", "b-"], []])
    def test_first_pieces_that_are_not_all_keys_are_not_begun_with(self, ranges: list[str]) -> None:
        async def promise(stores: Stores) -> None:
            one = stores.open("one")
            with pytest.raises(TransientError):
                await one.begin([span(each) for each in ranges], Microseconds(NOON))
            assert (await one.survey()).pieces == ()

        self.run(promise)

    def test_what_was_seen_of_the_table_is_kept_beside_the_pieces(self) -> None:
        async def promise(stores: Stores) -> None:
            one, two = stores.open("one"), stores.open("two")
            first, second = Seen(frozenset({"f", "g"}), frozenset()), Seen(frozenset({"g"}), frozenset({"c1"}))
            await one.remember(first)
            assert await one.seen() is None  # of no stream nothing is kept, and it can still be begun
            await begun(one, "-")
            assert await two.seen() is None
            for seen in (first, second):
                await one.remember(seen)
                assert await two.seen() == seen
            (held,) = await take(one, "a")
            await one.close(reached(held), [child("-b"), child("b-")])
            assert await two.seen() == second
            assert await pieces(two) == ["-b:-b", "b-:b-"]

        self.run(promise)

    def test_a_stream_of_another_table_is_refused(self) -> None:
        async def promise(stores: Stores) -> None:
            start = await begun(stores.open("one"), "-")
            other = stores.open("other", source="another")
            with pytest.raises(MisconfiguredError, match="CHANGE_STREAM_NAME"):
                await other.begin([span("-")], start)
            with pytest.raises(MisconfiguredError, match="CHANGE_STREAM_NAME"):
                await other.survey()

        self.run(promise)

    def test_stamps_of_a_new_life_begin_no_earlier_than_bigtables_clock(self) -> None:
        async def promise(stores: Stores) -> None:
            one = stores.open("one")
            before = (await one.survey()).now
            await begun(one, "-")
            (piece,) = (await whole(one)).pieces
            assert piece.floor >= before

        self.run(promise)

    # Claims and leases

    def test_a_claim_takes_what_is_free_and_raises_its_fence(self) -> None:
        async def promise(stores: Stores) -> None:
            one, two = stores.open("one"), stores.open("two")
            start = await begun(one, "-b", "b-")
            (claimed,) = await take(one, "a")
            assert (claimed.position, claimed.low_watermark, claimed.owner) == (Position(start=start), start, "one")
            assert claimed.floor == claimed.ceiling == claimed.piece.floor
            survey = await whole(two)
            assert [saved.owner for saved in survey.saved.values()] == ["one"]
            assert [saved.free for saved in survey.saved.values()] == [False]
            assert await two.claim([claimed.piece]) == []
            assert await two.claim([]) == []

        self.run(promise)

    def test_of_two_claims_at_once_one_is_granted(self) -> None:
        async def promise(stores: Stores) -> None:
            owners = [stores.open(f"{n}") for n in range(4)]
            await begun(owners[0], "-b", "b-d", "d-")
            surveys = [await owner.survey() for owner in owners]
            claims = await asyncio.gather(
                *(owner.claim(survey.pieces) for owner, survey in zip(owners, surveys, strict=True))
            )
            granted = [partition.piece.id for claim in claims for partition in claim]
            assert sorted(granted) == sorted(piece.id for piece in surveys[0].pieces)

        self.run(promise)

    def test_what_was_not_seen_unchanged_for_a_lease_is_not_taken_over(self) -> None:
        async def promise(stores: Stores) -> None:
            one, two = stores.open("one"), stores.open("two")
            await begun(one, "-")
            (held,) = await take(one, "a")
            stores.monotonic[0] += 100 * LEASE.total_seconds()  # nobody looked: it may have been renewed just now
            await two.survey()
            assert await two.claim([held.piece]) == []
            stores.monotonic[0] += LEASE.total_seconds() * 0.9
            assert await one.advance([reached(held)]) == frozenset()
            await two.survey()
            stores.monotonic[0] += LEASE.total_seconds() * 0.9
            await two.survey()
            assert await two.claim([held.piece]) == []

        self.run(promise)

    def test_an_expired_lease_is_taken_over_and_its_first_holder_can_write_nothing_more(self) -> None:
        async def promise(stores: Stores) -> None:
            one, two = stores.open("one"), stores.open("two")
            await begun(one, "-")
            (first,) = await take(one, "a")
            assert await one.advance([reached(first, minutes=1, ceiling=70, at="saved")]) == frozenset()
            await stores.let_leases_end(two)
            (second,) = await take(two, "a")
            assert second.fence == first.fence + 1
            assert second.position == Position((child("-", named="saved").token,))
            assert second.low_watermark == first.low_watermark + MINUTE
            assert second.floor == second.ceiling == first.floor + 70

            name = first.piece.id
            assert await one.advance([reached(first, minutes=9, ceiling=900, at="z")]) == {name}
            assert await one.advance([reached(first, minutes=9, ceiling=900, at="z")], release=True) == {name}
            assert not await one.close(reached(first, minutes=9), [child("-b"), child("b-")])
            saved = (await whole(two)).saved[name]
            assert (saved.owner, saved.fence, saved.state) == ("two", second.fence, "RUNNING")
            assert saved.low_watermark == second.low_watermark
            assert await two.advance([reached(second)], release=True) == frozenset()
            (third,) = await take(one, "a")
            assert (third.position, third.floor) == (second.position, second.floor)

        self.run(promise)

    def test_a_released_partition_is_free_at_once_and_goes_on_where_it_was_left(self) -> None:
        async def promise(stores: Stores) -> None:
            one, two = stores.open("one"), stores.open("two")
            await begun(one, "-")
            (held,) = await take(one, "a")
            assert await one.advance([reached(held, minutes=2, ceiling=50, at="left")], release=True) == frozenset()
            saved = (await whole(two)).saved[held.piece.id]
            assert (saved.owner, saved.free) == ("", True)
            (taken,) = await take(two, "a")
            assert taken.position == Position((child("-", named="left").token,))
            assert (taken.floor, taken.fence) == (held.floor + 50, held.fence + 1)
            assert await one.advance([reached(held, minutes=3)]) == {held.piece.id}

        self.run(promise)

    def test_what_is_in_ones_own_name_may_be_claimed_again_and_the_older_claim_is_over(self) -> None:
        async def promise(stores: Stores) -> None:
            one, two = stores.open("one"), stores.open("two")
            await begun(one, "-")
            (first,) = await take(one, "a")
            (second,) = await take(one, "a")
            assert second.fence == first.fence + 1
            assert await one.advance([reached(first, ceiling=900)]) == {first.piece.id}
            assert await one.advance([reached(second, ceiling=10)], release=True) == frozenset()
            (third,) = await take(two, "a")
            assert third.floor == first.floor + 10

        self.run(promise)

    def test_ceilings_and_low_watermarks_never_fall(self) -> None:
        async def promise(stores: Stores) -> None:
            one, two = stores.open("one"), stores.open("two")
            await begun(one, "-")
            (held,) = await take(one, "a")
            for minutes, ceiling in [(1, 100), (5, 300), (2, 200), (0, 0)]:
                assert await one.advance([reached(held, minutes=minutes, ceiling=ceiling)]) == frozenset()
            assert (await whole(one)).saved[held.piece.id].low_watermark == held.low_watermark + 5 * MINUTE
            await one.advance([reached(held)], release=True)
            (taken,) = await take(two, "a")
            assert taken.floor == held.floor + 300

        self.run(promise)

    def test_many_partitions_are_saved_together_and_each_is_lost_alone(self) -> None:
        async def promise(stores: Stores) -> None:
            one, two = stores.open("one"), stores.open("two")
            await begun(one, "-b", "b-d", "d-")
            held = await take(one, "a", "c", "e")
            assert await one.advance([]) == frozenset()
            await one.advance([reached(held[1])], release=True)
            await take(two, "c")
            assert await one.advance([reached(p, minutes=n) for n, p in enumerate(held)]) == {held[1].piece.id}
            saved = (await whole(one)).saved
            assert [saved[p.piece.id].low_watermark - p.low_watermark for p in held] == [0, 0, 2 * MINUTE]

        self.run(promise)

    def test_readers_are_counted_for_as_long_as_a_lease_lasts_or_until_they_leave(self) -> None:
        async def promise(stores: Stores) -> None:
            one, two = stores.open("one"), stores.open("two")
            assert (await one.survey()).readers == {"one"}
            assert (await two.survey()).readers == {"one", "two"}
            await two.leave()
            await two.leave()  # again: nothing
            assert (await one.survey()).readers == {"one"}
            await two.survey()
            await stores.let_leases_end(one)
            assert (await one.survey()).readers == {"one"}
            await two.survey()
            assert (await one.survey()).readers == {"one", "two"}

        self.run(promise)

    # Ends

    def test_a_split_is_carried_on_above_the_ceiling_and_is_closed_once(self) -> None:
        async def promise(stores: Stores) -> None:
            one, two = stores.open("one"), stores.open("two")
            await begun(one, "-c", "c-")
            (held,) = await take(one, "a")
            await one.advance([reached(held, ceiling=500)])
            end = reached(held, minutes=3, ceiling=20)
            assert await one.close(end, [child("-b"), child("b-c")])
            assert await pieces(two) == ["-b:-b", "b-c:b-c", "c-:@"]
            assert await one.close(end, [child("-b"), child("b-c")])  # again: nothing
            assert await one.advance([reached(held, minutes=9)]) == frozenset()  # on its way when it ended: not lost
            survey = await whole(two)
            assert survey.saved == {}
            assert [p.floor - held.floor for p in survey.pieces[:2]] == [500, 500]
            assert [p.low_watermark - held.low_watermark for p in survey.pieces] == [3 * MINUTE, 3 * MINUTE, 0]
            (born,) = await take(two, "b")
            assert (born.position, born.floor) == (tokens("b-c"), held.floor + 500)
            tended = await one.tend()
            assert (tended.split, tended.merged, tended.reconciled) == (1, 0, 0)
            again = await one.tend()
            assert (again.split, again.merged, again.reconciled) == (0, 0, 0)

        self.run(promise)

    def test_an_end_without_children_is_none(self) -> None:
        async def promise(stores: Stores) -> None:
            one = stores.open("one")
            await begun(one, "-")
            (held,) = await take(one, "a")
            with pytest.raises(ValueError, match="children"):
                await one.close(reached(held), [])
            assert await one.advance([reached(held)]) == frozenset()

        self.run(promise)

    def test_two_halves_of_a_merge_that_end_at_once_are_put_together_once(self) -> None:
        async def promise(stores: Stores) -> None:
            one, two = stores.open("one"), stores.open("two")
            await begun(one, "-b", "b-d", "d-")
            (left,) = await take(one, "a")
            (right,) = await take(two, "c")
            closed = await asyncio.gather(
                one.close(reached(left, minutes=5, ceiling=40), [child("-b", "-d")]),
                two.close(reached(right, minutes=4, ceiling=60), [child("b-d", "-d")]),
            )
            assert all(closed)
            tended = [await store.tend() for store in (one, two)]
            assert await pieces(one) == ["-d:-b,b-d", "d-:@"]
            assert sum(each.merged for each in tended) == 1
            (merged,) = await take(two, "b")
            assert merged.position == tokens("-b", "b-d")
            assert merged.floor == max(left.floor + 40, right.floor + 60)
            assert merged.low_watermark == left.low_watermark + 4 * MINUTE

        self.run(promise)

    def test_half_a_merge_waits_and_nobody_can_take_it(self) -> None:
        async def promise(stores: Stores) -> None:
            one, two = stores.open("one"), stores.open("two")
            await begun(one, "-b", "b-")
            (left,) = await take(one, "a")
            await one.close(reached(left), [child("-b", "-")])
            assert await pieces(two) == ["-b:-b -> -", "b-:@"]
            survey = await two.survey()
            assert [p.piece.range for p in await two.claim(survey.pieces)] == [span("b-")]
            assert (await two.tend()).reconciled == 0

        self.run(promise)

    def test_split_and_merged_back_the_range_is_another_piece(self) -> None:
        async def promise(stores: Stores) -> None:
            one = stores.open("one")
            await begun(one, "-")
            (first,) = await take(one, "a")
            await one.close(reached(first), [child("-b"), child("b-")])
            left, right = await take(one, "a", "b")
            await one.close(reached(left), [child("-b", "-")])
            await one.close(reached(right), [child("b-", "-")])
            (last,) = await take(one, "a")
            assert last.piece.range == first.piece.range
            assert last.piece.id != first.piece.id
            assert await one.close(reached(last, minutes=1), [child("-")]) is not False
            assert await one.advance([reached(first)]) == frozenset()  # ended long ago
            tended = await one.tend()
            assert (tended.split, tended.merged) == (1, 1)

        self.run(promise)

    # Reconciling

    def test_half_a_merge_that_waited_too_long_is_read_as_it_is(self) -> None:
        async def promise(stores: Stores) -> None:
            one = stores.open("one")
            two = stores.open("two", patience=Patience(merge=timedelta(), token=timedelta(days=1)))
            await begun(one, "-b", "b-d", "d-")
            (left, right) = await take(one, "a", "c")
            await one.close(reached(left, ceiling=30), [child("-b", "-d")])
            await one.close(reached(right), [child("b-c", "-c"), child("c-d")])  # never hears of -d
            assert await pieces(two) == ["-b:-b -> -d", "b-c:b-c -> -c", "c-d:c-d", "d-:@"]
            assert (await two.tend()).reconciled == 2
            assert await pieces(two) == ["-b:-b", "b-c:b-c", "c-d:c-d", "d-:@"]
            (again, other) = await take(two, "a", "b")
            assert (again.piece.reconciled, again.floor) == (True, left.floor + 30)
            await two.close(reached(again), [child("-b", "-c")])  # what is true now
            await two.close(reached(other), [child("b-c", "-c")])
            assert await pieces(two) == ["-c:-b,b-c", "c-d:c-d", "d-:@"]

        self.run(promise)

    def test_keys_that_no_child_names_wait_and_are_read_from_a_time_then(self) -> None:
        async def promise(stores: Stores) -> None:
            one = stores.open("one", patience=Patience(merge=timedelta(), token=timedelta(days=1)))
            two = stores.open("two", patience=NO_PATIENCE)
            start = await begun(one, "-")
            (held,) = await take(one, "a")
            await one.close(reached(held, minutes=90, ceiling=30), [child("b-c")])
            assert await pieces(one) == ["-b:", "b-c:b-c", "c-:"]
            assert [p.piece.range for p in await one.claim((await one.survey()).pieces)] == [span("b-c")]
            assert (await one.tend()).reconciled == 0
            assert await pieces(two) == ["-b:", "b-c:b-c", "c-:"]
            assert (await two.tend()).reconciled == 2
            (left,) = await take(two, "a")
            assert left.position == Position(start=Microseconds(start + 30 * MINUTE))
            assert left.floor == held.floor + 30

        self.run(promise)

    def test_a_part_of_a_partition_waits_again_with_its_tokens_and_is_put_together_with_the_rest(self) -> None:
        async def promise(stores: Stores) -> None:
            one, two = stores.open("one"), stores.open("two")
            await begun(one, "-b", "b-d", "d-")
            (left, right, last) = await take(one, "a", "b", "d")
            for wrong, target in ((reached(left, at="l"), "-b"), (reached(left, at="l"), "b-"), (reached(left), "-d")):
                with pytest.raises(ValueError, match="cannot wait"):
                    await one.wait_for(wrong, span(target))
            assert await one.wait_for(reached(left, ceiling=70, at="l"), span("-d"))
            assert await pieces(one) == ["-b:l -> -d", "b-d:@", "d-:@"]
            assert [piece.again for piece in (await whole(one)).pieces] == [1, 0, 0]
            assert await one.wait_for(reached(left, at="l"), span("-d"))  # said again
            assert await one.close(reached(right, ceiling=60), [child("b-d", "-d", "r")])
            assert await pieces(one) == ["-d:l,r", "d-:@"]
            (whole_again,) = await take(one, "a")
            assert (whole_again.floor, whole_again.piece.again) == (left.floor + 70, 0)

            await stores.let_leases_end(two)
            await take(two, "d")
            assert not await one.wait_for(reached(last, at="x"), span("b-"))
            assert await pieces(one) == ["-d:l,r", "d-:@"]

        self.run(promise)

    def test_a_restart_never_asks_for_what_was_before_the_stream(self) -> None:
        async def promise(stores: Stores) -> None:
            one = stores.open("one", patience=NO_PATIENCE)
            start = await begun(one, "-")
            (held,) = await take(one, "a")
            await one.close(reached(held, minutes=5), [child("-b")])
            await one.survey()
            await one.tend()
            (left,) = await take(one, "c")
            assert left.position == Position(start=start)

        self.run(promise)

    def test_changes_that_are_not_kept_any_more_are_not_skipped_in_silence(self) -> None:
        async def promise(stores: Stores) -> None:
            one = stores.open("one", patience=NO_PATIENCE)
            long_ago = Microseconds((await one.survey()).now - 8 * 24 * 60 * MINUTE)  # kept are seven days
            await one.begin([span("-")], long_ago)
            (held,) = await take(one, "a")
            await one.close(reached(held), [child("-b")])
            await one.survey()
            with pytest.raises(PositionLostError):
                await one.tend()
            assert await pieces(one) == ["-b:-b", "b-:"]

        self.run(promise)

    def test_what_was_reconciled_may_be_restarted_once_and_nothing_else_may(self) -> None:
        async def promise(stores: Stores) -> None:
            one, two = stores.open("one", patience=NO_PATIENCE), stores.open("two")
            start = await begun(one, "-b", "b-")
            (left, right) = await take(one, "a", "b")
            with pytest.raises(ValueError, match="reconciled"):
                await one.restart_from_time(right)
            await one.close(reached(left, minutes=61), [child("-b", "-")])
            await one.survey()
            await one.tend()
            (again,) = await take(one, "a")
            await one.advance([reached(again, ceiling=80)])
            restarted = await one.restart_from_time(again)
            assert restarted is not None
            assert restarted.position == Position(start=Microseconds(start + MINUTE))
            assert restarted.fence == again.fence
            with pytest.raises(PositionLostError):
                await one.restart_from_time(restarted)
            await stores.let_leases_end(two)
            (taken,) = await take(two, "a")
            assert (taken.position, taken.floor) == (restarted.position, again.floor + 80)
            assert await one.restart_from_time(again) is None
            assert await two.advance([reached(taken)]) == frozenset()

        self.run(promise)


class TestFakePartitionStore(PartitionStoreContract):
    @asynccontextmanager
    async def open(self) -> AsyncIterator[Stores]:
        ticks = itertools.count(NOON, 1_000)
        table = PartitionTable(lambda: Microseconds(next(ticks)))

        def store(owner: str, *, patience: Patience = LONG, source: str | None = None) -> PartitionStore:
            return FakePartitionStore(
                table, owner, LEASE, lambda: stores.monotonic[0], source=source or "t", patience=patience
            )

        stores = Stores(store)
        yield stores


class TestBigtablePartitionStore(PartitionStoreContract):
    @pytest.fixture(autouse=True)
    def _emulator(self, bigtable_emulator: str) -> None:
        self.address = bigtable_emulator

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Stores]:
        channels = Channels(self.address)
        stream = a_stream()

        def store(owner: str, *, patience: Patience = LONG, source: str | None = None) -> PartitionStore:
            return a_store(channels, stream, owner, stores.monotonic, patience=patience, source=source)

        stores = Stores(store)
        try:
            await create_partition_table(channels, PartitionRows(channels, PARTITION_TABLE, stream))
            yield stores
        finally:
            await channels.close()
