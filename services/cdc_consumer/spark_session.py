"""A Spark session made for one query that runs for ever: little memory, little overhead per micro-batch, quiet."""

import contextlib
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Final

import psutil
from pyspark.sql import SparkSession

from shared.contracts.errors import MisconfiguredError
from shared.runtime.stop import Stop

_JAVA_NEEDED: Final = 17
_LOOK_FOR_PROCESSES: Final = 0.2  # seconds
_LOGGING: Final = Path(__file__).with_name("log4j2.properties")

_MISCONFIGURED: Final = re.compile(
    r"^(?:\w+\.)*MisconfiguredError: (.*?)(?=\n\s*(?:\n|at |SQLSTATE|===)|\Z)", re.MULTILINE | re.DOTALL
)
_PYTHON_ERROR: Final = re.compile(r"^((?:\w+\.)*\w+(?:Error|Exception): .*)$", re.MULTILINE)


class QueryFailedError(Exception):
    """The streaming query ended by itself."""


def error_of(words: str) -> Exception:
    """Return what a Python process of Spark's has raised, in its own words: Spark hands on its traceback as text."""
    misconfigured = _MISCONFIGURED.search(words)
    if misconfigured is not None:
        return MisconfiguredError(misconfigured[1].strip())
    return QueryFailedError("\n".join(_PYTHON_ERROR.findall(words)[-2:]) or words)


def start_error(master: str, error: Exception) -> Exception:
    """Return what it means that Spark did not start: in its own words, and not in twenty lines of where."""
    words = str(getattr(error, "java_exception", "") or error).strip() or type(error).__name__
    told = f"Spark does not start at SPARK_MASTER={master}: {words.splitlines()[0]}"
    if "Could not parse Master URL" in words or "ClassNotFoundException" in words:
        return MisconfiguredError(told)
    return QueryFailedError(told)


def check_java(environ: Mapping[str, str]) -> None:
    """Raise MisconfiguredError, saying how to get it, unless there is a Java that Spark runs on."""
    how = f"Spark needs Java {_JAVA_NEEDED} or newer (apt-get install openjdk-17-jre-headless), in JAVA_HOME or on PATH"
    home = environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java", path=environ.get("PATH"))
    if java is None or not Path(java).is_file():
        raise MisconfiguredError(f"{how}; none was found" + (f" in JAVA_HOME={home}" if home else ""))
    answer = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    version = re.search(r'version "(\d+)', answer.stderr + answer.stdout)
    if version is None or int(version[1]) < _JAVA_NEEDED:
        raise MisconfiguredError(f"{how}; {java} is {version[1] if version else 'not usable'}")


@contextmanager
def ending_with(stop: Stop, after: timedelta = timedelta()) -> Iterator[None]:
    """End the processes that Spark is, so long after a stop that comes in the block: it waits for them without end.

    What they held comes again, as after any death of theirs.
    """
    over = threading.Event()

    def end() -> None:
        if over.wait(after.total_seconds()):
            return
        while not over.wait(_LOOK_FOR_PROCESSES):  # there may be none yet
            for process in psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()

    with stop.calling(lambda: threading.Thread(target=end, name="end Spark", daemon=True).start()):
        try:
            yield
        finally:
            over.set()


def at_work(session: SparkSession) -> bool:
    """Tell whether any task runs; not one that waits for a slot, nor of an executor that Spark has given up."""
    tracker = session.sparkContext.statusTracker()
    stages = (tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds())
    return any(stage is not None and stage.numActiveTasks > 0 for stage in stages)


def open_session(environ: MutableMapping[str, str], master: str, driver_memory: str, tasks: int) -> SparkSession:
    """Start Spark, or connect to where it runs. ``environ`` is what Spark's processes are to inherit."""
    local = master.startswith("local")
    if local:  # workers run what we run, not whatever `python3` is on PATH
        environ.setdefault("PYSPARK_PYTHON", sys.executable)
        environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # executors of a local-cluster listen where they are found
    settings = {
        "spark.master": master,
        "spark.app.name": "millrace-cdc-consumer",
        "spark.driver.memory": driver_memory,
        # The second compiler costs more than it wins: code is generated anew in each micro-batch (`make bench`).
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOGGING.as_uri()} -XX:TieredStopAtLevel=1",
        "spark.log.level": "ERROR",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        # One query of one shuffle: nothing to adapt, as many partitions as tasks, and no history to keep.
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.shuffle.partitions": str(tasks),
        "spark.sql.streaming.minBatchesToRetain": "10",
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
        "spark.sql.streaming.numRecentProgressUpdates": "1",
        # Only after a trigger that had nothing to do; long enough that a stop sees it (see __main__).
        "spark.sql.streaming.pollingDelay": "100ms",
        # A worker process that stays keeps its connections to BigQuery and Pub/Sub.
        "spark.python.worker.reuse": "true",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
        "spark.task.maxFailures": "1",  # a task done again would pull other messages: the restart is the retry
    }
    if local:  # no look-up of this machine's name, nothing to be reached from outside
        settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    builder = SparkSession.builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    session: SparkSession = builder.getOrCreate()
    return session
