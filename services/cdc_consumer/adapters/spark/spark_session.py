"""A Spark session made for one query that runs for ever: little memory, little overhead per micro-batch, quiet.

What Spark's processes write to stderr becomes lines of our log: Java writes bare text, whatever is set.
"""

import contextlib
import os
import re
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Final

import psutil
import structlog
from pyspark import SparkConf, SparkContext
from pyspark.find_spark_home import _find_spark_home
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

from services.cdc_consumer.adapters.process_directory import process_directory
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.runtime.logs import logs_are_text, text_of
from shared.runtime.stop import Stop

_STDERR: Final = 2
_USUAL: Final = re.compile(
    r"WARNING: Using incubator modules|Setting (?:default|Spark) log level to|To adjust logging level use|\s*$"
)
"""What is said at each start, and says nothing."""


KEEP_MEMORY: Final[Mapping[str, str]] = {
    "MALLOC_TRIM_THRESHOLD_": str(1 << 32),
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),  # the most that glibc takes
    "MALLOC_ARENA_MAX": "1",
    "ARROW_DEFAULT_MEMORY_POOL": "system",
}
"""Variables that let glibc keep freed memory for the next micro-batch, Arrow's too.

A page that is fetched from the system again costs microseconds on a virtual machine. An allocator of Arrow's own would
keep as much once more. Other systems ignore them. Spark ends a worker process that is idle for a minute, and its memory
with it.
"""

_OF_ANY_JAVA: Final = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS")
"""Variables of the environment that Java takes options from."""
_OF_A_START: Final = frozenset({"lookup_data_sources", "create_data_source", "plan_data_source_read"})
"""Modules of the Python processes that Spark needs once for each query."""


@contextmanager
def stderr_as_log_lines() -> Iterator[None]:
    """Take what processes that are started in the block write to stderr, for as long as they live.

    Lines of JSON, of log4j and of Python workers, go through as they are; any other text is a field of an event. Where
    we log as text, they go through as text, and so does any other text. Python workers log JSON to a pipe.
    """
    reading, writing = os.pipe()
    ours = os.dup(_STDERR)
    os.dup2(writing, _STDERR)
    os.close(writing)
    threading.Thread(target=_forward, args=(reading, ours), name="Spark's words", daemon=True).start()
    try:
        yield
    finally:
        os.dup2(ours, _STDERR)


def _forward(reading: int, ours: int) -> None:
    log, plain = structlog.get_logger(), logs_are_text()
    with os.fdopen(reading, "rb") as lines:
        for line in lines:
            text = line.decode(errors="replace").rstrip()
            if not line.startswith(b"{") and _USUAL.match(text):
                continue
            if plain or line.startswith(b"{"):
                with contextlib.suppress(OSError):  # stderr may be closed: a line that cannot be written stops nothing
                    os.write(ours, text_of(line) if plain else line)
            else:
                log.warning("spark_stderr", text=text)
    os.close(ours)


_JAVA_NEEDED: Final = 17
_POLL_PROCESSES: Final = 0.2  # seconds
_POLL_JAVA: Final = timedelta(milliseconds=50)
JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
_EXECUTORS_JAVA: Final = "spark.executor.defaultJavaOptions"  # what a user gives as extraJavaOptions wins
_LOCAL_DIRECTORY: Final = "spark.local.dir"
_SUBMITTED: Final = "submitted"
_GATEWAY: Final = "PYSPARK_GATEWAY_PORT"  # spark-submit gives it to the Python that it starts
_OF_ANY_START: Final = ("spark.master", "spark.driver.memory", JAVA_OPTIONS, _EXECUTORS_JAVA)
_LOGGING: Final = Path(__file__).with_name("log4j2.properties")

