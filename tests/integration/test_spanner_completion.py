"""Updates that hold only what changed, of the Spanner emulator: their rows are read, and published whole.

By mutations that name some columns: the emulator's DML records all of them.
"""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence

import pytest

from deploy.local.platform.source import Operation, SpannerDatabase, Value
from services.spanner_reader.adapters.schema.catalog import SpannerCatalog
from services.spanner_reader.adapters.spanner.connection import Row, SpannerChannels, SpannerDatabaseClient, Statement
from services.spanner_reader.ports import NotReadableError
from shared.contracts.change_batch import Change, Header
from shared.contracts.tables_file import Mode
from shared.contracts.timestamps import Nanoseconds
from tests.unit.spanner_reader.capturing import is_reconstructed
from tests.worlds.spanner_source import Source

pytestmark = pytest.mark.integration

GOOGLESQL = (
    """CREATE TABLE Singers (Id INT64 NOT NULL, Base STRING(10) NOT NULL, Name STRING(64), Score FLOAT64, Born DATE,
         Notes JSON, Tags ARRAY<STRING(10)>, Next INT64 AS (Id + 1) STORED) PRIMARY KEY (Base, Id DESC)""",
    """CREATE TABLE Albums (Base STRING(10) NOT NULL, Id INT64 NOT NULL, Album INT64 NOT NULL, Title STRING(MAX),
         Price NUMERIC) PRIMARY KEY (Base, Id DESC, Album), INTERLEAVE IN PARENT Singers ON DELETE CASCADE""",
    "CREATE TABLE Tags (Tag STRING(20) NOT NULL, Id INT64 NOT NULL) PRIMARY KEY (Tag, Id)",
    "CREATE CHANGE STREAM Everything FOR Singers (Name, Score, Born, Notes, Tags), Albums, Tags",
)
POSTGRESQL = (
    """CREATE TABLE "Singers" ("Id" bigint NOT NULL, "Base" varchar(10) NOT NULL, "Name" varchar(64),
         "Score" double precision, "Born" date, "Notes" jsonb, "Tags" varchar(10)[], PRIMARY KEY ("Base", "Id"))""",
    """CREATE TABLE "Albums" ("Base" varchar(10) NOT NULL, "Id" bigint NOT NULL, "Album" bigint NOT NULL,
         "Title" varchar, "Price" numeric, PRIMARY KEY ("Base", "Id", "Album"))
       INTERLEAVE IN PARENT "Singers" ON DELETE CASCADE""",
    """CREATE TABLE "Tags" ("Tag" varchar(20) NOT NULL, "Id" bigint NOT NULL, PRIMARY KEY ("Tag", "Id"))""",
    """CREATE CHANGE STREAM "Everything" FOR "Singers" ("Name", "Score", "Born", "Notes", "Tags"), "Albums", "Tags" """,
)
SHOP = "CREATE TABLE shop.Tags (Id INT64 NOT NULL, Tag STRING(20)) PRIMARY KEY (Id)"
SHOP_POSTGRESQL = """CREATE TABLE shop."Tags" ("Id" bigint NOT NULL PRIMARY KEY, "Tag" varchar(20))"""
Writes = Sequence[tuple[Operation, str, Mapping[str, Value]]]
SINGER: Mapping[str, Value] = {"Base": "b", "Id": 1}
ALBUM: Mapping[str, Value] = {**SINGER, "Album": 7}
FULL: Mapping[str, Value] = {
    **SINGER,
    "Name": 'é " n',
    "Score": 0.1,
    "Notes": {"a": [1, 2.5, None]},
    "Tags": ("x", "y"),
}
BEFORE: Sequence[Writes] = (
    [
        ("insert", "Singers", FULL),
        ("insert", "Albums", {**ALBUM, "Title": "t"}),
        ("insert", "Tags", {"Tag": "x", "Id": 1}),
    ],
    [("update", "Singers", {**SINGER, "Score": -1.5}), ("update", "Albums", {**ALBUM, "Title": None})],
    [("update", "Singers", {**SINGER, "Name": None})],
)
AFTER: Sequence[Writes] = (
    [("update", "Singers", {**SINGER, "Notes": {"b": "c"}}), ("insert_or_update", "Albums", {**ALBUM, "Title": "u"})],
    [("replace", "Singers", {**SINGER, "Score": 2.0})],
    [("update", "Singers", {**SINGER, "Name": "again"}), ("insert", "Singers", {"Base": "b", "Id": 2, "Name": "two"})],
    [("delete", "Singers", {"Base": "b", "Id": 2})],
    [("update", "Singers", {**SINGER, "Born": None})],
)


