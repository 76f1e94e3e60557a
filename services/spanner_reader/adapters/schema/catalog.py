"""What the database says of the change stream and its tables, and the checks before a start.

Whatever could only go wrong later is refused here, each with what fixes it.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import msgspec
import structlog

from services.spanner_reader.adapters.spanner.connection import Row, SpannerDatabaseClient, Statement, string, strings
from services.spanner_reader.adapters.spanner.dialects import Dialect, catalog_sql, quoted, stream_options
from services.spanner_reader.adapters.stream.change_stream import SpannerChangeStream
from services.spanner_reader.core.schema.shapes import ColumnShape, SchemaInspection, TableShape
from services.spanner_reader.core.stream.changes import WHOLE_ROW, googlesql_type
from services.spanner_reader.core.stream.records import ROOT, SpannerColumnType, SpannerStreamQuery
from services.spanner_reader.ports import CatalogInspection, NotReadableError, WatchedTable
from shared.contracts.errors import MisconfiguredError
from shared.contracts.timestamps import Nanoseconds, format_timestamp, parse_timestamp

_DEFAULT_CAPTURE: Final = "OLD_AND_NEW_VALUES"
EXCLUDING: Final = ("exclude_insert", "exclude_update", "exclude_delete", "exclude_ttl_deletes")
TXN_EXCLUSION: Final = "allow_txn_exclusion"
_DEFAULT_RETENTION: Final = "1d"
_RETENTION: Final = re.compile(r"(\d+)([smhd])", re.ASCII)
_SECONDS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_LENGTH: Final = re.compile(r"\((?:\d+|0x[0-9a-fA-F]+|MAX)\)")
_ARRAY: Final = re.compile(r"ARRAY<(.+)>(?:\(.*\))?", re.ASCII)
_NAMED: Final = re.compile(r"(PROTO|ENUM)<(.+)>")
_PG_LENGTH: Final = re.compile(r"\(\d+\)")
_PG_TYPES: Final[Mapping[str, Mapping[str, str]]] = {
    "boolean": {"code": "BOOL"},
    "bigint": {"code": "INT64"},
    "double precision": {"code": "FLOAT64"},
    "real": {"code": "FLOAT32"},
    "numeric": {"code": "NUMERIC", "type_annotation": "PG_NUMERIC"},
    "character varying": {"code": "STRING"},
    "text": {"code": "STRING"},
    "bytea": {"code": "BYTES"},
    "date": {"code": "DATE"},
    "timestamp with time zone": {"code": "TIMESTAMP"},
    "spanner.commit_timestamp": {"code": "TIMESTAMP"},
    "jsonb": {"code": "JSON", "type_annotation": "PG_JSONB"},
    "oid": {"code": "INT64", "type_annotation": "PG_OID"},
    "interval": {"code": "INTERVAL"},
    "uuid": {"code": "UUID"},
}
"""PostgreSQL's names of types and what a change record calls them."""


@dataclass(frozen=True, slots=True)
class StreamDefinition:
    """A change stream as the database defines it."""

    watches_everything: bool
    value_capture_type: str
    partition_mode: str
    retention: timedelta
    exclusions: frozenset[str] = frozenset()
    """The options that are on and keep changes out of the stream."""
    dialect: Dialect = Dialect.GOOGLESQL
    """In which the statements that fix it have to be written."""
    retention_is_set: bool = True


_STREAMS: Final = "SELECT change_stream_name FROM information_schema.change_streams"


