"""The consumer in the pods that Spark's cluster mode makes: one for the driver, and one for each executor.

`spark-submit` is Spark's own, with the files of `deploy/spark_submit`, and so is what asks for executors. The pods are
started as processes, because there is no Kubernetes here that would start them.
"""

import os
import subprocess
from collections.abc import Iterator, Mapping

import psutil
import pytest

from deploy.local.platform.emulators import HOST, ROOT, free_port
from deploy.local.platform.services import Service, wait_until_ready
from tests.builders import a_change, a_message
from tests.integration.log_lines import events
from tests.worlds.consumer import TIMEOUT, World, acks, command_line
from tests.worlds.kubernetes import SPARK, Kubernetes, kubernetes

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

MAIN = "local:///app/services/cdc_consumer/__main__.py"


@pytest.fixture
def cluster() -> Iterator[Kubernetes]:
    """Return a cluster without any object."""
    with kubernetes() as cluster:
        yield cluster


def submit(cluster: Kubernetes, properties: Mapping[str, str]) -> None:
    """Run `spark-submit` as the page says, with properties over those of the file."""
    words = [word for name, value in properties.items() for word in ("--conf", f"{name}={value}")]
    command = [str(SPARK / "bin/spark-submit"), "--master", f"k8s://{cluster.address}", "--deploy-mode", "cluster"]
    # no cluster that this user has in ~/.kube/config
    environment = {**os.environ, "SPARK_HOME": str(SPARK), "KUBECONFIG": "/dev/null", "SPARK_LOCAL_IP": HOST}
    file = "deploy/spark_submit/consumer.conf"
    command += ["--properties-file", file, *words, MAIN]
    ran = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


def test_the_driver_that_is_submitted_applies_drains_and_ends_with_the_consumers_codes(
    world: World, cluster: Kubernetes
) -> None:
    settings = world.pipeline.consumer_environment(world.processes.directory / "checkpoint")
    settings |= {"TASKS": "1", "PORT": str(free_port())}
    del settings["SPARK_MASTER"]
    small = {"spark.executor.instances": "1", "spark.executor.cores": "1", "spark.executor.memory": "512m"}
    ports = {f"spark.driver.{name}": str(free_port()) for name in ("port", "blockManager.port")}
    more = {
        "spark.kubernetes.driver.master": cluster.address,
        "spark.kubernetes.submission.waitAppCompletion": "false",
        "spark.kubernetes.executor.enableApiWatcher": "false",  # it asks which pods there are, and is not told
        "spark.kubernetes.executor.apiPollingInterval": "1s",
        "spark.driver.defaultJavaOptions": "-Dmillrace.given=yes",
    }
    given = {f"spark.kubernetes.driverEnv.{name}": value for name, value in settings.items()}
    submit(cluster, given | small | ports | more)
    (driver,) = cluster.pods("driver")
    consumer = Service(cluster.start(world.processes, driver, "driver"), int(settings["PORT"]))
    world.processes.wait_until(lambda: bool(cluster.pods("executor")), "an executor to be asked for", TIMEOUT)
    cluster.start(world.processes, cluster.pods("executor")[0], "executor").expected_to_end = True
    wait_until_ready(world.processes, consumer)
    java = " ".join(word for one in psutil.Process(consumer.process.pid).children(True) for word in command_line(one))
    assert {"-Xmx1g", "-Dmillrace.given=yes"} <= set(java.split())
    world.publish(a_message(a_change(1)), a_message(a_change(2)))
    world.wait_for_rows({1: "name 1", 2: "name 1"})
    world.processes.wait_until(acks(consumer, 2), "two acks", TIMEOUT)

    consumer.process.ask_to_end()
    assert consumer.process.wait(TIMEOUT) == 0, consumer.process.obituary()
    (counted,) = events(consumer.process, "leases_counted")
    assert (counted["left"], counted["taken"]) == (0, counted["acked"] + counted["released"])

    refused = cluster.start(world.processes, driver, "refused", SUBSCRIPTION=None)
    refused.expected_to_end = True
    assert refused.wait(TIMEOUT) == 2
    (refusal,) = events(refused, "service_misconfigured")
    assert "SUBSCRIPTION is not set" in refusal["error"]
