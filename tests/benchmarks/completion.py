"""Completed images beside complete ones: what they cost the reader, and how long they take until they are published.

Two change streams of one database watch the same tables, one with NEW_ROW and one with the default capture type. A
reader of each runs at the same time, so both read the same rows at the same rate, on the same machine in the same
minutes. What they publish has to be equal, row by row: otherwise nothing is measured.

Each run has an emulator of its own, which slows down with the records that it has served. A run that did not reach its
rate is not valid, and is repeated: then the emulator was measured.
"""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from typing import Final

from deploy.local.platform.processes import StopRequestedError
from deploy.local.platform.services import Pipeline, Service
from deploy.local.platform.source import SpannerDatabase, SpannerInstance, Write
from shared.contracts.timestamps import Nanoseconds, parse_timestamp
from tests.benchmarks.cpu import cpu_times, used_since
from tests.benchmarks.pipelines import Platform, wait_until
from tests.benchmarks.publications import pulled
from tests.benchmarks.reader import Source, commit, fresh_source, pipeline_of, running_reader, running_spanner
from tests.benchmarks.results import REACHED, Measured, percentile, repeated
from tests.benchmarks.sizes import Sizes
from tests.benchmarks.workload import TABLES, row_values

RATE: Final = 100
"""Changes a second."""
_ROWS: Final = 25
"""Changes of a record, which is a transaction of one table: four records a second are few enough for the emulator."""
_KEYS: Final = 100
"""Rows of each table."""
_NAMED: Final = ("id", "visits", "seen")
"""What an update names: the key, and two of the nine other columns."""
_WARM_UP: Final = 5
_PARTIAL: Final = "changed"
"""The change stream of the default capture type."""

Published = Mapping[tuple[str, str, str], object]
"""The row of each table, key and commit timestamp."""


@dataclass(frozen=True)
class Side:
    """One of the two: a change stream, its reader, and where that publishes to."""

    pipeline: Pipeline
    reader: Service

    @property
    def published(self) -> int:
        """Return how many changes Pub/Sub has confirmed."""
        return int(self.reader.metrics()["millrace_published_changes_total"])


@dataclass(frozen=True)
class Outcome:
    """What a side took for the measured changes."""

    cpu: float
    """Microseconds of the reader's CPU a change."""
    seconds: Sequence[float]
    """From commit to publish time, of each change."""


@dataclass(frozen=True)
class Comparison:
    """What one run found."""

    complete: Outcome
    completed: Outcome
    reads: float
    """Of each change that was completed."""
    reached: float
    """Changes a second."""

    @property
    def is_valid(self) -> bool:
        """Return whether both sides had the changes at their rate."""
        return self.reached >= REACHED * RATE


def measure_completion(platform: Platform, sizes: Sizes) -> list[Measured]:
    """Measure both sides at once, on an emulator of their own in each run."""
    numbers = count(1)
    runs = [repeated(lambda: _run(platform, next(numbers), sizes.seconds), sizes.repeats) for _ in range(sizes.runs)]
    complete, completed = [one.complete for one in runs], [one.completed for one in runs]
    reached = f"{min(one.reached for one in runs):.3g} of {RATE} changes/s reached"
    valid = f"{sum(one.is_valid for one in runs)} of {len(runs)} runs valid"
    return [
        Measured(
            name="completion.cpu_per_change",
            unit="us",
            runs=[one.cpu for one in completed],
            baseline_runs=[one.cpu for one in complete],
            note=f"OLD_AND_NEW_VALUES beside NEW_ROW, {_ROWS} in a record; {reached}, {valid}; idling is in both",
        ),
        *(
            Measured(
                name=f"completion.published_p{percent}_at_{RATE}",
                unit="s",
                runs=[percentile(one.seconds, percent) for one in completed],
                baseline_runs=[percentile(one.seconds, percent) for one in complete],
                note="commit to publish time" if percent == 50 else "",
            )
            for percent in (50, 99)
        ),
    ]


def _run(platform: Platform, number: int, seconds: int) -> Comparison:
    """Run once; of no two runs do topics have one name."""
    with running_spanner(platform) as instance, fresh_source(instance, f"completion-{number}") as source:
        found = _compared(platform, instance, source, number, seconds)
    one, other = found.complete, found.completed
    platform.print_line(
        f"  {found.reached:.0f} changes/s: complete {one.cpu:,.0f} us of CPU a change, p50 "
        f"{percentile(one.seconds, 50):.3f} s; completed {other.cpu:,.0f} us, "
        f"p50 {percentile(other.seconds, 50):.3f} s, {found.reads:.3g} reads a change"
    )
    return found


