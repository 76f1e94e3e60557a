"""The partition table in the Bigtable emulator where requests fail, replies are lost, processes die and wake up.

A kill is at a request: it was not sent, or was answered to nobody. After it another replica goes on.
"""

from contextlib import suppress

import pytest

from services.bigtable_reader.core.stream.partitions import BigtablePartition
from shared.contracts.errors import TransientError
from shared.reading.leases import PartlySavedError
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
from tests.contract.bigtable_rigs import CHILDREN, RESERVED, Make, Rig, holding

# Killed at each request


WHENEVER = pytest.mark.parametrize("when", ["before", "after"])


async def test_an_end_is_decided_on_its_row_then_replaces_the_key_range_and_tidies_up(rig: Rig) -> None:
    store, channels = rig.owner("counts")
    owned = await holding(rig, store)
    channels.restart_counting()
    assert await store.close(reached(owned), CHILDREN)
    # decide on the partition's row; read the key ranges, replace them, see that nothing is left to do; tidy up
    assert channels.requests == ["CheckAndMutateRow", "ReadRows", "CheckAndMutateRow", "ReadRows", "CheckAndMutateRow"]


@WHENEVER
@pytest.mark.parametrize("number", range(1, 6))
async def test_killed_at_each_request_of_an_end_another_replica_finishes_it(rig: Rig, number: int, when: When) -> None:
    dying, channels = rig.owner("dies", kills=True)
    owned = await holding(rig, dying)
    channels.restart_counting({number: when})
    with pytest.raises(KilledError):
        await dying.close(reached(owned, reserved_up_to=RESERVED), CHILDREN)
    healthy = rig.healthy()
    decided = (number, when) != (1, "before")
    await rig.stores.let_leases_end(healthy)
    survey = await whole(healthy)
    is_closing = decided and (number, when) != (5, "after")
    assert any(saved.state == "CLOSING" for saved in survey.saved.values()) == is_closing
    await healthy.tend()
    if not decided:  # nothing was: the partition goes on where it was, and ends in other hands
        (taken,) = await take(healthy, "a")
        assert (taken.position.tokens[0].token, taken.min_version) == ("saved", owned.min_version + RESERVED)
        await healthy.close(reached(taken), CHILDREN)
    assert await stream_ranges(healthy) == ["-b:-b", "b-c:b-c", "c-:@"]
    survey = await whole(healthy)
    assert survey.saved == {}
    assert [one.min_version - owned.min_version for one in survey.stream_ranges[:2]] == [RESERVED, RESERVED]
    claimed = {partition.stream_range.range for partition in await healthy.claim(survey.stream_ranges)}
    assert claimed == {span("-b"), span("b-c"), span("c-")}


@WHENEVER
async def test_killed_at_each_request_while_rolling_another_replicas_end_forward(make: Make, when: When) -> None:
    number = 0
    while True:
        number += 1
        rig = make()
        first, first_channels = rig.owner("first", kills=True)
        second, channels = rig.owner("second", kills=True)
        owned = await holding(rig, first)
        first_channels.restart_counting({1: "after"})
        with pytest.raises(KilledError):
            await first.close(reached(owned), CHILDREN)
        channels.restart_counting({number: when})
        try:
            await second.survey()
            await second.tend()
            killed = False
        except KilledError:
            killed = True
        third = rig.healthy()
        await third.survey()
        await third.tend()
        assert await stream_ranges(third) == ["-b:-b", "b-c:b-c", "c-:@"]
        assert (await whole(third)).saved == {}
        if not killed:
            break
    assert number > 6  # survey, read, replace, read, read, tidy up


