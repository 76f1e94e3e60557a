"""The loop's looks at the schema: what is announced, what is marked, and which tables are left out."""

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest
from structlog.testing import capture_logs

from services.spanner_reader.app.schema.schema_watch import remember_refused
from services.spanner_reader.core.schema.shapes import SchemaInspection, SchemaObservation, SpannerResyncKind
from services.spanner_reader.core.stream.records import ROOT
from services.spanner_reader.ports import CatalogInspection, SchemaFindings
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.contracts.tables_file import TablesFile, read_tables_file
from shared.contracts.timestamps import Nanoseconds
from tests.fakes.life import CrashError, Life
from tests.fakes.spanner_schema import FakeShapeStore
from tests.unit.spanner_reader.scripts import COLUMNS, a_record, running, until
from tests.worlds.schema_on_fakes import BORN, FIRST, SINGERS, a_world, inspect_once, kinds, with_columns

SOON = timedelta(milliseconds=5)


async def test_a_table_and_a_column_that_come_while_it_runs_are_announced_before_any_record_of_them() -> None:
    world = await a_world()
    world.catalog.everything = True
    async with running(world.reader(inspect_every=SOON)):
        await until(lambda: len(world.topic.headers) == 1)
        world.catalog.tables = [with_columns(*COLUMNS, BORN), replace(SINGERS, name="Albums")]
        await until(lambda: len(world.topic.headers) == 3)
        await until(lambda: world.catalog.asked > 10)
    announced = [(header.table, len(header.columns)) for header in world.topic.headers]
    assert sorted(announced) == [("Albums", 2), ("Singers", 2), ("Singers", 3)]  # each once
    assert kinds(world) == {}


async def test_a_table_put_into_the_stream_is_announced_and_pending_resync_and_reported_once() -> None:
    world = await a_world()
    with capture_logs() as logs:
        async with running(world.reader(inspect_every=SOON)):
            await until(lambda: len(world.topic.headers) == 1)
            world.catalog.tables.append(replace(SINGERS, name="Albums"))
            await until(lambda: bool(world.metrics.requests))
            asked = world.catalog.asked
            await until(lambda: world.catalog.asked > asked + 5)
    assert kinds(world) == {"Albums": [(SpannerResyncKind.TABLE_WATCHED, ())]}
    assert [request.table for request in world.metrics.requests] == ["Albums"]
    (line,) = [line for line in logs if line["event"] == "resync_requested"]
    assert (line["table"], line["why"], line["log_level"]) == ("Albums", "table_added_to_the_stream", "error")
    assert "UPDATE `Albums` SET" in line["fix"]
    assert "synced Albums" in line["fix"]


async def test_what_the_stream_leaves_out_while_it_is_read_stops_it_after_the_request_and_so_does_the_fix() -> None:
    world = await a_world()

    async def stopped_by_an_inspection() -> None:
        async with running(world.reader(inspect_every=SOON)):
            await until(lambda: world.shapes.inspection is not None)
            world.catalog.exclusions = frozenset({"exclude_ttl_deletes"})
            await until(lambda: bool(world.shapes.requests))

    with pytest.raises(MisconfiguredError, match="exclude_ttl_deletes"):
        await stopped_by_an_inspection()
    assert kinds(world) == {"Singers": [(SpannerResyncKind.TABLE_EXCLUDED, ())]}
    stopped = world.catalog.time

    with pytest.raises(MisconfiguredError):  # and as long as it is so
        async with running(world.reader(owner="another")):
            await until(lambda: False)
    world.catalog.exclusions = frozenset()
    async with running(world.reader(owner="a third", inspect_every=SOON)):
        fixed = world.catalog.time + 1_000
        await until(lambda: world.catalog.time > fixed + 5_000)
    (request,) = world.shapes.requests.values()
    assert request.since < stopped < request.sync_after == fixed  # what was left out until the first look without
    assert kinds(world) == {"Singers": [(SpannerResyncKind.TABLE_EXCLUDED, ())]}


@pytest.mark.parametrize("file", ["", "[tables.Singers]\nmode = 'history'"], ids=["a mirror", "a history"])
async def test_a_start_that_is_refused_for_what_the_stream_leaves_out_requests_a_resync_of_what_was_read_before(
    file: str,
) -> None:
    world, tables = await a_world(), read_tables_file(file)
    await inspect_once(world, table_options=tables.options)
    world.catalog.exclusions = frozenset({"exclude_delete"})
    with capture_logs() as logs:
        store = FakeShapeStore(world.shapes)
        await remember_refused(store, tables.included, tables.options, await world.catalog.inspect())
    assert kinds(world) == {"Singers": [(SpannerResyncKind.TABLE_EXCLUDED, ())]}
    assert [line["event"] for line in logs] == ["resync_requested"]
    assert " delete-missing-rows Singers --before" in logs[0]["fix"]


async def test_transactions_that_may_keep_out_of_the_stream_are_warned_of_when_they_may() -> None:
    world = await a_world()
    with capture_logs() as logs:
        async with running(world.reader(inspect_every=SOON)):
            await until(lambda: world.catalog.asked > 3)
            assert not any(line["event"] == "transactions_can_be_excluded" for line in logs)
            world.catalog.may_leave_out = "ALTER ..."
            asked = world.catalog.asked
            await until(lambda: world.catalog.asked > asked + 3)
    (line,) = [line for line in logs if line["event"] == "transactions_can_be_excluded"]
    assert line["fix"] == "ALTER ... forbids them"
    assert kinds(world) == {}


