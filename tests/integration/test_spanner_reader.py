"""The reader's loop on the Spanner emulator: what is published, applied by sequence, equals the tables."""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from deploy.local.platform.source import SpannerDatabase, Value
from services.spanner_reader.adapters.spanner.connection import SpannerChannels, SpannerDatabaseClient
from services.spanner_reader.adapters.stream.change_stream import SpannerChangeStream
from services.spanner_reader.core.stream.records import (
    ROOT,
    ChildPartitionsRecord,
    DataChangeRecord,
    SpannerStreamQuery,
)
from shared.contracts.change_batch import Change, Header
from shared.contracts.change_sequence import parse_sequence
from shared.contracts.timestamps import parse_timestamp
from tests.fakes.spanner_reader import Topic, one_by_one
from tests.worlds.spanner_source import TABLES, Source, a_source, changes_of, singer

pytestmark = pytest.mark.integration


@pytest.fixture
def source(database: Callable[..., SpannerDatabase]) -> Source:
    return a_source(database)


def mirror(topic: Topic, table: str) -> list[dict[str, Any]]:
    """Return a table as the newest change of each key leaves it."""
    newest: dict[str, Change] = {}
    for change in changes_of(topic, table):
        before = newest.get(change.key)
        if before is None or parse_sequence(before.sequence) < parse_sequence(change.sequence):
            newest[change.key] = change
    rows = [json.loads(c.key) | json.loads(c.row) for c in newest.values() if c.row is not None]
    return sorted(rows, key=json.dumps)


def rows_of(source: Source, table: str, *columns: str) -> list[dict[str, Any]]:
    """Return the rows as they are, INT64 as text as a change stream has it."""
    found = source.database.query(f"SELECT {', '.join(columns)} FROM {table}")
    rows = [{name: str(v) if isinstance(v, int) else v for name, v in row.items()} for row in found]
    return sorted(rows, key=json.dumps)


def album(number: int, album: int, title: str = "t") -> dict[str, Value]:
    return {"Base": "b", "Id": number, "Album": album, "Title": title}


def check_equal(source: Source, topic: Topic) -> None:
    def values(rows: Sequence[Mapping[str, Any]], *columns: str) -> list[dict[str, Any]]:
        return sorted(({name: row[name] for name in columns} for row in rows), key=json.dumps)

    for table, columns in {
        "Singers": ("Base", "Id", "Name"),
        "Albums": ("Base", "Id", "Album", "Title"),
        "Tags": ("Tag", "Id"),
    }.items():
        assert values(mirror(topic, table), *columns) == values(rows_of(source, table, *columns), *columns)


def test_interleaved_tables_in_one_transaction_and_a_delete_that_cascades(source: Source) -> None:
    source.commit(
        ("insert", "Singers", singer(1)),
        ("insert", "Singers", singer(2)),
        *(("insert", "Albums", album(1, n)) for n in range(3)),
        ("insert", "Albums", album(2, 0)),
        ("insert", "Tags", {"Tag": "x", "Id": 1}),
    )
    source.commit(("delete", "Singers", {"Base": "b", "Id": 1}))
    topic = source.read_all()
    check_equal(source, topic)
    gone = [change for change in changes_of(topic, "Albums") if change.op == "DELETE"]
    assert len(gone) == 3
    assert all(change.row is None and change.old is not None for change in gone)
    assert len({json.loads(c.place)["server_transaction_id"] for c in gone}) == 1


def test_many_mods_of_one_record_each_have_their_place(source: Source) -> None:
    source.commit(*(("insert", "Singers", singer(n)) for n in range(100)))
    topic = source.read_all()
    check_equal(source, topic)
    changes = changes_of(topic, "Singers")
    assert len({change.sequence for change in changes}) == 100
    assert {json.loads(change.place)["mod_count"] for change in changes} == {100}


