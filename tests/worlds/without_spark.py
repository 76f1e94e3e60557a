"""The consumer without Spark: `python -m tests.worlds.without_spark` in place of `python -m services.cdc_consumer`.

Everything is the service's own but Java and Spark's session: settings, start checks, health, metrics, status, reports,
the stop file, exit codes, and `start_query` with all its options. `Session` has those few methods of PySpark's session
that the consumer calls. A query gets the real data sources, asks the source for an offset, lets it plan, and runs its
`read` and the sink's `write` in worker processes (of PYSPARK_PYTHON, with PYSPARK_EXECUTOR_MEMORY_MB), which take one
task after another and can be killed; then it calls `commit`, or `abort` after a task has failed, which ends the query.

What Spark does and this does not; tests of it are in `test_cdc_consumer_spark.py` and `test_pubsub_source.py`:

- Java, Spark's own processes and the time they take to start. The source plans, and the sink commits, in the process of
  the service here; in Spark, each has a Python process of its own. No Spark at all runs on other machines.
- Checkpoints: a start here counts from 0 and does not do an interrupted micro-batch again.
- Rows travel as pickled Arrow batches, as they are. Spark compares them with the declared schema, cuts them again and
  chooses a row's task by a hash of its own; here it is crc32 of the ordering key.
- Without a shuffle Spark reads and writes in two processes at the same time; here a task's `write` follows its `read`.
- Spark's worker ends after an error; here it ends with the session.
"""

import contextlib
import multiprocessing
import os
import re
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Final

import pyarrow as pa
import pyspark
from pyspark.sql.datasource import DataSource
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.worker_util import setup_memory_limits

from services.cdc_consumer.adapters.spark.data_source_api import SPARK_DRAINS
from services.cdc_consumer.adapters.spark.partitioning import partition_of
from services.cdc_consumer.core.stream.messages import PORTION_DDL, PORTION_SCHEMA
from services.cdc_consumer.settings import Settings
from services.cdc_consumer.wiring.service import service
from shared.runtime.service import run_as
from shared.runtime.stop import Stop

_POLLING_DELAY: Final = 0.1  # seconds: `spark.sql.streaming.pollingDelay` of the consumer's session
_KILL_TIMEOUT: Final = 2.0  # seconds that a task which is to end has: `spark.task.reaper` and friends kill it then
_CRASHED: Final = "Python worker exited unexpectedly (crashed)"


class Session:
    """What the consumer uses of a SparkSession."""

    def __init__(self, master: str) -> None:
        cores = re.fullmatch(r"local\[(\d+|\*)\]", master)
        assert cores is not None, master
        slots = (os.cpu_count() or 1) if cores[1] == "*" else int(cores[1])
        spawning = multiprocessing.get_context("spawn")  # a fork would run gRPC's handlers
        spawning.set_executable(os.environ.get("PYSPARK_PYTHON", sys.executable))
        self.sparkContext = SimpleNamespace(defaultParallelism=slots, setLogLevel=lambda _level: None)
        self.version = pyspark.__version__
        self.conf = SimpleNamespace(set=dict[str, str]().__setitem__)
        self.dataSource = self
        self._formats: dict[str, type[DataSource]] = {}
        self._workers = ProcessPoolExecutor(slots, spawning, _be_a_worker)

    def open_session(self) -> "Session":
        """Return itself: there is nothing to be waited for."""
        return self

    def register(self, source: type[DataSource]) -> None:
        """Make a data source known by its name."""
        self._formats[source.name()] = source

    @property
    def readStream(self) -> "Frame":  # noqa: N802
        """Return a query to be described."""
        return Frame(self._formats, self._workers)

    def stop(self) -> None:
        """End the workers."""
        self._workers.shutdown(cancel_futures=True)


class Frame:
    """A query as it is described, first its source and then its sink: reader, data frame and writer in one."""

    def __init__(self, formats: dict[str, type[DataSource]], workers: ProcessPoolExecutor) -> None:
        self._formats = formats
        self._workers = workers
        self._described: list[tuple[type[DataSource], dict[str, str]]] = []
        self._shuffled = 0
        self._drain = False

    def format(self, name: str) -> "Frame":
        self._described.append((self._formats[name], {}))
        return self

    def option(self, name: str, value: str) -> "Frame":
        return self.options(**{name: value})

    def options(self, **options: str) -> "Frame":
        self._described[-1][1].update(options)
        return self

    def load(self) -> "Frame":
        return self

    def repartition(self, tasks: int, column: str) -> "Frame":
        assert column == "task"
        self._shuffled = tasks
        return self

    @property
    def writeStream(self) -> "Frame":  # noqa: N802
        return self

    def queryName(self, name: str) -> "Frame":  # noqa: N802
        return self

    def trigger(self, *, availableNow: bool) -> "Frame":  # noqa: N803
        self._drain = availableNow
        return self

    def start(self) -> "Query":
        source, sink = (kind(options) for kind, options in self._described)
        return Query(source, self._shuffled, sink, self._workers, drain=self._drain)


