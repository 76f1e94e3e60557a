"""The consumer on a cluster that loses what it can lose: no message is lost, and none comes too late."""

from collections.abc import Sequence

import pytest

from deploy.local.platform.processes import Processes
from deploy.local.platform.services import Service
from tests.builders import a_change, a_header, a_message
from tests.integration.log_lines import events
from tests.worlds.consumer import ON_SPARK, TIMEOUT, World, acks, asked, counter, ends
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
    for module, more in ((ON_SPARK, cluster.settings), (None, {})):
        kind = {} if module is None else {"module": module}
        consumer = world.launch("first", **kind, **settings, **more)
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

    world.wait_for_rows(dict.fromkeys(range(CHANGES), "name 9"))
    world.processes.wait_until(acks(consumer, 4 * CHANGES), "all acks", TIMEOUT)
    consumer.process.ask_to_end()
    assert consumer.process.wait(TIMEOUT) == 0, consumer.process.obituary()
    (counted,) = events(consumer.process, "leases_counted")
    assert counted["taken"] == counted["acked"] + counted["released"] + counted["left"]
    assert counted["taken"] - before == CHANGES + counted["left"], "no lease ran out but those of the lost worker"
    assert world.dead_letters() == []


def test_a_driver_that_is_killed_in_mid_batch_loses_nothing(world: World, cluster: SparkCluster) -> None:
    first = world.start("first", module=ON_SPARK, LINGER="2s", **cluster.settings)
    first.process.expected_to_end = True
    warm(world, first)
    let_both_tasks_wait(world, first)
    first.process.kill()
    world.fix()

    second = world.start("first", module=ON_SPARK, **cluster.settings)
    world.wait_for_rows(dict.fromkeys(range(CHANGES), "name 9"))
    world.processes.wait_until(acks(second, CHANGES), "all acks", TIMEOUT)
    assert ends(second) == 0
    assert world.dead_letters() == []


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


def test_two_consumers_share_a_subscription_and_both_apply(world: World) -> None:
    consumers = [world.start(name, MICRO_BATCH_MESSAGES="20") for name in ("first", "second")]
    sequence = 0

    def both_have_acked() -> bool:
        nonlocal sequence
        sequence += 1
        world.publish(*changes(sequence))
        return all(counter(one, "leases_acked") for one in consumers)

    world.processes.wait_until(both_have_acked, "acks of both", TIMEOUT)
    world.wait_for_rows(dict.fromkeys(range(CHANGES), f"name {sequence}"))
    for one in consumers:
        assert ends(one) == 0
        (counted,) = events(one.process, "leases_counted")
        assert counted["left"] == 0
    assert world.dead_letters() == []
