"""The consumer on a Spark whose executors are not its own: what its tasks hold and count does not reach it.

They run on this machine here, but the consumer gives them no place on its disk to report at, as it could not elsewhere.
The one start of Spark of this module needs a real cluster: a master and a worker, each in a Java of its own.
"""

import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import pyspark
import pytest

from deploy.local.platform.emulators import HOST, ROOT, free_port, listens
from deploy.local.platform.processes import Processes
from tests.builders import a_change, a_message
from tests.integration.log_lines import events
from tests.worlds.consumer import ON_SPARK, TIMEOUT, World, acks, asked, ends

pytestmark = [pytest.mark.integration, pytest.mark.timeout(500)]

LIVENESS = timedelta(seconds=15)


@pytest.fixture
def spark_master(new_processes: Processes) -> str:
    """Run a standalone cluster of one worker; return its address."""
    java = ["java", "-Xmx256m", "-cp", str(Path(pyspark.__file__).parent / "jars" / "*")]
    deployed, here = "org.apache.spark.deploy", ["--host", HOST, "--webui-port", "0"]
    port = free_port()
    master = f"spark://{HOST}:{port}"
    worker = ["--cores", "2", "--memory", "1g", "--work-dir", str(new_processes.directory / "work"), master]
    environment = {
        **os.environ,
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "SPARK_SCALA_VERSION": "2.13",  # both as `spark-class` sets them, for executors
        "SPARK_LOCAL_IP": HOST,
        "PYTHONPATH": str(ROOT),
    }
    new_processes.start("master", [*java, f"{deployed}.master.Master", *here, "--port", str(port)], environment)
    new_processes.wait_until(lambda: listens(port), "Spark's master", TIMEOUT)
    new_processes.start("worker", [*java, f"{deployed}.worker.Worker", *here, *worker], environment)
    return master


def test_the_consumer_is_alive_while_bigquery_is_unavailable_and_shows_only_what_it_knows(
    world: World, spark_master: str
) -> None:
    consumer = world.start(
        module=ON_SPARK,
        SPARK_MASTER=spark_master,
        LIVENESS=f"{LIVENESS.seconds}s",
        SPARK_LOCAL_IP=HOST,
        PYSPARK_PYTHON=sys.executable,
    )
    world.publish(a_message(a_change(1)))
    world.wait_for_rows({1: "name 1"})
    world.fault(action="close", status="UNAVAILABLE")
    world.publish(a_message(a_change(2)))
    world.processes.wait_until(
        lambda: world.stand_in.control("GET", "stats")["faults_met"] > 0, "a refused append", TIMEOUT
    )
    over = time.monotonic() + 2 * LIVENESS.total_seconds()  # longer than it may be without a sign
    while time.monotonic() < over:
        assert consumer.alive
        time.sleep(0.5)
    world.fix()

    world.wait_for_rows({1: "name 1", 2: "name 1"})
    world.processes.wait_until(acks(consumer, 2), "what was written to be acked", TIMEOUT)
    shown = consumer.exposed()
    assert "millrace_consumer_written_rows_total 2" in shown
    assert "millrace_leases_acquired" not in shown
    assert "millrace_consumer_oldest_outstanding" not in shown
    document = asked(consumer)
    assert document is not None
    assert (document["processes"], document["messages"]["acked"]) == (None, 2)
    assert ends(consumer) == 0
    (counted,) = events(consumer.process, "leases_counted")
    assert (counted["acked"], "left" in counted, "taken" in counted) == (2, False, False)