@pytest.mark.parametrize("mode", ["mirror", "both"])
@pytest.mark.parametrize("postgresql", [False, True], ids=["googlesql", "postgresql"])
def test_updates_of_some_columns_are_published_as_the_whole_rows_that_were_true_then(
    database: Callable[..., SpannerDatabase], postgresql: bool, mode: Mode
) -> None:
    made = database(*(POSTGRESQL if postgresql else GOOGLESQL), postgresql=postgresql)
    source = Source(made, made.now())
    for each in BEFORE:
        source.commit(*each)
    topic = source.read_all(mode=mode)
    for each in AFTER:
        source.commit(*each)
    again = source.read_all(mode=mode)  # another reader, from where the first one was
    changes = [(header, change) for one in (topic, again) for header, batch in one.batches for change in batch]

    assert {header.value_capture_type for header, _change in changes} == {"NEW_ROW_AND_OLD_VALUES"}
    assert len({header for header, change in changes if header.table == "Singers" and change.op == "UPSERT"}) == 1
    assert not any("reconstructed" in change.place for _header, change in changes)
    singers = {change.sequence: row_of(header, change) for header, change in changes if is_singer(header, change, 1)}
    first = {"Name": 'é " n', "Score": 0.1, "Born": None, "Notes": {"a": [1, 2.5, None]}, "Tags": ["x", "y"]}
    blank = dict.fromkeys(first)
    assert [row for _sequence, row in sorted(singers.items())] == [
        first,
        first | {"Score": -1.5},
        first | {"Score": -1.5, "Name": None},
        first | {"Score": -1.5, "Name": None, "Notes": {"b": "c"}},
        blank | {"Score": 2.0},
        blank | {"Score": 2.0, "Name": "again"},
        blank | {"Score": 2.0, "Name": "again"},
    ]
    albums = {change.sequence: row_of(header, change) for header, change in changes if header.table == "Albums"}
    assert [row and row["Title"] for _sequence, row in sorted(albums.items())] == ["t", None, "u", None]
    assert [change.row for header, change in changes if header.table == "Tags"] == ["{}"]


@pytest.mark.parametrize("postgresql", [False, True], ids=["googlesql", "postgresql"])
def test_some_tables_are_inspected_as_an_inspection_of_all_of_them_shows_them(
    database: Callable[..., SpannerDatabase], postgresql: bool
) -> None:
    """What completing asks for with each batch is what the reader knows of the schema otherwise."""
    made = database(*(POSTGRESQL if postgresql else GOOGLESQL), postgresql=postgresql)
    made.alter(
        "CREATE SCHEMA shop",
        'CREATE CHANGE STREAM "All" FOR ALL' if postgresql else "CREATE CHANGE STREAM `All` FOR ALL",
    )
    made.alter(SHOP_POSTGRESQL if postgresql else SHOP)

    async def inspect(stream: str) -> None:
        channels = SpannerChannels(made.instance.address)
        try:
            client = CountingClient(made.path, channels)
            await client.learn_dialect()
            catalog = SpannerCatalog(client, stream)
            watched = {table.name: table for table in (await catalog.inspect()).watched}
            for names in ({"Singers"}, {"Albums", "Tags"}, {"shop.Tags"}, {"Nothing"}, set[str]()):
                before, asked = made.now(), client.asked
                at, found = await catalog.inspect_tables(names)
                assert client.asked == asked + 1, "one query, whatever the number of tables"
                assert before <= at <= made.now()
                assert {one.name: one for one in found} == {name: watched[name] for name in names & watched.keys()}
                assert await catalog.inspect_tables(names, at) == (at, found)
            with pytest.raises(NotReadableError, match="has no change stream Later"):
                await SpannerCatalog(client, "Later").inspect_tables({"Singers"}, at)
        finally:
            await channels.close()

    asyncio.run(inspect("Everything"))
    asyncio.run(inspect("All"))


class CountingClient(SpannerDatabaseClient):
    """A client that counts the statements of its snapshots."""

    asked = 0

    async def snapshot(
        self, *statements: Statement, at: Nanoseconds | None = None, large: bool = False
    ) -> tuple[Nanoseconds, list[list[Row]]]:
        """Return the rows of several statements, and count these."""
        self.asked += len(statements)
        return await super().snapshot(*statements, at=at, large=large)


def is_singer(header: Header, change: Change, number: int) -> bool:
    return header.table == "Singers" and json.loads(change.key)["Id"] == str(number)


def row_of(header: Header, change: Change) -> Mapping[str, object] | None:
    """Return a change's row, with all columns of its header, and JSON as what it says."""
    if change.row is None:
        return None
    row = json.loads(change.row)
    names = [column.name for column in header.columns if column.name not in header.primary_key]
    return {name: json.loads(row[name]) if name == "Notes" and row[name] else row[name] for name in names}


DROPPED = (
    "CREATE TABLE Kept (Id INT64 NOT NULL, A STRING(9), B STRING(9)) PRIMARY KEY (Id)",
    "CREATE CHANGE STREAM Everything FOR Kept",
)
DROPPED_POSTGRESQL = (
    'CREATE TABLE "Kept" ("Id" bigint NOT NULL PRIMARY KEY, "A" varchar(9), "B" varchar(9))',
    'CREATE CHANGE STREAM "Everything" FOR "Kept"',
)


@pytest.mark.parametrize("mode", ["mirror", "both"])
@pytest.mark.parametrize("postgresql", [False, True], ids=["googlesql", "postgresql"])
def test_updates_of_a_column_that_is_dropped_before_they_are_read_are_completed_as_they_were(
    database: Callable[..., SpannerDatabase], postgresql: bool, mode: Mode
) -> None:
    made = database(*(DROPPED_POSTGRESQL if postgresql else DROPPED), postgresql=postgresql)
    source = Source(made, made.now())
    source.commit(("insert", "Kept", {"Id": 1, "A": "a", "B": "b"}))
    source.commit(("update", "Kept", {"Id": 1, "A": "a2"}))
    quote = '"' if postgresql else "`"
    made.alter(f"ALTER TABLE {quote}Kept{quote} DROP COLUMN {quote}B{quote}")
    source.commit(("update", "Kept", {"Id": 1, "A": "a3"}))

    topic = source.read_all(mode=mode)

    changes = [change for _, changes in topic.batches for change in changes]
    assert not any(is_reconstructed(change) for change in changes)
    found = [json.loads(change.row or "null") for change in sorted(changes, key=lambda one: one.sequence)]
    assert found == [{"A": "a", "B": "b"}, {"A": "a2", "B": "b"}, {"A": "a3"}]
