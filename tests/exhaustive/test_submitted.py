"""The consumer under `spark-submit`, as a managed Spark starts it. Each start of it starts Spark, and executors."""

import pytest

from deploy.local.platform.services import Service
from shared.contracts.reasons import Reason
from tests.builders import a_change, a_message
from tests.integration.log_lines import events
from tests.worlds.consumer import TIMEOUT, World

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

SUBMITTED = "tests.worlds.submitted"
ROWS = 40


def publish(world: World, sequence: int) -> None:
    """Publish a change of each row, with ordering keys that both tasks get some of."""
    for n in range(ROWS):
        world.publish(dict(a_message(a_change(n, sequence))) | {"ordering_key": f"planes/{n}"})


def ended(consumer: Service) -> int | None:
    return consumer.process.wait(2 * TIMEOUT)  # executors start twice as slowly as Spark


def test_it_drains_the_subscription_and_ends_and_one_that_is_killed_loses_nothing(world: World) -> None:
    publish(world, 1)
    world.publish(a_message(data=b"garbage"))
    drained = world.launch("first", module=SUBMITTED, TRIGGER="available-now", MICRO_BATCH_MESSAGES="10")
    drained.process.expected_to_end = True
    assert ended(drained) == 0, drained.process.obituary()
    world.wait_for_rows(dict.fromkeys(range(ROWS), "name 1"))
    assert [one.reason for one in world.dead_letters()] == [Reason.UNDECODABLE]
    (counted,) = events(drained.process, "leases_counted")
    assert counted["acked"] >= ROWS + 1  # more, where a slow start of Spark let a lease run out
    assert (counted["taken"], counted["left"]) == (counted["acked"] + counted["released"], 0)
    assert len(events(drained.process, "micro_batch_applied")) >= ROWS // 10
    assert len(events(drained.process, "subscription_drained")) == 1

    killed = world.start("first", module=SUBMITTED)
    killed.process.expected_to_end = True
    publish(world, 2)
    world.wait_for_rows(dict.fromkeys(range(ROWS), "name 2"))
    world.fault(action="stall")
    publish(world, 3)
    world.processes.wait_until(
        lambda: world.stand_in.control("GET", "stats")["faults_met"] > 0, "an append without an answer", TIMEOUT
    )
    killed.process.ask_to_end()  # Spark's Java gets the signal: the consumer loses its Spark
    assert ended(killed) not in {0, None}
    world.fix()

    again = world.launch("first", module=SUBMITTED, TRIGGER="available-now")
    again.process.expected_to_end = True
    assert ended(again) in {0, 3}, again.process.obituary()
    world.start("second")  # what was leased by the killed one comes after its deadline
    world.wait_for_rows(dict.fromkeys(range(ROWS), "name 3"))
    assert world.dead_letters() == []
