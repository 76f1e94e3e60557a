"""What the database says of the change stream and its tables, and the checks before a start.

Whatever could only go wrong later is refused here, each with what mends it.
"""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import msgspec
import structlog

from services.spanner_reader.adapters.change_stream import SpannerChangeStream
from services.spanner_reader.adapters.connection import Database, Statement, string
from services.spanner_reader.core.changes import WHOLE_ROW
from services.spanner_reader.core.records import ROOT, ColumnType, StreamQuery
from services.spanner_reader.ports import WatchedTable
from shared.contracts.errors import MisconfiguredError
from shared.contracts.timestamps import Nanoseconds, format_timestamp, parse_timestamp

_DEFAULT_CAPTURE: Final = "OLD_AND_NEW_VALUES"
_EXCLUDING: Final = ("exclude_insert", "exclude_update", "exclude_delete", "exclude_ttl_deletes")
_TXN_EXCLUSION: Final = "allow_txn_exclusion"
_DEFAULT_RETENTION: Final = "1d"
_RETENTION: Final = re.compile(r"(\d+)([smhd])", re.ASCII)
_SECONDS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_LENGTH: Final = re.compile(r"\((?:\d+|0x[0-9a-fA-F]+|MAX)\)")
_ARRAY: Final = re.compile(r"ARRAY<(.+)>(?:\(.*\))?", re.ASCII)

_STREAM: Final = "SELECT `ALL` FROM INFORMATION_SCHEMA.CHANGE_STREAMS WHERE CHANGE_STREAM_NAME = @change_stream"
_OPTIONS: Final = """SELECT OPTION_NAME, OPTION_VALUE FROM INFORMATION_SCHEMA.CHANGE_STREAM_OPTIONS
WHERE CHANGE_STREAM_NAME = @change_stream"""
_TABLES: Final = """SELECT TABLE_SCHEMA, TABLE_NAME, ALL_COLUMNS FROM INFORMATION_SCHEMA.CHANGE_STREAM_TABLES
WHERE CHANGE_STREAM_NAME = @change_stream"""
_COLUMNS: Final = """SELECT TABLE_SCHEMA, TABLE_NAME, COLUMN_NAME FROM INFORMATION_SCHEMA.CHANGE_STREAM_COLUMNS
WHERE CHANGE_STREAM_NAME = @change_stream"""
_ALL_TABLES: Final = """SELECT TABLE_SCHEMA, TABLE_NAME, TRUE FROM INFORMATION_SCHEMA.TABLES
WHERE TABLE_TYPE = 'BASE TABLE' AND TABLE_SCHEMA NOT IN ('INFORMATION_SCHEMA', 'SPANNER_SYS')"""
_ALL_KEYS: Final = """SELECT TABLE_SCHEMA, TABLE_NAME, COLUMN_NAME FROM INFORMATION_SCHEMA.INDEX_COLUMNS
WHERE INDEX_TYPE = 'PRIMARY_KEY' ORDER BY ORDINAL_POSITION"""
_ALL_COLUMNS: Final = """SELECT TABLE_SCHEMA, TABLE_NAME, COLUMN_NAME, SPANNER_TYPE, ORDINAL_POSITION
FROM INFORMATION_SCHEMA.COLUMNS
WHERE IS_GENERATED = 'NEVER' AND TABLE_SCHEMA NOT IN ('INFORMATION_SCHEMA', 'SPANNER_SYS') ORDER BY ORDINAL_POSITION"""


@dataclass(frozen=True, slots=True)
class StreamDefinition:
    """A change stream as the database defines it."""

    watches_everything: bool
    value_capture_type: str
    partition_mode: str
    retention: timedelta
    exclusions: frozenset[str] = frozenset()
    """The options that are on and keep changes out of the stream."""


