"""From commit at the source to visible in a query: measured on samples, by asking BigQuery again and again.

A sample is one upserted row of a transaction. It is seen when a query returns the row as this change or a newer one
left it; the time taken is when the answer was here, so it holds up to one pause and one query too much, never too
little. A sample whose row is deleted before it is seen is given up, and counted. Bigtable does not say when a call was
committed: there the time begins before the call.
"""

import math
import threading
import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Self

from deploy.local.demo.workload import Transaction
from deploy.local.platform.target import BigQueryDataset
from shared.contracts.timestamps import Nanoseconds
from shared.runtime.stop import Stop

PAUSE: Final = timedelta(milliseconds=100)
_AT_ONCE: Final = 50

Key = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Sample:
    """One upserted row, and when it was committed."""

    table: str
    key: Key
    committed: Nanoseconds


@dataclass(frozen=True, slots=True)
class Latencies:
    """What was measured, in seconds, and how many samples were given up or never seen."""

    seconds: Sequence[float]
    given_up: int
    unseen: int

    def percentile(self, percent: float) -> float:
        """Return the smallest latency that this share of the samples does not exceed (nearest rank)."""
        ordered = sorted(self.seconds)
        return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]

    def __str__(self) -> str:
        if not self.seconds:
            return f"no sample was seen ({self.given_up} given up, {self.unseen} unseen)"
        return (
            f"p50 {self.percentile(50):.2f} s, p99 {self.percentile(99):.2f} s "
            f"({len(self.seconds)} samples, asked every {PAUSE.total_seconds() * 1000:.0f} ms; "
            f"{self.given_up} given up because deleted first, {self.unseen} unseen)"
        )


class LatencyProbe:
    """Samples every n-th transaction; a thread of its own asks BigQuery. Use as a block; `finish` gives the result."""

    def __init__(self, dataset: BigQueryDataset, keys: Mapping[str, Sequence[str]], every: int, stop: Stop) -> None:
        """``keys`` are the primary keys of the tables in BigQuery."""
        self._dataset = dataset
        self._keys = keys
        self._every = every
        self._stop = stop
        self._lock = threading.Lock()
        self._waiting: list[Sample] = []
        self._seconds: list[float] = []
        self._given_up = 0
        self._transactions = 0
        self._over = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._ask, name="latency probe", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._over.set()
        self._thread.join()

    def committed(self, transaction: Transaction, at: Nanoseconds, there: Mapping[str, Collection[Key]]) -> None:
        """Take note of a commit; ``there`` are the keys of all tables after it."""
        upserts = [write for write in transaction.writes if write.operation != "delete"]
        sample = None
        if upserts:
            write = upserts[-1]
            sample = Sample(write.table, tuple(write.row[column] for column in self._keys[write.table]), at)
        self.written(sample, there)

    def written(self, sample: Sample | None, there: Mapping[str, Collection[Key]]) -> None:
        """Take note of a commit and of the row by which it would be seen, if any; ``there`` are all keys after it."""
        with self._lock:
            kept = [each for each in self._waiting if each.key in there[each.table]]
            self._given_up += len(self._waiting) - len(kept)
            self._waiting = kept
            self._transactions += 1
            if self._transactions % self._every == 0 and sample is not None:
                self._waiting.append(sample)

    def finish(self, timeout: timedelta) -> Latencies:
        """Wait until every sample is seen, or ``timeout`` is over; return what was measured."""
        deadline = time.monotonic() + timeout.total_seconds()
        while self._waiting and time.monotonic() < deadline and self._thread.is_alive():
            if self._stop.wait(PAUSE):
                break
        self._over.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure
        return Latencies(self._seconds, self._given_up, len(self._waiting))

    def _ask(self) -> None:
        try:
            while not self._over.wait(PAUSE.total_seconds()):
                with self._lock:
                    oldest = self._waiting[:_AT_ONCE]
                seen = self._seen(oldest)
                now = time.time_ns()
                with self._lock:
                    found = [sample for sample in self._waiting if sample in seen]
                    self._waiting = [sample for sample in self._waiting if sample not in seen]
                    self._seconds += [(now - sample.committed) / 1e9 for sample in found]
        except Exception as error:  # noqa: BLE001 - raised again by `finish`, in the thread that can answer for it
            self._failure = error

    def _seen(self, samples: Sequence[Sample]) -> set[Sample]:
        by_table: defaultdict[str, set[Key]] = defaultdict(set)
        for sample in samples:
            by_table[sample.table].add(sample.key)
        seen = set()
        for table, keys in by_table.items():
            applied = self._dataset.applied(table, self._keys[table], sorted(keys))
            seen |= {
                sample
                for sample in samples
                if sample.table == table
                and sample.key in applied
                and _microseconds(applied[sample.key]) >= sample.committed // 1_000
            }
        return seen


def _microseconds(instant: datetime) -> int:
    since = instant - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
