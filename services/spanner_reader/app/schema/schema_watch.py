"""Inspects the schema, once a minute and whenever a record shows something new: announces tables, finds trouble.

Trouble is DDL that changes data without a change record; `core.shapes` says what that is. For its tables a resync is
requested, durably.
"""

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import structlog

from services.spanner_reader.app.status.metrics import SpannerReaderMetrics
from services.spanner_reader.core.schema.resync import fix_of
from services.spanner_reader.core.schema.shapes import (
    DROPPED_UNSEEN,
    ColumnShape,
    SchemaObservation,
    SpannerResyncCause,
    TableShape,
    excluding,
    lacked,
)
from services.spanner_reader.core.stream.changes import ChangeMaker, googlesql_type, is_whole
from services.spanner_reader.core.stream.records import DataChangeRecord, SpannerColumnType
from services.spanner_reader.ports import CatalogInspection, DatabaseCatalog, SchemaFindings, ShapeStore, WatchedTable
from shared.contracts.change_batch import Header
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.contracts.tables_file import TableOptions
from shared.contracts.timestamps import Nanoseconds, format_timestamp
from shared.reading.publishing import ConfirmedPublishing

_NEVER: Final = Nanoseconds(-1)
_NOT_YET: Final[tuple[None, Nanoseconds]] = None, _NEVER


@dataclass(frozen=True, slots=True)
class WatchedTables:
    """Which tables are read, and with which options, as the tables file says; all of them without one."""

    included: Callable[[str], bool] = lambda _table: True
    options: Callable[[str], TableOptions] | None = None

    def keeps_history(self, table: str) -> bool:
        """Return whether BigQuery keeps a history of a table, or may do so because no mirror can hold its key."""
        if self.options is None:
            return False
        options = self.options(table)
        return options.mode != "mirror" or options.unfit_key == "history"