class SpannerCatalog:
    """The change stream, its tables, and Spanner's clock."""

    def __init__(self, database: Database, change_stream: str) -> None:
        self._database = database
        self._change_stream = change_stream

    async def now(self) -> Nanoseconds:
        """Return Spanner's time."""
        ((now,),) = await self._database.query(Statement("SELECT CURRENT_TIMESTAMP()"))
        return parse_timestamp(now)

    async def definition(self) -> StreamDefinition:
        """Return the change stream's definition; MisconfiguredError where there is none."""
        found = await self._database.query(self._about(_STREAM))
        if not found:
            raise MisconfiguredError(
                f"database {self._database.name} has no change stream {self._change_stream}: create it with "
                f"CREATE CHANGE STREAM {self._change_stream} FOR ALL OPTIONS (value_capture_type = 'NEW_ROW', "
                "retention_period = '7d'), or name the tables after FOR"
            )
        options = {str(name): str(value) for name, value in await self._database.query(self._about(_OPTIONS))}
        return StreamDefinition(
            watches_everything=bool(found[0][0]),
            value_capture_type=options.get("value_capture_type", _DEFAULT_CAPTURE),
            partition_mode=options.get("partition_mode", "IMMUTABLE_KEY_RANGE"),
            retention=_retention(options.get("retention_period", _DEFAULT_RETENTION)),
            exclusions=frozenset(
                name for name in (*_EXCLUDING, _TXN_EXCLUSION) if options.get(name, "").lower() == "true"
            ),
        )

    async def watched_tables(self) -> Sequence[WatchedTable]:
        """Return the watched tables as they are now."""
        definition = await self.definition()
        tables = await self._database.query(
            Statement(_ALL_TABLES) if definition.watches_everything else self._about(_TABLES)
        )
        some: dict[tuple[str, str], set[str]] = defaultdict(set)
        for schema, table, column in await self._database.query(self._about(_COLUMNS)):
            some[schema, table].add(column)
        keys: dict[tuple[str, str], list[str]] = defaultdict(list)
        for schema, table, column in await self._database.query(Statement(_ALL_KEYS)):
            keys[schema, table].append(column)
        columns: dict[tuple[str, str], list[ColumnType]] = defaultdict(list)
        for schema, table, column, spanner_type, ordinal in await self._database.query(Statement(_ALL_COLUMNS)):
            is_key = column in keys[schema, table]
            columns[schema, table].append(ColumnType(column, type_json(spanner_type), is_key, int(ordinal)))
        return [
            WatchedTable(
                f"{schema}.{table}" if schema else table,
                tuple(keys[schema, table]),
                tuple(
                    column
                    for column in columns[schema, table]
                    if all_columns or column.is_primary_key or column.name in some[schema, table]
                ),
                definition.value_capture_type,
            )
            for schema, table, all_columns in sorted(tables, key=tuple)
        ]

    def _about(self, sql: str) -> Statement:
        return Statement(sql, {"change_stream": string(self._change_stream)})


def check_stream(change_stream: str, definition: StreamDefinition) -> None:
    """Refuse a change stream that cannot be mirrored, with the statement that mends it."""
    if definition.partition_mode != "IMMUTABLE_KEY_RANGE":
        raise MisconfiguredError(
            f"change stream {change_stream} has partition_mode {definition.partition_mode}: its partitions change "
            "their key ranges while they live, which this version does not read. The mode cannot be altered: create "
            f"another stream without that option, and name it in CHANGE_STREAM"
        )
    if definition.value_capture_type not in WHOLE_ROW:
        raise MisconfiguredError(
            f"change stream {change_stream} has value_capture_type {definition.value_capture_type}: its updates carry "
            "only the columns that changed, and writing them would blank the rest. Mend it with\n"
            f"  ALTER CHANGE STREAM {change_stream} SET OPTIONS (value_capture_type = 'NEW_ROW')\n"
            "or with 'NEW_ROW_AND_OLD_VALUES', and start after the time of that statement"
        )
    excluding = sorted(definition.exclusions & {*_EXCLUDING})
    if excluding:
        raise MisconfiguredError(
            f"change stream {change_stream} has {', '.join(excluding)}: changes that it leaves out would never reach "
            f"BigQuery. Mend it with\n  ALTER CHANGE STREAM {change_stream} SET OPTIONS "
            f"({', '.join(f'{name} = false' for name in excluding)})\n"
            "and start after the time of that statement"
        )
    if _TXN_EXCLUSION in definition.exclusions:
        structlog.get_logger().warning(
            "transactions_can_be_excluded",
            change_stream=change_stream,
            fix="transactions that ask to be left out of change streams never reach BigQuery; "
            f"ALTER CHANGE STREAM {change_stream} SET OPTIONS ({_TXN_EXCLUSION} = false) forbids them",
        )


