"""The partition table in the Bigtable emulator where requests fail, replies are lost, processes die and wake up.

A kill is at a request: it was not sent, or was answered to nobody. After it another replica goes on.
"""

from collections.abc import Callable
from contextlib import suppress

import pytest

from services.bigtable_reader.core.stream.partitions import BigtablePartition
from shared.contracts.errors import TransientError
from tests.contract.bigtable_partitions import (
    MINUTE,
    KilledError,
    When,
    begun,
    child,
    reached,
    span,
    stream_ranges,
    take,
    until_known,
    whole,
)
from tests.contract.bigtable_rigs import CHILDREN, RESERVED, Rig, Run, holding

# Killed at each request


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_each_request_of_an_end_another_replica_finishes_it(run: Run, when: When) -> None:
    async def scenario(make: Callable[[], Rig]) -> None:
        rig = make()
        store, channels = rig.owner("counts")
        held = await holding(rig, store)
        channels.restart_counting()
        assert await store.close(reached(held), CHILDREN)
        requests = list(channels.requests)
        # decide on the partition's row; read the key ranges, replace them, see that nothing is left to do; tidy up
        assert requests == ["CheckAndMutateRow", "ReadRows", "CheckAndMutateRow", "ReadRows", "CheckAndMutateRow"]
        for number in range(1, len(requests) + 1):
            await check_a_kill(make(), number, number == len(requests))

    async def check_a_kill(rig: Rig, number: int, last: bool) -> None:
        dying, channels = rig.owner("dies", kills=True)
        held = await holding(rig, dying)
        channels.restart_counting({number: when})
        with pytest.raises(KilledError):
            await dying.close(reached(held, reserved_up_to=RESERVED), CHILDREN)
        well = rig.well()
        decided = (number, when) != (1, "before")
        await rig.stores.let_leases_end(well)
        survey = await whole(well)
        assert any(saved.state == "CLOSING" for saved in survey.saved.values()) == (
            decided and (number, when) != (5, "after")
        )
        await well.tend()
        if not decided:  # nothing was: the partition goes on where it was, and ends in other hands
            (taken,) = await take(well, "a")
            assert (taken.position.tokens[0].token, taken.min_version) == ("saved", held.min_version + RESERVED)
            await well.close(reached(taken), CHILDREN)
        assert await stream_ranges(well) == ["-b:-b", "b-c:b-c", "c-:@"]
        survey = await whole(well)
        assert survey.saved == {}
        assert [stream_range.min_version - held.min_version for stream_range in survey.stream_ranges[:2]] == [
            RESERVED,
            RESERVED,
        ]
        assert {p.stream_range.range for p in await well.claim(survey.stream_ranges)} == {
            span("-b"),
            span("b-c"),
            span("c-"),
        }

    run(scenario)


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_each_request_while_rolling_another_replicas_end_forward(run: Run, when: When) -> None:
    async def scenario(make: Callable[[], Rig]) -> None:
        number = 0
        while True:
            number += 1
            rig = make()
            first, first_channels = rig.owner("first", kills=True)
            second, channels = rig.owner("second", kills=True)
            held = await holding(rig, first)
            first_channels.restart_counting({1: "after"})
            with pytest.raises(KilledError):
                await first.close(reached(held), CHILDREN)
            channels.restart_counting({number: when})
            try:
                await second.survey()
                await second.tend()
                killed = False
            except KilledError:
                killed = True
            third = rig.well()
            await third.survey()
            await third.tend()
            assert await stream_ranges(third) == ["-b:-b", "b-c:b-c", "c-:@"]
            assert (await whole(third)).saved == {}
            if not killed:
                break
        assert number > 6  # survey, read, replace, read, read, tidy up

    run(scenario)


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_each_request_of_the_second_half_of_a_merge(run: Run, when: When) -> None:
    async def scenario(make: Callable[[], Rig]) -> None:
        for number in range(1, 6):
            rig = make()
            well, (dying, channels) = rig.well(), rig.owner("dies", kills=True)
            await begun(well, "-b", "b-d", "d-")
            (left,) = await take(well, "a")
            (right,) = await take(dying, "c")
            await dying.advance([reached(right, reserved_up_to=RESERVED)])
            await well.close(reached(left, reserved_up_to=20), [child("-b", "-d")])
            channels.restart_counting({number: when})
            with pytest.raises(KilledError):
                await dying.close(reached(right, reserved_up_to=RESERVED), [child("b-d", "-d")])
            await rig.stores.let_leases_end(well)
            await well.tend()
            survey = await whole(well)
            if "b-d:@" in await stream_ranges(well):
                assert (number, when) == (1, "before")
                (taken,) = await take(well, "c")
                await well.close(reached(taken), [child("b-d", "-d")])
            assert await stream_ranges(well) == ["-d:-b,b-d", "d-:@"]
            (merged,) = await take(well, "c")
            assert merged.min_version == max(right.min_version + RESERVED, left.min_version + 20)
            assert survey.readers >= {"well"}

    run(scenario)


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_each_request_of_a_claim_nothing_is_lost_to_it(run: Run, when: When) -> None:
    async def scenario(make: Callable[[], Rig]) -> None:
        for number in (1, 2):
            rig = make()
            well, (dying, channels) = rig.well(), rig.owner("dies", kills=True)
            held = await holding(rig, well)
            await well.advance([reached(held, reserved_up_to=RESERVED, at="left")], release=True)
            survey = await dying.survey()
            channels.restart_counting({number: when})
            with pytest.raises(KilledError):
                await dying.claim([survey.stream_ranges[0]])
            await rig.stores.let_leases_end(well)
            (taken,) = await take(well, "a")
            assert (taken.position.tokens[0].token, taken.min_version) == ("left", held.min_version + RESERVED)
            assert taken.fence == held.fence + (1 if (number, when) == (1, "before") else 2)

    run(scenario)


