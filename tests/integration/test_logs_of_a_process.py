"""Whatever a process says is a line of JSON: of libraries, of Python itself, of gRPC's core, of its end."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from deploy.local.platform.services import child_environment

pytestmark = pytest.mark.integration

ROOT: Final = Path(__file__).resolve().parents[2]

PROGRAM: Final = """
import asyncio, contextlib, gc, logging, os, socket, socketserver, threading, warnings
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
    serve()
    with grpc.insecure_channel("127.0.0.1:1") as channel, contextlib.suppress(grpc.RpcError):
        channel.unary_unary("/service/method")(b"", timeout=0.2)
    fail("at the end")

class Handler(socketserver.BaseRequestHandler):
    def handle(self):
        fail("in a server")

def serve():
    with socketserver.TCPServer(("127.0.0.1", 0), Handler) as server:
        with socket.create_connection(server.server_address):
            server.handle_request()

run_as("some_service", work, os.environ)
"""


def test_every_log_line_of_a_process_is_json_with_a_severity() -> None:
    environment = {**child_environment(os.environ), "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=False, timeout=120
    )

    logs: list[dict[str, Any]] = [json.loads(line) for line in ran.stderr.splitlines()]
    assert (ran.returncode, ran.stdout) == (1, "")
    assert {one["service"] for one in logs} == {"some_service"}
    assert [
        (one["severity"], one.get("event", one["message"]).split("\n")[0].removeprefix("<string>:23: ")) for one in logs
    ] == [
        ("INFO", "begun"),
        ("ERROR", "from a library"),
        ("WARNING", "UserWarning: from Python"),
        ("ERROR", "thread_failed"),
        ("ERROR", "exception_ignored"),
        ("ERROR", "Task exception was never retrieved"),
        ("ERROR", "request_failed"),
        ("CRITICAL", "process_failed"),
    ]
    places = ("in a thread", "in a finalizer", "in a task", "in a server", "at the end")
    for line, words in enumerate(places, start=3):
        trace = logs[line]["exception"].splitlines()
        assert (trace[0], trace[-1]) == ("Traceback (most recent call last):", f"ValueError: {words}")
    assert logs[7]["logging.googleapis.com/sourceLocation"]["function"] == "fail"


def test_a_process_that_is_interrupted_ends_by_the_signal_and_prints_nothing() -> None:
    program = "import os; from shared.runtime.service import run_as; run_as('s', lambda: os.kill(os.getpid(), 2), {})"
    environment = {**child_environment(os.environ), "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        [sys.executable, "-c", f"import signal; signal.signal(2, signal.default_int_handler); {program}"],
        env=environment,
        capture_output=True,
        check=False,
        timeout=120,
    )

    assert (ran.returncode, ran.stdout, ran.stderr) == (-signal.SIGINT, b"", b"")


PRINTS = """
import os, sys
from shared.runtime.service import run_as

def command():
    for _ in range(100):
        sys.stdout.write("a line\\n" * {lines})
    return 0

sys.exit(run_as("some_service", command, os.environ, typed=True))
"""


@pytest.mark.parametrize("lines", [1, 10_000])
@pytest.mark.parametrize(
    ("shell", "said"),
    [
        ('"$@" | true; exit ${PIPESTATUS[0]}', ""),
        (
            '"$@" > /dev/full',
            "error: [Errno 28] No space left on device: there is no room where standard output goes, or ",
        ),
    ],
)
def test_a_command_whose_output_is_cut_off_ends_with_1_and_no_traceback(shell: str, said: str, lines: int) -> None:
    environment = {**child_environment(os.environ), "PYTHONPATH": str(ROOT)}
    program = [sys.executable, "-c", PRINTS.format(lines=lines)]
    ran = subprocess.run(
        ["bash", "-c", shell, "bash", *program],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )

    assert (ran.returncode, ran.stderr[: len(said)], ran.stderr.count("\n")) == (1, said, bool(said))


def test_a_command_that_is_started_without_an_output_ends_as_it_would_with_one() -> None:
    environment = {**child_environment(os.environ), "PYTHONPATH": str(ROOT)}
    program = (
        "from shared.runtime.service import run_as\nimport os\nos._exit(run_as('s', lambda: 3, os.environ, typed=True))"
    )
    shell = ["bash", "-c", '"$@" >&-', "bash", sys.executable, "-c", program]
    ran = subprocess.run(shell, env=environment, stderr=subprocess.PIPE, text=True, check=False, timeout=120)

    assert (ran.returncode, ran.stderr) == (3, "")