class SpannerCatalog:
    """The change stream, its tables, and Spanner's clock."""

    def __init__(self, database: SpannerDatabaseClient, change_stream: str) -> None:
        self._database = database
        self._change_stream = change_stream

    async def now(self) -> Nanoseconds:
        """Return Spanner's time."""
        ((now,),) = await self._database.query(Statement(self._sql["now"]))
        return parse_timestamp(now)

    async def definition(self) -> StreamDefinition:
        """Return the change stream's definition; MisconfiguredError where there is none."""
        _at, (stream, options) = await self._database.snapshot(
            self._about(self._sql["stream"]), self._about(self._sql["options"])
        )
        if not stream:
            raise self._no_stream([str(name) for (name,) in await self._database.query(Statement(_STREAMS))])
        return self._definition(stream, options)

    async def inspect(self) -> CatalogInspection:
        """Return all tables as they are now, and those that the stream watches as their records name them.

        Of the other tables only the names are read: a stream may watch one table of thousands.
        """
        return await self._inspect(None)

    async def inspect_at(self, at: Nanoseconds) -> CatalogInspection | None:
        """Return the same as it was at a time, if the database's version retention (an hour by default) allows it.

        Source: Spanner, "Information schema": its queries can use exact staleness.
        """
        try:
            return await self._inspect(at)
        except MisconfiguredError as error:
            structlog.get_logger().warning("schema_not_read_at_start", at=format_timestamp(at), error=str(error))
            return None

    async def inspect_tables(
        self, names: Collection[str], at: Nanoseconds | None = None
    ) -> tuple[Nanoseconds, Sequence[WatchedTable]]:
        """Return those of some tables that the stream watches, as they are now or were at a time, and the time of that.

        One query, whatever the number of tables. NotReadableError where the database does not remember the time.
        """
        of = {"p1": string(self._change_stream), "p2": strings(sorted({name.rpartition(".")[2] for name in names}))}
        try:
            seen_at, (rows,) = await self._database.snapshot(Statement(self._sql["of_tables"], of), at=at, large=True)
            some: dict[str, list[Row]] = defaultdict(list)
            for kind, *row in sorted(rows, key=lambda row: int(row[5])):  # keys and columns in their order
                some[kind].append(row)
            definition = self._definition(
                [(text == "YES",) for _schema, _table, _name, text, *_rest in some["stream"]],
                [(name, text) for _schema, _table, name, text, *_rest in some["option"]],
            )
        except MisconfiguredError as error:
            if at is None:
                raise
            raise NotReadableError(error.code, error.message) from error
        schema = _Schema(
            definition,
            tables=[(schema, table, text == "YES") for schema, table, _name, text, *_rest in some["table"]],
            watched=[row[:3] for row in some["watched"]],
            keys=[row[:4] for row in some["key"]],
            columns=[(*row, False, False) for row in some["column"]],
        )
        found = schema.tables_of({(schema, table) for schema, table, *_rest in some["key"]}, self._database.dialect)
        return seen_at, [watched for _shape, watched in found.values() if watched is not None and watched.name in names]

    async def _inspect(self, when: Nanoseconds | None) -> CatalogInspection:
        sql, dialect = self._sql, self._database.dialect
        at, (stream, options, tables, some_columns, all_tables) = await self._database.snapshot(
            *map(self._about, (sql["stream"], sql["options"], sql["tables"], sql["columns"])),
            Statement(sql["all_tables"]),
            at=when,
            large=True,
        )
        definition = self._definition(stream, options)
        if definition.watches_everything:
            asked = [Statement(each) for each in (sql["all_keys"], sql["all_columns"])]
        else:
            asked = [self._about(each) for each in (sql["keys_of_stream"], sql["columns_of_stream"])]
        _at, (all_keys, all_columns) = await self._database.snapshot(*asked, at=at, large=True)
        schema = _Schema(definition, tables, some_columns, all_keys, all_columns)
        found = schema.tables_of({(schema, table) for schema, table, *_rest in all_tables}, dialect)
        shapes = {name: shape for name, (shape, _watched) in found.items()}
        exclusions = definition.exclusions & {*EXCLUDING}
        return CatalogInspection(
            SchemaInspection(at, definition.watches_everything, shapes, exclusions=exclusions),
            tuple(watched for _shape, watched in found.values() if watched is not None),
            dialect.quote,
            definition.retention,
            leaves_out(self._change_stream, definition),
            may_leave_out(self._change_stream, definition),
        )

    def _no_stream(self, there: Sequence[str]) -> MisconfiguredError:
        dialect = self._database.dialect
        known = f"set CHANGE_STREAM to one that it has ({', '.join(sorted(there))}), or " if there else ""
        options_of_it = "value_capture_type = 'NEW_ROW', retention_period = '7d'"
        return MisconfiguredError(
            "change-stream-missing",
            f"database {self._database.name} has no change stream {self._change_stream}: {known}create it with "
            f"CREATE CHANGE STREAM {quoted(dialect, self._change_stream)} FOR ALL "
            f"{stream_options(dialect, options_of_it, new=True)}, or name the tables after FOR",
        )

    def _definition(self, stream: Sequence[Row], options_found: Sequence[Row]) -> StreamDefinition:
        dialect = self._database.dialect
        if not stream:
            raise self._no_stream(())
        options = {str(name): str(value) for name, value in options_found}
        return StreamDefinition(
            watches_everything=bool(stream[0][0]),
            value_capture_type=options.get("value_capture_type", _DEFAULT_CAPTURE),
            partition_mode=options.get("partition_mode", "IMMUTABLE_KEY_RANGE"),
            retention=_retention(options.get("retention_period", _DEFAULT_RETENTION)),
            exclusions=frozenset(
                name for name in (*EXCLUDING, TXN_EXCLUSION) if options.get(name, "").lower() == "true"
            ),
            dialect=dialect,
            retention_is_set="retention_period" in options,
        )

    @property
    def _sql(self) -> Mapping[str, str]:
        return catalog_sql(self._database.dialect)

    def _about(self, sql: str) -> Statement:
        return Statement(sql, {"p1": string(self._change_stream)})