def test_killed_while_beginning_a_stream_has_begun_or_has_not(run: Run) -> None:
    async def scenario(make: Callable[[], Rig]) -> None:
        for number in range(1, 7):
            for when in ("before", "after"):
                rig = make()
                dying, _channels = rig.owner("dies", kills=True)
                _channels.restart_counting({number: when})
                start = (await rig.well().survey()).now
                with suppress(KilledError):
                    await dying.begin([span("-b"), span("b-")], start)
                well = rig.well()
                begun_by_us = await well.begin([span("-c"), span("c-")], start)
                assert await stream_ranges(well) == (["-c:@", "c-:@"] if begun_by_us else ["-b:@", "b-:@"])

    run(scenario)


# Replies that are lost, and requests that are late


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("number", range(1, 8))
def test_whatever_request_fails_once_asking_again_ends_well(run: Run, number: int, when: When) -> None:
    async def scenario(make: Callable[[], Rig]) -> None:
        rig = make()
        store, channels = rig.owner("unlucky")
        start = (await store.survey()).now

        channels.restart_counting({number: when})
        await until_known(lambda: store.begin([span("-c"), span("c-")], start))
        assert await stream_ranges(rig.well()) == ["-c:@", "c-:@"]

        channels.restart_counting({number: when})
        claimed: dict[str, BigtablePartition] = {}
        while len(claimed) < 2:  # what is not known to be ours is seen to be so by the next survey
            survey = await until_known(store.survey)
            with suppress(TransientError):
                for partition in await store.claim([p for p in survey.stream_ranges if p.id not in claimed]):
                    claimed[partition.stream_range.id] = partition
        held = min(claimed.values(), key=lambda partition: partition.stream_range.range)

        channels.restart_counting({number: when})
        progress = [reached(one, reserved_up_to=RESERVED, at="saved") for one in claimed.values()]
        assert await until_known(lambda: store.advance(progress)) == frozenset()

        channels.restart_counting({number: when})
        assert await until_known(lambda: store.close(reached(held, reserved_up_to=RESERVED), CHILDREN))
        await until_known(store.survey)
        tended = await until_known(store.tend)
        assert await stream_ranges(store) == ["-b:-b", "b-c:b-c", "c-:@"]
        assert tended.split == 1
        (born,) = await take(rig.well(), "a")
        assert born.min_version == held.min_version + RESERVED

    run(scenario)


def test_a_late_request_does_not_put_back_what_was_saved_after_it(run: Run) -> None:
    async def scenario(make: Callable[[], Rig]) -> None:
        rig = make()
        store, channels = rig.owner("slow")
        held = await holding(rig, store)
        channels.restart_counting({1: "late"})
        with pytest.raises(TransientError):
            await store.advance([reached(held, reserved_up_to=600, at="early")])
        assert await store.advance([reached(held, reserved_up_to=900, at="later")]) == frozenset()
        await channels.deliver()
        assert await store.advance([reached(held, reserved_up_to=901, at="last")]) == frozenset()
        channels.restart_counting({1: "late"})
        with pytest.raises(TransientError):
            await store.advance([reached(held, at="too late")])
        await store.advance([reached(held, reserved_up_to=901, at="left")], release=True)
        await channels.deliver()
        (taken,) = await take(rig.well(), "a")
        assert (taken.position.tokens[0].token, taken.min_version) == ("left", held.min_version + 901)

    run(scenario)


def test_what_its_owner_has_given_back_it_does_not_renew(run: Run) -> None:
    async def scenario(make: Callable[[], Rig]) -> None:
        rig = make()
        store, _channels = rig.owner("gives back")
        held = await holding(rig, store)
        assert await store.advance([reached(held, at="left")], release=True) == frozenset()
        assert await store.advance([reached(held, at="too late")]) == {held.stream_range.id}
        (taken,) = await take(rig.well(), "a")
        assert (taken.position.tokens[0].token, taken.fence) == ("left", held.fence + 1)

    run(scenario)


