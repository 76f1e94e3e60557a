"""A message whose content kills whoever decodes it: a worker process dies, and the rest is applied.

What kills is planted from outside, in the interpreter that the workers run on (PYSPARK_PYTHON): decoding a message that
holds a certain word ends the process with SIGKILL, as a kernel short of memory or a fault in a native library would.
Where the workers have a limit of memory (PYSPARK_EXECUTOR_MEMORY_MB, as `spark.executor.pyspark.memory` sets it),
nothing has to be planted: a message of few bytes that is a table of many columns and changes needs more than that.

Spark does not run here; a real worker of Spark is killed in `test_cdc_consumer_spark.py`.
"""

import sys
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from shared.contracts.change_batch import Change
from shared.contracts.dead_letter import DeadLetter
from shared.contracts.reasons import Reason
from tests.builders import a_change, a_header, a_message
from tests.integration.log_lines import events
from tests.worlds.consumer import World, acks, ends

pytestmark = [pytest.mark.integration, pytest.mark.timeout(2_400)]

TIMEOUT = timedelta(minutes=8)
SUSPECTED, CRASHES = 3, 3
"""At which delivery a message is handled last, and after how many crashes it is dead-lettered undecoded."""
MEMORY, WIDE, MANY = "3072", 1_000, 100_000
"""Megabytes that a worker may address (it starts with two thirds of that), and a table of 2 GB in columns."""

_DEADLY = """
import os, signal
import shared.contracts.change_batch as change_batch
decode_batch = change_batch.decode_batch
def decode_or_die(data):
    if b"killer" in bytes(data):
        os.kill(os.getpid(), signal.SIGKILL)
    return decode_batch(data)
change_batch.decode_batch = decode_or_die
"""


@pytest.fixture
def deadly_python(tmp_path: Path) -> str:
    """Return an interpreter that is this one, but dies of the killer."""
    (tmp_path / "sitecustomize.py").write_text(_DEADLY)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{tmp_path}:$PYTHONPATH" exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    return str(python)


def test_a_message_that_kills_the_worker_is_alone_in_its_harm_and_becomes_a_dead_letter(
    world: World, deadly_python: str
) -> None:
    killer = a_message(a_change(99, name="killer"), a_change(98))
    failures, dead_letter = alone_in_its_harm(world, killer, PYSPARK_PYTHON=deadly_python)
    assert all("crashed" in failed or "exited unexpectedly" in failed for failed in failures)
    assert "may end the process" in dead_letter.detail


def alone_in_its_harm(world: World, deadly: Mapping[str, Any], **settings: str) -> tuple[Sequence[str], DeadLetter]:
    """Check that a message ends some processes and holds up no other; return how these failed, and its dead letter."""
    world.publish(deadly)
    world.deliver(until=SUSPECTED - 1)
    for table in ("planes", "pilots"):
        header = a_header(table)
        world.publish(*[a_message(a_change(n % 10, n + 1), header=header) for n in range(50)])
    newest = {n % 10: f"name {n + 1}" for n in range(50)}

    settings |= {"TASKS": "1", "LINGER": "3s"}  # so that all come in one micro-batch
    failures = []
    for _crash in range(CRASHES):  # nothing else comes back after the first: all others were acked before
        one = world.launch("first", **settings)
        one.process.expected_to_end = True
        assert one.process.wait(TIMEOUT) == 1, one.process.obituary()
        failures.append(str(events(one.process, "service_failed")[-1]["error"]))
        assert {table: world.names(table) for table in ("planes", "pilots")} == {"planes": newest, "pilots": newest}
        assert world.dead_letters() == []

    world.publish(a_message(a_change(1, 100)))
    second = world.launch("first", **settings)
    world.processes.wait_until(lambda: world.names() == newest | {1: "name 100"} or None, "what came after it", TIMEOUT)
    world.processes.wait_until(lambda: acks(second, 2)() or None, "both to be acked", TIMEOUT)
    (dead_letter,) = world.dead_letters()
    assert (dead_letter.reason, dead_letter.data) == (Reason.RETRIES_EXHAUSTED, deadly["data"])
    assert ends(second) == 0
    return failures, dead_letter


def test_a_message_that_exhausts_the_workers_memory_is_alone_in_its_harm_and_becomes_a_dead_letter(
    world: World,
) -> None:
    wide = a_header("wide", [("id", "INT64"), *((f"number{n}", "FLOAT64") for n in range(WIDE))])
    sparse = [
        Change(
            op="UPSERT",
            mod_type="INSERT",
            sequence="1",
            commit_timestamp="2026-11-21T12:00:00Z",
            place="null",
            key=f'{{"id":"{n}"}}',
            row="{}",
        )
        for n in range(MANY)
    ]
    # By MemoryError, or by a signal if a thread of a library finds no memory first.
    alone_in_its_harm(world, a_message(*sparse, header=wide), PYSPARK_EXECUTOR_MEMORY_MB=MEMORY)
    assert world.names("wide") is None
