"""What the tables looked like at the last look, and which need re-sync: a table beside the partition table.

``<partition table>_tables`` has one row per table of the watched database: ``shape``, a JSON document of what
`core.shapes.TableShape` holds; ``needs_resync``, a JSON list of findings, and ``since``, their earliest time, both
NULL where nothing is wrong; ``looked_at``, the time of the look that last changed the row. The row without a name
stands for the last look as a whole: when it was, and whether the stream watched everything; its ``since`` is the time
of the first look that was compared with one before, NULL until there is one.
"""

from collections.abc import Sequence
from typing import Final

import msgspec
from google.cloud.spanner_v1 import Mutation
from google.protobuf.struct_pb2 import ListValue

from services.spanner_reader.adapters.connection import Database, Row, Statement, row, string
from services.spanner_reader.adapters.dialects import PartitionSql, partition_sql
from services.spanner_reader.core.shapes import Finding, Look, Mark, Sighting, TableShape, compare, marked, synced
from services.spanner_reader.ports import Compared
from shared.contracts.timestamps import Nanoseconds, format_timestamp, parse_timestamp

_LOOK: Final = ""
_COLUMNS: Final = ("source_table", "shape", "needs_resync", "since", "looked_at")

_encode: Final = msgspec.json.Encoder(order="deterministic").encode
_shape: Final = msgspec.json.Decoder(TableShape)
_findings: Final = msgspec.json.Decoder(tuple[Finding, ...])
_everything: Final = msgspec.json.Decoder(bool)


class SpannerShapeStore:
    """The table of shapes that belongs to a partition table, which makes it."""

    def __init__(self, database: Database, partition_table: str) -> None:
        self._database = database
        self._partition_table = partition_table
        self._table = f"{partition_table}_tables"

    @property
    def _sql(self) -> PartitionSql:
        return partition_sql(self._database.dialect, self._partition_table)

    async def compare(self, look: Look, sightings: Sequence[Sighting]) -> Compared:
        """Compare a look with the one before, remember it, and mark the tables that something was found of."""

        def decide(rows: list[Row]) -> tuple[Compared, list[Mutation]]:
            old, marks = _remembered(rows)
            if old is not None and old.at >= look.at:
                return Compared(marks=tuple(marks.values()), compared_since=old.compared_since), []
            comparison = compare(old, look, sightings)
            now = comparison.remembered
            kept = marked(marks, comparison.findings)
            changed = [
                _row(name, shape, kept.get(name), look.at)
                for name, shape in now.tables.items()
                if old is None or old.tables.get(name) != shape or kept.get(name) != marks.get(name)
            ]
            since = None if now.compared_since is None else format_timestamp(now.compared_since)
            changed.append(
                row([_LOOK, _encode(look.watches_everything).decode(), None, since, format_timestamp(look.at)])
            )
            gone = [] if old is None else [name for name in old.tables if name not in now.tables]
            written = Mutation(insert_or_update=Mutation.Write(table=self._table, columns=_COLUMNS, values=changed))
            found = Compared(comparison.findings, comparison.left, tuple(kept.values()), now.compared_since)
            return found, [written, *([self._deletion(gone)] if gone else [])]

        return await self._database.read_then_write(Statement(self._sql.shapes), decide)

    async def read(self) -> tuple[Look | None, Sequence[Mark]]:
        """Return what is remembered, and the tables that need re-sync."""
        look, marks = _remembered(await self._database.query(Statement(self._sql.shapes)))
        return look, tuple(marks.values())

    async def synced(self, table: str) -> bool:
        """Take the mark from a table whose rows came again; return whether it had one."""

        def decide(rows: list[Row]) -> tuple[bool, list[Mutation]]:
            if not rows or table == _LOOK:
                return False, []
            ((_name, shape, findings, _since, looked_at),) = rows
            kept = synced(_shape.decode(shape))
            if kept is None:
                return findings is not None, [self._deletion([table])]
            values = [_row(table, kept, None, parse_timestamp(looked_at))]
            written = Mutation.Write(table=self._table, columns=_COLUMNS, values=values)
            return findings is not None, [Mutation(update=written)]

        return await self._database.read_then_write(Statement(self._sql.shape, {"p1": string(table)}), decide)

    def _deletion(self, names: Sequence[str]) -> Mutation:
        return Mutation(delete=Mutation.Delete(table=self._table, key_set={"keys": [row([name]) for name in names]}))


def _remembered(rows: Sequence[Row]) -> tuple[Look | None, dict[str, Mark]]:
    look = None
    tables: dict[str, TableShape] = {}
    marks: dict[str, Mark] = {}
    for name, shape, findings, since, looked_at in rows:
        if name == _LOOK:
            compared_since = None if since is None else parse_timestamp(since)
            look = Look(parse_timestamp(looked_at), _everything.decode(shape), tables, compared_since)
            continue
        tables[name] = _shape.decode(shape)
        if findings is not None:
            marks[name] = Mark(name, _findings.decode(findings))
    return look, marks


def _row(name: str, shape: TableShape, mark: Mark | None, at: Nanoseconds) -> ListValue:
    findings, since = (None, None) if mark is None else (_encode(mark.findings).decode(), format_timestamp(mark.since))
    return row([name, _encode(shape).decode(), findings, since, format_timestamp(at)])
