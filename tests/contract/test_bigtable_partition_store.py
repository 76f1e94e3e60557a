"""What a PartitionStore promises, on the fake and on the partition table in the Bigtable emulator."""

import asyncio

import pytest
from msgspec.structs import replace

from services.bigtable_reader.core.schema.seen import InspectedTable
from services.bigtable_reader.core.stream.records import Microseconds, Position
from shared.contracts.errors import MisconfiguredError, TransientError
from tests.contract.bigtable_partitions import (
    LEASE,
    MINUTE,
    Stores,
    begun,
    child,
    reached,
    span,
    stream_ranges,
    take,
    whole,
)
from tests.contract.bigtable_stores import NOON, InEmulator, InMemory


class PartitionStoreContract:
    """The promises of beginnings, leases and readers."""

    # The beginning

    async def test_the_first_stream_ranges_are_remembered_once(self, stores: Stores) -> None:
        one, two = stores.open("one"), stores.open("two")
        assert (await one.survey()).stream_ranges == ()
        now = (await one.survey()).now
        begun_by = await asyncio.gather(
            one.begin([span("-b"), span("b-")], now), two.begin([span("-c"), span("c-")], now)
        )
        assert sorted(begun_by) == [False, True]
        first = await stream_ranges(one)
        assert first in (["-b:@", "b-:@"], ["-c:@", "c-:@"])
        assert not await two.begin([span("-")], now)
        survey = await whole(two)
        assert [stream_range.low_watermark for stream_range in survey.stream_ranges] == [now, now]
        assert await stream_ranges(two) == first

    @pytest.mark.parametrize("ranges", [["-b"], ["-b", "c-"], ["-c", "b-"], []])
    async def test_first_stream_ranges_have_to_be_all_keys(self, ranges: list[str], stores: Stores) -> None:
        one = stores.open("one")
        with pytest.raises(TransientError):
            await one.begin([span(each) for each in ranges], Microseconds(NOON))
        assert (await one.survey()).stream_ranges == ()

    async def test_what_was_seen_of_the_table_is_kept_beside_the_stream_ranges(self, stores: Stores) -> None:
        one, two = stores.open("one"), stores.open("two")
        first, second = (
            InspectedTable(frozenset({"f", "g"}), frozenset()),
            InspectedTable(frozenset({"g"}), frozenset({"c1"})),
        )
        await one.remember(first)
        assert await one.seen() is None  # of no stream nothing is kept, and it can still be begun
        await begun(one, "-")
        assert await two.seen() is None
        for seen in (first, second):
            await one.remember(seen)
            assert await two.seen() == seen
        (owned,) = await take(one, "a")
        await one.close(reached(owned), [child("-b"), child("b-")])
        assert await two.seen() == second
        assert await stream_ranges(two) == ["-b:-b", "b-:b-"]

    async def test_a_stream_is_paused_for_everybody_until_it_is_resumed(self, stores: Stores) -> None:
        one, two = stores.open("one"), stores.open("two")
        with pytest.raises(MisconfiguredError):
            await one.pause()  # nothing is known of it
        await begun(one, "-")
        assert (await two.survey()).paused_since is None
        assert not await two.resume()
        assert await one.pause()
        assert not await two.pause()
        paused = await two.survey()
        assert paused.paused_since is not None
        assert paused.paused_since <= (await one.survey()).now
        (owned,) = await take(one, "a")  # a reader that has not heard of it goes on, and what it saves counts
        assert await one.advance([reached(owned, minutes=1)]) == frozenset()
        await one.close(reached(owned, minutes=2), [child("-b"), child("b-")])
        assert (await two.survey()).paused_since == paused.paused_since
        assert await two.resume()
        assert not await one.resume()
        assert (await one.survey()).paused_since is None
        assert await stream_ranges(two) == ["-b:-b", "b-:b-"]

    async def test_a_stream_of_another_table_is_refused(self, stores: Stores) -> None:
        start = await begun(stores.open("one"), "-")
        other = stores.open("other", source="another")
        with pytest.raises(MisconfiguredError, match="CHANGE_STREAM_NAME"):
            await other.begin([span("-")], start)
        with pytest.raises(MisconfiguredError, match="CHANGE_STREAM_NAME"):
            await other.survey()

    async def test_versions_of_a_new_life_begin_no_earlier_than_bigtables_clock(self, stores: Stores) -> None:
        one = stores.open("one")
        before = (await one.survey()).now
        await begun(one, "-")
        (stream_range,) = (await whole(one)).stream_ranges
        assert stream_range.min_version >= before

    # Claims and leases

    async def test_a_claim_takes_what_is_free_and_raises_its_fence(self, stores: Stores) -> None:
        one, two = stores.open("one"), stores.open("two")
        start = await begun(one, "-b", "b-")
        (claimed,) = await take(one, "a")
        assert (claimed.position, claimed.low_watermark, claimed.owner) == (Position(start=start), start, "one")
        assert claimed.min_version == claimed.reserved_up_to == claimed.stream_range.min_version
        survey = await whole(two)
        assert [saved.owner for saved in survey.saved.values()] == ["one"]
        assert [saved.free for saved in survey.saved.values()] == [False]
        assert await two.claim([claimed.stream_range]) == []
        assert await two.claim([]) == []

    async def test_of_two_claims_at_once_one_is_granted(self, stores: Stores) -> None:
        owners = [stores.open(f"{n}") for n in range(4)]
        await begun(owners[0], "-b", "b-d", "d-")
        surveys = [await owner.survey() for owner in owners]
        claims = await asyncio.gather(
            *(owner.claim(survey.stream_ranges) for owner, survey in zip(owners, surveys, strict=True))
        )
        granted = [partition.stream_range.id for claim in claims for partition in claim]
        assert sorted(granted) == sorted(stream_range.id for stream_range in surveys[0].stream_ranges)

    async def test_what_was_not_seen_unchanged_for_a_lease_is_not_taken_over(self, stores: Stores) -> None:
        one, two, owned = await stores.holding("-")
        stores.monotonic[0] += 100 * LEASE.total_seconds()  # no reader looked: it may have been renewed just now
        await two.survey()
        assert await two.claim([owned.stream_range]) == []
        stores.monotonic[0] += LEASE.total_seconds() * 0.9
        assert await one.advance([reached(owned)]) == frozenset()
        await two.survey()
        stores.monotonic[0] += LEASE.total_seconds() * 0.9
        await two.survey()
        assert await two.claim([owned.stream_range]) == []

    async def test_an_expired_lease_is_taken_over_and_its_first_owner_writes_nothing_more(self, stores: Stores) -> None:
        one, two, first = await stores.holding("-")
        assert await one.advance([reached(first, minutes=1, reserved_up_to=70, at="saved")]) == frozenset()
        await stores.let_leases_end(two)
        (second,) = await take(two, "a")
        assert second.fence == first.fence + 1
        assert second.position == Position((child("-", named="saved").token,))
        assert second.low_watermark == first.low_watermark + MINUTE
        assert second.min_version == second.reserved_up_to == first.min_version + 70

        name = first.stream_range.id
        assert await one.advance([reached(first, minutes=9, reserved_up_to=900, at="z")]) == {name}
        assert await one.advance([reached(first, minutes=9, reserved_up_to=900, at="z")], release=True) == {name}
        assert not await one.close(reached(first, minutes=9), [child("-b"), child("b-")])
        saved = (await whole(two)).saved[name]
        assert (saved.owner, saved.fence, saved.state) == ("two", second.fence, "RUNNING")
        assert saved.low_watermark == second.low_watermark
        assert await two.advance([reached(second)], release=True) == frozenset()
        (third,) = await take(one, "a")
        assert (third.position, third.min_version) == (second.position, second.min_version)

    async def test_a_released_partition_is_free_at_once_and_goes_on_where_it_was_left(self, stores: Stores) -> None:
        one, two, owned = await stores.holding("-")
        assert await one.advance([reached(owned, minutes=2, reserved_up_to=50, at="left")], release=True) == frozenset()
        saved = (await whole(two)).saved[owned.stream_range.id]
        assert (saved.owner, saved.free) == ("", True)
        (taken,) = await take(two, "a")
        assert taken.position == Position((child("-", named="left").token,))
        assert (taken.min_version, taken.fence) == (owned.min_version + 50, owned.fence + 1)
        assert await one.advance([reached(owned, minutes=3)]) == {owned.stream_range.id}

    async def test_an_owner_may_claim_its_own_again_and_the_older_claim_is_over(self, stores: Stores) -> None:
        one, two, first = await stores.holding("-")
        (second,) = await take(one, "a")
        assert second.fence == first.fence + 1
        assert await one.advance([reached(first, reserved_up_to=900)]) == {first.stream_range.id}
        assert await one.advance([reached(second, reserved_up_to=10)], release=True) == frozenset()
        (third,) = await take(two, "a")
        assert third.min_version == first.min_version + 10

    async def test_reserved_limits_and_low_watermarks_never_fall(self, stores: Stores) -> None:
        one, two, owned = await stores.holding("-")
        for minutes, reserved_up_to in [(1, 100), (5, 300), (2, 200), (0, 0)]:
            assert await one.advance([reached(owned, minutes=minutes, reserved_up_to=reserved_up_to)]) == frozenset()
        assert (await whole(one)).saved[owned.stream_range.id].low_watermark == owned.low_watermark + 5 * MINUTE
        await stores.let_leases_end(two)
        (taken,) = await take(two, "a")
        assert taken.min_version == owned.min_version + 300

    async def test_versions_reserved_above_the_last_are_free_once_a_partition_is_released(self, stores: Stores) -> None:
        one, two, owned = await stores.holding("-")
        await one.advance([replace(reached(owned, reserved_up_to=300), min_version=owned.min_version + 40)])
        await one.advance([reached(owned, reserved_up_to=50)], release=True)
        saved = (await whole(two)).saved[owned.stream_range.id]
        assert (saved.min_version, saved.reserved_up_to) == (owned.min_version + 50, owned.min_version + 50)
        (taken,) = await take(two, "a")
        assert taken.min_version == taken.reserved_up_to == owned.min_version + 50
        await two.advance([replace(reached(taken, reserved_up_to=300), min_version=taken.min_version + 40)])
        await two.close(reached(taken), [child("-b"), child("b-")])
        assert {stream_range.min_version for stream_range in (await whole(one)).stream_ranges} == {
            taken.min_version + 40
        }, "nor does a minimum version fall"

    async def test_many_partitions_are_saved_together_and_each_is_lost_alone(self, stores: Stores) -> None:
        one, two = stores.open("one"), stores.open("two")
        await begun(one, "-b", "b-d", "d-")
        owned = await take(one, "a", "c", "e")
        assert await one.advance([]) == frozenset()
        await one.advance([reached(owned[1])], release=True)
        await take(two, "c")
        assert await one.advance([reached(p, minutes=n) for n, p in enumerate(owned)]) == {owned[1].stream_range.id}
        saved = (await whole(one)).saved
        assert [saved[p.stream_range.id].low_watermark - p.low_watermark for p in owned] == [0, 0, 2 * MINUTE]

    async def test_readers_are_counted_for_as_long_as_a_lease_lasts_or_until_they_leave(self, stores: Stores) -> None:
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


class TestFakePartitionStore(InMemory, PartitionStoreContract):
    """In memory."""


class TestBigtablePartitionStore(InEmulator, PartitionStoreContract):
    """In the emulator."""
