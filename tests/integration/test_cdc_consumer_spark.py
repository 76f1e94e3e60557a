"""The consumer on the shapes of Spark it may run on: one task or several, in one process or on executors."""

import contextlib

import psutil
import pytest

from deploy.local.processes import wait_until
from deploy.local.services import Service, start_consumer, wait_until_ready
from tests.builders import a_change, a_header, a_message
from tests.integration.log_lines import events
from tests.integration.test_cdc_consumer import PATIENCE, World, acks, command_line, ends
from tests.integration.test_cdc_consumer import world as world  # noqa: PLC0414  a fixture

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]

CLUSTER = {"SPARK_MASTER": "local-cluster[2,1,1024]", "TASKS": "2"}
TABLES = ("planes", "pilots", "airports")
MESSAGES = 150
"""Of each table: many times as many as there are tasks, in several micro-batches."""


def _started(world: World, name: str, **settings: str) -> Service:
    consumer = start_consumer(world.processes, world.pipeline, name, **settings)
    wait_until_ready(world.processes, consumer)
    return consumer


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"SPARK_MASTER": "local[1]", "TASKS": "1"}, id="without a shuffle"),
        pytest.param({"SPARK_MASTER": "local[2]", "TASKS": "2"}, id="with a shuffle"),
        pytest.param(CLUSTER, id="on two executors"),
    ],
)
def test_more_messages_than_tasks_are_all_applied_and_every_lease_is_acked(
    world: World, settings: dict[str, str]
) -> None:
    for table in TABLES:
        header = a_header(table)
        world.publish(*[a_message(a_change(n % 40, n + 1), header=header) for n in range(MESSAGES)])
    newest = {n % 40: f"name {n + 1}" for n in range(MESSAGES)}
    consumer = _started(world, "consumer", MICRO_BATCH_MESSAGES="60", **settings)

    for table in TABLES:
        world.wait_for_rows(newest, table)
    world.processes.wait_until(acks(consumer, MESSAGES * len(TABLES)), "every message to be acked", PATIENCE)
    assert _reached_from_outside(consumer) == set()
    assert ends(consumer) == 0
    (counted,) = events(consumer.process, "leases_counted")
    assert counted["left"] == 0
    assert counted["taken"] == counted["acked"] + counted["put_off"] + counted["given_back"]
    assert world.letters() == []


def test_an_executor_that_is_killed_in_mid_batch_loses_nothing(world: World) -> None:
    first = _started(world, "first", **CLUSTER)
    first.process.expected_to_end = True
    world.publish(*[a_message(a_change(n, 1)) for n in range(3)])
    world.wait_for_rows(dict.fromkeys(range(3), "name 1"))
    world.fault(action="stall")
    world.publish(*[a_message(a_change(n, 2)) for n in range(3)])
    wait_until(
        lambda: world.stand_in.control("GET", "stats")["faults_met"] > 0,
        "an append without an answer",
        timeout=PATIENCE,
    )
    for executor in _executors(first):
        executor.kill()

    assert first.process.wait(PATIENCE) == 1, first.process.obituary()
    (counted,) = events(first.process, "leases_counted")
    assert counted["left"] >= 1, "what the killed executors held"
    assert counted["taken"] == counted["acked"] + counted["given_back"] + counted["left"]
    world.mend()
    second = _started(world, "first", **CLUSTER)
    world.wait_for_rows(dict.fromkeys(range(3), "name 2"))
    world.processes.wait_until(acks(second, 3), "what the killed executor held to be acked", PATIENCE)
    assert ends(second) == 0
    (rest,) = [event for event in events(second.process, "leases_counted") if event != counted]
    assert (rest["left"], rest["taken"]) == (0, rest["acked"] + rest["given_back"])
    assert world.letters() == []


def _reached_from_outside(consumer: Service) -> set[str]:
    """Return the addresses, other than loopback's, that the consumer's processes listen on."""
    family = [psutil.Process(consumer.process.pid), *psutil.Process(consumer.process.pid).children(recursive=True)]
    listening = set()
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):  # Spark's workers come and go
            connections = process.net_connections("inet")
            listening |= {one.laddr.ip for one in connections if one.status == psutil.CONN_LISTEN}
    assert listening, "at least its health is served"
    return {address for address in listening if not address.removeprefix("::ffff:").startswith("127.")}


def _executors(consumer: Service) -> list[psutil.Process]:
    children = psutil.Process(consumer.process.pid).children(recursive=True)
    executors = [one for one in children if any("CoarseGrainedExecutorBackend" in word for word in command_line(one))]
    assert executors, [command_line(one) for one in children]
    return executors
