"""Whatever a process says is a line of JSON: of libraries, of Python itself, of gRPC's core, of its end."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from deploy.local.services import child_environment

pytestmark = pytest.mark.integration

ROOT: Final = Path(__file__).resolve().parents[2]

PROGRAM: Final = """
import asyncio, contextlib, gc, logging, threading, warnings
import grpc
import structlog
from shared.runtime.service import run_as

class Broken:
    def __del__(self):
        raise ValueError("in a finalizer")

def fail(words):
    raise ValueError(words)

async def forget():
    task = asyncio.create_task(asyncio.to_thread(fail, "in a task"))
    await asyncio.sleep(0.2)
    del task
    gc.collect()

def work():
    structlog.get_logger().info("begun")
    logging.getLogger("library").error("from a library")
    warnings.warn("from Python")
    thread = threading.Thread(target=fail, args=("in a thread",))
    thread.start()
    thread.join()
    Broken()
    asyncio.run(forget())
    with grpc.insecure_channel("127.0.0.1:1") as channel, contextlib.suppress(grpc.RpcError):
        channel.unary_unary("/service/method")(b"", timeout=0.2)
    fail("at the end")

run_as("some_service", work)
"""


def test_whatever_a_process_says_is_a_line_of_json_with_its_severity() -> None:
    environment = {**child_environment(os.environ), "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=False, timeout=120
    )

    said: list[dict[str, Any]] = [json.loads(line) for line in ran.stderr.splitlines()]
    assert (ran.returncode, ran.stdout) == (1, "")
    assert {one["service"] for one in said} == {"some_service"}
    assert [(one["severity"], one["message"].split("\n")[0].removeprefix("<string>:23: ")) for one in said] == [
        ("INFO", "begun"),
        ("ERROR", "from a library"),
        ("WARNING", "UserWarning: from Python"),
        ("ERROR", "thread_failed"),
        ("ERROR", "exception_ignored"),
        ("ERROR", "Task exception was never retrieved"),
        ("CRITICAL", "process_failed"),
    ]
    for line, words in ((3, "in a thread"), (4, "in a finalizer"), (5, "in a task"), (6, "at the end")):
        told = said[line]["exception"].splitlines()
        assert (told[0], told[-1]) == ("Traceback (most recent call last):", f"ValueError: {words}")
    assert said[6]["logging.googleapis.com/sourceLocation"]["function"] == "fail"
