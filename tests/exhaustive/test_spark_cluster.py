"""The consumer on a cluster that loses what it can lose: no message is lost, and none comes too late."""

import time
from collections.abc import Sequence
from datetime import timedelta

import psutil
import pytest

from deploy.local.platform.processes import Processes
from deploy.local.platform.services import Service
from tests.builders import a_change, a_header, a_message
from tests.integration.log_lines import events
from tests.worlds.consumer import (
    COME_AGAIN_WITHIN,
    ON_SPARK,
    STOP_WITHIN,
    TIMEOUT,
    World,
    acks,
    asked,
    counter,
    ends,
    executors,
    kill_with_its_workers,
)
from tests.worlds.spark_cluster import SparkCluster

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

LIMIT = 5
MESSAGES = 60
CHANGES = 8


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


def let_both_tasks_wait(world: World, consumer: Service) -> None:
    """Let BigQuery be away while the tasks of both executors hold messages."""
    world.fault(action="close", status="UNAVAILABLE")
    world.publish(*changes(9))

    def both_wait() -> bool:
        document = asked(consumer)
        return document is not None and document["processes"]["holding"] == 2

    world.processes.wait_until(both_wait, "both tasks to wait", TIMEOUT)


def test_poison_on_all_executors_passes_no_more_than_the_limit_with_a_restart_counted_in(
    world: World, cluster: SparkCluster
) -> None:
    garbage = [dict(a_message(data=b"{ %d" % n)) | {"ordering_key": f"k/{n}"} for n in range(MESSAGES)]
    settings = {"POISON_LIMIT": f"{LIMIT}", "MICRO_BATCH_MESSAGES": "8"}
    world.publish(*garbage)
    passed = 0
    for _start in range(2):
        consumer = world.launch("first", module=ON_SPARK, **settings, **cluster.settings)
        consumer.process.expected_to_end = True
        assert consumer.process.wait(TIMEOUT) == 2, consumer.process.obituary()
        errors = [event["error"] for event in events(consumer.process, "service_misconfigured")]
        assert "messages cannot be applied (undecodable" in errors[-1]
        passed += len(world.dead_letters())
        assert passed <= LIMIT


def test_what_a_lost_worker_held_is_applied_by_the_other(world: World, cluster: SparkCluster) -> None:
    consumer = world.start(module=ON_SPARK, LINGER="2s", **cluster.settings)
    warm(world, consumer)
    before = counter(consumer, "leases_acquired")
    let_both_tasks_wait(world, consumer)
    cluster.workers[0].kill()
    world.fix()

    world.processes.wait_until(acks(consumer, 4 * CHANGES), "what the lost one held, too", COME_AGAIN_WITHIN)
    world.wait_for_rows(dict.fromkeys(range(CHANGES), "name 9"))
    consumer.process.ask_to_end()
    assert consumer.process.wait(TIMEOUT) == 0, consumer.process.obituary()
    (counted,) = events(consumer.process, "leases_counted")
    assert counted["taken"] == counted["acked"] + counted["released"] + counted["left"]
    assert counted["taken"] - before == CHANGES + counted["left"], "no lease ran out but those of the lost worker"
    assert world.dead_letters() == []


def two_consumers(world: World, cluster: SparkCluster) -> tuple[Service, Service]:
    """Start two consumers on a cluster: both tasks of the first hold messages, and nothing is left for the second."""
    first = start_on_cores(2, world, cluster, "first", LINGER="2s")
    warm(world, first)
    let_both_tasks_wait(world, first)
    cluster.start_worker("worker-of-the-second")
    return first, start_on_cores(1, world, cluster, "second")


def start_on_cores(cores: int, world: World, cluster: SparkCluster, name: str, **settings: str) -> Service:
    """Start a consumer with as many tasks, which leaves other cores of the cluster to others."""
    few = {"TASKS": f"{cores}", "PYSPARK_SUBMIT_ARGS": f"--total-executor-cores {cores} pyspark-shell"}
    consumer = world.start(name, module=ON_SPARK, **few, **settings, **cluster.settings)
    consumer.process.expected_to_end = True
    return consumer


