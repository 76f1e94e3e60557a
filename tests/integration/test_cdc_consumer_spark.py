"""The consumer on a real Spark: what only Spark's processes can show. Each test starts Spark once, 8 to 30 seconds.

| start | reason |
|---|---|
| two tasks with a shuffle | the whole service as it is deployed, from start to finish; its Java hangs, and goes on |
| two executors | what messages hold travels in rows; one of them is killed |
| a worker is killed | Spark's daemon forks workers, and the driver counts what a killed one held |
| its checkpoint is damaged | Spark says so in words of its own, and so it does where a process is late |
| Java is killed | the driver's connection to it breaks |
| stopped while Spark starts | no process of Spark's may be left |

One task without a shuffle is in `test_cdc_consumer_drain.py`, a cluster in `tests/exhaustive`, the source alone
in `test_pubsub_source.py`. A consumer that only applies what is left runs without Spark (`worlds/without_spark.py`).
"""

import contextlib
import json
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest

from deploy.local.platform.processes import wait_until
from deploy.local.platform.services import Service
from shared.contracts.reasons import Reason
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
    command_line,
    counter,
    ends,
    executors,
    kill_with_its_workers,
)

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]

CLUSTER = {"SPARK_MASTER": "local-cluster[2,1,1024]", "TASKS": "2", "MICRO_BATCH_MESSAGES": "60", "LINGER": "2s"}
WORKER_DAEMONS = {"pyspark.daemon", "services.cdc_consumer.wiring.worker_daemon"}
TABLES = ("crews", "pilots", "routes")
MESSAGES = 150
"""Of each table: many times as many as there are tasks, in several micro-batches."""
ROWS_OF = {"planes/0": range(3), "planes/1": range(3, 8)}
"""Rows by ordering key. These keys go to two tasks, so one of them holds three messages, the other five."""


def test_changes_arrive_poison_becomes_dead_letters_and_an_outage_loses_nothing(world: World) -> None:
    consumer = world.start(module=ON_SPARK, LIVENESS="15s", MICRO_BATCH_MESSAGES="60")
    world.publish(
        a_message(header=a_header("airports")),
        a_message(a_change(1), a_change(2), a_change(3, seats="many")),
        a_message(data=b"garbage"),
    )
    world.wait_for_rows({1: "name 1", 2: "name 1"})
    world.wait_for_rows({}, "airports")
    world.publish(a_message(a_change(1, 2, op="DELETE"), a_change(2, 5)), a_message(a_change(2, 4), a_change(4)))
    world.wait_for_rows({2: "name 5", 4: "name 1"})
    world.processes.wait_until(acks(consumer, 5), "five acks", TIMEOUT)
    assert {one.reason for one in world.dead_letters()} == {Reason.VALUE_DOES_NOT_FIT, Reason.UNDECODABLE}

    for sequence in range(6, 12):
        world.publish(a_message(a_change(2, sequence)))
        world.wait_for_rows({2: f"name {sequence}", 4: "name 1"})
    world.processes.wait_until(acks(consumer, 11), "eleven acks", TIMEOUT)
    batches = len(events(consumer.process, "micro_batch_applied"))
    connections = len(events(consumer.process, "append_connection_opened"))
    assert connections <= 4 < batches  # one for each worker process, of which Spark keeps a few, and not for each task
    assert not {"lookup_data_sources", "create_data_source", "plan_data_source_read"} & _python_modules(consumer)
    checkpoint = world.processes.directory / f"{consumer.process.name}-checkpoint"
    assert [path.name for path in checkpoint.glob("commits/*")]
    assert not list(checkpoint.rglob("*.crc"))  # as Spark's own choice of a class leaves them: it starts processes

    # BigQuery goes away for a while: nothing is redelivered or dead-lettered. (Longer than leases last: in tests/e2e.)
    before = int(counter(consumer, "leases_acked"))
    world.fault(action="close", status="UNAVAILABLE")
    world.publish(a_message(a_change(5)), a_message(a_change(4, 2)))
    world.processes.wait_until(lambda: bool(events(consumer.process, "call_retried")) or None, "a retry", TIMEOUT)
    assert world.names() == {2: "name 11", 4: "name 1"}
    world.fix()
    world.wait_for_rows({2: "name 11", 4: "name 2", 5: "name 1"})
    world.processes.wait_until(acks(consumer, before + 2), "two more acks", TIMEOUT)
    assert counter(consumer, "consumer_messages") == before + 2
    assert counter(consumer, "consumer_appends") > 0
    assert counter(consumer, "consumer_appended_bytes") > 0
    assert world.dead_letters() == []
    tables = {event["table"] for event in events(consumer.process, "append_connection_opened")}
    assert tables == {"planes"}
    more_messages_than_tasks_are_all_applied(world, consumer)
    a_hang_turns_healthz_red_and_going_on_turns_it_green_again(world, consumer)
    assert _reached_from_outside(consumer) == set()
    a_stop_while_bigquery_is_unavailable_is_no_error(world, consumer)
    assert len(events(consumer.process, "service_started")) == 1
    (counted,) = events(consumer.process, "leases_counted")
    assert counted["left"] == 0
    assert counted["taken"] == counted["acked"] + counted["deferred"] + counted["released"]
    assert world.dead_letters() == []


