"""The toy source passes the suite of sources: `shared.reading` needs nothing of Spanner or Bigtable."""

import asyncio
from collections.abc import Collection, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any

from shared.runtime.stop import Stop
from tests.fakes.life import Life
from tests.unit.reading.owned import OPTIONS
from tests.unit.reading.source_suite import SourceSuite, SourceWorld
from tests.unit.reading.toy_source import ToyReader, ToyRow, ToyStream
from tests.unit.reading.toy_topic import ToyPublisher, ToyTopic


class ToyWorld(ToyStream):
    """A toy stream and a topic."""

    def __init__(self) -> None:
        super().__init__({})
        self.topic = ToyTopic()

    def add(self, partitions: Mapping[str, Sequence[str]]) -> None:
        """Add partitions that have not ended."""
        self.rows |= {name: ToyRow(list(records)) for name, records in partitions.items()}

    def write(self, partition: str, *records: str) -> None:
        """Add records to a partition."""
        self.rows[partition].records += records

    def split(self, partition: str, children: Mapping[str, Sequence[str]]) -> None:
        """Let a partition end."""
        self.rows[partition].children = dict(children)

    def break_partition(self, partition: str, error: Exception) -> None:
        """Let the reading of a partition fail."""
        self.broken[partition] = error

    async def pause(self) -> None:
        """Pause the whole stream."""
        self.paused = True

    async def resume(self) -> None:
        """Let the stream go on."""
        self.paused = False

    def reader(self, owner: str, life: Life, stop: Stop) -> Coroutine[Any, Any, None]:
        """Return the run of a new reader."""
        return ToyReader(self, ToyPublisher(self.topic, life), replace(OPTIONS, owner=owner), life).run(stop)

    def owned_by(self, owner: str) -> Collection[str]:
        """Return the partitions whose lease is an owner's and lasts."""
        now = asyncio.get_running_loop().time()
        rows = self.rows.items()
        return {name for name, row in rows if row.owner == owner and row.free_at > now and not row.finished}

    def saved(self, partition: str) -> int:
        """Return how many records the saved progress of a partition covers."""
        return self.rows[partition].saved

    def finished(self) -> Collection[str]:
        """Return the partitions that are recorded as over."""
        return [name for name, row in self.rows.items() if row.finished]


class TestToySource(SourceSuite):
    """The toy source is a source."""

    def make_world(self) -> SourceWorld:
        """Return a world without partitions and readers."""
        return ToyWorld()