_MISCONFIGURED: Final = re.compile(
    r"^(?:\w+\.)*MisconfiguredError: (.*?)(?=\n\s*(?:\n|at |SQLSTATE|===)|\Z)", re.MULTILINE | re.DOTALL
)
_NO_CHECKPOINT: Final = re.compile(
    r"CANNOT_LOAD_CHECKPOINT_FILE_MANAGER|mkdir of \S+ failed|ParentNotDirectoryException"
    r"|UnsupportedFileSystemException"
)
_REFUSED: Final = re.compile(r"AccessControlException|Permission denied")
"""What a file system says of any file that this user may not use, the checkpoint or another one."""
_DAMAGED: Final = re.compile(
    r"^.*(?:Failed to read log file|No content to map due to end-of-input|Unexpected end-of-input).*$", re.MULTILINE
)
"""What Spark, or its JSON parser, says of a file of the checkpoint that is cut off or of another Spark."""
_FULL: Final = re.compile("No space left on device|No usable temporary directory")
_MAKE_ROOM: Final = "make room on the disks of CHECKPOINT_LOCATION and of TMPDIR; what was not acked comes again"
_MORE_MEMORY: Final = (
    "if the log above has an OutOfMemoryError, raise SPARK_DRIVER_MEMORY; if it has no reason, the system has killed "
    "Java, mostly for lack of memory: give the container more memory"
)
_PYTHON_ERROR: Final = re.compile(r"^((?:\w+\.)*\w+(?:Error|Exception): .*)$", re.MULTILINE)


class QueryFailedError(Exception):
    """The streaming query ended by itself."""


PYTHON_LATE: Final = "Python worker failed to connect back"
"""What Spark says then. Source: PythonWorkerFactory.scala, createSimpleWorker."""


class PythonLateError(TransientError):
    """A query did not begin: Spark waits ten seconds for the process of its source, which no setting changes."""

    fix = "the machine is too busy to start a Python process in ten seconds: run less on it, or give it more CPU"


class CheckpointDamagedError(MisconfiguredError):
    """A file of the checkpoint cannot be read, so that a restart would fail in the same way."""

    def __init__(self, why: str) -> None:
        super().__init__(
            "checkpoint-damaged",
            f"Spark cannot read what it has kept in CHECKPOINT_LOCATION ({why}), as after a full disk, a power failure "
            "or a newer Spark: delete that directory, and start the consumer; nothing is lost, since what was not "
            "acked comes again",
        )


def error_of(words: str) -> Exception:
    """Return what ended a query: an error of a Python process in its own words, which Spark hands on as text.

    CheckpointDamagedError where Spark cannot read its own checkpoint.
    """
    misconfigured = _MISCONFIGURED.search(words)
    if misconfigured is not None:
        return MisconfiguredError.from_text(misconfigured[1].strip(), "spark-task-refused")
    damaged = _DAMAGED.search(words)
    if damaged is not None and "Traceback" not in words:
        return CheckpointDamagedError(damaged[0].strip())
    said = "\n".join(_PYTHON_ERROR.findall(words)[-2:]) or words
    return QueryFailedError(f"{said}\n{_MAKE_ROOM}" if _FULL.search(said) else said)


@contextmanager
def full_disk_reported() -> Iterator[None]:
    """Raise what a full disk ends with in the block, in this process, as `error_of` does what it ends a query with."""
    try:
        yield
    except OSError as error:
        if _FULL.search(str(error)):
            raise error_of(str(error)) from error
        raise


def start_error(master: str, error: Exception) -> Exception:
    """Return what it means that Spark did not start: in its own words, and not in twenty lines of where."""
    words = str(getattr(error, "java_exception", "") or error).strip() or type(error).__name__
    message = f"Spark does not start at SPARK_MASTER={master}: {words.splitlines()[0]}"
    if "Could not parse Master URL" in words or "ClassNotFoundException" in words:
        return MisconfiguredError("spark-master-invalid", message)
    return QueryFailedError(message)


