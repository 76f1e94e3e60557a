"""Whether BigQuery equals its source: every row and every column of every table by value, and exactly what differs.

*Equal* is what the type map defines: TIMESTAMP to the microsecond, NaN equal to NaN, NUMERIC and JSON by value, an
array that is NULL equal to an empty one, and a key of BYTES, FLOAT64 or FLOAT32 a text.
"""

import base64
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final

from deploy.local.platform.source import SpannerDatabase
from deploy.local.platform.target import COMMIT_TIMESTAMP, SEQUENCE, BigQueryDataset

NAMED: Final = 10
"""How many differences of one table are spelt out."""


@dataclass(frozen=True, slots=True)
class TableShape:
    """A table of the source: its columns with their GoogleSQL types, and its primary key."""

    name: str
    columns: Mapping[str, str]
    key: Sequence[str]
    source: str = "Spanner"


@dataclass(slots=True)
class TableComparison:
    """What comparing one table came to."""

    table: str
    rows: int = 0
    differing: int = 0
    named: list[str] = field(default_factory=list)

    @property
    def equal(self) -> bool:
        """Return whether nothing differs."""
        return self.differing == 0

    def differs(self, what: str) -> None:
        """Count a difference, and spell out the first ones."""
        self.differing += 1
        if len(self.named) < NAMED:
            self.named.append(what)


def compare_tables(source: SpannerDatabase, target: BigQueryDataset, tables: Iterable[str]) -> list[TableComparison]:
    """Read every table whole on both sides and compare; Spanner by strong reads, so stop writing first."""
    shapes = {table: shape for table, shape in table_shapes(source).items() if table in set(tables)}
    missing = sorted(set(tables) - shapes.keys())
    if missing:
        raise ValueError(f"not in Spanner: {', '.join(missing)}")
    quote = '"' if source.postgresql else "`"
    return [compare(shape, source.query(_select(shape, quote)), target.rows(name)) for name, shape in shapes.items()]


def table_shapes(source: SpannerDatabase) -> dict[str, TableShape]:
    """Return every table of a database that is in no named schema."""
    schema = "public" if source.postgresql else ""
    columns: dict[str, dict[str, str]] = {}
    for row in source.query(
        "SELECT table_name, column_name, spanner_type FROM information_schema.columns "
        f"WHERE table_schema = '{schema}' ORDER BY table_name, ordinal_position"
    ):
        kind = str(row["spanner_type"])
        columns.setdefault(str(row["table_name"]), {})[str(row["column_name"])] = (
            _googlesql(kind) if source.postgresql else kind
        )
    keys: dict[str, list[str]] = {}
    for row in source.query(
        "SELECT table_name, column_name FROM information_schema.index_columns "
        f"WHERE table_schema = '{schema}' AND index_type = 'PRIMARY_KEY' ORDER BY table_name, ordinal_position"
    ):
        keys.setdefault(str(row["table_name"]), []).append(str(row["column_name"]))
    return {table: TableShape(table, columns[table], key) for table, key in keys.items()}


def compare(
    shape: TableShape, source: Sequence[Mapping[str, Any]], target: Sequence[Mapping[str, Any]] | None
) -> TableComparison:
    """Compare the rows of one table; None as the target's rows means that it has no such table."""
    result = TableComparison(shape.name, len(source))
    if target is None:
        result.differs(f"{shape.name}: no such table in BigQuery")
        return result
    wanted = {_key(shape, row): row for row in source}
    seen: set[tuple[Any, ...]] = set()
    for row in (_with_keys_as_in_source(shape, row) for row in target):
        key = _key(shape, row)
        if key in seen:
            result.differs(f"{_name(shape, row)}: twice in BigQuery")
        elif key not in wanted:
            result.differs(f"{_name(shape, row)}: in BigQuery and not in {shape.source}{_applied(row)}")
        else:
            for what in _differences(shape, wanted[key], row):
                result.differs(f"{_name(shape, row)}: {what}{_applied(row)}")
        seen.add(key)
    for key, row in wanted.items():
        if key not in seen:
            result.differs(f"{_name(shape, row)}: in {shape.source} and not in BigQuery")
    return result