@WHENEVER
@pytest.mark.parametrize("number", range(1, 6))
async def test_killed_at_each_request_of_the_second_half_of_a_merge(rig: Rig, number: int, when: When) -> None:
    healthy, (dying, channels) = rig.healthy(), rig.owner("dies", kills=True)
    await begun(healthy, "-b", "b-d", "d-")
    (left,) = await take(healthy, "a")
    (right,) = await take(dying, "c")
    await dying.advance([reached(right, reserved_up_to=RESERVED)])
    await healthy.close(reached(left, reserved_up_to=20), [child("-b", "-d")])
    channels.restart_counting({number: when})
    with pytest.raises(KilledError):
        await dying.close(reached(right, reserved_up_to=RESERVED), [child("b-d", "-d")])
    await rig.stores.let_leases_end(healthy)
    await healthy.tend()
    survey = await whole(healthy)
    if "b-d:@" in await stream_ranges(healthy):
        assert (number, when) == (1, "before")
        (taken,) = await take(healthy, "c")
        await healthy.close(reached(taken), [child("b-d", "-d")])
    assert await stream_ranges(healthy) == ["-d:-b,b-d", "d-:@"]
    (merged,) = await take(healthy, "c")
    assert merged.min_version == max(right.min_version + RESERVED, left.min_version + 20)
    assert survey.readers >= {"healthy"}


@WHENEVER
@pytest.mark.parametrize("number", [1, 2])
async def test_killed_at_each_request_of_a_claim_nothing_is_lost_to_it(rig: Rig, number: int, when: When) -> None:
    healthy, (dying, channels) = rig.healthy(), rig.owner("dies", kills=True)
    owned = await holding(rig, healthy)
    await healthy.advance([reached(owned, reserved_up_to=RESERVED, at="left")], release=True)
    survey = await dying.survey()
    channels.restart_counting({number: when})
    with pytest.raises(KilledError):
        await dying.claim([survey.stream_ranges[0]])
    await rig.stores.let_leases_end(healthy)
    (taken,) = await take(healthy, "a")
    assert (taken.position.tokens[0].token, taken.min_version) == ("left", owned.min_version + RESERVED)
    assert taken.fence == owned.fence + (1 if (number, when) == (1, "before") else 2)


@WHENEVER
@pytest.mark.parametrize("number", range(1, 7))
async def test_killed_while_beginning_a_stream_has_begun_or_has_not(rig: Rig, number: int, when: When) -> None:
    dying, channels = rig.owner("dies", kills=True)
    channels.restart_counting({number: when})
    start = (await rig.healthy().survey()).now
    with suppress(KilledError):
        await dying.begin([span("-b"), span("b-")], start)
    healthy = rig.healthy()
    begun_by_us = await healthy.begin([span("-c"), span("c-")], start)
    assert await stream_ranges(healthy) == (["-c:@", "c-:@"] if begun_by_us else ["-b:@", "b-:@"])


# Replies that are lost, and requests that are late


@WHENEVER
@pytest.mark.parametrize("number", range(1, 8))
async def test_whatever_request_fails_once_asking_again_ends_successfully(rig: Rig, number: int, when: When) -> None:
    store, channels = rig.owner("unlucky")
    start = (await store.survey()).now

    channels.restart_counting({number: when})
    await until_known(lambda: store.begin([span("-c"), span("c-")], start))
    assert await stream_ranges(rig.healthy()) == ["-c:@", "c-:@"]

    channels.restart_counting({number: when})
    claimed: dict[str, BigtablePartition] = {}
    while len(claimed) < 2:  # what is not known to be ours is seen to be so by the next survey
        survey = await until_known(store.survey)
        with suppress(TransientError):
            for partition in await store.claim([p for p in survey.stream_ranges if p.id not in claimed]):
                claimed[partition.stream_range.id] = partition
    owned = min(claimed.values(), key=lambda partition: partition.stream_range.range)

    channels.restart_counting({number: when})
    progress = [reached(one, reserved_up_to=RESERVED, at="saved") for one in claimed.values()]
    assert await until_known(lambda: store.advance(progress)) == frozenset()

    channels.restart_counting({number: when})
    assert await until_known(lambda: store.close(reached(owned, reserved_up_to=RESERVED), CHILDREN))
    await until_known(store.survey)
    tended = await until_known(store.tend)
    assert await stream_ranges(store) == ["-b:-b", "b-c:b-c", "c-:@"]
    assert tended.split == 1
    (born,) = await take(rig.healthy(), "a")
    assert born.min_version == owned.min_version + RESERVED


