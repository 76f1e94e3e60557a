"""The consumer on a Spark whose executors are not its own: what its tasks hold and count reaches it over the network.

The one start of Spark of this module needs a real cluster: a master and two workers, each in a Java of its own.
"""

import time
from datetime import timedelta

import pytest

from deploy.local.platform.processes import Processes
from tests.builders import a_change, a_header, a_message
from tests.integration.log_lines import events
from tests.worlds.consumer import ON_SPARK, TIMEOUT, World, acks, asked, counter
from tests.worlds.spark_cluster import SparkCluster

pytestmark = [pytest.mark.integration, pytest.mark.timeout(500)]

LIVENESS = timedelta(seconds=15)
TABLES = ("planes", "crews", "pilots", "routes")


@pytest.fixture
def cluster(new_processes: Processes) -> SparkCluster:
    """Run a standalone cluster of two workers."""
    return SparkCluster(new_processes, workers=2)


def unavailable(world: World, number: int) -> None:
    """Let BigQuery be away, and publish a change that waits for it."""
    met = world.stand_in.control("GET", "stats")["faults_met"]
    world.fault(action="close", status="UNAVAILABLE")
    world.publish(a_message(a_change(number)))
    world.processes.wait_until(
        lambda: world.stand_in.control("GET", "stats")["faults_met"] > met, "a refused append", TIMEOUT
    )


def test_the_tasks_of_other_machines_report_and_hear_of_a_stop(world: World, cluster: SparkCluster) -> None:
    consumer = world.start(module=ON_SPARK, LIVENESS=f"{LIVENESS.seconds}s", LINGER="2s", **cluster.settings)
    for table in TABLES:
        world.publish(*[a_message(a_change(number), header=a_header(table)) for number in range(3)])
    for table in TABLES:
        world.wait_for_rows(dict.fromkeys(range(3), "name 1"), table)
    world.processes.wait_until(acks(consumer, 12), "what was written to be acked", TIMEOUT)
    document = asked(consumer)
    assert document is not None
    assert document["processes"]["seen"] == 2, "one on each worker"
    assert counter(consumer, "consumer_written_rows") >= 12
    assert counter(consumer, "consumer_appends") >= len(TABLES)
    assert counter(consumer, "leases_acquired") >= 12

    unavailable(world, 4)
    over = time.monotonic() + 2 * LIVENESS.total_seconds()  # longer than it may be without a sign
    while time.monotonic() < over:
        assert consumer.alive
        time.sleep(0.5)
    document = asked(consumer)
    assert document is not None
    assert document["processes"]["holding"] == 1
    assert document["lag_seconds"]["oldest_outstanding"] > LIVENESS.total_seconds()
    world.fix()
    world.wait_for_rows({**dict.fromkeys(range(3), "name 1"), 4: "name 1"})
    world.processes.wait_until(acks(consumer, 13), "what was written to be acked", TIMEOUT)

    unavailable(world, 5)
    consumer.process.ask_to_end()
    assert consumer.process.wait(TIMEOUT) == 0, consumer.process.obituary()
    (counted,) = events(consumer.process, "leases_counted")
    assert (counted["left"], counted["released"]) == (0, 1)
    assert counted["taken"] == counted["acked"] + counted["released"]
