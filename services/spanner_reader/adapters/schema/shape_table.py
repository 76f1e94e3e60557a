"""What the tables looked like at the last inspection, and which are pending resync: a table beside the partition table.

``<partition table>_tables`` has one row per table of the watched database: ``shape``, a JSON document of what
`core.shapes.TableShape` holds; ``needs_resync``, a JSON list of findings, and ``since``, their earliest time, both
NULL where nothing is wrong; a pause is part of the request (`pause_table.py`); ``looked_at``, the time of the
inspection that last changed the row. The row without a name stands for the last inspection as a whole: when it was, and
whether the stream watched everything, by itself or, where options kept changes out of the stream, in a document beside
those; its ``since`` is the time of the first inspection that was compared with one before, NULL until there is one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
from google.cloud.spanner_v1 import Mutation

from services.spanner_reader.adapters.spanner.connection import Row, SpannerDatabaseClient, Statement, strings
from services.spanner_reader.adapters.spanner.dialects import partition_sql
from services.spanner_reader.adapters.spanner.mutations import deletions, writes
from services.spanner_reader.core.pauses import Pause, with_pauses
from services.spanner_reader.core.schema.shapes import (
    SchemaInspection,
    SchemaObservation,
    SpannerResyncCause,
    SpannerResyncRequest,
    TableShape,
    compare,
    lost,
    synced,
    with_findings,
)
from services.spanner_reader.ports import SchemaFindings
from shared.contracts.errors import MisconfiguredError
from shared.contracts.timestamps import Nanoseconds, format_timestamp, parse_timestamp

_INSPECTION: Final = ""
_COLUMNS: Final = ("source_table", "shape", "needs_resync", "since", "looked_at")

_encode: Final = msgspec.json.Encoder(order="deterministic").encode
_shape: Final = msgspec.json.Decoder(TableShape)
_findings: Final = msgspec.json.Decoder(tuple[SpannerResyncCause, ...])


@dataclass(frozen=True, slots=True)
class _Excluding:
    watches_everything: bool
    exclusions: frozenset[str]


_whole: Final = msgspec.json.Decoder(bool | _Excluding)


class SpannerShapeStore:
    """The table of shapes that belongs to a partition table, which makes it."""

    def __init__(self, database: SpannerDatabaseClient, partition_table: str) -> None:
        self._database = database
        self._partition_table = partition_table
        self._table = f"{partition_table}_tables"

    @property
    def _sql(self) -> Mapping[str, str]:
        return partition_sql(self._database.dialect, self._partition_table)

    async def compare(self, inspection: SchemaInspection, observations: Sequence[SchemaObservation]) -> SchemaFindings:
        """Compare an inspection with the one before, remember it, and request resyncs for what was found."""

        while True:
            # Outside a transaction: this is as large as the schema, and a transaction would lock all of it meanwhile.
            rows = await self._database.query(Statement(self._sql["shapes"]), large=True)
            compared, written, gone = self._compared(rows, inspection, observations)
            if not written:
                return compared
            names = sorted({*(str(one[0]) for one in written), *gone})
            before = {str(one[0]): one for one in rows if one[0] in names}
            mutations = writes("insert_or_update", self._table, _COLUMNS, written)
            mutations += deletions(self._table, ([name] for name in gone))

            def decide(
                found: list[Row], before: Mapping[str, Row] = before, mutations: list[Mutation] = mutations
            ) -> tuple[bool, list[Mutation]]:
                unchanged = {str(one[0]): one for one in found} == before
                return unchanged, mutations if unchanged else []

            if await self._database.read_then_write(self._of(names), decide):
                return compared

    def _compared(
        self, rows: Sequence[Row], inspection: SchemaInspection, observations: Sequence[SchemaObservation]
    ) -> tuple[SchemaFindings, list[list[str | None]], list[str]]:
        """Return what an inspection has found, the rows to write, and the tables to forget."""
        old, requests, pauses = _remembered(rows)
        if old is not None and old.at >= inspection.at:
            shown = tuple(with_pauses(requests, pauses).values())
            return SchemaFindings((), (), shown, old.compared_since, counted=False, tables=old.tables), [], []
        comparison = compare(old, inspection, observations)
        now = comparison.remembered
        kept = with_findings(requests, comparison.findings)
        changed = [
            _row(name, shape, kept.get(name), inspection.at)
            for name, shape in now.tables.items()
            if old is None or old.tables.get(name) != shape or kept.get(name) != requests.get(name)
        ]
        since = None if now.compared_since is None else format_timestamp(now.compared_since)
        changed.append([_INSPECTION, _as_a_whole(now), None, since, format_timestamp(inspection.at)])
        gone = [] if old is None else [name for name in old.tables if name not in now.tables]
        shown = tuple(with_pauses(kept, pauses).values())
        found = SchemaFindings(comparison.findings, comparison.left, shown, now.compared_since, tables=now.tables)
        return found, changed, gone

    async def topic_lost(self, after: Nanoseconds, before: Nanoseconds) -> Sequence[SpannerResyncRequest]:
        """Request a resync of all watched tables, for changes that were published and lost; return the requests."""

        def decide(rows: list[Row]) -> tuple[list[SpannerResyncRequest], list[Mutation]]:
            inspection, requests, _pauses = _remembered(rows)
            findings = [] if inspection is None else lost(inspection, after, before)
            if inspection is None or not findings:
                return [], []
            kept = with_findings(requests, findings)
            found = [kept[one.table] for one in findings]
            values = [
                _row(request.table, inspection.tables[request.table], request, inspection.at) for request in found
            ]
            return found, writes("update", self._table, _COLUMNS, values)

        return await self._database.read_then_write(Statement(self._sql["shapes"]), decide, large=True)

    async def read(self) -> tuple[SchemaInspection | None, Sequence[SpannerResyncRequest]]:
        """Return what is remembered, and the tables that are pending resync."""
        rows = await self._database.query(Statement(self._sql["shapes"]), large=True)
        inspection, requests, pauses = _remembered(rows)
        return inspection, tuple(with_pauses(requests, pauses).values())

    async def resync_requests(self) -> Sequence[SpannerResyncRequest]:
        """Return the tables that are pending resync."""
        rows = await self._database.query(Statement(self._sql["pending_shapes"]), large=True)
        _inspection, requests, pauses = _remembered(rows)
        return tuple(with_pauses(requests, pauses).values())

    def _unpaused(self, table: str) -> list[Mutation]:
        return deletions(f"{self._partition_table}_pauses", [[table]])

    def _of(self, tables: Sequence[str]) -> Statement:
        return Statement(self._sql["shapes_of"], {"p1": strings(tables)})

    async def synced(self, table: str) -> bool:
        """Delete the resync request of a table whose rows came again; return whether it had one."""

        def decide(rows: list[Row]) -> tuple[bool, list[Mutation]]:
            if not rows or table == _INSPECTION:
                return False, []
            ((_name, shape, findings, _since, inspected_at, *times),) = rows
            kept, pause = synced(_shape.decode(shape)), pause_of(*times)
            if pause is not None and pause.lasts:
                raise MisconfiguredError(
                    "table-paused",
                    f"table {table} is paused, and its changes are dropped meanwhile: resume it first, and then take "
                    "a snapshot",
                )
            unpaused = [] if pause is None else self._unpaused(table)
            had = findings is not None or pause is not None
            if kept is None:
                return had, deletions(self._table, [[table]]) + unpaused
            values = [_row(table, kept, None, parse_timestamp(inspected_at))]
            return had, writes("update", self._table, _COLUMNS, values) + unpaused

        return await self._database.read_then_write(self._of([table]), decide)

    async def healed(self, table: str, since: Nanoseconds) -> bool:
        """Delete the resync request of a table all of whose rows came as of a time; return whether it had one."""

        def decide(rows: list[Row]) -> tuple[bool, list[Mutation]]:
            _inspection, requests, pauses = _remembered(rows)
            request = with_pauses(requests, pauses).get(table)
            if request is None or request.sync_after >= since:
                return False, []
            written = writes("update", self._table, ("source_table", "needs_resync", "since"), [[table, None, None]])
            return True, written + (self._unpaused(table) if table in pauses else [])

        return await self._database.read_then_write(self._of([table]), decide)


def pause_of(since: str | None, paused_at: str | None, resumed_at: str | None) -> Pause | None:
    """Return the pause that is in a row; None where there is none."""
    if since is None or paused_at is None:
        return None
    resumed = None if resumed_at is None else parse_timestamp(resumed_at)
    return Pause(parse_timestamp(since), parse_timestamp(paused_at), resumed)


def _remembered(
    rows: Sequence[Row],
) -> tuple[SchemaInspection | None, dict[str, SpannerResyncRequest], dict[str, Pause]]:
    """Return the inspection before, what was found of tables, and those of them that were paused."""
    inspection = None
    tables: dict[str, TableShape] = {}
    requests: dict[str, SpannerResyncRequest] = {}
    pauses: dict[str, Pause] = {}
    for name, shape, findings, since, inspected_at, *times in rows:
        if name == _INSPECTION:
            compared_since = None if since is None else parse_timestamp(since)
            whole = _whole.decode(shape)
            if isinstance(whole, bool):
                whole = _Excluding(whole, frozenset())
            inspection = SchemaInspection(
                parse_timestamp(inspected_at), whole.watches_everything, tables, compared_since, whole.exclusions
            )
            continue
        tables[name] = _shape.decode(shape)
        if findings is not None:
            requests[name] = SpannerResyncRequest(name, _findings.decode(findings))
        pause = pause_of(*times)
        if pause is not None:
            pauses[name] = pause
    return inspection, requests, pauses


def _as_a_whole(inspection: SchemaInspection) -> str:
    everything = inspection.watches_everything
    return _encode(_Excluding(everything, inspection.exclusions) if inspection.exclusions else everything).decode()


def _row(name: str, shape: TableShape, request: SpannerResyncRequest | None, at: Nanoseconds) -> list[str | None]:
    findings, since = (
        (None, None) if request is None else (_encode(request.findings).decode(), format_timestamp(request.since))
    )
    return [name, _encode(shape).decode(), findings, since, format_timestamp(at)]