class SchemaWatch:
    """What one reader has seen of the schema, in its catalog and in its records."""

    def __init__(
        self,
        catalog: DatabaseCatalog,
        shapes: ShapeStore,
        publishing: ConfirmedPublishing,
        changes: ChangeMaker,
        tables: WatchedTables,
        metrics: SpannerReaderMetrics,
    ) -> None:
        self._catalog = catalog
        self._shapes = shapes
        self._publishing = publishing
        self._changes = changes
        self._included = tables.included
        self._table_options = tables.options
        self._metrics = metrics
        self._known: set[Header] = set()
        self.announced: Header | None = None
        """The newest column list of a table that is read, whichever; None: no table is."""
        self._newest: dict[tuple[str, bool], tuple[Header, SchemaObservation | None]] = {}
        self._early: set[tuple[Header | None, Header]] = set()
        self._tables: Mapping[str, TableShape] = {}  # as they are remembered since the newest inspection
        # Since that inspection, of each table: the column list seen last if it says nothing more, else from when on it
        # may.
        self._settled: dict[tuple[str, bool], Header | None] = {}
        self._open: dict[tuple[str, bool], tuple[Header, Nanoseconds]] = {}
        self._noted_at: dict[Header, Nanoseconds] = {}  # when the record was committed that was noted last of it
        self._compared_since: Nanoseconds | None = None
        self.retention: timedelta | None = None
        """For how long the stream keeps what is not read, as it was seen last."""
        self._observations: list[SchemaObservation] = []
        self._stored: asyncio.Future[None] | None = None
        self._unsure: frozenset[Nanoseconds] = frozenset()
        self._may_leave_out = False
        self._left_out: frozenset[str] = frozenset()
        self._left_out_at = Nanoseconds(0)  # the time of the inspection by which everybody knows these
        self._something_new = asyncio.Event()
        self._inspecting = asyncio.Lock()
        self._log = structlog.get_logger()

    def saw(self, header: Header, record: DataChangeRecord) -> "asyncio.Future[None] | None":
        """Notice a column list that says something new of the schema: one that no reader has seen yet, say.

        In records from before the first inspections, at which the stream was started, any change is noticed.
        Returns None, or what is done once an inspection that takes the record into account is stored: until then, the
        record is the only one to know, and has to be read again by the next owner after a crash.
        """
        whole = record.mod_type != "DELETE" and is_whole(record)
        place = header.table, whole
        if self._settled.get(place) is header:
            return None
        columns, news_after = self._open.get(place, _NOT_YET)
        if columns is header and record.commit_timestamp <= news_after:
            return None
        return self._notice(header, _observation(record) if whole else None, place)

    def observed(self, table: WatchedTable, at: Nanoseconds) -> None:
        """Notice columns that another inspection has shown, of some tables: as a record with a whole row shows them."""
        header = self._changes.header(table.name, table.column_types, table.value_capture_type)
        self._notice(header, _observation_of(table.name, table.column_types, at), (table.name, True))

    def _notice(
        self, header: Header, seen: SchemaObservation | None, place: tuple[str, bool]
    ) -> "asyncio.Future[None] | None":
        before, observed = self._newest.get(place, (None, None))
        self._newest[place] = header, seen
        early = seen is not None and (self._compared_since is None or seen.at < self._compared_since)
        noted = []
        if early and before is not header and (before, header) not in self._early:  # two partitions may take turns
            self._early.add((before, header))
            noted = [one for one in (observed, seen) if one is not None]
        elif seen is not None and ((header not in self._known and not early) or self._is_news(header, seen)):
            noted = [seen]
        if header not in self._known or noted:
            self._known.add(header)
            self._something_new.set()
        self._settle(header, seen, place)
        if not noted:
            return None
        self._observations += noted
        if self._stored is None:
            self._stored = asyncio.get_running_loop().create_future()
        return self._stored

    def _is_news(self, header: Header, seen: SchemaObservation) -> bool:
        """Return whether a record says more than what is remembered, and than records with its columns since then."""
        table = self._tables.get(seen.table)
        if table is None or not table.watched:
            return False
        noted_at = self._noted_at.get(header, _NEVER)
        only_shown = seen.names - table.watched_names - table.dropped
        is_news = any(one.since >= noted_at for one in lacked(table, seen)) or (noted_at == _NEVER and bool(only_shown))
        if is_news:
            self._noted_at[header] = seen.at
        return is_news

    def _settle(self, header: Header, seen: SchemaObservation | None, place: tuple[str, bool]) -> None:
        """Remember up to which time records with the same columns say nothing that is not noted: for ever, mostly."""
        table = None if seen is None else self._tables.get(seen.table)
        noted_at = self._noted_at.get(header, _NEVER)
        lacking = frozenset[str]() if table is None or seen is None else table.watched_names - seen.names
        later = [one.since for one in table.columns if one.name in lacking and one.since >= noted_at] if table else []
        self._settled[place] = None if later else header
        self._open[place] = header, min(later, default=_NEVER)

    async def learn(self, table: str) -> None:
        """Inspect a table that a record names and that is not known: the stream watches it since a moment ago."""
        async with self._inspecting:
            if not self._changes.knows(table):
                await self._inspect()
                self._changes.learn({table: ()}, unless_known=True)  # dropped again meanwhile

    async def leave_out(self, table: str, at: Nanoseconds) -> None:
        """Have it stored that the file here leaves a table out, before a change of it, of that time, is dropped.

        TransientError where it is not. See `core.shapes.DROPPED_UNSEEN`.
        """
        if self._is_known_left_out(table, at):
            return
        async with self._inspecting:
            if not self._is_known_left_out(table, at):
                before = self._left_out_at
                await self._inspect()
                if self._left_out_at == before:
                    raise TransientError("another inspection of the schema came first")

    def _is_known_left_out(self, table: str, at: Nanoseconds) -> bool:
        return at <= self._left_out_at or (table in self._left_out and at <= self._left_out_at + DROPPED_UNSEEN)

    async def inspect_schema(self) -> None:
        """Announce what is new, and compare the tables with what they were; TransientError if that cannot be had.

        MisconfiguredError if the stream leaves changes out; what that was found to mean for tables is stored by then.
        """
        async with self._inspecting:
            await self._inspect()

    async def keep_inspecting(self, every: timedelta) -> None:
        """Inspect the schema again and again: so often, and whenever a record shows something new."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(every.total_seconds()):
                    await self._something_new.wait()
            try:
                await self.inspect_schema()
            except TransientError as error:
                self._log.warning("schema_inspection_failed", error=str(error))
                await asyncio.sleep(1)

    async def _inspect(self) -> None:
        self._something_new.clear()
        observations, self._observations = self._observations, []
        counted = False
        try:
            inspection = await self._catalog.inspect()
            self.retention = inspection.retention
            await self._announce(inspection)
            unsure, self._unsure = self._unsure, self._unsure | {inspection.shapes.at}
            seen = excluding(inspection.shapes, self._included, self._table_options)
            compared = await self._shapes.compare(seen, observations)
            counted = compared.counted
            if counted:
                self._left_out = frozenset(name for name, table in seen.tables.items() if table.left_out)
                self._left_out_at = seen.at
            self._remember(compared)
            self._show(compared, unsure, inspection.quote)
            self._unsure = frozenset()
            self._show_exclusions(inspection)
        except TransientError:
            self._something_new.set()
            raise
        finally:
            if observations and not counted:  # for another inspection, whatever became of this one
                self._observations = observations + self._observations
                self._something_new.set()

    def _show_exclusions(self, inspection: CatalogInspection) -> None:
        """Warn once of transactions that can keep out of the stream; MisconfiguredError if others are kept out."""
        if inspection.may_leave_out is not None and not self._may_leave_out:
            self._log.warning(
                "transactions_can_be_excluded",
                why="transactions that ask to be left out of change streams never reach BigQuery",
                fix=f"{inspection.may_leave_out} forbids them",
            )
        self._may_leave_out = inspection.may_leave_out is not None
        if inspection.leaves_out is not None:
            raise MisconfiguredError("change-stream-altered-to-leave-out", inspection.leaves_out)

    def _remember(self, compared: SchemaFindings) -> None:
        self._compared_since = compared.compared_since
        self._tables = compared.tables
        for what in (self._settled, self._open, self._noted_at):
            what.clear()
        if compared.counted and self._stored is not None and not self._observations:
            self._stored.set_result(None)
            self._stored = None

    async def _announce(self, inspection: CatalogInspection) -> None:
        """Publish the header of every table and column list that is new, so that empty tables, too, come to exist."""
        self._changes.learn({table.name: table.primary_key for table in inspection.watched})
        self.announced = None
        for table in inspection.watched:
            if not self._included(table.name):
                continue
            header = self._changes.header(table.name, table.column_types, table.value_capture_type)
            self.announced = self.announced or header
            if header not in self._known:
                self._known.add(header)
                await self._publishing.announce(header)
                self._log.info("table_announced", table=table.name, columns=len(header.columns))

    def _show(self, compared: SchemaFindings, unsure: Collection[Nanoseconds], quote: str) -> None:
        """Show what was found; also by inspections of which it is unknown whether they were stored, and which were."""
        self._metrics.set_pending_resync(compared.requests, quote)
        stored = [found for request in compared.requests for found in request.findings if found.before in unsure]
        for table in compared.left:
            self._log.warning(
                "table_mirroring_ended",
                table=table,
                why="dropped, or taken out of the stream: BigQuery keeps the rows it has",
            )
        fixes = {request.table: fix_of(request, quote) for request in compared.requests}
        for found in (*stored, *compared.findings):
            _log_request(found, fixes[found.table])


def _log_request(found: SpannerResyncCause, fix: str) -> None:
    structlog.get_logger().error(
        "resync_requested",
        table=found.table,
        why=found.kind.value,
        columns=list(found.columns),
        after=format_timestamp(found.after),
        before=format_timestamp(found.before),
        fix=fix,
    )


def _observation(record: DataChangeRecord) -> SchemaObservation:
    return _observation_of(record.table, record.column_types, record.commit_timestamp)


def _observation_of(table: str, column_types: Iterable[SpannerColumnType], at: Nanoseconds) -> SchemaObservation:
    columns = [
        ColumnShape(column.name, googlesql_type(column.type), is_key=column.is_primary_key)
        for column in sorted(column_types, key=lambda one: one.ordinal_position)
    ]
    return SchemaObservation(table, tuple(columns), at)


async def remember_start(
    catalog: DatabaseCatalog,
    shapes: ShapeStore,
    included: Callable[[str], bool],
    table_options: Callable[[str], TableOptions],
    start: Nanoseconds,
    now: CatalogInspection,
) -> None:
    """Remember what the tables looked like where a first start begins, so that what came after is compared with it.

    Where that is too long ago for Spanner to know, the records from then on are what there is to compare.
    """
    inspection = now if start >= now.shapes.at else await catalog.inspect_at(start)
    if inspection is not None:
        await shapes.compare(excluding(inspection.shapes, included, table_options), ())


async def remember_refused(
    shapes: ShapeStore,
    included: Callable[[str], bool],
    table_options: Callable[[str], TableOptions],
    inspection: CatalogInspection,
) -> None:
    """Store an inspection that refuses a start, and request resyncs: the next start may not see what was found."""
    compared = await shapes.compare(excluding(inspection.shapes, included, table_options), ())
    fixes = {request.table: fix_of(request, inspection.quote) for request in compared.requests}
    for found in compared.findings:
        _log_request(found, fixes[found.table])