def more_messages_than_tasks_are_all_applied(world: World, consumer: Service) -> None:
    before = int(counter(consumer, "leases_acked"))
    for table in TABLES:
        header = a_header(table)
        world.publish(*[a_message(a_change(n % 40, n + 1), header=header) for n in range(MESSAGES)])
    newest = {n % 40: f"name {n + 1}" for n in range(MESSAGES)}
    for table in TABLES:
        world.wait_for_rows(newest, table)
    world.processes.wait_until(acks(consumer, before + MESSAGES * len(TABLES)), "every message to be acked", TIMEOUT)


def a_hang_turns_healthz_red_and_going_on_turns_it_green_again(world: World, consumer: Service) -> None:
    (java,) = [
        one
        for one in psutil.Process(consumer.process.pid).children()
        if "org.apache.spark" in " ".join(command_line(one))
    ]
    java.suspend()
    try:
        world.processes.wait_until(lambda: not consumer.alive, "the consumer to be called dead", TIMEOUT)
    finally:
        java.resume()
    world.processes.wait_until(lambda: consumer.alive, "the consumer to be alive again", TIMEOUT)


def a_stop_while_bigquery_is_unavailable_is_no_error(world: World, consumer: Service) -> None:
    before = world.faults_met()
    world.fault(action="close", status="UNAVAILABLE")
    world.publish(a_message(a_change(6)))
    world.processes.wait_until(lambda: world.faults_met() > before or None, "an append without success", TIMEOUT)
    assert ends(consumer) == 0, consumer.process.obituary()
    (event,) = events(consumer.process, "stopped_in_mid_batch")
    assert "table planes: append refused, UNAVAILABLE" in event["error"]
    (stop,) = events(consumer.process, "stop_requested")
    lines = [json.loads(line) for line in consumer.process.output().splitlines() if line.startswith("{")]
    assert [line for line in lines[lines.index(stop) :] if line["severity"] == "ERROR"] == []


def test_on_two_executors_all_is_applied_and_of_one_that_is_killed_leases_run_out_and_the_others_are_released(
    world: World,
) -> None:
    first = world.start("first", module=ON_SPARK, **CLUSTER)
    first.process.expected_to_end = True
    more_messages_than_tasks_are_all_applied(world, first)
    assert _reached_from_outside(first) == set()
    _wait_until_both_executors_have_messages(world, first)
    released = counter(first, "leases_released")
    kill_with_its_workers(executors(first.process)[0])
    killed_at = time.monotonic()

    counted = _ended_with_leases_left(first)
    assert counted["taken"] == counted["acked"] + counted["released"] + counted["left"]
    assert {counted["released"] - released, counted["left"]} == set(map(len, ROWS_OF.values()))

    world.fix()
    second = world.start("first")
    passed = timedelta(seconds=time.monotonic() - killed_at)
    number = sum(map(len, ROWS_OF.values()))
    world.processes.wait_until(acks(second, number), "what the killed one held, too", COME_AGAIN_WITHIN - passed)
    _check_that_nothing_is_left(world, second, counted, dict.fromkeys(range(number), "name 9"))


