"""What the consumer says of its tables, in a world that a test makes."""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from prometheus_client import CollectorRegistry

from services.cdc_consumer.app.status.oldest_messages import OldestMessages
from services.cdc_consumer.app.status.status import ConsumerStatus
from services.cdc_consumer.core.stream.counts import Applied, Counts, Report, TableNote
from services.cdc_consumer.ports import Mirror
from shared.contracts.errors import TransientError
from shared.runtime.health import Health, serving_health
from shared.runtime.stop import Stop
from tests.fakes.durable_bytes import FakeDurableBytes
from tests.unit.cdc_consumer.world import NOW, SetClock

MICROS = NOW // 1000
WAITS = TableNote(deferred="PERMISSION_DENIED", again_at=MICROS + 30_000_000)
LATEST = Applied(MICROS - 3_000_000, MICROS - 2_500_000, MICROS - 1_000_000)


class World:
    """The consumer's status, with a clock and mirrors that a test sets."""

    def __init__(self) -> None:
        self.clock = SetClock()
        self.mirrors: Sequence[Mirror] | Exception = []
        self.inspections = 0
        self.asked_of: Collection[str] = ()
        self.labelled: list[str] = []
        self.refuses_labels = False
        self.kept = FakeDurableBytes()
        self.start()

    def start(self) -> None:
        """Be another process."""
        self.oldest_messages = OldestMessages(self.clock)
        self.status = ConsumerStatus(self.clock, self.read, self.label, self.kept, self.oldest_messages)

    def label(self, mirror: Mirror) -> None:
        if self.refuses_labels:
            raise TransientError("503")
        self.labelled.append(mirror.table)

    def inspect(self, *mirrors: Mirror) -> Mapping[str, str]:
        """Return the states once these are what is listed."""
        self.clock.pass_time(timedelta(seconds=11))
        self.mirrors = mirrors
        return self.states()

    def read(self, datasets: Collection[str]) -> Sequence[Mirror]:
        self.inspections += 1
        self.asked_of = datasets
        if isinstance(self.mirrors, Exception):
            raise self.mirrors
        return self.mirrors

    def take(self, counts: Counts | None = None, **report: Any) -> None:
        self.status.take(Report(counts=counts or Counts(), **report))

    def document(self, *, ready: bool = True, alive: bool = True) -> Mapping[str, Any]:
        document: Mapping[str, Any] = json.loads(json.dumps(self.status.document(ready=ready, alive=alive)))
        return document

    @contextmanager
    def served(self) -> Iterator[str]:
        """Answer for the consumer while the block runs; yield where."""

        def ask() -> Mapping[str, object]:
            return self.status.document(ready=True, alive=True)

        with serving_health(Health(), CollectorRegistry(), Stop(), "127.0.0.1", 0, ask) as port:
            yield f"127.0.0.1:{port}"

    def states(self) -> Mapping[str, str]:
        return {table["table"]: table["state"] for table in self.document()["tables"]}

    def table(self, name: str) -> Mapping[str, Any]:
        tables: Sequence[Mapping[str, Any]] = self.document()["tables"]
        return next(table for table in tables if table["table"] == name)