@dataclass(frozen=True, slots=True)
class _Schema:
    """What the information schema says, row by row; keys and columns in their order."""

    definition: StreamDefinition
    tables: Sequence[Row]
    """That the stream names: schema, table, whether all of its columns are watched."""
    watched: Sequence[Row]
    """Columns that the stream names: schema, table, column."""
    keys: Sequence[Row]
    """Schema, table, column, order."""
    columns: Sequence[Row]
    """Schema, table, column, type, place, whether it is generated, has a default, may be NULL."""

    def tables_of(
        self, there: Collection[tuple[str, str]], dialect: Dialect
    ) -> Mapping[str, tuple[TableShape, WatchedTable | None]]:
        """Return tables by the names that records give them; beside each what the stream watches of it, if it does."""
        definition, default_schema = self.definition, catalog_sql(dialect)["default_schema"]
        listed = {(schema, table): bool(whole) for schema, table, whole in self.tables}
        some: dict[tuple[str, str], set[str]] = defaultdict(set)
        for schema, table, column in self.watched:
            some[schema, table].add(column)
        keys: dict[tuple[str, str], list[str]] = defaultdict(list)
        descending: dict[tuple[str, str], set[str]] = defaultdict(set)
        for schema, table, column, order in self.keys:
            keys[schema, table].append(column)
            if order == "DESC":
                descending[schema, table].add(column)
        columns: dict[tuple[str, str], list[tuple[SpannerColumnType, bool, bool]]] = defaultdict(list)
        for schema, table, column, spanner_type, ordinal, generated, has_default, nullable in self.columns:
            is_key = column in keys[schema, table]
            if is_key or not generated:  # of generated columns a record has those of the key
                kind = SpannerColumnType(column, type_json(spanner_type, dialect), is_key, int(ordinal))
                columns[schema, table].append((kind, bool(has_default), bool(nullable)))
        found: dict[str, tuple[TableShape, WatchedTable | None]] = {}
        for schema, table in sorted(there):
            place = (schema, table)
            name = table if schema == default_schema else f"{schema}.{table}"
            is_watched = definition.watches_everything or place in listed
            whole = definition.watches_everything or listed.get(place, False)
            shape = TableShape(
                tuple(
                    ColumnShape(
                        kind.name,
                        googlesql_type(kind.type),
                        is_key=kind.is_primary_key,
                        watched=whole or kind.is_primary_key or kind.name in some[place],
                        has_default=has_default,
                        nullable=nullable,
                    )
                    for kind, has_default, nullable in columns[place]
                ),
                watched=is_watched,
            )
            watched = None
            if is_watched:
                names = shape.watched_names
                types = tuple(kind for kind, _has_default, _nullable in columns[place] if kind.name in names)
                capture, down = definition.value_capture_type, frozenset(descending[place])
                watched = WatchedTable(name, tuple(keys[place]), types, capture, down)
            found[name] = shape, watched
        return found


def check_stream(change_stream: str, definition: StreamDefinition) -> None:
    """Refuse a change stream that cannot be mirrored, with the statement that fixes it."""
    if definition.partition_mode != "IMMUTABLE_KEY_RANGE":
        raise MisconfiguredError(
            "partition-mode-unsupported",
            f"change stream {change_stream} has partition_mode {definition.partition_mode}: its partitions change "
            "their key ranges while they live, which this version does not read. The mode cannot be altered: create "
            f"another stream without that option, and name it in CHANGE_STREAM",
        )
    left_out = leaves_out(change_stream, definition)
    if left_out is not None:
        raise MisconfiguredError("change-stream-leaves-out", left_out)


def whole_rows(change_stream: str, definition: StreamDefinition) -> str | None:
    """Return the statement by which the stream captures whole rows, so that no row has to be read; None if it does."""
    if definition.value_capture_type in WHOLE_ROW:
        return None
    whole = stream_options(definition.dialect, "value_capture_type = 'NEW_ROW'")
    return f"ALTER CHANGE STREAM {quoted(definition.dialect, change_stream)} {whole}"


def leaves_out(change_stream: str, definition: StreamDefinition) -> str | None:
    """Return which changes the stream keeps out of itself, with the statement that fixes it; None if it has all."""
    excluding = sorted(definition.exclusions & {*EXCLUDING})
    if not excluding:
        return None
    off = stream_options(definition.dialect, ", ".join(f"{name} = false" for name in excluding))
    return (
        f"change stream {change_stream} has {', '.join(excluding)}: changes that it leaves out never reach BigQuery. "
        f"Fix it with\n  ALTER CHANGE STREAM {quoted(definition.dialect, change_stream)} {off}\n"
        "and start after the time of that statement; tables that were read before get a resync request, for what was "
        "left out until then: `status` lists them"
    )


