"""What the service answers as the emulator never does: commits that are done and yet refused, or aborted, and schema
changes that take long. And how many calls the partition table takes at rest.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta

import grpc
import pytest

from deploy.local.platform.source import SpannerDatabase
from services.spanner_reader.adapters.pause_table import SpannerPauseStore
from services.spanner_reader.adapters.spanner import connection
from services.spanner_reader.adapters.spanner.connection import SpannerChannels, SpannerDatabaseClient
from services.spanner_reader.adapters.stream.partition_table import SpannerPartitionStore
from services.spanner_reader.adapters.stream.topic_table import SpannerTopicStore
from services.spanner_reader.core.stream.partitions import NewPartition, SpannerPartition
from services.spanner_reader.core.stream.records import ROOT, PartitionToken
from services.spanner_reader.ports import SpannerProgress
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.contracts.timestamps import parse_timestamp
from shared.runtime.retries import retried
from shared.runtime.stop import Stop
from tests.fakes.spanner_reader import CALLS
from tests.integration.scripted_spanner import RefusalError, ScriptedSpanner, ScriptedStream

pytestmark = pytest.mark.integration

START = parse_timestamp("2026-11-21T09:00:00Z")
CHILD = PartitionToken("child")
EXISTS = RefusalError(grpc.StatusCode.ALREADY_EXISTS, "Row [] in table millrace_partitions already exists")
ABORTED = RefusalError(grpc.StatusCode.ABORTED, "The transaction was aborted")


class Scripted:
    """A partition table behind a server that answers commits by a script."""

    def __init__(self, database: SpannerDatabase) -> None:
        self.server = ScriptedSpanner("Everything", ScriptedStream(START), database.instance.address)
        self.path = database.path

    @asynccontextmanager
    async def stores(self) -> AsyncIterator[tuple[SpannerPartitionStore, SpannerTopicStore]]:
        """Return stores whose tables are there."""
        async with self._database() as database:
            store = SpannerPartitionStore(
                database, "partitions", change_stream="Everything", owner="reader", lease=timedelta(seconds=30)
            )
            await store.create_table()
            yield store, SpannerTopicStore(database, "partitions")

    @asynccontextmanager
    async def pauses(self) -> AsyncIterator[SpannerPauseStore]:
        """Return the store of pauses, whose tables the other stores have made."""
        async with self._database() as database:
            yield SpannerPauseStore(database, "partitions")

    @asynccontextmanager
    async def _database(self) -> AsyncIterator[SpannerDatabaseClient]:
        channels = SpannerChannels(self.server.address)
        yield SpannerDatabaseClient(self.path, channels)
        await channels.close()

    async def calls_of(self, ask: Callable[[], Awaitable[object]]) -> int:
        """Return how many calls a question or a write takes."""
        before = Counter(self.server.calls)
        await ask()
        return (self.server.calls - before).total()


@pytest.fixture
def scripted(database: Callable[..., SpannerDatabase]) -> Iterator[Scripted]:
    """Return an empty partition table behind a scripted server."""
    scripted = Scripted(database())
    yield scripted
    scripted.server.stop()


async def test_after_a_row_that_exists_already_the_rows_are_read_again_and_say_what_to_do(scripted: Scripted) -> None:
    async with scripted.stores() as (store, _topics):
        scripted.server.commits_refused = [EXISTS]
        with pytest.raises(TransientError, match="already exists"):
            await store.add_root(START, None)
        assert not await store.add_root(START, None), "it was there, whoever inserted it"
        (root,) = await store.claim([ROOT], None)
        scripted.server.commits_refused = [EXISTS]
        children = [NewPartition(CHILD, frozenset({ROOT}), START)]
        finished = await retried(Stop(), lambda: store.finish(SpannerProgress(root, START), children))
        assert finished == frozenset(), "our own doing, whose answer was another"
        assert [one.token for one in (await store.survey()).unfinished] == [CHILD]


async def test_an_aborted_transaction_hands_its_priority_to_the_next_attempt_alone(scripted: Scripted) -> None:
    async with scripted.stores() as (store, _topics):
        await store.add_root(START, None)
        begun = scripted.server.begun
        del begun[:]
        scripted.server.commits_refused = [ABORTED]
        await retried(Stop(), lambda: store.claim([ROOT], None))
        await store.attend()
        aborted = scripted.server.commits[-3].transaction_id
        assert [options.read_write.multiplexed_session_previous_transaction_id for options in begun] == [
            b"",
            aborted,
            b"",
        ]


async def test_the_partition_table_at_rest_takes_as_many_calls_as_its_fake_counts(scripted: Scripted) -> None:
    async with scripted.stores() as (store, _topics), scripted.pauses() as pauses:
        await store.add_root(START, None)
        await pauses.read()  # makes a session
        await store.survey()  # counts the finished partitions, which another within a minute does not
        ours = SpannerPartition(token=ROOT, start=START, watermark=START, owner="reader", fencing=1)
        counted = {
            "claim": await scripted.calls_of(lambda: store.claim([ROOT], None)),
            "survey": await scripted.calls_of(store.survey),
            "advance": await scripted.calls_of(lambda: store.advance([SpannerProgress(ours, START)])),
            "attend": await scripted.calls_of(store.attend),
            "pauses": await scripted.calls_of(pauses.read),
        }
        assert counted == CALLS


async def test_tables_whose_making_takes_long_are_waited_for_and_made_once(
    database: Callable[..., SpannerDatabase], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "DDL_TIMEOUT", 0.1)
    scripted = Scripted(database())
    scripted.server.schema_changes_last = True
    channels = SpannerChannels(scripted.server.address)
    reading = SpannerDatabaseClient(scripted.path, channels)
    statement = "CREATE TABLE t (id INT64) PRIMARY KEY (id)"
    for _attempt in range(3):
        with pytest.raises(TransientError, match=r"CREATE TABLE t in .* still running .*operations describe"):
            await reading.change_schema(statement)
    scripted.server.schema_changes_last = False
    await reading.change_schema(statement)
    assert scripted.server.calls["UpdateDatabaseDdl"] == 1
    with pytest.raises(MisconfiguredError):
        await reading.change_schema("CREATE TABLE nonsense")
    await reading.change_schema("DROP TABLE t")
    await channels.close()
    scripted.server.stop()


async def test_readers_that_make_their_tables_at_once_all_go_on(database: Callable[..., SpannerDatabase]) -> None:
    spanner = database()

    async def create_table(name: str, channels: SpannerChannels) -> None:
        client = SpannerDatabaseClient(spanner.path, channels)  # the emulator refuses schema changes at the same time
        await retried(Stop(), lambda: client.change_schema(f"CREATE TABLE {name} (id INT64) PRIMARY KEY (id)"))

    channels = SpannerChannels(spanner.instance.address)
    await asyncio.gather(*(create_table(f"t{number}", channels) for number in range(8)))
    await channels.close()
    assert len(spanner.query("SELECT table_name FROM information_schema.tables WHERE table_schema = ''")) == 8