async def test_a_late_request_does_not_put_back_what_was_saved_after_it(rig: Rig) -> None:
    store, channels = rig.owner("slow")
    owned = await holding(rig, store)
    channels.restart_counting({1: "late"})
    with pytest.raises(TransientError):
        await store.advance([reached(owned, reserved_up_to=600, at="early")])
    assert await store.advance([reached(owned, reserved_up_to=900, at="later")]) == frozenset()
    await channels.deliver()
    assert await store.advance([reached(owned, reserved_up_to=901, at="last")]) == frozenset()
    channels.restart_counting({1: "late"})
    with pytest.raises(TransientError):
        await store.advance([reached(owned, at="too late")])
    await store.advance([reached(owned, reserved_up_to=901, at="left")], release=True)
    await channels.deliver()
    (taken,) = await take(rig.healthy(), "a")
    assert (taken.position.tokens[0].token, taken.min_version) == ("left", owned.min_version + 901)


async def test_what_its_owner_has_released_it_does_not_renew(rig: Rig) -> None:
    store, _channels = rig.owner("gives back")
    owned = await holding(rig, store)
    assert await store.advance([reached(owned, at="left")], release=True) == frozenset()
    assert await store.advance([reached(owned, at="too late")]) == {owned.stream_range.id}
    (taken,) = await take(rig.healthy(), "a")
    assert (taken.position.tokens[0].token, taken.fence) == ("left", owned.fence + 1)


@WHENEVER
async def test_one_request_that_fails_among_many_ends_no_lease(rig: Rig, when: When) -> None:
    store, channels = rig.owner("unlucky")
    await begun(store, "-b", "b-d", "d-")
    owned = await take(store, "a", "c", "e")
    channels.restart_counting({2: when})
    with pytest.raises(PartlySavedError) as found:
        await store.advance([reached(one, minutes=1) for one in owned])
    assert (found.value.lost, len(found.value.unknown)) == (frozenset(), 1)
    assert len(channels.requests) == 3, "a second request to a row that does not answer would hold up all others"
    channels.restart_counting()
    assert await store.advance([reached(one, minutes=1) for one in owned]) == frozenset()
    channels.restart_counting(dict.fromkeys(range(1, 9), when))
    with pytest.raises(TransientError):
        await store.advance([reached(one, minutes=2) for one in owned])
    channels.restart_counting()
    saved = (await whole(store)).saved
    assert all(saved[one.stream_range.id].low_watermark >= one.low_watermark + MINUTE for one in owned)


@WHENEVER
async def test_one_row_that_cannot_be_written_ends_no_other_lease(rig: Rig, when: When) -> None:
    store, channels = rig.owner("unlucky")
    await begun(store, "-b", "b-d", "d-")
    owned = await take(store, "a", "c", "e")
    channels.restart_counting({2: when, 4: when})
    with pytest.raises(PartlySavedError) as found:
        await store.advance([reached(one, minutes=1) for one in owned])
    channels.restart_counting()
    saved = (await whole(store)).saved
    kept = [one for one in owned if one.stream_range.id not in found.value.unknown]
    assert (len(kept), found.value.lost) == (2, frozenset())
    assert all(saved[one.stream_range.id].low_watermark >= one.low_watermark + MINUTE for one in kept)


async def test_a_late_request_that_comes_first_is_known_for_ones_own(rig: Rig) -> None:
    store, channels = rig.owner("slow")
    owned = await holding(rig, store)
    channels.restart_counting({1: "late"})
    with pytest.raises(TransientError):
        await store.advance([reached(owned, reserved_up_to=600)])
    await channels.deliver()
    assert await store.advance([reached(owned, reserved_up_to=550)], release=True) == frozenset()
    (taken,) = await take(rig.healthy(), "a")
    assert taken.min_version == owned.min_version + 550


