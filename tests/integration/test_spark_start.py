"""How Spark's Java is started: by no fork, for gRPC's fork handlers abort a child of a process that uses gRPC."""

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from py4j.protocol import Py4JError  # type: ignore[import-untyped]

from services.cdc_consumer.adapters.spark.spark_session import (
    QueryFailedError,
    spark_settings,
    starting_java,
)
from services.cdc_consumer.settings import Settings
from services.cdc_consumer.wiring.service import java
from shared.contracts.errors import MisconfiguredError
from shared.runtime.settings import read_settings
from shared.runtime.stop import Stop
from tests.unit.cdc_consumer.world import NEEDED

ROOT = Path(__file__).resolve().parents[2]
# Python's own handlers, and those that libraries give to the C library (gRPC has both).
PROGRAM = """
import ctypes, os, sys
from pathlib import Path
from services.cdc_consumer.adapters.spark.spark_session import Java, QueryFailedError, spark_settings
from shared.runtime.stop import Stop

handlers_run = []
os.register_at_fork(before=lambda: handlers_run.append("of Python"))
handler = ctypes.CFUNCTYPE(None)(lambda: handlers_run.append("of the C library"))
assert ctypes.CDLL(None).__register_atfork(handler, None, None, None) == 0

java = Java(os.environ, spark_settings("local[2]", "1g", 2), Path(sys.argv[1]), Stop())
try:
    java.open_session()
except QueryFailedError as error:
    print(error)
started_with = list(handlers_run)
if os.fork() == 0:
    os._exit(0)
assert len(handlers_run) == 2, "the handlers would have been run"
print(started_with)
"""


def a_spark_home(directory: Path, script: str) -> Path:
    """Return a directory that is taken for Spark's, with this in the place of the program that starts Java."""
    submit = directory / "bin" / "spark-submit"
    submit.parent.mkdir()
    submit.write_text(f"#!/bin/sh\n{script}\n")
    submit.chmod(0o755)
    return directory


def test_java_is_started_without_running_any_fork_handler(tmp_path: Path) -> None:
    home = a_spark_home(tmp_path, 'echo "$*" > "$_PYSPARK_DRIVER_CONN_INFO_PATH.arguments"; exit 7')
    environment = {**os.environ, "SPARK_HOME": str(home), "PYTHONPATH": str(ROOT)}

    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, tmp_path / "connection"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )

    assert ran.stdout.splitlines() == ["Java ended with exit code 7", "[]"], ran.stderr
    assert "--conf spark.speculation=false" in (tmp_path / "connection.arguments").read_text()


def test_a_stop_ends_the_java_that_has_not_answered_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", str(a_spark_home(tmp_path, "exec sleep 600")))
    stop, before = Stop(), set(psutil.Process().children())
    with starting_java(dict(os.environ), spark_settings("local[2]", "1g", 2), stop) as java:
        stop.request()
        with pytest.raises(QueryFailedError, match="asked to stop"):
            java.open_session()

    assert set(psutil.Process().children()) <= before


def test_the_end_takes_every_process_that_the_start_of_java_has_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program that starts Java is a shell script, and Java may be a child of it."""
    script = f"sleep 600 & echo $! > {tmp_path}/part; mv {tmp_path}/part {tmp_path}/child; wait"
    monkeypatch.setenv("SPARK_HOME", str(a_spark_home(tmp_path, script)))
    with starting_java(dict(os.environ), spark_settings("local[2]", "1g", 2), Stop()):
        while not (tmp_path / "child").is_file():
            time.sleep(0.01)
        child = psutil.Process(int((tmp_path / "child").read_text()))

    try:
        for _ in range(3_000):
            if not child.is_running() or child.status() == psutil.STATUS_ZOMBIE:
                return
            time.sleep(0.01)
        pytest.fail("it still runs")
    except psutil.NoSuchProcess:
        return
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()


@pytest.mark.parametrize("error", [ConnectionRefusedError(111, "Connection refused"), Py4JError("o1.isActive")])
def test_a_java_that_was_killed_is_named_and_not_the_connection_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    home = a_spark_home(tmp_path, "kill -KILL $$")
    monkeypatch.setattr(os, "environ", {**os.environ, "SPARK_HOME": str(home)})
    with (
        pytest.raises(QueryFailedError, match=r"Java process has ended with exit code -9: .* lack of memory"),
        java(read_settings(Settings, NEEDED), Stop()),
    ):
        raise error


@pytest.mark.parametrize("stopping", [True, False])
def test_a_java_that_runs_or_was_to_stop_is_not_blamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stopping: bool
) -> None:
    home = a_spark_home(tmp_path, "kill -KILL $$" if stopping else "exec sleep 600")
    monkeypatch.setattr(os, "environ", {**os.environ, "SPARK_HOME": str(home)})
    stop = Stop()
    if stopping:
        stop.request()
    with pytest.raises(Py4JError, match="refused"), java(read_settings(Settings, NEEDED), stop):
        raise Py4JError("refused")


def test_arguments_for_spark_with_a_quote_that_is_not_closed_are_named(tmp_path: Path) -> None:
    environment = {"PYSPARK_SUBMIT_ARGS": "--conf 'spark.x=y pyspark-shell"}
    with (
        pytest.raises(MisconfiguredError, match=r"PYSPARK_SUBMIT_ARGS: No closing quotation; quote it as a shell"),
        starting_java(environment, spark_settings("local[2]", "1g", 2), Stop()),
    ):
        pytest.fail(f"it starts in {tmp_path}")


FORKED = """
import os
import services.cdc_consumer.wiring.worker_daemon

if (child := os.fork()) == 0:
    import grpc
    import numpy
    import pyarrow
    try:
        assert pyarrow.table({"a": numpy.arange(1_000_000)}).sort_by([("a", "descending")])["a"][0].as_py() == 999_999
        assert (numpy.ones((500, 500)) @ numpy.ones((500, 500)))[0, 0] == 500
        with grpc.insecure_channel("127.0.0.1:9") as channel:
            call = channel.unary_unary("/a.B/C").future(b"", timeout=60)
            assert call.exception().code() is grpc.StatusCode.UNAVAILABLE
    except BaseException:
        os._exit(1)
    os._exit(0)
print(os.waitpid(child, 0)[1])
"""


def test_a_worker_that_has_everything_imported_before_its_fork_calls_and_computes() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    answer = subprocess.run([sys.executable, "-c", FORKED], env=environment, capture_output=True, text=True, check=True)

    assert (answer.stdout.strip(), answer.stderr) == ("0", "")
    module = spark_settings("local[2]", "1g", 2)["spark.python.daemon.module"]
    assert module == "services.cdc_consumer.wiring.worker_daemon"
