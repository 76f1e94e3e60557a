"""A flood of poison against a whole consumer: it ends before anything is set aside, and lets it pass only when told."""

from collections.abc import Sequence
from datetime import timedelta

import pytest

from shared.contracts.dead_letter import DeadLetter
from shared.contracts.reasons import Reason
from shared.pubsub.stubs import ModifyAckDeadlineRequest, PullRequest, modify_ack_deadline_stub, pull_stub
from tests.builders import a_change, a_message
from tests.integration.log_lines import events
from tests.worlds.consumer import World, acks, ends

pytestmark = [pytest.mark.integration, pytest.mark.timeout(2_400)]

TIMEOUT = timedelta(minutes=8)
GARBAGE = {b"{ %d" % number for number in range(120)}
PLANES = range(30)


def everything_there_is(world: World) -> Sequence[bytes]:
    """Return all messages of the subscription once each; they are given back."""
    pull, modify = pull_stub(world.channel), modify_ack_deadline_stub(world.channel)
    subscription = world.topology.subscription
    leased: dict[str, tuple[str, bytes]] = {}

    def pulled() -> bool:
        request = PullRequest(subscription=subscription, max_messages=1_000, return_immediately=True)
        received = pull(request, timeout=30).received_messages
        leased.update({one.message.message_id: (one.ack_id, one.message.data) for one in received})
        return len(leased) >= len(GARBAGE) + len(PLANES)

    world.processes.wait_until(lambda: pulled() or None, "all messages, which were deferred for half a minute", TIMEOUT)
    ids = [ack_id for ack_id, _data in leased.values()]
    modify(ModifyAckDeadlineRequest(subscription=subscription, ack_ids=ids, ack_deadline_seconds=0), timeout=30)
    return [data for _ack_id, data in leased.values()]


def dead_letters(world: World, enough: int) -> Sequence[DeadLetter]:
    found: list[DeadLetter] = []

    def kept() -> bool:
        found.extend(world.dead_letters())
        return len(found) >= enough

    world.processes.wait_until(lambda: kept() or None, "the dead letters", TIMEOUT)
    return found


def test_the_dead_letter_limit_stops_the_consumer_and_no_message_is_acked_until_an_operator_raises_it(
    world: World,
) -> None:
    good = [a_message(a_change(number)) for number in PLANES]
    world.publish(*[a_message(data=data) for data in sorted(GARBAGE)], *good)

    first = world.launch("first", LINGER="3s")  # all in one micro-batch
    first.process.expected_to_end = True
    assert first.process.wait(TIMEOUT) == 2, first.process.obituary()
    (event,) = events(first.process, "service_misconfigured")
    assert event["error"].startswith("120 of the last 150 messages cannot be applied (undecodable: 120")
    assert "POISON_LIMIT" in event["error"]
    (counted,) = events(first.process, "leases_counted")
    assert (counted["acked"], counted["left"]) == (0, 0), "each lease was let go"
    assert world.dead_letters() == []
    assert world.names() is None

    left = everything_there_is(world)
    assert sorted(left) == sorted([*GARBAGE, *(bytes(one["data"]) for one in good)])  # type: ignore[call-overload]

    second = world.launch("first", LINGER="3s", POISON_LIMIT="500")
    world.processes.wait_until(lambda: acks(second, 150)() or None, "all to be acked", TIMEOUT)
    passed = dead_letters(world, len(GARBAGE))
    assert {one.reason for one in passed} == {Reason.UNDECODABLE}
    assert {one.data for one in passed} == GARBAGE
    world.wait_for_rows(dict.fromkeys(PLANES, "name 1"))
    assert ends(second) == 0, second.process.obituary()
    assert world.dead_letters() == []
