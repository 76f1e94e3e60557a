"""DDL between where a first start begins and the first look, on the Spanner emulator and in both dialects."""

import asyncio
from collections.abc import Callable
from datetime import timedelta

import pytest

from deploy.local.platform.source import SpannerDatabase
from services.spanner_reader.adapters.schema.catalog import SpannerCatalog
from services.spanner_reader.adapters.spanner.connection import SpannerChannels, SpannerDatabaseClient
from services.spanner_reader.app.schema.schema_watch import remember_start
from shared.contracts.tables_file import TablesFile
from shared.contracts.timestamps import Nanoseconds
from tests.fakes.spanner_schema import FakeShapeStore
from tests.integration.scripted_spanner import ScriptedSpanner, ScriptedStream
from tests.worlds.watched_schema import Watched

pytestmark = pytest.mark.integration

LONG = timedelta(minutes=1)


async def test_a_recreated_table_is_found_from_the_old_schema_where_spanner_keeps_it(
    watching: Callable[..., Watched],
) -> None:
    watched = watching()
    watched.write("t", id=1, a="x", b=1)
    watched.started = watched.database.now()
    watched.alter("ALTER TABLE t DROP COLUMN a", "ALTER TABLE t DROP COLUMN a")
    watched.alter("ALTER TABLE t ADD COLUMN a STRING(MAX)", "ALTER TABLE t ADD COLUMN a varchar")
    watched.alter("ALTER TABLE t ADD COLUMN c INT64 DEFAULT (7)", "ALTER TABLE t ADD COLUMN c bigint DEFAULT 7")
    async with watched.reading(inspect_every=LONG, remembering_start=True):  # and there is no record at all
        await watched.until(lambda: bool(watched.resync_requests()))
    assert watched.resync_requests() == {
        "t": {("column_dropped_and_added_again", ("a",)), ("column_added_with_default", ("c",))}
    }
    ((found, _other),) = (request.findings for request in watched.pending_resync())
    assert found.after == watched.started


async def test_a_recreated_table_is_found_from_the_records_where_spanner_keeps_no_old_schema(
    watching: Callable[..., Watched],
) -> None:
    watched = watching()
    watched.write("t", id=1, a="x", b=1)
    watched.alter("ALTER TABLE t DROP COLUMN b", "ALTER TABLE t DROP COLUMN b")
    watched.write("t", id=2, a="x")  # without it, no two looks could tell
    watched.alter("ALTER TABLE t ADD COLUMN b INT64", "ALTER TABLE t ADD COLUMN b bigint")
    watched.alter("ALTER TABLE t ADD COLUMN c INT64 DEFAULT (7)", "ALTER TABLE t ADD COLUMN c bigint DEFAULT 7")
    watched.write("t", id=3, a="x")
    async with watched.reading(inspect_every=LONG):
        await watched.until(lambda: watched.changes("t") == 3)
        await watched.until(lambda: len(watched.resync_requests().get("t", ())) == 2)
    assert watched.resync_requests() == {
        "t": {("column_dropped_and_added_again", ("b",)), ("column_added_with_default", ("c",))}
    }


async def test_a_start_after_which_nothing_was_altered_requests_no_resync(watching: Callable[..., Watched]) -> None:
    watched = watching()
    watched.alter("ALTER TABLE t ADD COLUMN c INT64 DEFAULT (7)", "ALTER TABLE t ADD COLUMN c bigint DEFAULT 7")
    watched.started = watched.database.now()
    watched.write("t", id=1, a="x", b=1)
    async with watched.reading(remembering_start=True):
        await watched.until(lambda: watched.changes("t") == 1)
        watched.alter("ALTER TABLE t ADD COLUMN d INT64", "ALTER TABLE t ADD COLUMN d bigint")
        await watched.until(lambda: watched.announced("t")[-1][-1] == "d")
    assert watched.resync_requests() == {}


def test_a_time_that_spanner_does_not_remember_is_no_error(
    spanner_emulator: str, database: Callable[..., SpannerDatabase]
) -> None:
    made = database(
        "CREATE TABLE t (id INT64 NOT NULL) PRIMARY KEY (id)",
        "CREATE CHANGE STREAM s FOR t OPTIONS (value_capture_type = 'NEW_ROW')",
    )
    server = ScriptedSpanner("s", ScriptedStream(made.now()), spanner_emulator)

    async def scenario() -> None:
        channels = SpannerChannels(server.address)
        try:
            catalog, shapes = SpannerCatalog(SpannerDatabaseClient(made.path, channels), "s"), FakeShapeStore()
            inspection = await catalog.inspect()
            server.remembers_since = inspection.shapes.at
            before = Nanoseconds(inspection.shapes.at - 1)
            assert await catalog.inspect_at(before) is None
            assert await catalog.inspect_at(inspection.shapes.at) == inspection
            await remember_start(catalog, shapes, lambda _table: True, TablesFile().options, before, inspection)
            assert shapes.shapes.inspection is None, "an inspection that was made later says nothing of the start"
            await remember_start(
                catalog, shapes, lambda _table: True, TablesFile().options, inspection.shapes.at, inspection
            )
            assert shapes.shapes.inspection is not None
        finally:
            await channels.close()

    try:
        asyncio.run(scenario())
    finally:
        server.stop()