def check_tables(change_stream: str, tables: Sequence[WatchedTable]) -> None:
    """Refuse watched tables that have no primary key: there is nothing to upsert by."""
    without = [table.name for table in tables if not table.primary_key]
    if without:
        raise MisconfiguredError(
            f"change stream {change_stream} watches tables without a primary key: {', '.join(without)}. Leave them "
            f"out with ALTER CHANGE STREAM {change_stream} SET FOR ..., or give them a key"
        )


def check_partition_table(
    change_stream: str, tables: Sequence[WatchedTable], definition: StreamDefinition, *, table: str, same_database: bool
) -> None:
    """Refuse a partition table that its own change stream watches: each save would be a change to save."""
    watched = definition.watches_everything or table in (one.name for one in tables)
    if same_database and watched:
        raise MisconfiguredError(
            f"change stream {change_stream} would watch the reader's own partition table {table}: set "
            f"PARTITION_DATABASE to another database of the instance (create one), or name the stream's tables with "
            f"ALTER CHANGE STREAM {change_stream} SET FOR ..."
        )


def check_times(definition: StreamDefinition, *, start: Nanoseconds, end: Nanoseconds | None, now: Nanoseconds) -> None:
    """Refuse a start that the stream does not keep any more or that is still to come, and an end before the start."""
    earliest = Nanoseconds(now - int(definition.retention.total_seconds()) * 1_000_000_000)
    allowed = f"between {format_timestamp(earliest)} (the stream keeps {definition.retention}) and {_seconds(now)}"
    if start < earliest:
        raise MisconfiguredError(
            f"START_TIMESTAMP {format_timestamp(start)} is older than what the change stream keeps: it has to be "
            f"{allowed}"
        )
    if start > now:
        raise MisconfiguredError(f"START_TIMESTAMP {format_timestamp(start)} is still to come: it has to be {allowed}")
    if end is not None and end < start:
        raise MisconfiguredError(
            f"END_TIMESTAMP {format_timestamp(end)} is before the start, {format_timestamp(start)}: it has to be at "
            "or after it"
        )


async def check_start(stream: SpannerChangeStream, query: StreamQuery) -> None:
    """Refuse a start that Spanner refuses (before the stream was created), before anything of it is remembered."""
    if query.token != ROOT:
        raise ValueError("only the first query says whether a start is good")
    async with aclosing(stream.read(query)) as records:
        async for _record in records:
            return


def type_json(spanner_type: str) -> str:
    """Return the JSON that a change record has for a column's type, such as ``STRING(64)``; lengths are not in it."""
    return msgspec.json.encode(_type(spanner_type)).decode()


def _type(spanner_type: str) -> Mapping[str, object]:
    array = _ARRAY.fullmatch(spanner_type)
    if array is not None:
        return {"code": "ARRAY", "array_element_type": _type(array[1])}
    return {"code": _LENGTH.sub("", spanner_type)}


def _retention(text: str) -> timedelta:
    match = _RETENTION.fullmatch(text.strip())
    if match is None:
        raise MisconfiguredError(f"the change stream's retention_period {text!r} is in a form this version cannot read")
    return timedelta(seconds=int(match[1]) * _SECONDS[match[2]])


def _seconds(instant: Nanoseconds) -> str:
    return format_timestamp(Nanoseconds(instant // 1_000_000_000 * 1_000_000_000))
