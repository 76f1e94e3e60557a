"""The Spanner reader passes the suite of sources, on its fakes."""

import asyncio
from collections import defaultdict
from collections.abc import Collection, Coroutine, Mapping, Sequence
from datetime import timedelta
from typing import Any

from services.spanner_reader.core.stream.partitions import PartitionState, SpannerPartition
from services.spanner_reader.core.stream.records import (
    DataChangeRecord,
    HeartbeatRecord,
    PartitionToken,
    StreamRecord,
)
from services.spanner_reader.ports import SpannerProgress
from shared.contracts.timestamps import Nanoseconds
from shared.runtime.stop import Stop
from tests.fakes.life import Life
from tests.fakes.pauses import FakePauseStore
from tests.fakes.spanner_reader import FakePartitionStore, Script, Table
from tests.unit.reading.owned import OPTIONS
from tests.unit.reading.source_suite import SourceSuite, SourceWorld
from tests.unit.reading.toy_topic import ToyPublisher, ToyTopic
from tests.unit.spanner_reader.scripts import START, LiveClock, LiveStream, World, a_record, children


class SpannerWorld:
    """A change stream that goes on, its partition table and a topic."""

    def __init__(self) -> None:
        self.renewal_takes, self.topic = 0.0, ToyTopic()
        self.records: dict[PartitionToken, list[StreamRecord]] = defaultdict(list)
        self.broken: dict[str, Exception] = {}
        self._clock = LiveClock(START)
        self._world = World(Script({}), Table(self._clock))

    def add(self, partitions: Mapping[str, Sequence[str]]) -> None:
        """Add partitions with their first records; none of them ends before `split`."""
        for name, records in partitions.items():
            token, now = PartitionToken(name), self._clock.now()
            self._world.table.rows[token] = SpannerPartition(token=token, start=now, watermark=now)
            self.write(name, *records)

    def write(self, partition: str, *records: str) -> None:
        """Add records to a partition, a heartbeat behind each: from there it is read on."""
        for record in records:
            written: list[StreamRecord] = [a_record(self._tick(), int(record)), HeartbeatRecord(self._tick())]
            self.records[PartitionToken(partition)] += written

    def split(self, partition: str, children_: Mapping[str, Sequence[str]]) -> None:
        """Let a partition end; so do its children, for each of which another one carries on."""
        self._end(partition, *children_)
        for name, records in children_.items():
            self.write(name, *records)
            self._end(name, f"after {name}")

    def break_partition(self, partition: str, error: Exception) -> None:
        """Let the reading of a partition fail."""
        self.broken[partition] = error

    async def pause(self) -> None:
        """Pause the whole stream."""
        await FakePauseStore(self._world.pauses).pause(None)

    async def resume(self) -> None:
        """Let the stream go on."""
        await FakePauseStore(self._world.pauses).resume(None)

    def reader(self, owner: str, life: Life, stop: Stop) -> Coroutine[Any, Any, None]:
        """Return the run of a new reader."""
        reader = self._world.reader(
            owner=owner,
            life=life,
            store=SlowStore(self, self._world.table, owner, life),
            stream=LiveStream(self.records, life, broken=self.broken),
            publisher=ToyPublisher(self.topic, life, lambda key: key.split('"')[3]),
            lease=OPTIONS.lease,
            poll=OPTIONS.poll,
        )
        return reader.run(stop)

    def owned_by(self, owner: str) -> Collection[str]:
        """Return the partitions whose lease is an owner's and lasts."""
        rows, now = self._world.table.rows.values(), self._clock.now()
        return {row.token for row in rows if row.owner == owner and row.lease_until and row.lease_until > now}

    def saved(self, partition: str) -> int:
        """Return how many records lie before the watermark of a partition; from there it is read again."""
        watermark = self._world.table.rows[PartitionToken(partition)].watermark
        records = [one for one in self.records[PartitionToken(partition)] if isinstance(one, DataChangeRecord)]
        return sum(one.commit_timestamp < watermark for one in records)

    def finished(self) -> Collection[str]:
        """Return the partitions that are recorded as over."""
        return [row.token for row in self._world.table.rows.values() if row.state is PartitionState.FINISHED]

    def _end(self, partition: str, *children_: str) -> None:
        self.records[PartitionToken(partition)].append(children(self._tick(), *children_, parents=[partition]))

    def _tick(self) -> Nanoseconds:
        self._clock.step(timedelta(microseconds=1))
        return self._clock.now()


class SlowStore(FakePartitionStore):
    """A partition table to which renewals take their time."""

    def __init__(self, world: SpannerWorld, table: Table, owner: str, life: Life) -> None:
        super().__init__(table, owner, OPTIONS.lease, life)
        self._world = world

    async def advance(
        self, progress: Sequence[SpannerProgress], *, release: bool = False
    ) -> Collection[PartitionToken]:
        """Save watermarks and renew the leases, or release them."""
        await asyncio.sleep(0 if release else self._world.renewal_takes)
        return await super().advance(progress, release=release)


class TestSpannerSource(SourceSuite):
    """The Spanner reader is a source."""

    def make_world(self) -> SourceWorld:
        """Return a world without partitions and readers."""
        return SpannerWorld()
