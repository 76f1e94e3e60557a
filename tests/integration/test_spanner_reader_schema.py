"""DDL under a running reader, and while none runs, on the Spanner emulator and in both dialects."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta

import pytest
from google.cloud.spanner_v1 import TransactionOptions, TransactionSelector

from deploy.local.source import SpannerDatabase, Value, Write
from services.spanner_reader.adapters.change_stream import SpannerChangeStream
from services.spanner_reader.adapters.connection import Channels, Database, Statement
from services.spanner_reader.adapters.partition_table import SpannerPartitionStore
from services.spanner_reader.adapters.pause_table import SpannerPauseStore
from services.spanner_reader.adapters.schema import SpannerCatalog
from services.spanner_reader.adapters.shape_table import SpannerShapeStore
from services.spanner_reader.core.changes import ChangeMaker
from services.spanner_reader.core.resync import cure
from services.spanner_reader.core.shapes import Finding, Kind, Mark
from services.spanner_reader.held import Options
from services.spanner_reader.reader import Reader
from services.spanner_reader.schema_watch import remember_start
from shared.contracts.change_batch import Header
from shared.contracts.tables_file import TablesFile
from shared.contracts.timestamps import Nanoseconds, parse_timestamp
from shared.runtime.health import Health
from shared.runtime.stop import Stop
from tests.fakes.reader_metrics import FakeMetrics
from tests.fakes.spanner_reader import FakePublisher, Topic
from tests.fakes.subscriptions import FakeSubscriptions

pytestmark = pytest.mark.integration

LEASE = timedelta(seconds=10)


@dataclass
class Watched:
    """A database whose one stream is ``everything`` or names ``t``; what its readers published, and what they mark."""

    database: SpannerDatabase
    partitions: SpannerDatabase
    started: Nanoseconds = field(default_factory=lambda: Nanoseconds(0))
    topic: Topic = field(default_factory=Topic)
    metrics: FakeMetrics = field(default_factory=FakeMetrics)

    @property
    def postgresql(self) -> bool:
        return self.database.postgresql

    def alter(self, googlesql: str, postgresql: str) -> None:
        self.database.alter(postgresql if self.postgresql else googlesql)

    def write(self, table: str, **row: Value) -> None:
        self.database.commit([Write("insert_or_update", table, row)])

    @asynccontextmanager
    async def reading(
        self, *, look: timedelta = timedelta(milliseconds=200), remembering_start: bool = False
    ) -> AsyncIterator[None]:
        """Run a reader of the real adapters with a fake topic."""
        channels, stop = Channels(self.database.instance.address), Stop()
        database, partitions = Database(self.database.path, channels), Database(self.partitions.path, channels)
        for each in (database, partitions):
            await each.learn_dialect()
        store = SpannerPartitionStore(partitions, "p", change_stream="s", owner="test", lease=LEASE)
        await store.create_table()
        catalog, shapes = SpannerCatalog(database, "s"), SpannerShapeStore(partitions, "p")
        if remembering_start:
            await remember_start(
                catalog, shapes, lambda _table: True, TablesFile().options, self.started, await catalog.look()
            )
        await store.add_root(self.started, None)
        reader = Reader(
            stream=SpannerChangeStream(database, "s"),
            store=store,
            publisher=FakePublisher(self.topic),
            subscriptions=FakeSubscriptions(),
            catalog=catalog,
            shapes=shapes,
            pauses=SpannerPauseStore(partitions, "p"),
            changes=ChangeMaker("//spanner/s", 16, {}),
            metrics=self.metrics,
            health=Health(),
            options=Options(owner="test", lease=LEASE, heartbeat=timedelta(seconds=1), look=look),
        )
        task = asyncio.create_task(reader.run(stop))
        try:
            yield
        finally:
            stop.request()
            await asyncio.wait_for(task, 20)
            await channels.close()

    async def partitioned_dml(self, statement: str) -> None:
        """Run a statement as partitioned DML, as `gcloud spanner databases execute-sql --enable-partitioned-dml`."""
        channels = Channels(self.database.instance.address)
        try:
            database = Database(self.database.path, channels)
            session = await database.session()
            options = TransactionOptions(partitioned_dml=TransactionOptions.PartitionedDml())
            begun = await channels.client.begin_transaction(
                request={"session": session, "options": options}, metadata=database.metadata
            )
            await channels.client.execute_sql(
                Statement(statement).request(session, TransactionSelector(id=begun.id)), metadata=database.metadata
            )
        finally:
            await channels.close()

    async def synced(self, table: str) -> bool:
        channels = Channels(self.database.instance.address)
        try:
            partitions = Database(self.partitions.path, channels)
            await partitions.learn_dialect()
            return await SpannerShapeStore(partitions, "p").synced(table)
        finally:
            await channels.close()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not condition():  # noqa: ASYNC110  Spanner tells nobody
                await asyncio.sleep(0.02)

    def marks(self) -> dict[str, set[tuple[str, tuple[str, ...]]]]:
        return {mark.table: {(one.kind.value, one.columns) for one in mark.findings} for mark in self.marked()}

    def marked(self) -> list[Mark]:
        return list(self.metrics.marks)

    def announced(self, table: str) -> list[list[str]]:
        headers: list[Header] = [header for header, changes in self.topic.batches if not changes]
        return [[column.name for column in header.columns] for header in headers if header.table == table]

    def changes(self, table: str) -> int:
        return sum(len(changes) for header, changes in self.topic.batches if header.table == table)


@pytest.fixture(params=["GoogleSQL", "PostgreSQL"])
def make(request: pytest.FixtureRequest, database: Callable[..., SpannerDatabase]) -> Callable[..., Watched]:
    """Return a function that makes a database with table ``t`` and a stream ``FOR`` what is said."""
    postgresql = request.param == "PostgreSQL"

    def made(watching: str = "t") -> Watched:
        if postgresql:
            table = "CREATE TABLE t (id bigint NOT NULL PRIMARY KEY, a varchar, b bigint)"
            stream = f"CREATE CHANGE STREAM s FOR {watching} WITH (value_capture_type = 'NEW_ROW')"
        else:
            table = "CREATE TABLE t (id INT64 NOT NULL, a STRING(MAX), b INT64) PRIMARY KEY (id)"
            stream = f"CREATE CHANGE STREAM s FOR {watching} OPTIONS (value_capture_type = 'NEW_ROW')"
        watched = database(table, stream, postgresql=postgresql)
        return Watched(watched, database(postgresql=postgresql), watched.now())

    return made


def test_a_table_made_under_a_stream_of_everything_is_announced_and_mirrored_and_whole(
    make: Callable[..., Watched],
) -> None:
    watched = make("ALL")

    async def scenario() -> None:
        async with watched.reading():
            await watched.until(lambda: bool(watched.announced("t")))
            watched.alter(
                "CREATE TABLE u (id STRING(20) NOT NULL, n INT64) PRIMARY KEY (id)",
                "CREATE TABLE u (id varchar(20) NOT NULL PRIMARY KEY, n bigint)",
            )
            await watched.until(lambda: bool(watched.announced("u")))
            watched.write("u", id="x", n=1)
            await watched.until(lambda: watched.changes("u") == 1)
        assert watched.announced("u") == [["id", "n"]]
        assert watched.marks() == {}

    asyncio.run(scenario())


def test_a_table_put_into_the_stream_is_announced_and_mirrored_and_marked(make: Callable[..., Watched]) -> None:
    watched = make()

    async def scenario() -> None:
        watched.alter(
            "CREATE TABLE u (id INT64 NOT NULL, n INT64) PRIMARY KEY (id)",
            "CREATE TABLE u (id bigint NOT NULL PRIMARY KEY, n bigint)",
        )
        async with watched.reading():
            await watched.until(lambda: bool(watched.announced("t")))
            watched.write("u", id=1, n=1)  # which no record says
            before = watched.database.now()
            watched.alter("ALTER CHANGE STREAM s SET FOR t, u", "ALTER CHANGE STREAM s SET FOR t, u")
            after = watched.database.now()
            await watched.until(lambda: bool(watched.marks()))
            watched.write("u", id=2, n=2)
            await watched.until(lambda: watched.changes("u") == 1)
        assert watched.announced("u") == [["id", "n"]]
        assert watched.marks() == {"u": {("table_added_to_the_stream", ())}}
        ((found,),) = (mark.findings for mark in watched.marked())
        assert found.after < after  # between two looks, of which the second came after
        assert found.before > before

    asyncio.run(scenario())


def test_columns_that_change_data_without_records_are_found_though_no_reader_ran(make: Callable[..., Watched]) -> None:
    watched = make()

    async def scenario() -> None:
        async with watched.reading():
            await watched.until(lambda: bool(watched.announced("t")))
        watched.write("t", id=1, a="x", b=1)
        watched.alter("ALTER TABLE t DROP COLUMN a", "ALTER TABLE t DROP COLUMN a")
        watched.alter("ALTER TABLE t ADD COLUMN a STRING(MAX)", "ALTER TABLE t ADD COLUMN a varchar")
        watched.alter("ALTER TABLE t ADD COLUMN c INT64 DEFAULT (7)", "ALTER TABLE t ADD COLUMN c bigint DEFAULT 7")
        watched.alter("ALTER TABLE t ADD COLUMN d INT64", "ALTER TABLE t ADD COLUMN d bigint")
        async with watched.reading():
            await watched.until(lambda: bool(watched.marks()))
        assert watched.marks() == {
            "t": {("column_dropped_and_added_again", ("a",)), ("column_added_with_default", ("c",))}
        }
        assert watched.announced("t")[-1] == ["id", "b", "a", "c", "d"]
        (row,) = watched.database.query("SELECT * FROM t")
        assert (row["a"], row["c"]) == (None, 7)  # what no record has said

    asyncio.run(scenario())


def test_the_cure_followed_to_the_letter_brings_every_row_whole_with_the_default_of_the_new_column(
    make: Callable[..., Watched],
) -> None:
    watched = make()

    async def scenario() -> None:
        async with watched.reading():
            for key in range(3):
                watched.write("t", id=key, a="x", b=None)
            await watched.until(lambda: watched.changes("t") == 3)
            watched.alter("ALTER TABLE t ADD COLUMN c INT64 DEFAULT (7)", "ALTER TABLE t ADD COLUMN c bigint DEFAULT 7")
            await watched.until(lambda: bool(watched.marks()))
            (mark,) = watched.marked()
            text = cure(mark, '"' if watched.postgresql else "`")
            statement = re.search(r"partitioned DML: (UPDATE .* WHERE TRUE) \(", text)
            assert statement is not None
            before = watched.changes("t")
            if watched.postgresql:  # whose quotes the emulator does not know in partitioned DML
                assert watched.database.execute(statement[1])[0] == 3
            else:
                await watched.partitioned_dml(statement[1])
            await watched.until(lambda: watched.changes("t") >= before + 3)
        carried = [(header, change) for header, changes in watched.topic.batches for change in changes][before:]
        assert all({column.name for column in header.columns} == {"id", "a", "b", "c"} for header, _change in carried)
        rows = {json.loads(change.key)["id"]: json.loads(change.row or "{}") for _header, change in carried}
        assert rows == {str(key): {"a": "x", "b": None, "c": "7"} for key in range(3)}
        assert min(parse_timestamp(change.commit_timestamp) for _header, change in carried) >= mark.sync_after
        command = re.search(r"`python -m services.spanner_reader synced (\S+)`", text)
        assert command is not None
        assert await watched.synced(command[1])

    asyncio.run(scenario())


def test_the_rows_of_a_table_of_keys_alone_come_again_with_a_column_that_is_added_for_it(
    make: Callable[..., Watched],
) -> None:
    watched = make("ALL")

    async def scenario() -> None:
        watched.alter(
            "CREATE TABLE u (id INT64 NOT NULL) PRIMARY KEY (id)", "CREATE TABLE u (id bigint NOT NULL PRIMARY KEY)"
        )
        async with watched.reading():
            for key in range(3):
                watched.write("u", id=key)
            await watched.until(lambda: watched.changes("u") == 3)
            mark = Mark("u", (Finding("u", Kind.TABLE_AGAIN, watched.started, watched.started),))
            statement = re.search(r"(ALTER TABLE )T( ADD COLUMN c BOOL), set it TRUE", cure(mark, "`"))
            assert statement is not None
            assert "UPDATE `u` SET c = c" in cure(mark, "`")
            watched.database.alter(f"{statement[1]}u{statement[2]}")
            assert watched.database.execute("UPDATE u SET c = TRUE WHERE TRUE")[0] == 3
            await watched.until(lambda: watched.changes("u") == 6)
            watched.database.alter("ALTER TABLE u DROP COLUMN c")
        assert watched.marks() == {}

    asyncio.run(scenario())


def test_a_column_added_again_with_another_type_arrives_with_it_and_the_table_is_marked(
    make: Callable[..., Watched],
) -> None:
    watched = make()

    async def scenario() -> None:
        async with watched.reading(look=timedelta(minutes=1)):  # the new column list is reason enough to look
            watched.write("t", id=1, a="x", b=1)
            await watched.until(lambda: watched.changes("t") == 1)
            watched.alter("ALTER TABLE t DROP COLUMN b", "ALTER TABLE t DROP COLUMN b")
            watched.alter("ALTER TABLE t ADD COLUMN b STRING(MAX)", "ALTER TABLE t ADD COLUMN b varchar")
            watched.write("t", id=2, a="x", b="text")
            await watched.until(lambda: bool(watched.marks()))
            await watched.until(lambda: watched.changes("t") == 2)
        types = [{column.name: column.type for column in header.columns} for header in watched.topic.headers]
        assert types[0]["b"] == "INT64"
        assert types[-1]["b"] == "STRING"
        assert watched.marks() == {"t": {("column_type_changed", ("b",))}}

    asyncio.run(scenario())


def test_a_table_dropped_and_made_again_is_marked_and_mirrored_on(make: Callable[..., Watched]) -> None:
    watched = make("ALL")

    async def scenario() -> None:
        async with watched.reading():
            watched.write("t", id=1, a="x", b=1)
            await watched.until(lambda: watched.changes("t") == 1)
            watched.alter("DROP TABLE t", "DROP TABLE t")
            watched.alter(
                "CREATE TABLE t (id STRING(9) NOT NULL, a STRING(MAX)) PRIMARY KEY (id)",
                "CREATE TABLE t (id varchar(9) NOT NULL PRIMARY KEY, a varchar)",
            )
            watched.write("t", id="x", a="y")
            await watched.until(lambda: bool(watched.marks()))
            await watched.until(lambda: watched.changes("t") == 2)
        assert watched.marks() == {"t": {("table_dropped_and_made_again", ())}}

    asyncio.run(scenario())


def test_a_table_taken_out_and_put_back_is_marked(make: Callable[..., Watched]) -> None:
    watched = make()

    async def scenario() -> None:
        watched.alter(
            "CREATE TABLE u (id INT64 NOT NULL) PRIMARY KEY (id)", "CREATE TABLE u (id bigint NOT NULL PRIMARY KEY)"
        )
        async with watched.reading():
            await watched.until(lambda: bool(watched.announced("t")))
        watched.alter("ALTER CHANGE STREAM s SET FOR u", "ALTER CHANGE STREAM s SET FOR u")
        async with watched.reading():
            await watched.until(lambda: bool(watched.announced("u")))
        # Not for both: of several tables, the emulator watches the last alone once the stream was altered.
        watched.alter("ALTER CHANGE STREAM s SET FOR t", "ALTER CHANGE STREAM s SET FOR t")
        async with watched.reading():
            await watched.until(lambda: "t" in watched.marks())
        assert watched.marks()["t"] == {("table_added_to_the_stream", ())}

    asyncio.run(scenario())


def test_a_generated_column_of_the_key_is_in_the_announcement_as_it_is_in_the_records(
    database: Callable[..., SpannerDatabase],
) -> None:
    made = database(
        "CREATE TABLE t (a INT64, k INT64 AS (MOD(a, 8)) STORED) PRIMARY KEY (k, a)",
        "CREATE CHANGE STREAM s FOR t OPTIONS (value_capture_type = 'NEW_ROW')",
    )
    watched = Watched(made, database(), made.now())

    async def scenario() -> None:
        async with watched.reading():
            watched.write("t", a=9)
            await watched.until(lambda: watched.changes("t") == 1)

    asyncio.run(scenario())
    announced, carried = (header for header, _changes in watched.topic.batches)
    assert announced == carried
    assert announced.primary_key == ("k", "a")
