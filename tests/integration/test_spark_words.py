"""What Spark's processes write to stderr are lines of our log."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import subprocess, sys, threading
from services.cdc_consumer.adapters.spark.spark_session import stderr_as_log_lines
from shared.runtime.logs import configure_logs
configure_logs("cdc_consumer", log_format=sys.argv[2])
with stderr_as_log_lines():
    said = subprocess.Popen(["sh", "-c", sys.argv[1]])
said.wait()
for thread in threading.enumerate():
    if thread.name == "Spark's words":
        thread.join()
"""
WORKER = """
import structlog
from shared.runtime.logs import configure_logs
configure_logs("cdc_consumer")
structlog.get_logger().warning("of a worker")
"""
SCRIPT = """
echo 'WARNING: Using incubator modules: jdk.incubator.vector' >&2
echo '{"severity":"ERROR","message":"of log4j"}' >&2
echo 'java.lang.OutOfMemoryError: Java heap space' >&2
"""


def logged(script: str, log_format: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, script, log_format],
        env={"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"], **environment},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )


def test_json_goes_through_other_text_is_an_event_and_what_is_always_said_is_not() -> None:
    ran = logged(SCRIPT, "auto")

    first, second = sorted((json.loads(line) for line in ran.stderr.splitlines()), key=lambda one: str(one["severity"]))
    assert first == {"severity": "ERROR", "message": "of log4j"}
    assert (second["event"], second["severity"]) == ("spark_stderr", "WARNING")
    assert second["text"] == "java.lang.OutOfMemoryError: Java heap space"
    assert ran.stdout == ""


def test_where_we_log_text_nothing_that_spark_writes_is_json() -> None:
    ran = logged(f"{SCRIPT}\n{shlex.join([sys.executable, '-c', WORKER])}", "text", LOG_FORMAT="text")

    assert [re.sub(r"^\d\d:\d\d:\d\d", "", line).strip() for line in ran.stderr.splitlines()] == [
        "ERROR   of log4j",
        "java.lang.OutOfMemoryError: Java heap space",
        "WARNING of a worker",
    ]