def test_every_lease_is_counted_though_a_worker_is_killed_in_mid_batch(world: World) -> None:
    first = world.start("first", module=ON_SPARK)
    first.process.expected_to_end = True
    _wait_in_mid_append(world, 4)
    for one in psutil.Process(first.process.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # workers end by themselves as well
            if any(WORKER_DAEMONS & {*parent.cmdline()} for parent in one.parents()[:1]):
                one.kill()

    counted = _ended_with_leases_left(first)
    assert counted["taken"] == counted["acked"] + counted["left"]
    rest = _check_that_another_goes_on(world, counted, counted["left"])
    assert counted["acked"] + rest["acked"] >= 15


def test_a_damaged_checkpoint_or_a_spark_that_dies_ends_it_with_an_error_and_another_start_goes_on(
    world: World, tmp_path: Path
) -> None:
    checkpoint = world.processes.directory / "first-checkpoint"
    (checkpoint / "offsets").mkdir(parents=True)
    (checkpoint / "offsets" / "0").touch()  # as a power failure leaves it
    (checkpoint / "metadata").write_text('{"id":"d2453c03-fc45-4d87-80ff-1d97b0245b5a"}')
    consumer = world.launch("first", module=ON_SPARK)
    consumer.process.expected_to_end = True
    assert consumer.process.wait(TIMEOUT) == 1, consumer.process.obituary()
    (event,) = events(consumer.process, "checkpoint_damaged")
    assert "Incomplete log file" in event["error"]
    assert (checkpoint / "damaged" / "offsets" / "0").exists()

    consumer = world.start("first", module=ON_SPARK, PYSPARK_PYTHON=_late_python(tmp_path))
    world.publish(a_message(a_change(1)))
    world.wait_for_rows({1: "name 1"})
    assert "connect back" in next(event["error"] for event in events(consumer.process, "call_retried"))
    consumer.process.expected_to_end = True
    children = psutil.Process(consumer.process.pid).children(recursive=True)
    (java,) = [one for one in children if "pyspark-shell" in command_line(one)]
    java.kill()

    assert consumer.process.wait(TIMEOUT) == 1, consumer.process.obituary()
    (event,) = events(consumer.process, "service_failed")
    assert "Spark's Java process has ended" in event["error"]
    world.publish(a_message(a_change(2)))
    world.start("first")
    world.wait_for_rows({1: "name 1", 2: "name 1"})


def test_asked_to_stop_while_spark_starts_it_ends_in_time_and_leaves_no_process(world: World) -> None:
    consumer = world.launch(module=ON_SPARK)

    def of_spark() -> list[psutil.Process] | None:
        children = psutil.Process(consumer.process.pid).children(recursive=True)
        return [one for one in children if "pyspark-shell" in command_line(one)] or None

    started = world.processes.wait_until(of_spark, "Spark to be started", TIMEOUT)
    assert not consumer.ready
    assert ends(consumer) == 0, consumer.process.obituary()
    _gone, alive = psutil.wait_procs(started, timeout=STOP_WITHIN.total_seconds())
    assert alive == []


def _late_python(directory: Path) -> str:
    """Return a Python of which one process begins too late for Spark."""
    python, late = directory / "python", directory / "late"
    late.mkdir()
    python.write_text(
        f'#!/bin/sh\ncase "$*" in *source_runner) rmdir "{late}" 2>/dev/null && sleep 12 ;; esac\n'
        f'exec "{sys.executable}" "$@"\n'
    )
    python.chmod(0o755)
    return str(python)


def _python_modules(consumer: Service) -> set[str]:
    """Return the last words of the names of modules that the consumer's processes run."""
    processes = psutil.Process(consumer.process.pid).children(recursive=True)
    return {word.rpartition(".")[2] for one in processes for word in command_line(one)}


def _wait_in_mid_append(world: World, rounds: int) -> None:
    """Let some rounds of changes of three rows be applied, and wait until a last one is without an answer."""
    for sequence in range(1, rounds + 1):
        world.publish(*[a_message(a_change(n, sequence)) for n in range(3)])
        world.wait_for_rows(dict.fromkeys(range(3), f"name {sequence}"))
    before = world.faults_met()
    world.fault(action="stall")
    world.publish(*[a_message(a_change(n, 9)) for n in range(3)])
    wait_until(lambda: world.faults_met() > before or None, "an append without an answer", timeout=TIMEOUT)


def _wait_until_both_executors_have_messages(world: World, consumer: Service) -> None:
    """Let a round of changes be applied, and wait until each task has some of a next one while BigQuery is away."""
    before = int(counter(consumer, "leases_acked"))
    number = sum(map(len, ROWS_OF.values()))
    world.publish(*_of_both_tasks(1))
    world.wait_for_rows(dict.fromkeys(range(number), "name 1"))
    world.processes.wait_until(acks(consumer, before + number), "all acks", TIMEOUT)
    world.fault(action="close", status="UNAVAILABLE")
    world.publish(*_of_both_tasks(9))

    def both_have_messages() -> bool:
        document = asked(consumer)
        return document is not None and document["processes"]["holding"] == len(ROWS_OF)

    world.processes.wait_until(both_have_messages, "both executors to hold messages", TIMEOUT)


def _of_both_tasks(sequence: int) -> Sequence[Mapping[str, object]]:
    return [
        {**a_message(a_change(row, sequence)), "ordering_key": key} for key, rows in ROWS_OF.items() for row in rows
    ]


def _ended_with_leases_left(consumer: Service) -> Mapping[str, Any]:
    """Return what a consumer has counted that ends since a process of Spark's was killed."""
    assert consumer.process.wait(TIMEOUT) == 1, consumer.process.obituary()
    (counted,) = events(consumer.process, "leases_counted")
    assert counted["left"] >= 1, "what the killed one held"
    return counted


def _check_that_another_goes_on(world: World, before: Mapping[str, Any], least: int) -> Mapping[str, Any]:
    """Check that the next consumer applies what the one before left; return what it has counted."""
    world.fix()
    second = world.start("first")
    world.processes.wait_until(acks(second, least), "everything that was left to be acked", TIMEOUT)
    return _check_that_nothing_is_left(world, second, before, dict.fromkeys(range(3), "name 9"))


def _check_that_nothing_is_left(
    world: World, second: Service, before: Mapping[str, Any], rows: Mapping[int, str]
) -> Mapping[str, Any]:
    """Check that the next consumer has applied all, and counts no lease as left; return what it has counted."""
    world.wait_for_rows(rows)
    assert ends(second) == 0
    (rest,) = [event for event in events(second.process, "leases_counted") if event != before]
    assert (rest["left"], rest["taken"]) == (0, rest["acked"] + rest["released"])
    assert world.dead_letters() == []
    return rest


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
