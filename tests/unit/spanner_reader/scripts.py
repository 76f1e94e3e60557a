"""Builders of change stream records and of a reader on fakes."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from types import MappingProxyType
from typing import Any

from services.spanner_reader.app.schema.schema_watch import WatchedTables
from services.spanner_reader.app.stream.owned_partition import SpannerReaderOptions
from services.spanner_reader.app.stream.reader import SpannerOutput, SpannerReader, SpannerStores, WatchedDatabase
from services.spanner_reader.core.stream.changes import ChangeMaker
from services.spanner_reader.core.stream.records import (
    ChildPartition,
    ChildPartitionsRecord,
    DataChangeRecord,
    Mod,
    PartitionToken,
    SpannerColumnType,
    SpannerStreamQuery,
    StreamRecord,
)
from services.spanner_reader.ports import DatabaseChangeStream, PauseStore, RowsAtTimestamp, WatchedTable
from shared.contracts.tables_file import TableOptions
from shared.contracts.timestamps import Nanoseconds, parse_timestamp
from shared.reading.publishing import ChangePublisher
from shared.reading.supervisor import Monitoring
from shared.runtime.health import Health
from shared.runtime.stop import Stop
from tests.fakes.life import Life
from tests.fakes.pauses import FakePauseStore, PauseTable
from tests.fakes.reader_metrics import SpannerMetrics
from tests.fakes.snapshots import FakeRows, Versions
from tests.fakes.spanner_reader import (
    FakeChangeStream,
    FakePartitionStore,
    FakePublisher,
    Script,
    SteppingClock,
    Table,
    Topic,
)
from tests.fakes.spanner_schema import FakeCatalog, FakeShapeStore, Shapes
from tests.fakes.subscriptions import FakeSubscriptions

LEASE = timedelta(seconds=30)
COLUMNS = (
    SpannerColumnType("Id", '{"code":"INT64"}', is_primary_key=True, ordinal_position=1),
    SpannerColumnType("Name", '{"code":"STRING"}', is_primary_key=False, ordinal_position=2),
)


def at(text: str) -> Nanoseconds:
    """Return an instant of 2022-05-01 from its time of day."""
    return parse_timestamp(f"2022-05-01T{text}Z")


START = at("09:00:00")
"""Where the stream of a world is begun."""


class LiveClock(SteppingClock):
    """Spanner's clock, which goes as the event loop's does; every commit moves it on a little."""

    def now(self) -> Nanoseconds:
        """Return the time now."""
        return Nanoseconds(self.time + int(asyncio.get_running_loop().time() * 1e9) // 1_000 * 1_000)


class LiveStream:
    """A change stream that goes on: what is written comes a moment later, until a record of children ends a query."""

    def __init__(
        self,
        records: Mapping[PartitionToken, Sequence[StreamRecord]],
        life: Life,
        lag: float = 0.0,
        broken: Mapping[str, Exception] = MappingProxyType({}),
    ) -> None:
        """``broken``: the errors by which queries end."""
        self._records, self._life, self._lag, self._broken = records, life, lag, broken

    async def read(self, query: SpannerStreamQuery) -> AsyncGenerator[Sequence[StreamRecord], None]:
        """Yield the records of a partition from the start asked for."""
        records, place = self._records[query.token], 0
        while not (place and isinstance(records[place - 1], ChildPartitionsRecord)):
            if error := self._broken.get(query.token):
                raise error
            if place == len(records):
                await asyncio.sleep(0.05)
                continue
            self._life.step()
            record, place = records[place], place + 1
            if not isinstance(record, DataChangeRecord) or record.commit_timestamp >= query.start:
                await asyncio.sleep(self._lag)
                yield [record]


def a_record(time: Nanoseconds, key: int = 1, *, mods: int = 1, transaction: str = "t") -> DataChangeRecord:
    """Return an INSERT of rows ``key``, ``key + 1``, ..."""
    return DataChangeRecord(
        commit_timestamp=time,
        record_sequence="00000000",
        server_transaction_id=transaction,
        is_last_record_in_transaction_in_partition=True,
        table="Singers",
        column_types=COLUMNS,
        mods=tuple(Mod(f'{{"Id":"{key + n}"}}', '{"Name":"n"}', "{}") for n in range(mods)),
        mod_type="INSERT",
        value_capture_type="NEW_ROW",
        number_of_records_in_transaction=1,
        number_of_partitions_in_transaction=1,
    )


def a_write(time: Nanoseconds, table: str, key: int, value: str | None) -> DataChangeRecord:
    """Return an UPDATE of a row of a table that captures whole rows, or its DELETE."""
    mod = Mod(f'{{"Id":"{key}"}}', "{}" if value is None else f'{{"Name":"{value}"}}', "{}")
    return replace(a_record(time), table=table, mods=(mod,), mod_type="DELETE" if value is None else "UPDATE")


def children(
    start: Nanoseconds, *tokens: str, parents: Iterable[str] = (), sequence: str = "1000012389"
) -> ChildPartitionsRecord:
    """Return a child partitions record whose children all have the same parents."""
    named = frozenset(map(PartitionToken, parents))
    return ChildPartitionsRecord(
        start, sequence, tuple(ChildPartition(PartitionToken(token), named) for token in tokens)
    )


@dataclass
class World:
    """What outlives a reader: the stream, the partition table, the topic."""

    script: Script
    table: Table = field(default_factory=Table)
    topic: Topic = field(default_factory=Topic)
    metrics: SpannerMetrics = field(default_factory=SpannerMetrics)
    subscriptions: FakeSubscriptions = field(default_factory=FakeSubscriptions)
    catalog: FakeCatalog = field(
        default_factory=lambda: FakeCatalog(WatchedTable("Singers", ("Id",), COLUMNS, "NEW_ROW"))
    )
    shapes: Shapes = field(default_factory=Shapes)

    @property
    def pauses(self) -> PauseTable:
        """Return what is paused."""
        return PauseTable(self.table.clock, self.shapes)

    def reader(
        self,
        *,
        owner: str = "reader",
        life: Life | None = None,
        publisher: ChangePublisher | None = None,
        store: FakePartitionStore | None = None,
        shapes: FakeShapeStore | None = None,
        end: Nanoseconds | None = None,
        seed: int = 0,
        lease: timedelta = LEASE,
        recheck: timedelta = timedelta(minutes=2),
        inspect_every: timedelta = timedelta(minutes=1),
        poll: timedelta = timedelta(milliseconds=1),
        included: Callable[[str], bool] = lambda _table: True,
        table_options: Callable[[str], TableOptions] | None = None,
        buckets_of: Callable[[str], int | None] = lambda _table: None,
        stream: DatabaseChangeStream | None = None,
        pauses: PauseStore | None = None,
        rows: RowsAtTimestamp | None = None,
    ) -> SpannerReader:
        """Return a new reader in this world."""
        life = life or Life()
        return SpannerReader(
            WatchedDatabase(
                stream=stream or FakeChangeStream(self.script, life),
                catalog=self.catalog,
                rows=rows or FakeRows(Versions(self.table.clock)),
            ),
            SpannerStores(
                partitions=store or FakePartitionStore(self.table, owner, lease, life),
                shapes=shapes or FakeShapeStore(self.shapes, life),
                pauses=pauses or FakePauseStore(self.pauses, life),
            ),
            SpannerOutput(
                publisher=publisher or FakePublisher(self.topic, life, seed=seed),
                subscriptions=self.subscriptions,
                changes=ChangeMaker("//spanner/s", 16, {"Singers": ("Id",)}, buckets_of),
                tables=WatchedTables(included, table_options),
            ),
            Monitoring(self.metrics, Health()),
            SpannerReaderOptions(
                owner=owner,
                lease=lease,
                heartbeat=timedelta(seconds=10),
                end=end,
                poll=poll,
                recheck=recheck,
                inspect_every=inspect_every,
            ),
        )

    @classmethod
    async def begun(
        cls, records: Mapping[PartitionToken, Sequence[StreamRecord]], *, table: Table | None = None, **script: Any
    ) -> "World":
        """Return the world of a stream that was begun, as a first start does it; ``script``: how its queries go."""
        world = cls(Script(records, **script), table or Table())
        await world.begin()
        return world

    async def begin(self) -> None:
        """Remember where the first query starts."""
        await FakePartitionStore(self.table, "setup", LEASE).add_root(START, None)


@asynccontextmanager
async def running(reader: SpannerReader) -> AsyncIterator["asyncio.Task[None]"]:
    """Run a reader in the background; at the end of the block it is asked to stop, and whatever it raised is raised."""
    stop = Stop()
    task = asyncio.create_task(reader.run(stop))
    try:
        yield task
    finally:
        stop.request()
        await asyncio.wait_for(task, 60)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something to come true."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110  what it waits for are fakes, which have no event
            await asyncio.sleep(0.001)


async def a_while() -> None:
    """Let everything happen that can: a reader surveys its partitions two hundred times."""
    await asyncio.sleep(0.2)