@pytest.mark.parametrize("when", ["before", "after"])
def test_one_request_that_fails_among_many_ends_no_lease(run: Run, when: When) -> None:
    async def scenario(make: Callable[[], Rig]) -> None:
        rig = make()
        store, channels = rig.owner("unlucky")
        await begun(store, "-b", "b-d", "d-")
        held = await take(store, "a", "c", "e")
        channels.restart_counting({2: when})
        assert await store.advance([reached(one, minutes=1) for one in held]) == frozenset()
        channels.restart_counting(dict.fromkeys(range(1, 9), when))
        with pytest.raises(TransientError):
            await store.advance([reached(one, minutes=2) for one in held])
        channels.restart_counting()
        saved = (await whole(store)).saved
        assert all(saved[one.stream_range.id].low_watermark >= one.low_watermark + MINUTE for one in held)

    run(scenario)


def test_a_late_request_that_comes_first_is_known_for_ones_own(run: Run) -> None:
    async def scenario(make: Callable[[], Rig]) -> None:
        rig = make()
        store, channels = rig.owner("slow")
        held = await holding(rig, store)
        channels.restart_counting({1: "late"})
        with pytest.raises(TransientError):
            await store.advance([reached(held, reserved_up_to=600)])
        await channels.deliver()
        assert await store.advance([reached(held, reserved_up_to=550)], release=True) == frozenset()
        (taken,) = await take(rig.well(), "a")
        assert taken.min_version == held.min_version + 550

    run(scenario)


def test_a_late_end_after_the_partition_changed_hands_changes_nothing(run: Run) -> None:
    async def scenario(make: Callable[[], Rig]) -> None:
        rig = make()
        store, channels = rig.owner("slow")
        held = await holding(rig, store)
        channels.restart_counting({1: "late"})
        with pytest.raises(TransientError):
            await store.close(reached(held), CHILDREN)
        well = rig.well()
        await rig.stores.let_leases_end(well)
        (taken,) = await take(well, "a")
        await channels.deliver()
        assert not await store.close(reached(held), CHILDREN)
        assert await well.advance([reached(taken)]) == frozenset()
        assert await stream_ranges(well) == ["-c:@", "c-:@"]

    run(scenario)


def test_an_end_whose_answer_was_lost_is_ones_own_though_another_finished_it(run: Run) -> None:
    async def scenario(make: Callable[[], Rig]) -> None:
        rig = make()
        store, channels = rig.owner("unlucky")
        held = await holding(rig, store)
        channels.restart_counting({1: "after"})
        with pytest.raises(TransientError):
            await store.close(reached(held), CHILDREN)
        well = rig.well()
        await well.survey()
        assert (await well.tend()).split == 1
        assert (await whole(well)).saved == {}
        assert await store.close(reached(held), CHILDREN)
        assert await store.advance([reached(held)]) == frozenset()
        assert await stream_ranges(well) == ["-b:-b", "b-c:b-c", "c-:@"]

    run(scenario)


# Owners that wake up


def test_a_claim_of_what_was_renewed_since_it_was_seen_takes_nothing(run: Run) -> None:
    async def scenario(make: Callable[[], Rig]) -> None:
        rig = make()
        owner, other = rig.well("owner"), rig.well("other")
        held = await holding(rig, owner)
        await rig.stores.let_leases_end(other)
        survey = await other.survey()
        assert await owner.advance([reached(held, reserved_up_to=900)]) == frozenset()
        assert await other.claim([survey.stream_ranges[0]]) == []
        assert await owner.advance([reached(held, reserved_up_to=901)]) == frozenset()

    run(scenario)


def test_a_row_that_is_made_again_is_not_the_one_that_a_sleeper_had(run: Run) -> None:
    async def scenario(make: Callable[[], Rig]) -> None:
        rig = make()
        sleeper, well = rig.well("sleeper"), rig.well("well")
        late, late_channels = rig.owner("late", kills=True)
        await begun(sleeper, "-c", "c-")
        old = await late.survey()  # nobody has anything yet
        (asleep,) = await take(sleeper, "a")
        await rig.stores.let_leases_end(well)
        (held,) = await take(well, "a")
        await well.close(reached(held, reserved_up_to=RESERVED), CHILDREN)  # and its row is gone

        late_channels.restart_counting({2: "before"})
        with pytest.raises(KilledError):
            await late.claim(
                [old.stream_ranges[0]]
            )  # makes the row again, and dies before it looks whether the key range is there
        assert asleep.stream_range.id in (await whole(well)).saved
        assert await sleeper.advance([reached(asleep, reserved_up_to=10_000)]) == {asleep.stream_range.id}
        assert not await sleeper.close(reached(asleep), [child("-c")])
        assert await stream_ranges(well) == ["-b:-b", "b-c:b-c", "c-:@"]
        await rig.stores.let_leases_end(well)
        await well.tend()
        assert (await whole(well)).saved == {}

    run(scenario)


def test_a_stream_range_that_ended_since_it_was_surveyed_is_not_claimed(run: Run) -> None:
    async def scenario(make: Callable[[], Rig]) -> None:
        rig = make()
        owner, other = rig.well("owner"), rig.well("other")
        await begun(owner, "-c", "c-")
        survey = await other.survey()
        (held,) = await take(owner, "a")
        await owner.close(reached(held), CHILDREN)
        assert await other.claim([survey.stream_ranges[0]]) == []
        assert (await whole(owner)).saved == {}

    run(scenario)