def _compared(platform: Platform, instance: SpannerInstance, source: Source, number: int, seconds: int) -> Comparison:
    """Return what both sides took."""
    database = source.database
    database.alter(f"CREATE CHANGE STREAM {_PARTIAL} FOR ALL")
    with _reading(platform, instance, source, number) as (complete, completed):
        sides = (complete, completed)
        commit(database, 0, _KEYS)
        inserted = len(TABLES) * _KEYS
        _wait(platform, sides, inserted)
        _update(platform, database, _KEYS, _WARM_UP * RATE)
        _wait(platform, sides, inserted + _WARM_UP * RATE)
        before = [cpu_times(side.reader.process) for side in sides]
        reads = completed.reader.metrics()["millrace_reader_completion_read_seconds_count"]
        since = database.now()
        reached = _update(platform, database, _KEYS + _WARM_UP * RATE, seconds * RATE)
        _wait(platform, sides, inserted + (_WARM_UP + seconds) * RATE)
        used = [used_since(cpu, side.reader.process) for cpu, side in zip(before, sides, strict=True)]
        counted = completed.reader.metrics()
    reads = counted["millrace_reader_completion_read_seconds_count"] - reads
    if reads <= 0:
        raise RuntimeError("no row was read: the stream has whole rows, or nothing was completed")
    found = [_published(platform, side.pipeline, since) for side in sides]
    if found[0][0] != found[1][0]:
        raise RuntimeError("what was completed is not what Spanner captured as whole rows")
    changes = seconds * RATE
    if len(found[0][0]) != changes or counted["millrace_reader_reconstructed_changes_total"]:
        raise RuntimeError(f"{len(found[0][0])} of {changes} changes were published, or rows were reconstructed")
    one, other = (Outcome(cpu * 1e6 / changes, late) for cpu, (_rows, late) in zip(used, found, strict=True))
    return Comparison(one, other, reads / changes, reached)


@contextmanager
def _reading(platform: Platform, instance: SpannerInstance, source: Source, number: int) -> Iterator[tuple[Side, Side]]:
    """Run the reader of each stream; each has a partition table of its own."""
    start = source.database.now()
    more = instance.create_database([], f"completion-{number}-partitions-2")
    complete = pipeline_of(platform, f"complete-{number}", source)
    completed = platform.pipeline(
        f"completed-{number}",
        spanner=instance.address,
        instance=complete.instance,
        database=source.database.name,
        partition_database=more.name,
        change_stream=_PARTIAL,
    )
    with ExitStack() as stack:
        sides = [
            Side(pipeline, stack.enter_context(running_reader(platform, pipeline, start, pipeline.name)))
            for pipeline in (complete, completed)
        ]
        yield sides[0], sides[1]
    more.drop()


def _update(platform: Platform, database: SpannerDatabase, first: int, changes: int) -> float:
    """Commit so many updates at the rate; return how many a second that were."""
    began = time.monotonic()
    for number in range(first, first + changes, _ROWS):
        due = timedelta(seconds=max(0.0, began + (number - first) / RATE - time.monotonic()))
        if platform.processes.stop.wait(due):
            raise StopRequestedError("asked to stop while rows are written")
        table = TABLES[number // _ROWS % len(TABLES)]
        rows = [row_values(each % _KEYS, each) for each in range(number, number + _ROWS)]
        database.commit([Write("update", table, {name: row[name] for name in _NAMED}) for row in rows])
    return changes / (time.monotonic() - began)


def _wait(platform: Platform, sides: Sequence[Side], changes: int) -> None:
    wait_until(platform, lambda: all(side.published >= changes for side in sides), "both readers to publish", 0.5)


def _published(platform: Platform, pipeline: Pipeline, since: Nanoseconds) -> tuple[Published, Sequence[float]]:
    """Return the rows of the changes since a time, and how long each took from commit to publish time."""
    rows: dict[tuple[str, str, str], object] = {}
    late = []
    for at, batch in pulled(platform, pipeline):
        for key, row, commit_timestamp in zip(batch.keys, batch.rows, batch.commit_timestamp, strict=True):
            committed = parse_timestamp(commit_timestamp)
            if committed >= since:
                rows[batch.header.table, bytes(key).decode(), commit_timestamp] = json.loads(bytes(row))
                late.append((at - committed) / 1e9)
    return rows, late