def query_error(checkpoint: str | None, error: Exception) -> Exception:
    """Return why a query did not start; MisconfiguredError where Spark cannot use the ``checkpoint``."""
    words = str(getattr(error, "java_exception", "") or error)
    refused = any(_REFUSED.search(line) and _place(checkpoint) in line for line in words.splitlines())
    if checkpoint and (_NO_CHECKPOINT.search(words) or refused):
        return MisconfiguredError(
            "checkpoint-refused-by-spark",
            f"Spark cannot use CHECKPOINT_LOCATION={checkpoint}: {words.splitlines()[0]}; name a place that this user "
            "may write, and that this Spark has a connector for (gs:// needs Google's gcs-connector)",
        )
    return error_of(words)


def _place(checkpoint: str | None) -> str:
    """Return a checkpoint's path as a file system names it: Hadoop writes ``file:/x`` for ``file:///x``."""
    return re.sub(r"^\w+:/*|/+$", "", checkpoint or "")


def check_java(environ: Mapping[str, str]) -> None:
    """Raise MisconfiguredError, saying how to get it, unless there is a Java that Spark runs on."""
    how = f"Spark needs Java {_JAVA_NEEDED} or newer (apt-get install openjdk-17-jre-headless), in JAVA_HOME or on PATH"
    home = environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java", path=environ.get("PATH"))
    if java is None or not Path(java).is_file():
        raise MisconfiguredError("java-missing", f"{how}; none was found" + (f" in JAVA_HOME={home}" if home else ""))
    answer = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    version = re.search(r'version "(\d+)', answer.stderr + answer.stdout)
    if version is None or int(version[1]) < _JAVA_NEEDED:
        raise MisconfiguredError("java-too-old", f"{how}; {java} is {version[1] if version else 'not usable'}")


@contextmanager
def ending_with(stop: Stop, after: timedelta = timedelta()) -> Iterator[None]:
    """End the processes that Spark is, so long after a stop that comes in the block: it waits for them without end.

    Their outstanding messages come again, as after any death of theirs.
    """
    over = threading.Event()

    def end() -> None:
        if over.wait(after.total_seconds()):
            return
        while not over.wait(_POLL_PROCESSES):  # there may be none yet
            for process in psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()

    with stop.calling(lambda: threading.Thread(target=end, name="end Spark", daemon=True).start()):
        try:
            yield
        finally:
            over.set()


def end_processes_of_the_start() -> None:
    """End the processes in which Spark has found, made and planned the data sources: 0.25 GB.

    To be called when a micro-batch has been committed: from then on Spark has what it needs of them, and one that it
    missed would fail the query. It ends half of them by itself when they have been idle for a minute.
    """
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if any(each.rpartition(".")[2] in _OF_A_START for each in process.cmdline()):
                process.terminate()


def executor_slots(session: SparkSession) -> int:
    """Return how many tasks the executors that there are can run at once."""
    context = session.sparkContext._jsc.sc()
    return int(context.maxNumConcurrentTasks(context.resourceProfileManager().defaultResourceProfile()))


def driver_host(session: SparkSession) -> tuple[str, str]:
    """Return by which host executors reach the driver, and the one that it listens at."""
    configured = session.sparkContext.getConf()
    host = str(configured.get("spark.driver.host"))
    return host, str(configured.get("spark.driver.bindAddress", host))


def class_archive() -> Path:
    """Return where the archive of Spark's classes is, if there is one: beside Spark, whose classes it holds."""
    return Path(_find_spark_home(), "consumer.jsa")


