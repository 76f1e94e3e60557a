"""What Spark's processes write to stderr are lines of our log."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = """
import subprocess, sys, threading
from services.cdc_consumer.spark_words import words_as_lines
from shared.runtime.logs import configure_logs
configure_logs("cdc_consumer")
with words_as_lines():
    said = subprocess.Popen(["sh", "-c", sys.argv[1]])
said.wait()
for thread in threading.enumerate():
    if thread.name == "Spark's words":
        thread.join()
"""
SAID = """
echo 'WARNING: Using incubator modules: jdk.incubator.vector' >&2
echo '{"severity":"ERROR","message":"of log4j"}' >&2
echo 'java.lang.OutOfMemoryError: Java heap space' >&2
"""


def test_json_goes_through_other_text_is_an_event_and_what_is_always_said_is_not() -> None:
    environment = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]}
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, SAID], env=environment, capture_output=True, text=True, check=True, timeout=60
    )

    first, second = sorted((json.loads(line) for line in ran.stderr.splitlines()), key=lambda one: str(one["message"]))
    assert first == {"severity": "ERROR", "message": "of log4j"}
    assert (second["message"], second["severity"]) == ("spark_said", "WARNING")
    assert second["text"] == "java.lang.OutOfMemoryError: Java heap space"
    assert ran.stdout == ""