def canonical(googlesql: str, value: Any) -> Any:
    """Return a value in the one form that equals that of an equal value of the same type."""
    if googlesql.startswith("ARRAY<"):
        element = googlesql.removeprefix("ARRAY<").partition(">")[0]
        return ("array", tuple(canonical(_base(element), each) for each in value or ()))
    match value:
        case None | bool() | bytes():
            return (type(value).__name__, value)
        case float() if googlesql.startswith("FLOAT"):
            return ("float", "NaN" if math.isnan(value) else value)
        case int() if googlesql == "INT64":
            return ("int", value)
        case Decimal() if googlesql in ("NUMERIC", "BIGNUMERIC"):
            return ("decimal", value)
        case datetime() if googlesql == "TIMESTAMP":
            return ("timestamp", value.astimezone(UTC))
        case _ if googlesql == "JSON":
            return ("json", _json(value))
        case _:
            return (type(value).__name__, value)


def _json(value: Any) -> Any:
    """Make a JSON value hashable and keep apart what Python takes for equal: true and 1."""
    match value:
        case dict():
            return ("object", frozenset((name, _json(item)) for name, item in value.items()))
        case list():
            return ("array", tuple(_json(item) for item in value))
        case bool():
            return ("bool", value)
        case _:
            return value


def _differences(shape: TableShape, source: Mapping[str, Any], target: Mapping[str, Any]) -> list[str]:
    differences = []
    for column, googlesql in shape.columns.items():
        if column not in target:
            differences.append(f"column {column} is not in BigQuery")
        elif canonical(_base(googlesql), source[column]) != canonical(_base(googlesql), target[column]):
            both = f"{target[column]!r} in BigQuery and {source[column]!r} in {shape.source}"
            differences.append(f"{column} is {both}")
    ours = {SEQUENCE, COMMIT_TIMESTAMP}
    others = [name for name in target if name not in shape.columns.keys() | ours]
    differences += [f"column {name} is not in {shape.source}" for name in others]
    return differences


def _base(googlesql: str) -> str:
    return googlesql if googlesql.startswith("ARRAY<") else googlesql.partition("(")[0]


def _with_keys_as_in_source(shape: TableShape, row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a row of BigQuery with the key columns that are a text there as the values that they stand for."""
    texts = {column: row[column] for column in shape.key if isinstance(row.get(column), str)}
    meant = {column: _meant(_base(shape.columns[column]), text) for column, text in texts.items()}
    return {**row, **meant}


def _meant(googlesql: str, text: str) -> Any:
    match googlesql:
        case "BYTES":
            return base64.b64decode(text, validate=True)
        case "FLOAT64" | "FLOAT32":
            return float(text)
        case _:
            return text


def _key(shape: TableShape, row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(canonical(_base(shape.columns[column]), row.get(column)) for column in shape.key)


def _name(shape: TableShape, row: Mapping[str, Any]) -> str:
    return f"{shape.name}[{', '.join(str(row.get(column)) for column in shape.key)}]"


def _applied(row: Mapping[str, Any]) -> str:
    return f" (applied: {row.get(SEQUENCE)})"


def _select(shape: TableShape, quote: str) -> str:
    columns = ", ".join(f"{quote}{column}{quote}" for column in shape.columns)
    return f"SELECT {columns} FROM {quote}{shape.name}{quote}"


_OF_POSTGRESQL: Final = {
    "boolean": "BOOL",
    "bigint": "INT64",
    "double precision": "FLOAT64",
    "real": "FLOAT32",
    "numeric": "PG_NUMERIC",
    "character varying": "STRING",
    "bytea": "BYTES",
    "date": "DATE",
    "timestamp with time zone": "TIMESTAMP",
    "spanner.commit_timestamp": "TIMESTAMP",
    "jsonb": "JSON",
}


def _googlesql(postgresql: str) -> str:
    """Return the GoogleSQL name of one of PostgreSQL's types; what has none stays itself."""
    element, array, _ = postgresql.partition("[]")
    name = _base(element)
    return f"ARRAY<{_OF_POSTGRESQL.get(name, name)}>" if array else _OF_POSTGRESQL.get(name, name)
