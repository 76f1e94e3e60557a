"""What records show of the schema between two looks, however late they are read, and whoever is killed meanwhile."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from services.spanner_reader.app.schema.schema_watch import SchemaWatch, WatchedTables
from services.spanner_reader.core.schema.shapes import SpannerResyncKind
from services.spanner_reader.core.stream.changes import ChangeMaker
from services.spanner_reader.core.stream.records import ROOT, SpannerColumnType
from services.spanner_reader.ports import CatalogInspection
from shared.contracts.timestamps import Nanoseconds
from shared.reading.publishing import ConfirmedPublishing
from tests.fakes.life import Life
from tests.fakes.reader_metrics import SpannerMetrics
from tests.fakes.spanner_reader import FakePublisher, Topic
from tests.fakes.spanner_schema import FakeCatalog, FakeShapeStore, Shapes
from tests.unit.spanner_reader.scripts import COLUMNS, START, a_record, at, running, until
from tests.worlds.schema_on_fakes import BORN, FIRST, a_world, kinds, with_columns


async def test_an_unknown_column_list_is_a_reason_to_look_at_once_and_reports_what_two_inspections_cannot() -> None:
    without = replace(a_record(FIRST, 1), column_types=COLUMNS[:1])
    whole = a_record(Nanoseconds(FIRST + 1), 2)
    world = await a_world(without, whole, replace(without, commit_timestamp=Nanoseconds(FIRST + 2)))
    for time in (START, START + 1):
        world.catalog.time = time
        inspection = (await world.catalog.inspect()).shapes
        await FakeShapeStore(world.shapes).compare(inspection, ())
    world.catalog.asked, world.catalog.time = 0, FIRST - 1_500  # a look before all of the records, and one after
    async with running(world.reader()):  # a look a minute
        await until(lambda: bool(world.shapes.requests))
        await until(lambda: len(world.topic.changes) == 3)
    assert kinds(world) == {"Singers": [(SpannerResyncKind.COLUMN_AGAIN, ("Name",))]}
    assert world.catalog.asked == 2  # at the start, and once for the list, however often it comes


def a_watch(catalog: FakeCatalog, shapes: Shapes) -> tuple[SchemaWatch, Callable[..., "asyncio.Future[None] | None"]]:
    """Return a watch without a reader, and what shows it a record of a time with some columns."""
    changes = ChangeMaker("//spanner/s", 16, {"Singers": ("Id",)})
    watch = SchemaWatch(
        catalog,
        FakeShapeStore(shapes),
        ConfirmedPublishing(FakePublisher(Topic(), Life()), SpannerMetrics(), lambda _error: None),
        changes,
        WatchedTables(),
        SpannerMetrics(),
    )

    def saw(committed: str, *columns: SpannerColumnType) -> "asyncio.Future[None] | None":
        record = replace(a_record(at(committed)), column_types=columns)
        return watch.saw(changes.changes(record)[0], record)

    return watch, saw


@pytest.mark.parametrize("began_with", [COLUMNS, (*COLUMNS, BORN)])
async def test_a_record_without_a_column_counts_though_its_column_list_has_long_been_known(
    began_with: Sequence[SpannerColumnType],
) -> None:
    """The column comes, or is there from the start; it goes, a record is written, and it comes again."""
    full, shapes = (*COLUMNS, BORN), Shapes()
    catalog = FakeCatalog(with_columns(*began_with))
    watch, saw = a_watch(catalog, shapes)
    for time, columns in (("07:00:00", began_with), ("08:00:00", full), ("08:01:00", full)):
        catalog.tables, catalog.time = [with_columns(*columns)], at(time)
        await watch.inspect_schema()
    saw("07:59:00", *COLUMNS)  # read late
    await watch.inspect_schema()
    assert shapes.requests == {} or began_with == full
    shapes.requests = {}
    assert saw("07:59:01", *COLUMNS) is None
    assert saw("08:05:00", *full) is None
    lacking = saw("08:06:00", *COLUMNS)
    assert lacking is not None
    assert saw("08:06:01", *COLUMNS) is None, "once is enough, however many come"
    assert not lacking.done()
    catalog.time = at("08:07:00")
    await watch.inspect_schema()
    assert lacking.done()
    requests = {table: [one.columns for one in request.findings] for table, request in shapes.requests.items()}
    assert requests == {"Singers": [("Born",)]}
    assert saw("08:06:02", *COLUMNS) is None, "a snapshot from after the look that found it has it all"


async def test_what_a_record_shows_is_kept_for_the_next_inspection_where_a_newer_one_of_another_reader_is() -> None:
    full, shapes = (*COLUMNS, BORN), Shapes()
    catalog = FakeCatalog(with_columns(*full))
    watch, saw = a_watch(catalog, shapes)
    catalog.time = at("08:00:00")
    await watch.inspect_schema()
    lacking = saw("08:06:00", *COLUMNS)
    assert lacking is not None
    assert shapes.inspection is not None
    shapes.inspection = replace(shapes.inspection, at=at("08:07:00"))
    await watch.inspect_schema()
    assert not lacking.done()
    catalog.time = at("08:08:00")
    await watch.inspect_schema()
    assert lacking.done()
    assert list(shapes.requests) == ["Singers"]


async def test_a_reader_that_ends_between_a_record_and_the_look_for_it_leaves_the_record_to_the_next() -> None:
    without = replace(a_record(FIRST, 1), column_types=COLUMNS[:1])
    world = await a_world(without, a_record(Nanoseconds(FIRST + 1), 2))
    answer = world.catalog.inspect

    async def once_then_unavailable() -> CatalogInspection:
        world.catalog.unavailable = world.catalog.asked == 1
        world.catalog.silent = world.catalog.asked > 1
        return await answer()

    world.catalog.inspect = once_then_unavailable  # type: ignore[method-assign]
    async with running(world.reader()):
        await until(lambda: len(world.topic.changes) == 2)
    assert world.table.rows[ROOT].watermark < FIRST
    assert kinds(world) == {}
    world.catalog.inspect = answer  # type: ignore[method-assign]
    world.catalog.unavailable = world.catalog.silent = False
    async with running(world.reader(owner="next")):
        await until(lambda: bool(world.shapes.requests))
        await until(lambda: world.metrics.low_watermark == FIRST + 1)
    assert kinds(world) == {"Singers": [(SpannerResyncKind.COLUMN_AGAIN, ("Name",))]}


async def test_records_from_before_the_first_inspection_are_compared_and_take_few_inspections() -> None:
    both = [a_record(Nanoseconds(FIRST + n), n) for n in range(40)]
    world = await a_world(*[replace(one, column_types=COLUMNS[: 1 + n % 2]) for n, one in enumerate(both)])
    world.catalog.time = Nanoseconds(FIRST + 1_000_000_000)  # what is read was committed long ago
    async with running(world.reader()):
        await until(lambda: bool(world.shapes.requests))
        await until(lambda: len(world.topic.changes) == 40)
    assert kinds(world) == {"Singers": [(SpannerResyncKind.COLUMN_AGAIN, ("Name",))]}
    assert world.catalog.asked <= 5


async def test_a_delete_whose_record_names_the_key_alone_proves_nothing() -> None:
    world = await a_world(replace(a_record(FIRST, 1), column_types=COLUMNS[:1], mod_type="DELETE"))
    async with running(world.reader()):
        await until(lambda: world.catalog.asked == 2)
        await until(lambda: len(world.topic.changes) == 1)
    assert kinds(world) == {}
