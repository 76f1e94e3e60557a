"""The Bigtable reader passes the suite of sources, on its fakes: its images are what is published."""

import asyncio
from collections.abc import AsyncGenerator, Collection, Coroutine, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from services.bigtable_reader.app.stream.owned_partition import BigtableReaderOptions
from services.bigtable_reader.app.stream.reader import BigtableOutput, BigtableReader, BigtableStores, SourceTable
from services.bigtable_reader.core.stream.partitions import BigtableProgress, StreamRange, StreamRangeId
from services.bigtable_reader.core.stream.records import (
    BigtableStreamQuery,
    Child,
    CloseStream,
    KeyRange,
    Position,
    RangeToken,
    StreamRecord,
)
from services.bigtable_reader.core.stream.topology import begin
from services.bigtable_reader.ports import ReadRows
from shared.reading.supervisor import Monitoring
from shared.runtime.health import Health
from shared.runtime.stop import Stop
from tests.fakes.bigtable_partitions import FakePartitionStore, PartitionedStream, PartitionTable
from tests.fakes.bigtable_reader import FakeCatalog, FakeDeadLetterSink
from tests.fakes.bigtable_table import EPOCH, VirtualClock
from tests.fakes.life import Life
from tests.fakes.reader_metrics import BigtableMetrics
from tests.fakes.subscriptions import FakeSubscriptions
from tests.unit.bigtable_reader.read_backs import ROW
from tests.unit.bigtable_reader.readings import FAMILIES, a_record, outputs
from tests.unit.reading.owned import OPTIONS
from tests.unit.reading.source_suite import SourceSuite, SourceWorld
from tests.unit.reading.toy_topic import ToyPublisher, ToyTopic


class BigtableWorld:
    """A change stream, its partition table and a topic. A token is the name of a partition, and its records so far."""

    def __init__(self) -> None:
        self.renewal_takes, self.topic = 0.0, ToyTopic()
        self.partitions = PartitionTable(source=PartitionedStream().source)
        self.ranges: dict[str, KeyRange] = {}
        self.records: dict[str, list[str]] = {}
        self.children: dict[str, Sequence[str]] = {}
        self.broken: dict[str, Exception] = {}

    def add(self, partitions: Mapping[str, Sequence[str]]) -> None:
        """Add partitions with their first records; none of them ends before `split`."""
        self._add(KeyRange(b"", b""), partitions)
        ranges = [self.ranges[name] for name in partitions]
        self.partitions.become(begin(ranges, life="x", start=EPOCH, min_version=EPOCH))

    def write(self, partition: str, *records: str) -> None:
        """Add records to a partition."""
        self.records[partition] += records

    def split(self, partition: str, children: Mapping[str, Sequence[str]]) -> None:
        """Let a partition end; so do its children, for each of which another one carries on."""
        self.children[partition] = list(children)
        self._add(self.ranges[partition], children)
        for name in children:
            self.children[name] = [f"after {name}"]
            self._add(self.ranges[name], {f"after {name}": []})

    def break_partition(self, partition: str, error: Exception) -> None:
        """Let the reading of a partition fail."""
        self.broken[partition] = error

    async def pause(self) -> None:
        """Pause the whole stream."""
        await FakePartitionStore(self.partitions, "", OPTIONS.lease).pause()

    async def resume(self) -> None:
        """Let the stream go on."""
        await FakePartitionStore(self.partitions, "", OPTIONS.lease).resume()

    def reader(self, owner: str, life: Life, stop: Stop) -> Coroutine[Any, Any, None]:
        """Return the run of a new reader."""
        clock = VirtualClock()
        reader = BigtableReader(
            SourceTable(
                stream=LiveStream(self, life), rows=OneByOne(life), catalog=FakeCatalog(*FAMILIES), clock=clock
            ),
            BigtableStores(partitions=SlowStore(self, owner, life)),
            BigtableOutput(
                publisher=ToyPublisher(self.topic, life, lambda key: key.split('"')[3]),
                dead_letters=FakeDeadLetterSink(),
                subscriptions=FakeSubscriptions(),
                outputs=outputs(),
            ),
            Monitoring(BigtableMetrics(), Health()),
            BigtableReaderOptions(owner=owner, lease=OPTIONS.lease, heartbeat=OPTIONS.heartbeat),
        )
        return reader.run(stop)

    def owned_by(self, owner: str) -> Collection[str]:
        """Return the partitions whose lease is an owner's and was not released."""
        rows = self.partitions.rows
        names = {name: rows.get(key) for name, key in self._present.items()}
        return {name for name, row in names.items() if row and (row.owner, row.state) == (owner, "RUNNING")}

    def saved(self, partition: str) -> int:
        """Return how many records the saved progress of a partition covers."""
        return self.place(self.ranges[partition], self.partitions.rows[self._present[partition]].position)[1]

    def finished(self) -> Collection[str]:
        """Return the partitions that are recorded as over: their rows are gone, and so are those of their parents."""
        parents = {child: name for name, children in self.children.items() for child in children}
        return {
            name for name in self.children if name not in self._present and parents.get(name, name) not in self._present
        }

    def place(self, keys: KeyRange, position: Position) -> tuple[str, int]:
        """Return which partition a position is in, and behind how many of its records."""
        if not position.tokens:
            return next(name for name, its in self.ranges.items() if its == keys), 0
        name, _colon, number = position.tokens[0].token.rpartition(":")
        return name, int(number)

    @property
    def _present(self) -> Mapping[str, StreamRangeId]:
        ranges: Sequence[StreamRange] = (
            () if self.partitions.topology is None else self.partitions.topology.stream_ranges
        )
        return {self.place(one.range, one.position)[0]: one.id for one in ranges if one.position is not None}

    def _add(self, keys: KeyRange, partitions: Mapping[str, Sequence[str]]) -> None:
        """Cut a range at the names of all partitions but the first."""
        names = list(partitions)
        cuts = [keys.start, *(name.encode() for name in names[1:]), keys.end]
        self.ranges |= {name: KeyRange(cuts[place], cuts[place + 1]) for place, name in enumerate(names)}
        self.records |= {name: list(records) for name, records in partitions.items()}