class Query:
    """What the consumer uses of a StreamingQuery, and the thread that runs its micro-batches."""

    name = "cdc_consumer"
    lastProgress = None  # noqa: N815  Spark's name; there are no processes of a start here

    def __init__(
        self, source: DataSource, shuffled: int, sink: DataSource, workers: ProcessPoolExecutor, *, drain: bool
    ) -> None:
        self._source, self._sink = source, sink
        self._shuffled = shuffled
        self._workers = workers
        self._drain = drain
        self._stopping = threading.Event()
        self._failure: str | None = None
        self._message, self._available = "Initializing sources", False
        self._thread = threading.Thread(target=self._run, name="query", daemon=True)
        self._thread.start()

    @property
    def isActive(self) -> bool:  # noqa: N802
        return self._thread.is_alive()

    @property
    def status(self) -> dict[str, Any]:
        return {"message": self._message, "isDataAvailable": self._available}

    def exception(self) -> Exception | None:
        return None if self._failure is None else TaskFailedError(self._failure)

    def awaitTermination(self) -> None:  # noqa: N802
        self._thread.join()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(_KILL_TIMEOUT)
        if self._thread.is_alive():
            _kill_workers()
        self._thread.join()

    def _run(self) -> None:
        assert self._source.schema() == PORTION_DDL
        schema = from_arrow_schema(PORTION_SCHEMA)
        try:
            reader = self._source.streamReader(schema)
            try:
                self._micro_batches(reader, self._source.streamReader(schema), self._sink.streamWriter(schema, False))
            finally:
                reader.stop()
        except TaskFailedError as error:
            self._failure = str(error)
        except Exception:  # noqa: BLE001  Spark hands on whatever its Python processes raise, as text
            self._failure = traceback.format_exc()

    def _micro_batches(self, reader: Any, in_tasks: Any, writer: Any) -> None:
        """Run one after the other until the query is to end. ``in_tasks``: a reader that holds nothing."""
        if self._drain:
            reader.prepareForTriggerAvailableNow()
        start, number = reader.initialOffset(), 0
        while not self._stopping.is_set():
            self._message = "Getting offsets"
            end = reader.latestOffset(*([start, reader.getDefaultReadLimit()] if SPARK_DRAINS else []))
            self._available = end != start
            if self._available:
                self._message = "Processing new data"
                self._micro_batch(in_tasks, reader.partitions(start, end), writer, number)
                start, number = end, number + 1
            elif self._drain:
                return
            else:
                self._message = "Waiting for data to arrive"
                self._stopping.wait(_POLLING_DELAY)

    def _micro_batch(self, in_tasks: Any, plan: Sequence[Any], writer: Any, number: int) -> None:
        read, failure = self._tasks(_read, [(in_tasks, partition) for partition in plan])
        written: Sequence[Any] = []
        if failure is None:
            partitions = _by_task(read, self._shuffled) if self._shuffled else read
            written, failure = self._tasks(_write, [(writer, batches) for batches in partitions])
        if failure is not None:
            writer.abort(written, number)
            raise TaskFailedError(failure)
        writer.commit(written, number)

    def _tasks(self, task: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> tuple[list[Any], str | None]:
        """Return what each task returned, None where it did not, and how the first of those failed."""
        try:
            futures = [self._workers.submit(task, *each) for each in arguments]
        except BrokenProcessPool:
            return [], _CRASHED
        ended, going_on = wait(futures, return_when=FIRST_EXCEPTION)
        if going_on and wait(going_on, _KILL_TIMEOUT).not_done:
            _kill_workers()
        errors = [error for error in (one.exception() for one in ended) if error is not None]
        failure = None
        if errors:
            failure = _CRASHED if isinstance(errors[0], BrokenProcessPool) else str(errors[0])
        return [None if one.exception() else one.result() for one in futures], failure


class TaskFailedError(Exception):
    """What has ended a task, as text."""


def _be_a_worker() -> None:
    setup_memory_limits(int(os.environ.get("PYSPARK_EXECUTOR_MEMORY_MB", "-1")))


def _read(reader: Any, partition: Any) -> Sequence[pa.RecordBatch]:
    with _errors_as_text():
        return list(reader.read(partition))


def _write(writer: Any, batches: Sequence[pa.RecordBatch]) -> Any:
    with _errors_as_text():
        return writer.write(iter(batches))


@contextmanager
def _errors_as_text() -> Iterator[None]:
    try:
        yield
    except BaseException:  # noqa: BLE001  a MemoryError, too
        raise TaskFailedError(traceback.format_exc()) from None


def _by_task(read: Sequence[Sequence[pa.RecordBatch]], tasks: int) -> Sequence[Sequence[pa.RecordBatch]]:
    """Return the rows for each task, as Spark partitions them."""
    partitions: list[list[pa.RecordBatch]] = [[] for _ in range(tasks)]
    for batch in (batch for batches in read for batch in batches):
        chosen = [partition_of(number, tasks) for number in batch["task"].to_pylist()]
        for task, rows in enumerate(partitions):
            rows.append(batch.filter(pa.array([one == task for one in chosen])))
    return partitions


def _kill_workers() -> None:
    for worker in multiprocessing.active_children():
        with contextlib.suppress(ProcessLookupError):
            worker.kill()


@contextmanager
def _in_place_of_java(settings: Settings, stop: Stop) -> Iterator[Any]:
    del stop
    yield Session(settings.spark_master)


if __name__ == "__main__":
    sys.exit(run_as("cdc_consumer", lambda: service(_in_place_of_java), os.environ))