def check_that_the_second_applies_all(world: World, second: Service, killed_at: float) -> None:
    """Let BigQuery be there again; check that what the first held comes within one ack deadline, and once."""
    world.fix()
    passed = timedelta(seconds=time.monotonic() - killed_at)
    world.processes.wait_until(acks(second, CHANGES), "what the killed one held, too", COME_AGAIN_WITHIN - passed)
    world.wait_for_rows(dict.fromkeys(range(CHANGES), "name 9"))
    assert counter(second, "leases_acquired") == CHANGES
    assert world.dead_letters() == []


def test_what_a_killed_executor_held_another_consumer_on_the_cluster_applies_in_time(
    world: World, cluster: SparkCluster
) -> None:
    first, second = two_consumers(world, cluster)
    before = counter(first, "leases_released")
    kill_with_its_workers(executors(cluster.workers[0])[0])
    killed_at = time.monotonic()
    assert first.process.wait(TIMEOUT) == 1, first.process.obituary()

    check_that_the_second_applies_all(world, second, killed_at)
    (counted,) = events(first.process, "leases_counted")
    assert counted["taken"] == counted["acked"] + counted["released"] + counted["left"]
    assert counted["released"] - before == CHANGES - counted["left"], "leases of the killed one are left, and no other"
    assert 0 < counted["left"] < CHANGES
    assert ends(second) == 0


def test_what_a_killed_driver_held_another_consumer_applies_in_time_and_its_restart_shares_with_that(
    world: World, cluster: SparkCluster
) -> None:
    first, second = two_consumers(world, cluster)
    its_executors = [one for worker in cluster.workers for one in executors(worker)]
    first.process.kill()
    killed_at = time.monotonic()
    _gone, alive = psutil.wait_procs(its_executors, timeout=STOP_WITHIN.total_seconds())
    assert alive == []

    check_that_the_second_applies_all(world, second, killed_at)

    consumers = (start_on_cores(2, world, cluster, "first"), second)
    sequence = 9

    def both_have_acked() -> bool:
        nonlocal sequence
        sequence += 1
        world.publish(*changes(sequence))
        return counter(consumers[0], "leases_acked") > 0 and counter(second, "leases_acked") > CHANGES

    world.processes.wait_until(both_have_acked, "acks of both", TIMEOUT)
    world.wait_for_rows(dict.fromkeys(range(CHANGES), f"name {sequence}"))
    for one in consumers:
        assert ends(one) == 0
        (counted,) = events(one.process, "leases_counted")
        assert counted["left"] == 0
    assert world.dead_letters() == []


def test_more_tasks_than_the_cluster_has_slots_for_are_refused(world: World, new_processes: Processes) -> None:
    cluster = SparkCluster(new_processes, workers=1)
    consumer = world.launch(module="tests.worlds.impatient", TASKS="2", **cluster.settings)
    consumer.process.expected_to_end = True
    assert consumer.process.wait(TIMEOUT) == 2, consumer.process.obituary()
    assert events(consumer.process, "executors_awaited")
    (refused,) = events(consumer.process, "service_misconfigured")
    assert f"TASKS=2 is more than the 1 that SPARK_MASTER={cluster.master} can run" in refused["error"]


def test_a_drain_on_a_cluster_ends_with_success_or_with_what_it_leaves(world: World, cluster: SparkCluster) -> None:
    world.publish(*changes(1), a_message(a_change(1), header=a_header("pilots")))
    assert drained(world, cluster, "first") == 0
    assert world.names() == dict.fromkeys(range(CHANGES), "name 1")

    refused = f"{world.pipeline.project}.{world.pipeline.dataset}.pilots"
    world.fault(action="answer", status="PERMISSION_DENIED", table=refused)
    world.publish(*changes(2), a_message(a_change(1, 2), header=a_header("pilots")))
    assert drained(world, cluster, "second") == 3
    assert world.names() == dict.fromkeys(range(CHANGES), "name 2")
    assert world.dead_letters() == []


def drained(world: World, cluster: SparkCluster, name: str) -> int | None:
    """Drain the subscription on the cluster; return the exit code, once no lease is unaccounted for."""
    consumer = world.launch(name, module=ON_SPARK, TRIGGER="available-now", **cluster.settings)
    consumer.process.expected_to_end = True
    code = consumer.process.wait(TIMEOUT)
    (counted,) = events(consumer.process, "leases_counted")
    assert (counted["left"], counted["taken"]) == (0, counted["acked"] + counted["deferred"] + counted["released"])
    return code
