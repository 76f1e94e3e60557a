"""A reader on fakes whose source changes its schema."""

from dataclasses import replace
from typing import Any

from services.spanner_reader.core.schema.shapes import SpannerResyncKind
from services.spanner_reader.core.stream.records import ROOT, DataChangeRecord, SpannerColumnType
from services.spanner_reader.ports import WatchedTable
from tests.unit.spanner_reader.scripts import COLUMNS, World, at, running, until

FIRST = at("09:00:01")
BORN = SpannerColumnType("Born", '{"code":"DATE"}', is_primary_key=False, ordinal_position=3)
SINGERS = WatchedTable("Singers", ("Id",), COLUMNS, "NEW_ROW")


async def a_world(*records: DataChangeRecord) -> World:
    return await World.begun({ROOT: list(records)})


async def inspect_once(world: World, **options: Any) -> None:
    """Let a reader inspect the schema, and end."""
    async with running(world.reader(**options)):
        await until(lambda: world.shapes.inspection is not None)


def with_columns(*columns: SpannerColumnType) -> WatchedTable:
    return replace(SINGERS, column_types=columns)


def kinds(world: World) -> dict[str, list[tuple[SpannerResyncKind, tuple[str, ...]]]]:
    return {
        table: [(one.kind, one.columns) for one in request.findings] for table, request in world.shapes.requests.items()
    }