def may_leave_out(change_stream: str, definition: StreamDefinition) -> str | None:
    """Return the statement that forbids transactions to keep out of the stream; None if they cannot."""
    if TXN_EXCLUSION not in definition.exclusions:
        return None
    off = stream_options(definition.dialect, f"{TXN_EXCLUSION} = false")
    return f"ALTER CHANGE STREAM {quoted(definition.dialect, change_stream)} {off}"


def check_tables(change_stream: str, dialect: Dialect, tables: Sequence[WatchedTable]) -> None:
    """Refuse watched tables that have no primary key: there is nothing to upsert by."""
    without = [table.name for table in tables if not table.primary_key]
    if without:
        raise MisconfiguredError(
            "tables-without-key",
            f"change stream {change_stream} watches tables without a primary key: {', '.join(without)}. Leave them "
            f"out with ALTER CHANGE STREAM {quoted(dialect, change_stream)} SET FOR ..., or give them a key",
        )


def check_partition_table(
    change_stream: str, tables: Sequence[WatchedTable], definition: StreamDefinition, *, table: str, same_database: bool
) -> None:
    """Refuse a partition table that its own change stream watches: each save would be a change to save."""
    watched = definition.watches_everything or table in (one.name for one in tables)
    if same_database and watched:
        raise MisconfiguredError(
            "partition-table-watched",
            f"change stream {change_stream} would watch the reader's own partition table {table}: set "
            f"PARTITION_DATABASE to another database of the instance (create one), or name the stream's tables with "
            f"ALTER CHANGE STREAM {quoted(definition.dialect, change_stream)} SET FOR ...",
        )


def check_times(definition: StreamDefinition, *, start: Nanoseconds, end: Nanoseconds | None, now: Nanoseconds) -> None:
    """Refuse a start that the stream does not keep any more or that is still to come, and an end before the start."""
    earliest = Nanoseconds(now - int(definition.retention.total_seconds()) * 1_000_000_000)
    allowed = f"between {format_timestamp(earliest)} (the stream keeps {definition.retention}) and {_seconds(now)}"
    if start < earliest:
        raise MisconfiguredError(
            "start-too-old",
            f"START_TIMESTAMP {format_timestamp(start)} is older than what the change stream keeps: it has to be "
            f"{allowed}",
        )
    if start > now:
        raise MisconfiguredError(
            "start-in-future", f"START_TIMESTAMP {format_timestamp(start)} is in the future: it has to be {allowed}"
        )
    if end is not None and end < start:
        raise MisconfiguredError(
            "end-before-start",
            f"END_TIMESTAMP {format_timestamp(end)} is before the start, {format_timestamp(start)}: it has to be at "
            "or after it",
        )


async def check_start(
    stream: SpannerChangeStream, start: Nanoseconds, end: Nanoseconds | None, heartbeat: timedelta
) -> None:
    """Refuse a start that Spanner refuses (before the stream was created), before anything of it is remembered."""
    query = SpannerStreamQuery(ROOT, start, end, int(heartbeat / timedelta(milliseconds=1)))
    async with aclosing(stream.read(query)) as records:
        async for _record in records:
            return


def type_json(spanner_type: str, dialect: Dialect = Dialect.GOOGLESQL) -> str:
    """Return the JSON that a change record has for a column's type, such as ``STRING(64)``; lengths are not in it."""
    described = _type(spanner_type) if dialect is Dialect.GOOGLESQL else _pg_type(spanner_type)
    return msgspec.json.encode(described).decode()


def _type(spanner_type: str) -> Mapping[str, object]:
    array = _ARRAY.fullmatch(spanner_type)
    if array is not None:
        return {"code": "ARRAY", "array_element_type": _type(array[1])}
    named = _NAMED.fullmatch(spanner_type)
    if named is not None:
        return {"code": named[1], "proto_type_fqn": named[2]}
    return {"code": _LENGTH.sub("", spanner_type)}


def _pg_type(spanner_type: str) -> Mapping[str, object]:
    element, array, _vector_length = spanner_type.partition("[]")
    name = _PG_LENGTH.sub("", element).strip()
    described = _PG_TYPES.get(name, {"code": name})  # what it is not known by is passed on: the consumer says so
    return {"code": "ARRAY", "array_element_type": described} if array else described


def _retention(text: str) -> timedelta:
    match = _RETENTION.fullmatch(text.strip())
    if match is None:
        raise MisconfiguredError(
            "retention-not-understood",
            f"the change stream's retention_period {text!r} is in a form this version cannot read; set it "
            "in days, hours, minutes or seconds, as '7d'",
        )
    return timedelta(seconds=int(match[1]) * _SECONDS[match[2]])


def _seconds(instant: Nanoseconds) -> str:
    return format_timestamp(Nanoseconds(instant // 1_000_000_000 * 1_000_000_000))
