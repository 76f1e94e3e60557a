"""A Spanner table that a snapshot reads, and what its topic receives."""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from deploy.local.platform.source import SpannerDatabase, Write
from shared.contracts.change_batch import ChangeBatch, decode_batch
from tests.integration.pubsub_topics import pull
from tests.worlds.spanner_pipeline import SpannerPipeline

_SEATS = """CREATE TABLE Seats (Id INT64 NOT NULL, Class STRING(8), Number INT64, Taken BOOL)
PRIMARY KEY (Id, Class DESC, Number), INTERLEAVE IN PARENT Planes"""
DDL = (
    "CREATE TABLE Planes (Id INT64 NOT NULL, Name STRING(MAX)) PRIMARY KEY (Id)",
    _SEATS,
    "CREATE CHANGE STREAM Everything FOR Planes, Seats (Taken) OPTIONS (value_capture_type = 'NEW_ROW')",
)
_AT_ONCE = 2_000


@dataclass
class Topic:
    """What has arrived on a topic, as mirrors would hold it: of each row what has the highest sequence."""

    pipeline: SpannerPipeline
    rows: dict[str, dict[str, tuple[str, Any]]] = field(default_factory=lambda: defaultdict(dict))
    origins: Counter[tuple[str, str]] = field(default_factory=Counter)
    ordering_keys: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))

    def pull(self) -> None:
        """Take what is on the subscription now."""
        for one in pull(self.pipeline.channel, self.pipeline.topology.subscription):
            batch = decode_batch(one.message.data)
            self.origins[batch.header.table, batch.header.origin] += len(batch)
            if len(batch):
                self.ordering_keys[batch.header.origin].add(one.message.ordering_key)
            self._apply(batch)

    def _apply(self, batch: ChangeBatch) -> None:
        rows = self.rows[batch.header.table]
        for sequence, key, row in zip(batch.sequence, batch.keys, batch.rows, strict=True):
            place = json.dumps(json.loads(bytes(key)), sort_keys=True)
            values = json.loads(bytes(row))
            if place not in rows or rows[place][0] <= sequence:
                rows[place] = sequence, values

    def live(self, table: str) -> Mapping[str, Any]:
        """Return the rows of a table that are not deleted."""
        return {key: values for key, (_sequence, values) in self.rows[table].items() if values is not None}

    def wait_for(self, what: str, ready: Callable[[], bool]) -> None:
        """Wait until what has arrived is as it should be."""
        self.pipeline.wait(ready, what, self.pull)


def fill(database: SpannerDatabase, rows: int, first: int = 0) -> Mapping[str, Any]:
    """Insert planes, and return them as keys and rows of the wire."""
    for start in range(first, first + rows, _AT_ONCE):
        keys = range(start, min(start + _AT_ONCE, first + rows))
        database.commit([Write("insert", "Planes", {"Id": key, "Name": f"é{key}"}) for key in keys])
    return {json.dumps({"Id": str(key)}): {"Name": f"é{key}"} for key in range(first, first + rows)}