def spark_settings(
    master: str, driver_memory: str, tasks: int, environ: Mapping[str, str] | None = None, *, archived: bool = True
) -> dict[str, str]:
    """Return the configuration of the session.

    ``environ``: of the process that starts Java. ``archived``: whether Java takes classes from an archive, if there is
    one.
    """
    # The second compiler costs more than it wins: code is generated again in each micro-batch (`make bench`).
    one_compiler = "-XX:TieredStopAtLevel=1"
    # A heap that begins with a 64th of the machine's memory is filled before any of it is freed; what Java has to
    # collect is small, for messages' data goes past it.
    options = [f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}", one_compiler, "-Xms64m"]
    if not any(
        "GC" in (environ or {}).get(name, "") for name in _OF_ANY_JAVA
    ):  # with two collectors Java does not start
        options.append("-XX:+UseSerialGC")
    if archived and (archive := class_archive()).is_file():  # Java ignores one that is not of this Java and this Spark
        options += [f'"-XX:SharedArchiveFile={archive}"', "-Xshare:auto", "-Xlog:cds*=off"]
        # Java would move it to a random address by default, and so write to nearly all of its pages: 76 MB that the
        # system cannot drop.
        options += ["-XX:+UnlockDiagnosticVMOptions", "-XX:ArchiveRelocationMode=0"]
    settings = {
        "spark.master": master,
        "spark.app.name": "millrace-cdc-consumer",
        "spark.driver.memory": driver_memory,
        JAVA_OPTIONS: " ".join(options),
        _EXECUTORS_JAVA: one_compiler,
        # Messages' data is compressed already, or is in files (`message_data`).
        "spark.shuffle.compress": "false",
        "spark.shuffle.spill.compress": "false",
        "spark.log.level": "ERROR",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        # One query of one shuffle: nothing to adapt, as many partitions as tasks, and no history to keep.
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.shuffle.partitions": str(tasks),
        "spark.sql.streaming.minBatchesToRetain": "10",
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
        "spark.sql.streaming.numRecentProgressUpdates": "2",  # Spark keeps one fewer
        # Only after a trigger that had nothing to do; long enough that a stop sees it (`wiring.service`).
        "spark.sql.streaming.pollingDelay": "100ms",
        # A worker process that stays keeps its connections to BigQuery and Pub/Sub.
        "spark.python.worker.reuse": "true",
        "spark.python.daemon.module": "services.cdc_consumer.wiring.worker_daemon",
        "spark.executorEnv.GRPC_VERBOSITY": "NONE",  # on other machines; here workers inherit it
        **{f"spark.executorEnv.{name}": value for name, value in KEEP_MEMORY.items()},
        "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
        # No file of Spark's configuration changes these.
        "spark.task.maxFailures": "1",  # a task done again would pull other messages: the restart is the retry
        "spark.speculation": "false",  # a second run of a task that pulls would lease messages that no task keeps
        "spark.dynamicAllocation.enabled": "false",  # it takes executors away that TASKS counts on
    }
    if master.startswith("local"):  # no look-up of this machine's name, nothing to be reached from outside
        settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    return settings


@contextmanager
def starting_java(environ: MutableMapping[str, str], settings: Mapping[str, str], stop: Stop) -> Iterator["Java"]:
    """Start the driver's Java for the block, without waiting for it; it ends with the block.

    ``environ`` is what Spark's processes inherit.
    """
    if settings["spark.master"].startswith("local"):  # workers run what we run, not whatever `python3` is on PATH
        environ.setdefault("PYSPARK_PYTHON", sys.executable)
        for name, value in KEEP_MEMORY.items():
            environ.setdefault(name, value)
        environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # executors of a local-cluster listen where they are found
    with process_directory() as directory:
        java = Java(environ, settings, directory / "connection", stop)
        try:
            yield java
        finally:
            java.end()


