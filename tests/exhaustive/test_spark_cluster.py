"""The consumer on a cluster that loses what it can lose: no message is lost, and none comes too late."""

from collections.abc import Sequence
from datetime import timedelta

import pytest

from deploy.local.platform.processes import Processes
from deploy.local.platform.services import Service
from tests.builders import a_change, a_message
from tests.integration.log_lines import events
from tests.integration.pubsub_topics import pull_until
from tests.worlds.consumer import ACK_DEADLINE, ON_SPARK, TIMEOUT, World, acks, ends
from tests.worlds.spark_cluster import SparkCluster

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

LIMIT = 5
FLOOD = 60
CHANGES = 8
SETTLING = timedelta(seconds=5)


@pytest.fixture
def cluster(new_processes: Processes) -> SparkCluster:
    """Run a standalone cluster of two workers."""
    return SparkCluster(new_processes, workers=2)


def changes(sequence: int) -> Sequence[dict[str, object]]:
    """Return one change of each row, with ordering keys that both tasks get some of."""
    return [dict(a_message(a_change(n, sequence))) | {"ordering_key": f"planes/{n}"} for n in range(CHANGES)]


def warm(world: World, consumer: Service) -> None:
    """Apply micro-batches until leases are no longer extended for workers that have yet to start."""
    for sequence in range(1, 4):
        world.publish(*changes(sequence))
        world.wait_for_rows(dict.fromkeys(range(CHANGES), f"name {sequence}"))
    world.processes.wait_until(acks(consumer, 3 * CHANGES), "all acks", TIMEOUT)


def stall(world: World) -> None:
    """Let both tasks wait for the answers to their appends."""
    world.fault(action="stall")
    world.publish(*changes(9))
    world.processes.wait_until(
        lambda: world.stand_in.control("GET", "stats")["faults_met"] >= 2, "two appends without an answer", TIMEOUT
    )


def test_poison_on_all_executors_passes_no_more_than_the_limit_and_a_restart_passes_none(
    world: World, cluster: SparkCluster
) -> None:
    garbage = [dict(a_message(data=b"{ %d" % n)) | {"ordering_key": f"k/{n}"} for n in range(FLOOD)]
    settings = {"POISON_LIMIT": f"{LIMIT}", "MICRO_BATCH_MESSAGES": "8"}
    world.publish(*garbage)
    for start, module, more in (("first", ON_SPARK, cluster.settings), ("second", None, {})):
        passed = len(world.letters())
        assert passed == 0, start
        kind = {} if module is None else {"module": module}
        consumer = world.launch("first", **kind, **settings, **more)
        consumer.process.expected_to_end = True
        assert consumer.process.wait(TIMEOUT) == 2, consumer.process.obituary()
        told = [event["error"] for event in events(consumer.process, "service_misconfigured")]
        assert "messages cannot be applied (undecodable" in told[-1]
        letters = world.letters()
        assert len(letters) <= (LIMIT if start == "first" else 0)


def test_what_a_lost_worker_held_comes_within_one_ack_deadline_and_no_other_lease_ends(
    world: World, cluster: SparkCluster
) -> None:
    consumer = world.start("first", module=ON_SPARK, LINGER="2s", **cluster.settings)
    consumer.process.expected_to_end = True
    warm(world, consumer)
    stall(world)
    cluster.lose_worker(cluster.workers[0])

    assert consumer.process.wait(TIMEOUT) == 1, consumer.process.obituary()
    (counted,) = events(consumer.process, "leases_counted")
    assert counted["taken"] == counted["acked"] + counted["given_back"] + counted["left"]
    assert 0 < counted["left"] < CHANGES, "what the lost worker held"
    assert counted["given_back"] == CHANGES - counted["left"], "the other one has released what it held"
    world.fix()
    again = pull_until(world.channel, world.topology.subscription, CHANGES, ACK_DEADLINE + SETTLING)
    assert len(set(again)) == CHANGES


def test_a_driver_that_is_killed_in_mid_batch_loses_nothing_and_its_tasks_release_what_they_hold(
    world: World, cluster: SparkCluster
) -> None:
    first = world.start("first", module=ON_SPARK, LINGER="2s", **cluster.settings)
    first.process.expected_to_end = True
    warm(world, first)
    stall(world)
    first.process.kill()
    world.fix()

    second = world.start("first")
    world.wait_for_rows(dict.fromkeys(range(CHANGES), "name 9"))
    world.processes.wait_until(acks(second, CHANGES), "all acks", TIMEOUT)
    assert ends(second) == 0
    assert world.letters() == []