async def test_a_late_end_after_the_partition_changed_hands_changes_nothing(rig: Rig) -> None:
    store, channels = rig.owner("slow")
    owned = await holding(rig, store)
    channels.restart_counting({1: "late"})
    with pytest.raises(TransientError):
        await store.close(reached(owned), CHILDREN)
    healthy = rig.healthy()
    await rig.stores.let_leases_end(healthy)
    (taken,) = await take(healthy, "a")
    await channels.deliver()
    assert not await store.close(reached(owned), CHILDREN)
    assert await healthy.advance([reached(taken)]) == frozenset()
    assert await stream_ranges(healthy) == ["-c:@", "c-:@"]


async def test_an_end_whose_answer_was_lost_is_ones_own_though_another_finished_it(rig: Rig) -> None:
    store, channels = rig.owner("unlucky")
    owned = await holding(rig, store)
    channels.restart_counting({1: "after"})
    with pytest.raises(TransientError):
        await store.close(reached(owned), CHILDREN)
    healthy = rig.healthy()
    await healthy.survey()
    assert (await healthy.tend()).split == 1
    assert (await whole(healthy)).saved == {}
    assert await store.close(reached(owned), CHILDREN)
    assert await store.advance([reached(owned)]) == frozenset()
    assert await stream_ranges(healthy) == ["-b:-b", "b-c:b-c", "c-:@"]


# Owners that wake up


async def test_a_claim_of_what_was_renewed_since_it_was_seen_takes_nothing(rig: Rig) -> None:
    owner, other = rig.healthy("owner"), rig.healthy("other")
    owned = await holding(rig, owner)
    await rig.stores.let_leases_end(other)
    survey = await other.survey()
    assert await owner.advance([reached(owned, reserved_up_to=900)]) == frozenset()
    assert await other.claim([survey.stream_ranges[0]]) == []
    assert await owner.advance([reached(owned, reserved_up_to=901)]) == frozenset()


async def test_a_row_that_is_made_again_is_not_the_one_that_a_sleeper_had(rig: Rig) -> None:
    sleeper, healthy = rig.healthy("sleeper"), rig.healthy("healthy")
    late, late_channels = rig.owner("late", kills=True)
    await begun(sleeper, "-c", "c-")
    old = await late.survey()  # no reader has a range yet
    (asleep,) = await take(sleeper, "a")
    await rig.stores.let_leases_end(healthy)
    (owned,) = await take(healthy, "a")
    await healthy.close(reached(owned, reserved_up_to=RESERVED), CHILDREN)  # and its row is gone

    late_channels.restart_counting({2: "before"})
    with pytest.raises(KilledError):
        await late.claim(
            [old.stream_ranges[0]]
        )  # makes the row again, and dies before it looks whether the key range is there
    assert asleep.stream_range.id in (await whole(healthy)).saved
    assert await sleeper.advance([reached(asleep, reserved_up_to=10_000)]) == {asleep.stream_range.id}
    assert not await sleeper.close(reached(asleep), [child("-c")])
    assert await stream_ranges(healthy) == ["-b:-b", "b-c:b-c", "c-:@"]
    await rig.stores.let_leases_end(healthy)
    await healthy.tend()
    assert (await whole(healthy)).saved == {}


async def test_a_stream_range_that_ended_since_it_was_surveyed_is_not_claimed(rig: Rig) -> None:
    owner, other = rig.healthy("owner"), rig.healthy("other")
    await begun(owner, "-c", "c-")
    survey = await other.survey()
    (owned,) = await take(owner, "a")
    await owner.close(reached(owned), CHILDREN)
    assert await other.claim([survey.stream_ranges[0]]) == []
    assert (await whole(owner)).saved == {}
