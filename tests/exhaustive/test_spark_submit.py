"""The consumer in the pod that Spark's cluster mode makes for its driver.

`spark-submit` is Spark's own, with the files of `deploy/spark_submit`. What it creates stays in an API that only keeps
it. The driver's pod is started as a process, with Spark in it: no Kubernetes starts executors' pods here.
"""

from collections.abc import Iterator

import pytest

from deploy.local.platform.services import wait_until_ready
from tests.builders import a_change, a_message
from tests.integration.log_lines import events
from tests.worlds.consumer import TIMEOUT, World, acks, ends
from tests.worlds.kubernetes import KubernetesApi, kubernetes_api

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

MAIN = "local:///app/services/cdc_consumer/__main__.py"


@pytest.fixture
def api() -> Iterator[KubernetesApi]:
    """Return an API that has no objects yet."""
    with kubernetes_api() as api:
        yield api


def submitted(api: KubernetesApi, world: World, **more: str) -> None:
    """Submit the consumer for the world's pipeline."""
    settings = {**world.pipeline.consumer_environment(world.processes.directory / "checkpoint"), **more}
    properties = {f"spark.kubernetes.driverEnv.{name}": value for name, value in settings.items()}
    words = [word for name, value in properties.items() for word in ("--conf", f"{name}={value}")]
    api.submit(world.processes.environment, "--properties-file", "deploy/spark_submit/consumer.conf", *words, MAIN)


def test_the_driver_that_is_submitted_applies_drains_and_ends_with_the_consumers_codes(
    world: World, api: KubernetesApi
) -> None:
    submitted(api, world, TASKS="2", SPARK_MASTER="local[2]")
    consumer = api.start_pod(world.processes, "driver")
    wait_until_ready(world.processes, consumer)
    world.publish(a_message(a_change(1)), a_message(a_change(2)))
    world.wait_for_rows({1: "name 1", 2: "name 1"})
    world.processes.wait_until(acks(consumer, 2), "two acks", TIMEOUT)

    assert ends(consumer) == 0, consumer.process.obituary()
    (counted,) = events(consumer.process, "leases_counted")
    assert (counted["left"], counted["taken"]) == (0, counted["acked"] + counted["given_back"])

    refused = api.start_pod(world.processes, "refused", SUBSCRIPTION=None)
    refused.process.expected_to_end = True
    assert refused.process.wait(TIMEOUT) == 2
    (told,) = events(refused.process, "service_misconfigured")
    assert "SUBSCRIPTION is not set" in told["error"]
