"""Freshness: from commit in Spanner until a query finds the row, through the whole pipeline, at a steady rate.

Every change of one table of the five is a sample. A probe asks that table again and again for what has been committed
since it last looked; a sample's time is from its commit timestamp until the answer was here, so it holds up to one
pause and one query too much, never too little. The keys are new ones, so that none is overwritten before it is seen,
and every one that is written is waited for: what is late is in the figures.

Each run has a Spanner emulator and a database of its own: an emulator slows down with what it has served. A run that
did not reach its rate, or began while others used the machine, is repeated. The last is reported, with its load.

Transactions are of 25 rows of one table, at 2,000 changes/s of 100: the Spanner emulator looks through the whole
history of a change stream every 100 ms, so that the number of *records* is what slows it down. Its own part, from
commit until the reader is given the record, is in the figure.
"""

import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Final, Self

import psutil

from deploy.local.platform.services import Pipeline, Service
from deploy.local.platform.source import SpannerDatabase
from deploy.local.platform.target import BigQueryDataset
from tests.benchmarks.cpu import cpu_times, used_since
from tests.benchmarks.pipelines import Platform, running_consumer, settled, wait_until
from tests.benchmarks.reader import commit, fresh_source, pipeline_of, running_reader, running_spanner
from tests.benchmarks.results import REACHED, Measured, percentile, repeated
from tests.benchmarks.sizes import Sizes
from tests.benchmarks.workload import TABLES

NAME: Final = "steady"
RATES: Final = (1, 100, 500, 2_000)
_PROMISED_RATE: Final = 500
"""The highest that the emulator keeps up with for sure."""
_TARGETS: Final = {50: 0.35, 99: 0.8}
"""Seconds, by percentile, at the promised rate."""
IDLE_TARGET: Final = 0.1
_ROWS: Final = 25
_TRANSACTIONS: Final = 20
"""A second, as the emulator takes them: at higher rates they are larger."""
_KEYS: Final = max(RATES) // _TRANSACTIONS
"""Of a transaction, so that none is used again at another rate."""
_PAUSE: Final = 0.05
_WARM_UP: Final = 10.0
_SAMPLED: Final = TABLES[0]
_MOST_LOAD: Final = 1.0
_LOAD_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class Freshness:
    """What one run found."""

    rate: int
    samples: Sequence[float]
    reached: float
    """Changes a second."""
    load: float
    """Cores in use just before it began, when nothing was to be done here."""

    @property
    def is_valid(self) -> bool:
        """Return whether it says something of Millrace, and not of what else the machine did."""
        return self.reached >= REACHED * self.rate and self.load <= _MOST_LOAD


@dataclass
class Probe:
    """Asks a table for what is new, from a thread of its own. Use as a block."""

    dataset: BigQueryDataset
    awaited: deque[int] = field(default_factory=deque)
    """The keys that are not seen yet, and some that are, in the order in which they rise; who commits adds to them."""
    seconds: list[float] = field(default_factory=list)
    queries: list[float] = field(default_factory=list)
    """How long each query took."""

    def __post_init__(self) -> None:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._ask, name="freshness probe", daemon=True)
        self._failure: Exception | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._over.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _ask(self) -> None:
        seen = set[int]()
        try:
            while not self._over.wait(_PAUSE):
                while self.awaited and self.awaited[0] in seen:
                    seen.discard(self.awaited.popleft())
                if not self.awaited:
                    continue
                asked = time.time()
                rows = self.dataset.query(
                    f"SELECT id, _millrace_commit_timestamp AS at FROM {_SAMPLED} WHERE id >= {self.awaited[0]}"
                )
                now = time.time()
                self.queries.append(now - asked)
                for row in rows:
                    if row["id"] not in seen:
                        seen.add(row["id"])
                        self.seconds.append(now - row["at"].timestamp())
        except Exception as error:  # noqa: BLE001 - raised again in the thread that can answer for it
            self._failure = error