async def test_a_column_added_again_with_another_type_is_published_and_its_table_is_pending_resync() -> None:
    """The consumer has the column with its former type: it writes the values into a column beside it."""
    world = await a_world(a_record(FIRST, 1))
    async with running(world.reader(inspect_every=SOON)):
        await until(lambda: len(world.topic.changes) == 1)
    again = (COLUMNS[0], replace(COLUMNS[1], type='{"code":"DATE"}'))
    world.catalog.tables = [with_columns(*again)]
    world.script.records = {
        ROOT: [replace(a_record(Nanoseconds(FIRST + 1), 1), column_types=again)],
    }
    async with running(world.reader(inspect_every=SOON)):
        await until(lambda: len(world.topic.changes) == 2)
    types = [[column.type for column in header.columns] for header in world.topic.headers]
    assert types[0] == ["INT64", "STRING"]
    assert types[-1] == ["INT64", "DATE"]
    assert kinds(world) == {"Singers": [(SpannerResyncKind.COLUMN_RETYPED, ("Name",))]}


async def test_tables_left_out_by_the_file_are_neither_announced_nor_published_and_count_as_done() -> None:
    world = await a_world(
        replace(a_record(FIRST, 1), table="tmp_1", value_capture_type="NEW_VALUES", mod_type="UPDATE"),
        a_record(Nanoseconds(FIRST + 1), 2),
        replace(a_record(Nanoseconds(FIRST + 2), 3), table="tmp_1"),
    )
    world.catalog.tables.append(replace(SINGERS, name="tmp_1"))
    async with running(world.reader(included=lambda table: not table.startswith("tmp_"))):
        await until(lambda: world.metrics.low_watermark == FIRST + 2)
    assert {header.table for header in world.topic.headers} == {"Singers"}
    assert [change.key for change in world.topic.changes] == ['{"Id":"2"}']
    async with running(world.reader()):  # taken in later: what was left out never came
        await until(lambda: bool(world.shapes.requests))
    assert kinds(world) == {"tmp_1": [(SpannerResyncKind.TABLE_WATCHED, ())]}


async def test_a_column_that_a_new_tables_file_does_not_ignore_any_more_makes_its_table_pending_resync() -> None:
    world = await a_world()
    ignoring = read_tables_file("[tables.Singers]\nignored_columns = ['Name']")
    await inspect_once(world, table_options=ignoring.options)
    async with running(world.reader(owner="next", table_options=ignoring.options)):
        await until(lambda: world.shapes.inspection is not None and world.shapes.inspection.compared_since is not None)
    assert kinds(world) == {}
    async with running(world.reader(owner="a third", table_options=TablesFile().options)):
        await until(lambda: bool(world.shapes.requests))
    assert kinds(world) == {"Singers": [(SpannerResyncKind.COLUMN_WATCHED, ("Name",))]}


async def test_a_schema_that_cannot_be_inspected_stops_nothing_and_is_inspected_again() -> None:
    world = await a_world()
    async with running(world.reader(inspect_every=SOON)):
        await until(lambda: len(world.topic.headers) == 1)
        world.catalog.unavailable = True
        asked = world.catalog.asked
        await until(lambda: world.catalog.asked > asked)
        world.catalog.unavailable = False
        world.catalog.tables.append(replace(SINGERS, name="Albums"))
        await until(lambda: len(world.topic.headers) == 2)


async def test_what_a_record_shows_while_the_schema_cannot_be_inspected_is_not_forgotten() -> None:
    world = await a_world(replace(a_record(FIRST, 1), column_types=COLUMNS[:1]))
    reader = world.reader()  # a look a minute
    answer = world.catalog.inspect

    async def once_then_unavailable() -> CatalogInspection:
        world.catalog.unavailable = world.catalog.asked == 1  # the one at the start is answered, the next is not
        return await answer()

    world.catalog.inspect = once_then_unavailable  # type: ignore[method-assign]
    async with running(reader):
        await until(lambda: bool(world.shapes.requests))  # a second later, and not a minute
    assert kinds(world) == {"Singers": [(SpannerResyncKind.COLUMN_AGAIN, ("Name",))]}


async def test_what_is_stored_though_the_answer_never_came_is_reported_all_the_same_and_once() -> None:
    world = await a_world()
    await inspect_once(world)
    world.catalog.tables.append(replace(SINGERS, name="Albums"))
    with capture_logs() as logs:
        async with running(world.reader(inspect_every=SOON, shapes=AnswerLost(world.shapes))):
            await until(lambda: bool(world.metrics.requests))
            asked = world.catalog.asked
            await until(lambda: world.catalog.asked > asked + 3)
    logged = [(line["table"], line["why"]) for line in logs if line["event"] == "resync_requested"]
    assert logged == [("Albums", "table_added_to_the_stream")]


class AnswerLost(FakeShapeStore):
    """A store whose first answer is lost on its way back."""

    lost = False

    async def compare(self, inspection: SchemaInspection, observations: Sequence[SchemaObservation]) -> SchemaFindings:
        compared = await super().compare(inspection, observations)
        if not self.lost:
            self.lost = True
            raise TransientError("UNAVAILABLE")
        return compared


@pytest.mark.parametrize("killed_at", range(1, 40, 3))
async def test_wherever_it_is_killed_the_next_reader_knows_what_was_done_to_the_table(killed_at: int) -> None:
    world = await a_world()
    await inspect_once(world)
    world.catalog.tables = [with_columns(COLUMNS[0], replace(COLUMNS[1], type='{"code":"INT64"}'))]
    with contextlib.suppress(CrashError):
        async with running(world.reader(owner="mortal", life=Life(killed_at), inspect_every=SOON)):
            await asyncio.sleep(0.1)
    async with running(world.reader(owner="next", inspect_every=SOON)):
        await until(lambda: bool(world.metrics.requests))
    assert kinds(world) == {"Singers": [(SpannerResyncKind.COLUMN_RETYPED, ("Name",))]}
