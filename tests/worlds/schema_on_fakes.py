"""A reader on fakes whose source changes its schema."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from services.spanner_reader.core.schema.shapes import SpannerResyncKind
from services.spanner_reader.core.stream.records import ROOT, DataChangeRecord, SpannerColumnType
from services.spanner_reader.ports import WatchedTable
from tests.fakes.spanner_reader import Script
from tests.unit.spanner_reader.scripts import COLUMNS, World, at

START, FIRST = at("09:00:00"), at("09:00:01")
BORN = SpannerColumnType("Born", '{"code":"DATE"}', is_primary_key=False, ordinal_position=3)
SINGERS = WatchedTable("Singers", ("Id",), COLUMNS, "NEW_ROW")


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 20))


def a_world(*records: DataChangeRecord, singers: WatchedTable = SINGERS) -> World:
    world = World(Script({ROOT: list(records)}))
    world.catalog.tables = [singers]
    return world


def with_columns(*columns: SpannerColumnType) -> WatchedTable:
    return replace(SINGERS, column_types=columns)


def kinds(world: World) -> dict[str, list[tuple[SpannerResyncKind, tuple[str, ...]]]]:
    return {
        table: [(one.kind, one.columns) for one in request.findings] for table, request in world.shapes.requests.items()
    }
