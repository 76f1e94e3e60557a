"""In-memory ports of a Spanner database's schema, and of what is remembered of it."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta

from services.spanner_reader.core.pauses import Pause, with_pauses
from services.spanner_reader.core.schema.shapes import (
    ColumnShape,
    SchemaInspection,
    SchemaObservation,
    SpannerResyncRequest,
    TableShape,
    compare,
    lost,
    synced,
    with_findings,
)
from services.spanner_reader.core.stream.changes import googlesql_type
from services.spanner_reader.ports import CatalogInspection, NotReadableError, SchemaFindings, WatchedTable
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.contracts.timestamps import Nanoseconds
from tests.fakes.life import Life
from tests.fakes.spanner_reader import SteppingClock


class FakeCatalog:
    """A database's watched tables, as the test sets them.

    Every inspection is a microsecond later than the one before, or at the time of a clock.
    """

    def __init__(self, *tables: WatchedTable, everything: bool = False, clock: SteppingClock | None = None) -> None:
        self.clock = clock
        self.tables: list[WatchedTable] = list(tables)
        self.everything = everything
        self.time = 0
        self.asked = 0
        self.unavailable = False
        self.silent = False
        self.remembers = True
        self.retention: timedelta | None = None
        self.exclusions: frozenset[str] = frozenset()
        self.may_leave_out: str | None = None

    async def inspect(self) -> CatalogInspection:
        """Return the tables as they are now."""
        self.asked += 1
        if self.unavailable:
            raise TransientError("UNAVAILABLE")
        if self.silent:
            await asyncio.Event().wait()
        self.time = self.time + 1_000 if self.clock is None else self.clock.now()
        shapes = {table.name: _shape(table) for table in self.tables}
        seen = SchemaInspection(Nanoseconds(self.time), self.everything, shapes, exclusions=self.exclusions)
        return CatalogInspection(
            seen,
            tuple(self.tables),
            retention=self.retention,
            leaves_out=f"the stream has {', '.join(sorted(self.exclusions))}" if self.exclusions else None,
            may_leave_out=self.may_leave_out,
        )

    async def inspect_at(self, at: Nanoseconds) -> CatalogInspection | None:
        """Return the tables as they were; None where Spanner does not remember that any more."""
        found = await self.inspect()
        return CatalogInspection(replace(found.shapes, at=at), found.watched) if self.remembers else None

    async def inspect_tables(
        self, names: Collection[str], at: Nanoseconds | None = None
    ) -> tuple[Nanoseconds, Sequence[WatchedTable]]:
        """Return those of some tables that the stream watches, and the time of that."""
        found = await self.inspect()
        if at is not None and not self.remembers:
            raise NotReadableError("made-up", "the time is not remembered")
        return at or found.shapes.at, [table for table in self.tables if table.name in names]


def _shape(table: WatchedTable) -> TableShape:
    return TableShape(
        tuple(ColumnShape(c.name, googlesql_type(c.type), is_key=c.is_primary_key) for c in table.column_types)
    )


@dataclass
class Shapes:
    """What is remembered."""

    inspection: SchemaInspection | None = None
    requests: Mapping[str, SpannerResyncRequest] = field(default_factory=dict)
    """Without those of pauses."""
    pauses: dict[str, Pause] = field(default_factory=dict)

    @property
    def all_requests(self) -> tuple[SpannerResyncRequest, ...]:
        """Return the resync requests as they are shown."""
        tables = {name: pause for name, pause in self.pauses.items() if name}
        return tuple(with_pauses(self.requests, tables).values())


class FakeShapeStore:
    """A store of shapes in memory, as one reader sees it."""

    def __init__(self, shapes: Shapes | None = None, life: Life | None = None) -> None:
        self.shapes = shapes or Shapes()
        self._life = life or Life()

    async def compare(self, inspection: SchemaInspection, observations: Sequence[SchemaObservation]) -> SchemaFindings:
        """Compare an inspection with the one before, remember it, and request resyncs for what was found."""
        self._life.step()
        old, requests = self.shapes.inspection, self.shapes.requests
        if old is not None and old.at >= inspection.at:
            return SchemaFindings(
                (), (), self.shapes.all_requests, old.compared_since, counted=False, tables=old.tables
            )
        comparison = compare(old, inspection, observations)
        self.shapes.inspection = comparison.remembered
        self.shapes.requests = with_findings(requests, comparison.findings)
        self._life.step()
        since, tables = comparison.remembered.compared_since, comparison.remembered.tables
        return SchemaFindings(comparison.findings, comparison.left, self.shapes.all_requests, since, tables=tables)

    async def topic_lost(self, after: Nanoseconds, before: Nanoseconds) -> Sequence[SpannerResyncRequest]:
        """Request a resync of all watched tables, for changes that were published and lost; return the requests."""
        self._life.step()
        found = [] if self.shapes.inspection is None else lost(self.shapes.inspection, after, before)
        self.shapes.requests = with_findings(self.shapes.requests, found)
        self._life.step()
        return [self.shapes.requests[one.table] for one in found]

    async def read(self) -> tuple[SchemaInspection | None, Sequence[SpannerResyncRequest]]:
        """Return what is remembered, and the tables that are pending resync."""
        self._life.step()
        return self.shapes.inspection, self.shapes.all_requests

    async def resync_requests(self) -> Sequence[SpannerResyncRequest]:
        """Return the tables that are pending resync."""
        self._life.step()
        return self.shapes.all_requests

    async def synced(self, table: str) -> bool:
        """Delete the resync request of a table; return whether it had one."""
        self._life.step()
        inspection = self.shapes.inspection
        if inspection is None or table not in inspection.tables:
            return False
        pause = self.shapes.pauses.get(table)
        if pause is not None and pause.lasts:
            raise MisconfiguredError("made-up", f"table {table} is paused")
        kept = synced(inspection.tables[table])
        others = {name: shape for name, shape in inspection.tables.items() if name != table}
        self.shapes.inspection = replace(inspection, tables=others if kept is None else others | {table: kept})
        had = table in self.shapes.requests or pause is not None
        self.shapes.pauses.pop(table, None)
        self.shapes.requests = {name: request for name, request in self.shapes.requests.items() if name != table}
        return had

    async def healed(self, table: str, since: Nanoseconds) -> bool:
        """Delete the resync request of a table all of whose rows came as of a time; return whether it had one."""
        self._life.step()
        request = next((one for one in self.shapes.all_requests if one.table == table), None)
        if request is None or request.sync_after >= since:
            return False
        self.shapes.pauses.pop(table, None)
        self.shapes.requests = {name: request for name, request in self.shapes.requests.items() if name != table}
        self._life.step()
        return True