class Steady:
    """A whole pipeline: one consumer for all runs; each run has an emulator, a database and a reader of its own.

    The database bears the same name each time, so that it is the same tables to BigQuery. Keys are never used twice.
    """

    def __init__(self, platform: Platform, pipeline: Pipeline, consumer: Service) -> None:
        self._platform = platform
        self.pipeline = pipeline
        self.consumer = consumer
        self._number = 0
        self._runs = 0

    @contextmanager
    def reading(self) -> Iterator[tuple[SpannerDatabase, Service]]:
        """Make the database and run a reader, until the first changes have come through."""
        self._runs += 1
        with running_spanner(self._platform) as instance, fresh_source(instance, NAME) as source:
            start = source.database.now()
            pipeline = replace(self.pipeline, spanner=instance.address)
            with running_reader(self._platform, pipeline, start, f"steady-reader-{self._runs}") as reader:
                counted = settled(self.consumer)
                commit(source.database, self.next_number(), 1)
                self.wait_for(counted + len(TABLES))
                yield source.database, reader

    def run(self, rate: int, seconds: int) -> Freshness:
        """Write at a rate for a while; return what was found after the warm-up."""
        with closing(self._platform.dataset(self.pipeline)) as dataset, self.reading() as (database, _reader):
            counted = settled(self.consumer)
            written = self._write(database, rate, min(_WARM_UP, float(seconds)), deque())
            self.wait_for(counted + written)
            load = psutil.cpu_percent(_LOAD_SECONDS) / 100 * (psutil.cpu_count() or 1)
            with Probe(dataset) as probe:
                began = time.monotonic()
                measured = self._write(database, rate, seconds, probe.awaited)
                reached = measured / (time.monotonic() - began)
                try:
                    wait_until(self._platform, lambda: not probe.awaited, "everything to be seen")
                except TimeoutError as error:
                    raise TimeoutError(f"{error}: {_SAMPLED} lacks id {next(iter(probe.awaited), None)}") from error
        samples = probe.seconds
        self._platform.print_line(
            f"  {reached:.0f} changes/s: p50 {percentile(samples, 50):.3f} s, p99 {percentile(samples, 99):.3f} s of "
            f"{len(samples):,} samples; a query took {percentile(probe.queries, 50) * 1000:.0f} ms; load {load:.1f}"
        )
        return Freshness(rate, samples, reached, load)

    def next_number(self) -> int:
        """Return a number for the next transaction."""
        self._number += 1
        return self._number

    def wait_for(self, changes: int) -> None:
        """Wait until the consumer has applied so many changes in all."""
        wait_until(self._platform, lambda: settled(self.consumer) >= changes, "everything to be applied")

    def _write(self, database: SpannerDatabase, rate: int, seconds: float, sampled: "deque[int]") -> int:
        """Commit transactions at the rate, and note the sampled table's keys; return how many changes that were."""
        began, changes = time.monotonic(), 0
        rows = min(rate, max(_ROWS, rate // _TRANSACTIONS))
        while time.monotonic() - began < seconds:
            due = began + changes / rate
            if self._platform.processes.stop.wait(timedelta(seconds=max(0.0, due - time.monotonic()))):
                break
            number = self.next_number()
            table = TABLES[number % len(TABLES)] if rows > 1 else _SAMPLED
            first = number * _KEYS
            if table == _SAMPLED:
                sampled.extend(range(first, first + rows))
            commit(database, first // rows, rows, [table])
            changes += rows
        return changes


def measure_steady(platform: Platform, sizes: Sizes, parts: Sequence[str]) -> list[Measured]:
    """Measure freshness, or what idling costs, or both."""
    found: list[Measured] = []
    with running_spanner(platform) as instance, fresh_source(instance, NAME) as source:
        pipeline = pipeline_of(platform, "steady", source)
    with running_consumer(platform, pipeline, "steady-consumer") as consumer:
        steady = Steady(platform, pipeline, consumer)
        if "freshness" in parts:
            found += _freshness(steady, sizes)
        if "idle" in parts:
            found += _idle(platform, steady, sizes)
    return found


def _freshness(steady: Steady, sizes: Sizes) -> list[Measured]:
    steady.run(_PROMISED_RATE, min(10, sizes.seconds))  # the JVM has compiled by then
    runs: dict[int, list[Freshness]] = {rate: [] for rate in RATES}
    for _ in range(sizes.runs):
        for rate in RATES:
            runs[rate].append(repeated(partial(steady.run, rate, sizes.seconds), sizes.repeats))
    found: list[Measured] = []
    for rate, each in runs.items():
        reached, load = min(one.reached for one in each), max(one.load for one in each)
        note = (
            f"commit to queryable, {reached:.3g} of {rate} changes/s reached, began at a load of {load:.1f} at most, "
            f"{sum(one.is_valid for one in each)} of {len(each)} runs valid"
        )
        found += [
            Measured(
                name=f"freshness.p{percent}_at_{rate}",
                unit="s",
                runs=[percentile(one.samples, percent) for one in each],
                below=_TARGETS.get(percent) if rate == _PROMISED_RATE else None,
                each_run=rate == _PROMISED_RATE and percent in _TARGETS,
                note=note if percent == 50 else "",
            )
            for percent in (50, 95, 99)
        ]
    return found


def _idle(platform: Platform, steady: Steady, sizes: Sizes) -> list[Measured]:
    parts: dict[str, list[float]] = {"reader": [], "consumer": []}
    with steady.reading() as (_database, reader):
        services = dict(zip(parts, (reader, steady.consumer), strict=True))
        platform.processes.stop.wait(timedelta(seconds=min(15, sizes.seconds)))
        for _ in range(sizes.runs):
            before = {part: cpu_times(service.process) for part, service in services.items()}
            began = time.monotonic()
            platform.processes.stop.wait(timedelta(seconds=sizes.seconds))
            for part, service in services.items():
                parts[part].append(used_since(before[part], service.process) / (time.monotonic() - began))
            platform.print_line(f"  idle: {' + '.join(f'{each[-1]:.3f}' for each in parts.values())} cores")
    runs = [sum(each) for each in zip(*parts.values(), strict=True)]
    return [
        Measured(name="idle.cores", unit="cores", runs=runs, below=IDLE_TARGET, note="reader, JVM and Python together"),
        *(Measured(name=f"idle.cores.{part}", unit="cores", runs=each) for part, each in parts.items()),
    ]
