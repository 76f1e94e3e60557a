"""DDL under a running reader, and while none runs, on the Spanner emulator and in both dialects."""

import json
import re
import time
from collections.abc import Callable

import pytest

from deploy.local.platform.source import SpannerDatabase
from services.spanner_reader.core.schema.resync import fix_of
from services.spanner_reader.core.schema.shapes import SpannerResyncCause, SpannerResyncKind, SpannerResyncRequest
from shared.contracts.timestamps import parse_timestamp
from tests.worlds.watched_schema import Watched

pytestmark = pytest.mark.integration


async def test_a_table_made_under_a_stream_of_everything_is_announced_and_mirrored_and_whole(
    watching: Callable[..., Watched],
) -> None:
    watched = watching("ALL")
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
    assert watched.resync_requests() == {}


async def test_a_table_put_into_the_stream_is_announced_and_mirrored_and_pending_resync(
    watching: Callable[..., Watched],
) -> None:
    watched = watching()
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
        await watched.until(lambda: bool(watched.resync_requests()))
        watched.write("u", id=2, n=2)
        await watched.until(lambda: watched.changes("u") == 1)
    assert watched.announced("u") == [["id", "n"]]
    assert watched.resync_requests() == {"u": {("table_added_to_the_stream", ())}}
    ((found,),) = (request.findings for request in watched.pending_resync())
    assert found.after < after  # between two looks, of which the second came after
    assert found.before > before


async def test_columns_that_change_data_without_records_are_found_though_no_reader_ran(
    watching: Callable[..., Watched],
) -> None:
    watched = watching()
    async with watched.reading():
        await watched.until(lambda: bool(watched.announced("t")))
    watched.write("t", id=1, a="x", b=1)
    watched.alter("ALTER TABLE t DROP COLUMN a", "ALTER TABLE t DROP COLUMN a")
    watched.alter("ALTER TABLE t ADD COLUMN a STRING(MAX)", "ALTER TABLE t ADD COLUMN a varchar")
    watched.alter("ALTER TABLE t ADD COLUMN c INT64 DEFAULT (7)", "ALTER TABLE t ADD COLUMN c bigint DEFAULT 7")
    watched.alter("ALTER TABLE t ADD COLUMN d INT64", "ALTER TABLE t ADD COLUMN d bigint")
    async with watched.reading():
        await watched.until(lambda: bool(watched.resync_requests()))
    assert watched.resync_requests() == {
        "t": {("column_dropped_and_added_again", ("a",)), ("column_added_with_default", ("c",))}
    }
    assert watched.announced("t")[-1] == ["id", "b", "a", "c", "d"]
    (row,) = watched.database.query("SELECT * FROM t")
    assert (row["a"], row["c"]) == (None, 7)  # what no record has said


async def test_the_printed_fix_brings_every_row_with_the_default_of_the_new_column(
    watching: Callable[..., Watched],
) -> None:
    watched = watching()
    async with watched.reading():
        for key in range(3):
            watched.write("t", id=key, a="x", b=None)
        await watched.until(lambda: watched.changes("t") == 3)
        watched.alter("ALTER TABLE t ADD COLUMN c INT64 DEFAULT (7)", "ALTER TABLE t ADD COLUMN c bigint DEFAULT 7")
        await watched.until(lambda: bool(watched.resync_requests()))
        (request,) = watched.pending_resync()
        text = fix_of(request, '"' if watched.postgresql else "`")
        statement = re.search(r"partitioned DML: (UPDATE .* WHERE TRUE) \(", text)
        assert statement is not None
        before = watched.changes("t")
        await watched.until(lambda: time.time_ns() > request.sync_after)  # the fix names this time
        if watched.postgresql:  # whose quotes the emulator does not know in partitioned DML
            assert watched.database.execute(statement[1])[0] == 3
        else:
            await watched.partitioned_dml(statement[1])
        await watched.until(lambda: watched.changes("t") >= before + 3)
    carried = [(header, change) for header, changes in watched.topic.batches for change in changes][before:]
    assert all({column.name for column in header.columns} == {"id", "a", "b", "c"} for header, _change in carried)
    rows = {json.loads(change.key)["id"]: json.loads(change.row or "{}") for _header, change in carried}
    assert rows == {str(key): {"a": "x", "b": None, "c": "7"} for key in range(3)}
    assert min(parse_timestamp(change.commit_timestamp) for _header, change in carried) >= request.sync_after
    command = re.search(r"`python -m services.spanner_reader synced (\S+)`", text)
    assert command is not None
    assert await watched.synced(command[1])