def test_updates_inserts_again_and_a_replace_leave_the_last_row(source: Source) -> None:
    source.commit(("insert", "Singers", singer(1, "first")), ("insert", "Albums", album(1, 1)))
    source.commit(("update", "Singers", singer(1, "second")))
    source.commit(("replace", "Singers", {"Base": "b", "Id": 1}))  # an INSERT of a row that is there, and a cascade
    source.commit(("insert", "Singers", singer(2)))
    source.commit(("delete", "Singers", {"Base": "b", "Id": 2}))
    source.commit(("insert", "Singers", singer(2, "again")))
    source.commit(("insert_or_update", "Singers", singer(2, "and again")))
    topic = source.read_all()
    check_equal(source, topic)
    mod_types = [c.mod_type for c in changes_of(topic, "Singers") if json.loads(c.key)["Id"] == "1"]
    assert sorted(mod_types) == ["INSERT", "INSERT", "UPDATE"]
    (updated,) = [c for c in changes_of(topic, "Singers") if c.mod_type == "UPDATE" and '"second"' in (c.row or "")]
    assert json.loads(updated.old or "")["Name"] == "first"


def test_tables_are_announced_with_the_very_header_of_their_changes(source: Source) -> None:
    source.commit(("insert", "Singers", singer(1)), ("insert", "Albums", album(1, 1)))
    source.commit(("insert", "Tags", {"Tag": "x", "Id": 1}))
    topic = source.read_all()
    announced: dict[str, Header] = {}
    carried: dict[str, Header] = {}
    for header, changes in topic.batches:
        (carried if changes else announced)[header.table] = header
    assert announced == carried
    assert announced.keys() == {"Singers", "Albums", "Tags"}
    assert announced["Singers"].primary_key == ("Base", "Id")  # the key's order, which is not the table's
    names = [column.name for column in announced["Singers"].columns]
    assert names == ["Id", "Base", "Name", "Born"]  # the table's order, without what Spanner generates


def test_a_value_larger_than_a_response_is_put_together(source: Source) -> None:
    title = "".join(chr(97 + n % 26) for n in range(2_500_000))
    source.commit(("insert", "Singers", singer(1)), ("insert", "Albums", album(1, 1, title)))
    topic = source.read_all()
    (change,) = changes_of(topic, "Albums")
    assert json.loads(change.row or "") == {"Title": title}


def test_the_catalog_knows_which_columns_of_a_table_are_watched(database: Callable[..., SpannerDatabase]) -> None:
    made = database(
        *TABLES[:3], "CREATE CHANGE STREAM Names FOR Singers(Name), Tags() OPTIONS (value_capture_type = 'NEW_ROW')"
    )
    source = Source(made, made.now())
    source.commit(("insert", "Singers", {**singer(1), "Born": None}), ("insert", "Tags", {"Tag": "x", "Id": 1}))
    topic = source.read_all("Names")
    announced = {h.table: [c.name for c in h.columns] for h, changes in topic.batches if not changes}
    assert announced == {"Singers": ["Id", "Base", "Name"], "Tags": ["Tag", "Id"]}
    carried = {h.table: [c.name for c in h.columns] for h, changes in topic.batches if changes}
    assert carried == announced


def test_a_record_says_when_it_was_committed_to_the_microsecond(source: Source) -> None:
    committed = source.commit(("insert", "Singers", singer(1)))

    async def scenario() -> None:
        channels = SpannerChannels(source.database.instance.address)
        stream = SpannerChangeStream(SpannerDatabaseClient(source.database.path, channels), "Everything")
        query = SpannerStreamQuery(ROOT, source.started, None, 1_000)
        tokens = [
            child.token
            async for record in one_by_one(stream.read(query))
            if isinstance(record, ChildPartitionsRecord)
            for child in record.children
        ]
        found = []
        for token in tokens:
            query = SpannerStreamQuery(token, committed, committed, 1_000)
            found += [record async for record in one_by_one(stream.read(query)) if isinstance(record, DataChangeRecord)]
        assert [record.commit_timestamp for record in found] == [committed]
        assert found[0].mods[0].keys == '{"Base":"b","Id":"1"}'
        await channels.close()

    asyncio.run(scenario())
    (change,) = changes_of(source.read_all(), "Singers")
    assert parse_timestamp(change.commit_timestamp) == committed
