"""How key ranges end in a partition table, and what follows: splits, merges, reconciling; on fake and emulator."""

import asyncio
from datetime import timedelta

import pytest

from services.bigtable_reader.core.schema.seen import InspectedTable
from services.bigtable_reader.core.stream.records import Microseconds, Position
from services.bigtable_reader.core.stream.topology import MergeTimeouts
from services.bigtable_reader.ports import PositionLostError
from tests.contract.bigtable_partitions import (
    MINUTE,
    ZERO_TIMEOUTS,
    Stores,
    begun,
    child,
    reached,
    span,
    stream_ranges,
    take,
    tokens,
    whole,
)
from tests.contract.bigtable_stores import InEmulator, InMemory


class PartitionEndsContract:
    """The promises of splits, merges and what is reconciled."""

    # Ends

    async def test_a_split_is_carried_on_above_the_reserved_limit_and_is_closed_once(self, stores: Stores) -> None:
        one, two, owned = await stores.holding("-c", "c-")
        await one.advance([reached(owned, reserved_up_to=500)])
        end = reached(owned, minutes=3, reserved_up_to=20)
        assert await one.close(end, [child("-b"), child("b-c")])
        assert await stream_ranges(two) == ["-b:-b", "b-c:b-c", "c-:@"]
        assert await one.close(end, [child("-b"), child("b-c")])  # again: nothing
        assert await one.advance([reached(owned, minutes=9)]) == frozenset()  # on its way when it ended: not lost
        survey = await whole(two)
        assert survey.saved == {}
        assert [p.min_version - owned.min_version for p in survey.stream_ranges[:2]] == [20, 20], (
            "what was reserved is free"
        )
        assert [p.low_watermark - owned.low_watermark for p in survey.stream_ranges] == [3 * MINUTE, 3 * MINUTE, 0]
        (born,) = await take(two, "b")
        assert (born.position, born.min_version) == (tokens("b-c"), owned.min_version + 20)
        tended = await one.tend()
        assert (tended.split, tended.merged, tended.reconciled) == (1, 0, 0)
        again = await one.tend()
        assert (again.split, again.merged, again.reconciled) == (0, 0, 0)

    async def test_an_end_without_children_is_none(self, stores: Stores) -> None:
        one, _two, owned = await stores.holding("-")
        with pytest.raises(ValueError, match="children"):
            await one.close(reached(owned), [])
        assert await one.advance([reached(owned)]) == frozenset()

    async def test_two_halves_of_a_merge_that_end_at_once_are_put_together_once(self, stores: Stores) -> None:
        one, two, left = await stores.holding("-b", "b-d", "d-")
        (right,) = await take(two, "c")
        closed = await asyncio.gather(
            one.close(reached(left, minutes=5, reserved_up_to=40), [child("-b", "-d")]),
            two.close(reached(right, minutes=4, reserved_up_to=60), [child("b-d", "-d")]),
        )
        assert all(closed)
        tended = [await store.tend() for store in (one, two)]
        assert await stream_ranges(one) == ["-d:-b,b-d", "d-:@"]
        assert sum(each.merged for each in tended) == 1
        (merged,) = await take(two, "b")
        assert merged.position == tokens("-b", "b-d")
        assert merged.min_version == max(left.min_version + 40, right.min_version + 60)
        assert merged.low_watermark == left.low_watermark + 4 * MINUTE

    async def test_half_a_merge_waits_and_no_reader_can_claim_it(self, stores: Stores) -> None:
        one, two, left = await stores.holding("-b", "b-")
        await one.close(reached(left), [child("-b", "-")])
        assert await stream_ranges(two) == ["-b:-b -> -", "b-:@"]
        survey = await two.survey()
        assert [p.stream_range.range for p in await two.claim(survey.stream_ranges)] == [span("b-")]
        assert (await two.tend()).reconciled == 0

    async def test_split_and_merged_back_the_range_is_another_stream_range(self, stores: Stores) -> None:
        one, _two, first = await stores.holding("-")
        await one.close(reached(first), [child("-b"), child("b-")])
        left, right = await take(one, "a", "b")
        await one.close(reached(left), [child("-b", "-")])
        await one.close(reached(right), [child("b-", "-")])
        (last,) = await take(one, "a")
        assert last.stream_range.range == first.stream_range.range
        assert last.stream_range.id != first.stream_range.id
        assert await one.close(reached(last, minutes=1), [child("-")]) is not False
        assert await one.advance([reached(first)]) == frozenset()  # ended long ago
        tended = await one.tend()
        assert (tended.split, tended.merged) == (1, 1)

    # Reconciling

    async def test_half_a_merge_that_waited_too_long_is_read_as_it_is(self, stores: Stores) -> None:
        one = stores.open("one")
        two = stores.open("two", timeouts=MergeTimeouts(merge=timedelta(), token=timedelta(days=1)))
        await begun(one, "-b", "b-d", "d-")
        (left, right) = await take(one, "a", "c")
        await one.close(reached(left, reserved_up_to=30), [child("-b", "-d")])
        await one.close(reached(right), [child("b-c", "-c"), child("c-d")])  # never hears of -d
        assert await stream_ranges(two) == ["-b:-b -> -d", "b-c:b-c -> -c", "c-d:c-d", "d-:@"]
        assert (await two.tend()).reconciled == 2
        assert await stream_ranges(two) == ["-b:-b", "b-c:b-c", "c-d:c-d", "d-:@"]
        (again, other) = await take(two, "a", "b")
        assert (again.stream_range.reconciled, again.min_version) == (True, left.min_version + 30)
        await two.close(reached(again), [child("-b", "-c")])  # what is true now
        await two.close(reached(other), [child("b-c", "-c")])
        assert await stream_ranges(two) == ["-c:-b,b-c", "c-d:c-d", "d-:@"]

    async def test_keys_that_no_child_names_wait_and_are_read_from_a_time_then(self, stores: Stores) -> None:
        one = stores.open("one", timeouts=MergeTimeouts(merge=timedelta(), token=timedelta(days=1)))
        two = stores.open("two", timeouts=ZERO_TIMEOUTS)
        start = await begun(one, "-")
        (owned,) = await take(one, "a")
        await one.close(reached(owned, minutes=90, reserved_up_to=30), [child("b-c")])
        assert await stream_ranges(one) == ["-b:", "b-c:b-c", "c-:"]
        assert [p.stream_range.range for p in await one.claim((await one.survey()).stream_ranges)] == [span("b-c")]
        assert (await one.tend()).reconciled == 0
        assert await stream_ranges(two) == ["-b:", "b-c:b-c", "c-:"]
        assert (await two.tend()).reconciled == 2
        (left,) = await take(two, "a")
        assert left.position == Position(start=Microseconds(start + 30 * MINUTE))
        assert left.min_version == owned.min_version + 30

    async def test_a_part_of_a_partition_waits_again_with_its_tokens_and_joins_the_rest(self, stores: Stores) -> None:
        one, two = stores.open("one"), stores.open("two")
        await begun(one, "-b", "b-d", "d-")
        (left, right, last) = await take(one, "a", "b", "d")
        for wrong, target in ((reached(left, at="l"), "-b"), (reached(left, at="l"), "b-"), (reached(left), "-d")):
            with pytest.raises(ValueError, match="cannot wait"):
                await one.wait_for(wrong, span(target))
        assert await one.wait_for(reached(left, reserved_up_to=70, at="l"), span("-d"))
        assert await stream_ranges(one) == ["-b:l -> -d", "b-d:@", "d-:@"]
        assert [stream_range.again for stream_range in (await whole(one)).stream_ranges] == [1, 0, 0]
        assert await one.wait_for(reached(left, at="l"), span("-d"))  # said again
        assert await one.close(reached(right, reserved_up_to=60), [child("b-d", "-d", "r")])
        assert await stream_ranges(one) == ["-d:l,r", "d-:@"]
        (whole_again,) = await take(one, "a")
        assert (whole_again.min_version, whole_again.stream_range.again) == (left.min_version + 70, 0)

        await stores.let_leases_end(two)
        await take(two, "d")
        assert not await one.wait_for(reached(last, at="x"), span("b-"))
        assert await stream_ranges(one) == ["-d:l,r", "d-:@"]

    async def test_a_restart_never_asks_for_what_was_before_the_stream(self, stores: Stores) -> None:
        one = stores.open("one", timeouts=ZERO_TIMEOUTS)
        start = await begun(one, "-")
        (owned,) = await take(one, "a")
        await one.close(reached(owned, minutes=5), [child("-b")])
        await one.survey()
        await one.tend()
        (left,) = await take(one, "c")
        assert left.position == Position(start=start)

    async def test_changes_that_are_not_kept_any_more_are_not_skipped_in_silence(self, stores: Stores) -> None:
        one = stores.open("one", timeouts=ZERO_TIMEOUTS)
        long_ago = Microseconds((await one.survey()).now - 8 * 24 * 60 * MINUTE)  # kept are seven days
        await one.begin([span("-")], long_ago)
        (owned,) = await take(one, "a")
        await one.close(reached(owned), [child("-b")])
        await one.survey()
        with pytest.raises(PositionLostError):
            await one.tend()
        assert await stream_ranges(one) == ["-b:-b", "b-:"]

    async def test_a_retention_that_was_seen_to_be_shorter_holds_from_then_on(self, stores: Stores) -> None:
        one = stores.open("one", timeouts=ZERO_TIMEOUTS)
        long_ago = Microseconds((await one.survey()).now - 2 * 24 * 60 * MINUTE)
        await one.begin([span("-")], long_ago)
        (owned,) = await take(one, "a")
        await one.close(reached(owned), [child("-b")])
        await one.survey()
        await one.remember(InspectedTable(frozenset({"f"}), frozenset(), retention=86_400))
        with pytest.raises(PositionLostError):
            await one.tend()
        await one.remember(InspectedTable(frozenset({"f"}), frozenset(), retention=7 * 86_400))
        await one.survey()
        await one.tend()
        assert await stream_ranges(one) == ["-b:-b", "b-:@"]

    async def test_what_was_reconciled_may_be_restarted_once_and_nothing_else_may(self, stores: Stores) -> None:
        one, two = stores.open("one", timeouts=ZERO_TIMEOUTS), stores.open("two")
        start = await begun(one, "-b", "b-")
        (left, right) = await take(one, "a", "b")
        with pytest.raises(ValueError, match="reconciled"):
            await one.restart_from_time(right)
        await one.close(reached(left, minutes=61), [child("-b", "-")])
        await one.survey()
        await one.tend()
        (again,) = await take(one, "a")
        await one.advance([reached(again, reserved_up_to=80)])
        restarted = await one.restart_from_time(again)
        assert restarted is not None
        assert restarted.position == Position(start=Microseconds(start + MINUTE))
        assert restarted.fence == again.fence
        with pytest.raises(PositionLostError):
            await one.restart_from_time(restarted)
        await stores.let_leases_end(two)
        (taken,) = await take(two, "a")
        assert (taken.position, taken.min_version) == (restarted.position, again.min_version + 80)
        assert await one.restart_from_time(again) is None
        assert await two.advance([reached(taken)]) == frozenset()


class TestFakePartitionStore(InMemory, PartitionEndsContract):
    """In memory."""


class TestBigtablePartitionStore(InEmulator, PartitionEndsContract):
    """In the emulator."""
