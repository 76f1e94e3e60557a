"""A reader with the real stream adapter before a scripted Spanner; its partition table, topic and catalog in memory."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from services.spanner_reader.adapters.spanner.connection import SpannerChannels, SpannerDatabaseClient
from services.spanner_reader.adapters.stream.change_stream import SpannerChangeStream
from services.spanner_reader.app.stream.owned_partition import SpannerReaderOptions
from services.spanner_reader.app.stream.reader import SpannerOutput, SpannerReader, SpannerStores, WatchedDatabase
from services.spanner_reader.core.stream.changes import ChangeMaker
from services.spanner_reader.core.stream.partitions import PartitionState
from services.spanner_reader.core.stream.records import PartitionToken
from services.spanner_reader.ports import WatchedTable
from shared.contracts.timestamps import Nanoseconds, parse_timestamp
from shared.reading.supervisor import Monitoring
from shared.runtime.health import Health
from shared.runtime.stop import Stop
from tests.fakes.life import Life
from tests.fakes.pauses import FakePauseStore, PauseTable
from tests.fakes.reader_metrics import SpannerMetrics
from tests.fakes.snapshots import FakeRows, Versions
from tests.fakes.spanner_reader import FakePartitionStore, FakePublisher, Table, Topic
from tests.fakes.spanner_schema import FakeCatalog, FakeShapeStore
from tests.fakes.subscriptions import FakeSubscriptions
from tests.integration.scripted_spanner import ScriptedSpanner, ScriptedStream
from tests.integration.scripted_spanner_rows import Form
from tests.unit.spanner_reader.scripts import COLUMNS, at

START, FIRST, MERGE = at("09:00:00"), at("09:00:01"), at("09:30:15")
T1, T2, T3, T4 = (PartitionToken(f"child_token_{n}") for n in range(1, 5))
LEASE = timedelta(seconds=30)
DATABASE = "projects/p/instances/i/databases/d"
FORMS = [
    Form(),
    Form(absent="null", no_parents="null", numbers=True),
    Form(no_parents="list of null", chunk_size=7),
    Form(absent="null", numbers=True, chunk_size=1),
]


@dataclass
class World:
    """A scripted stream behind a socket; the partition table, the topic and the catalog in memory."""

    server: ScriptedSpanner
    table: Table = field(default_factory=Table)
    topic: Topic = field(default_factory=Topic)
    metrics: SpannerMetrics = field(default_factory=SpannerMetrics)
    catalog: FakeCatalog = field(
        default_factory=lambda: FakeCatalog(WatchedTable("Singers", ("Id",), COLUMNS, "NEW_ROW"))
    )

    @property
    def stream(self) -> ScriptedStream:
        return self.server.stream

    @asynccontextmanager
    async def running(
        self,
        owner: str = "reader",
        *,
        end: Nanoseconds | None = None,
        publisher: FakePublisher | None = None,
        life: Life | None = None,
    ) -> AsyncIterator["asyncio.Task[None]"]:
        """Run a reader; at the end of the block it is asked to stop, and whatever it raised is raised.

        One whose ``life`` ends has no effects any more, and leaves its leases behind.
        """
        channels = SpannerChannels(self.server.address)
        stop = Stop()
        store = FakePartitionStore(self.table, owner, LEASE, life)
        await store.add_root(START, end)
        reader = SpannerReader(
            WatchedDatabase(
                stream=SpannerChangeStream(SpannerDatabaseClient(DATABASE, channels), "Everything"),
                catalog=self.catalog,
                rows=FakeRows(Versions(self.table.clock)),
            ),
            SpannerStores(partitions=store, shapes=FakeShapeStore(), pauses=FakePauseStore(PauseTable())),
            SpannerOutput(
                publisher=publisher or FakePublisher(self.topic),
                subscriptions=FakeSubscriptions(),
                changes=ChangeMaker("//spanner/s", 16, {one.name: one.primary_key for one in self.catalog.tables}),
            ),
            Monitoring(self.metrics, Health()),
            SpannerReaderOptions(
                owner=owner,
                lease=LEASE,
                heartbeat=timedelta(seconds=10),
                end=end,
                poll=timedelta(milliseconds=5),
            ),
        )
        task = asyncio.create_task(reader.run(stop))
        try:
            yield task
        finally:
            stop.request()
            try:
                await asyncio.wait_for(task, 20)
            finally:
                await channels.close()

    def commits(self) -> list[Nanoseconds]:
        """Return the commit timestamps as they were first published."""
        return list(dict.fromkeys(parse_timestamp(change.commit_timestamp) for change in self.topic.changes))

    def has_finished(self, token: PartitionToken) -> bool:
        """Return whether a partition is known to be finished."""
        return token in self.table.rows and self.table.rows[token].state is PartitionState.FINISHED

    def in_order(self, life: Life | None = None) -> FakePublisher:
        """Return a publisher that publishes in the order in which it is asked to, as one ordering key would."""
        return FakePublisher(self.topic, life, in_order=True)


@contextmanager
def a_world(form: Form | None = None) -> Iterator[World]:
    """Serve a stream that starts at 09:00:00."""
    server = ScriptedSpanner("Everything", ScriptedStream(START, form=form))
    try:
        yield World(server)
    finally:
        server.stop()


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something to come true."""
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110  what it waits for are fakes and a server, which have no event
            await asyncio.sleep(0.002)


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(scenario())


def times(first: str, count: int) -> list[Nanoseconds]:
    """Return ``count`` times, a microsecond apart."""
    return [Nanoseconds(at(first) + 1_000 * number) for number in range(count)]