async def test_the_rows_of_a_table_of_keys_alone_come_again_with_a_column_that_is_added_for_it(
    watching: Callable[..., Watched],
) -> None:
    watched = watching("ALL")
    watched.alter(
        "CREATE TABLE u (id INT64 NOT NULL) PRIMARY KEY (id)", "CREATE TABLE u (id bigint NOT NULL PRIMARY KEY)"
    )
    async with watched.reading():
        for key in range(3):
            watched.write("u", id=key)
        await watched.until(lambda: watched.changes("u") == 3)
        request = SpannerResyncRequest(
            "u", (SpannerResyncCause("u", SpannerResyncKind.TABLE_AGAIN, watched.started, watched.started),)
        )
        statement = re.search(r"(ALTER TABLE )T( ADD COLUMN c BOOL), set it TRUE", fix_of(request, "`"))
        assert statement is not None
        assert "UPDATE `u` SET c = c" in fix_of(request, "`")
        watched.database.alter(f"{statement[1]}u{statement[2]}")
        assert watched.database.execute("UPDATE u SET c = TRUE WHERE TRUE")[0] == 3
        await watched.until(lambda: watched.changes("u") == 6)
        watched.database.alter("ALTER TABLE u DROP COLUMN c")
    assert watched.resync_requests() == {}


async def test_a_recreated_table_is_pending_resync_and_its_changes_still_arrive(
    watching: Callable[..., Watched],
) -> None:
    watched = watching("ALL")
    async with watched.reading():
        watched.write("t", id=1, a="x", b=1)
        await watched.until(lambda: watched.changes("t") == 1)
        watched.alter("DROP TABLE t", "DROP TABLE t")
        watched.alter(
            "CREATE TABLE t (id STRING(9) NOT NULL, a STRING(MAX)) PRIMARY KEY (id)",
            "CREATE TABLE t (id varchar(9) NOT NULL PRIMARY KEY, a varchar)",
        )
        watched.write("t", id="x", a="y")
        await watched.until(lambda: bool(watched.resync_requests()))
        await watched.until(lambda: watched.changes("t") == 2)
    assert watched.resync_requests() == {"t": {("table_dropped_and_made_again", ())}}


async def test_a_table_taken_out_and_put_back_is_pending_resync(watching: Callable[..., Watched]) -> None:
    watched = watching()
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
        await watched.until(lambda: "t" in watched.resync_requests())
    assert watched.resync_requests()["t"] == {("table_added_to_the_stream", ())}


async def test_a_generated_column_of_the_key_is_in_the_announcement_as_it_is_in_the_records(
    database: Callable[..., SpannerDatabase],
) -> None:
    made = database(
        "CREATE TABLE t (a INT64, k INT64 AS (MOD(a, 8)) STORED) PRIMARY KEY (k, a)",
        "CREATE CHANGE STREAM s FOR t OPTIONS (value_capture_type = 'NEW_ROW')",
    )
    watched = Watched(made, database(), made.now())
    async with watched.reading():
        watched.write("t", a=9)
        await watched.until(lambda: watched.changes("t") == 1)
    announced, carried = (header for header, _changes in watched.topic.batches)
    assert announced == carried
    assert announced.primary_key == ("k", "a")