class SubmittedSpark:
    """The Spark whose `spark-submit` has started this process: its Java runs, with its own master and memory."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._settings = {name: value for name, value in settings.items() if name not in _OF_ANY_START}

    def open_session(self) -> SparkSession:
        """Open the session."""
        return _get_session(self._settings)


def is_submitted(master: str, environ: Mapping[str, str]) -> bool:
    """Return whether `spark-submit` has started this process; MisconfiguredError where the master says otherwise."""
    submitted = _GATEWAY in environ
    if submitted != (master == _SUBMITTED):
        raise MisconfiguredError(
            "spark-master-not-as-started",
            f"SPARK_MASTER={master}, but spark-submit has {'' if submitted else 'not '}started this process: "
            f"SPARK_MASTER={_SUBMITTED} goes with spark-submit, and any other address without",
        )
    return submitted


def _get_session(settings: Mapping[str, str]) -> SparkSession:
    builder = SparkSession.builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    session: SparkSession = builder.getOrCreate()
    return session


def _start_workers(session: SparkSession) -> None:
    """Let Spark start the daemon of its Python workers while the query is still planned, which leaves cores idle."""
    with contextlib.suppress(Exception):  # the query starts them just as well
        session.range(1).select(udf(lambda value: value, "long", useArrow=False)("id")).collect()


class Java:
    """The process of the driver's Java, which PySpark connects to.

    PySpark starts it with a `preexec_fn`, so Python forks and runs the fork handlers of every library. gRPC's abort or
    hang now and then where gRPC is in use. Python starts a process without `preexec_fn` by vfork, which runs none.
    """

    def __init__(
        self, environ: MutableMapping[str, str], settings: Mapping[str, str], connection: Path, stop: Stop
    ) -> None:
        """``connection``: the file that Java writes once it answers; its directory ends with the process."""
        self._environ, self._settings = environ, settings
        self._connection = connection
        self._stop = stop
        self._connected = False
        command = [str(Path(_find_spark_home(), "bin", "spark-submit"))]
        for name, value in settings.items():
            command += ["--conf", f"{name}={value}"]
        more = environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell")
        try:
            command += shlex.split(more)
        except ValueError as error:
            raise MisconfiguredError(
                "spark-arguments-malformed", f"PYSPARK_SUBMIT_ARGS: {error}; quote it as a shell does"
            ) from error
        self._process = subprocess.Popen(
            command,
            env={**environ, "SPARK_CONNECT_MODE": "0", "_PYSPARK_DRIVER_CONN_INFO_PATH": str(connection)},
            stdin=subprocess.PIPE,  # Java ends when this process does: it reads the end of the file
            process_group=0,  # Ctrl-C in a terminal is for this process alone
        )

    def open_session(self) -> SparkSession:
        """Open the session, once Java answers; QueryFailedError where Java ends, or the process is asked to stop."""
        while not self._connection.is_file():
            if (code := self._process.poll()) is not None:
                raise QueryFailedError(f"Java ended with exit code {code}")
            if self._stop.wait(_POLL_JAVA):
                raise QueryFailedError("asked to stop before Java had started")
        answer = self._connection.read_bytes()  # its port, the length of its secret, its secret
        port, length = struct.unpack_from(">ii", answer)
        address = {_GATEWAY: str(port), "PYSPARK_GATEWAY_SECRET": answer[8 : 8 + length].decode()}
        self._environ.update(address)
        try:
            session = _get_session({**self._settings, **self._local_directory()})
        finally:
            for name in address:  # for PySpark alone, not for other child processes
                del self._environ[name]
        self._connected = True
        if self._settings["spark.master"].startswith("local"):  # elsewhere executors come and go
            threading.Thread(target=_start_workers, args=(session,), name="start workers", daemon=True).start()
        return session

    def _local_directory(self) -> Mapping[str, str]:
        """Put the blocks of Spark where they end with this process, unless the user has named a place for them."""
        if not self._settings["spark.master"].startswith("local"):  # other machines have no such directory
            return {}
        SparkContext._ensure_initialized()  # else a configuration does not ask Java what it was given
        return {} if SparkConf().contains(_LOCAL_DIRECTORY) else {_LOCAL_DIRECTORY: str(self._connection.parent)}

    def why_ended(self) -> str | None:
        """Return why Java has ended, and the fix; None while it runs."""
        try:
            code = self._process.wait(timeout=1)  # its connections close a moment before it ends
        except subprocess.TimeoutExpired:
            return None
        return f"Spark's Java process has ended with exit code {code}: {_MORE_MEMORY}"

    def wait(self) -> int:
        """Wait for the end of a Java that `end` has ended; return its exit code."""
        return self._process.wait()

    def end(self) -> None:
        """End Java. Once there has been a session it ends by itself, for it has files to remove."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        if not self._connected:
            with contextlib.suppress(ProcessLookupError, PermissionError):  # all have ended
                os.killpg(self._process.pid, signal.SIGKILL)  # the script that starts Java has child processes
            self._process.wait()