class LiveStream:
    """A change stream that goes on: what is written comes a moment later, until a partition ends."""

    def __init__(self, world: BigtableWorld, life: Life) -> None:
        self._world, self._life = world, life

    async def initial_partitions(self) -> Sequence[KeyRange]:
        """Return all partitions that there ever were."""
        return list(self._world.ranges.values())

    async def read(self, query: BigtableStreamQuery) -> AsyncGenerator[Sequence[StreamRecord], None]:
        """Yield the records of a partition behind a position, and its end."""
        world = self._world
        name, place = world.place(query.range, query.position)
        while place < len(world.records[name]) or name not in world.children:
            if error := world.broken.get(name):
                raise error
            if place == len(world.records[name]):
                await asyncio.sleep(0.05)
                continue
            self._life.step()
            place += 1
            yield [replace(a_record(world.records[name][place - 1].encode()), token=f"{name}:{place}")]
        children = [(world.ranges[child], f"{child}:0") for child in world.children[name]]
        yield [CloseStream(11, "", tuple(Child(RangeToken(keys, token), keys) for keys, token in children))]


class OneByOne:
    """Rows that are all there; of a reading only the first comes, so that each is published by itself."""

    def __init__(self, life: Life) -> None:
        self._life = life

    async def read(self, row_keys: Sequence[bytes]) -> ReadRows:
        """Return the first of the rows."""
        self._life.step()
        return ReadRows({row_keys[0]: ROW}, row_keys[1:])


class SlowStore(FakePartitionStore):
    """A partition table to which renewals take their time."""

    def __init__(self, world: BigtableWorld, owner: str, life: Life) -> None:
        async def step() -> None:
            await asyncio.sleep(0)
            life.step()

        super().__init__(world.partitions, owner, OPTIONS.lease, step=step)
        self._world = world

    async def advance(
        self, progress: Sequence[BigtableProgress], *, release: bool = False
    ) -> Collection[StreamRangeId]:
        """Save how far partitions are and renew the leases, or release them."""
        await asyncio.sleep(0 if release else self._world.renewal_takes)
        return await super().advance(progress, release=release)


class TestBigtableSource(SourceSuite):
    """The Bigtable reader is a source."""

    def make_world(self) -> SourceWorld:
        """Return a world without partitions and readers."""
        return BigtableWorld()
