"""What the tables file says of a Bigtable table, beside what it says of every table.

    [tables."weather"]
    mode = "both"                     # mirror: rows as they are now; history: a change log; both
    row_key = "STRING"                # or BYTES, where row keys are not text (UTF-8)
    key_prefixes = ["station#"]       # only rows whose keys begin so; default: all
    families = ["*"]                  # shell patterns of column families; each is a JSON column of the mirror
    excluded_families = []
    excluded_columns = ["cf:debug"]   # family:qualifier
    values = "base64"                 # a value in a family's JSON: base64 | text | json
    qualifiers = "text"               # a qualifier there, and in the change log: text | base64
    versions = 1                      # how many versions of a cell a family's JSON has, newest first
    cell_timestamps = false           # whether each value there has its timestamp beside it
    garbage_collection = "include"    # in the change log: include | exclude
    strip_values = false              # a change log without values
    timestamps = "TIMESTAMP"          # in the change log, or INT64 where cells' are no times

    [tables."weather".columns.temperature]        # a column of its own, and out of its family's JSON
    cell = "cf:temp"
    type = "FLOAT64"
    encoding = "text"                 # text | big_endian | bytes
    timestamp = "temperature_at"      # one more column, with the time of the cell

    [tables."weather".columns.station]            # a family's JSON under a name of its own
    family = "s"
    values = "text"

A change log's values are BYTES. What is text and turns out not to be UTF-8 is a dead letter, never a guess.
"""

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

from shared.contracts.column_options import RESERVED_PREFIXES
from shared.contracts.option_values import (
    NestedMistakesError,
    boolean,
    kind_of,
    one_of,
    patterns_if_any,
    shown,
    text,
    texts,
    whole_number,
)

KeyType = Literal["STRING", "BYTES"]
ValueEncoding = Literal["base64", "text", "json"]
QualifierEncoding = Literal["text", "base64"]
CellType = Literal["STRING", "BYTES", "INT64", "FLOAT64", "FLOAT32", "BOOL", "NUMERIC", "DATE", "TIMESTAMP", "JSON"]
CellEncoding = Literal["text", "big_endian", "bytes"]
GarbageCollection = Literal["include", "exclude"]
TimestampType = Literal["TIMESTAMP", "INT64"]

ROW_KEY: Final = "row_key"
"""The mirror's key column."""

_ENCODINGS: Final[Mapping[str, tuple[CellEncoding, ...]]] = {
    "STRING": ("text",),
    "BYTES": ("bytes",),
    "INT64": ("text", "big_endian"),
    "FLOAT64": ("text", "big_endian"),
    "FLOAT32": ("text", "big_endian"),
    "BOOL": ("text", "big_endian"),
    "NUMERIC": ("text",),
    "DATE": ("text",),
    "TIMESTAMP": ("text",),
    "JSON": ("text",),
}
"""The first is the default."""
_MOST_VERSIONS: Final = 10_000
_COLUMN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,299}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class CellColumn:
    """A column that holds the newest version of one cell. NULL where the row has none."""

    name: str
    family: str
    qualifier: bytes
    type: CellType = "STRING"
    encoding: CellEncoding = "text"
    timestamp: str | None = None
    """The column that holds the time of the cell; None: none does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyColumn:
    """A column that holds a family as JSON, under a name or with encodings of its own. None: as the table has it."""

    name: str
    family: str
    values: ValueEncoding | None = None
    qualifiers: QualifierEncoding | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BigtableOptions:
    """The options of one Bigtable table."""

    row_key: KeyType = "STRING"
    key_prefixes: tuple[str, ...] = ()
    families: tuple[str, ...] = ("*",)
    excluded_families: tuple[str, ...] = ()
    excluded_columns: tuple[tuple[str, bytes], ...] = ()
    values: ValueEncoding = "base64"
    qualifiers: QualifierEncoding = "text"
    versions: int = 1
    cell_timestamps: bool = False
    garbage_collection: GarbageCollection = "include"
    strip_values: bool = False
    timestamps: TimestampType = "TIMESTAMP"
    columns: tuple[CellColumn | FamilyColumn, ...] = ()

    @property
    def cell_columns(self) -> tuple[CellColumn, ...]:
        """Return the columns of single cells, in the file's order."""
        return tuple(column for column in self.columns if isinstance(column, CellColumn))

    @property
    def family_columns(self) -> Mapping[str, FamilyColumn]:
        """Return the columns of families that have a name or encodings of their own, by family."""
        return {column.family: column for column in self.columns if isinstance(column, FamilyColumn)}


def _cell(value: object) -> tuple[str, bytes]:
    name = text(value)
    family, colon, qualifier = name.partition(":")
    if not colon or not family:
        raise ValueError(f'{shown(name)} is not "family:qualifier"')
    return family, qualifier.encode()


def _cells(value: object) -> tuple[tuple[str, bytes], ...]:
    return tuple(_cell(each) for each in texts(value))


def _columns(value: object) -> tuple[CellColumn | FamilyColumn, ...]:
    if not isinstance(value, dict):
        raise ValueError(f'not sections, but {kind_of(value)}; write [tables."T".columns.NAME]')  # noqa: TRY004  a mistake of the file's
    mistakes: list[tuple[tuple[str, ...], str]] = []
    columns: list[CellColumn | FamilyColumn] = []
    for name, section in value.items():
        column = _column(name, section, mistakes)
        if column is not None:
            columns.append(column)
    mistakes += _taken_twice(columns)
    if mistakes:
        raise NestedMistakesError(mistakes)
    return tuple(columns)


def _column(
    name: str, section: object, mistakes: list[tuple[tuple[str, ...], str]]
) -> CellColumn | FamilyColumn | None:
    """Return a column, or None and what is wrong with it."""
    before = len(mistakes)
    if not isinstance(section, dict):
        mistakes.append(((name,), f"column {name}: not a section, but {kind_of(section)}"))
        return None
    if (wrong := _wrong_name(name)) is not None:
        mistakes.append(((name,), wrong))
    of_a_family = "family" in section and "cell" not in section
    readers = _FAMILY_KEYS if of_a_family else _CELL_KEYS
    options: dict[str, Any] = {}
    for key, content in section.items():
        if key not in readers:
            nearest = difflib.get_close_matches(key, readers, n=1, cutoff=0.0)[0]
            hint = f"unknown key {shown(key)}; the nearest known one is {nearest}"
            mistakes.append(((name, key), f"column {name}: {hint}"))
            continue
        try:
            options[key] = readers[key](content)
        except ValueError as error:
            mistakes.append(((name, key), f"column {name}: {key}: {error}"))
    if "cell" not in section and "family" not in section:
        mistakes.append(((name,), f'column {name}: say of which cell = "family:qualifier" it is, or of which family'))
    if len(mistakes) > before:
        return None
    if of_a_family:
        return FamilyColumn(name=name, **options)
    return _cell_column(name, options, mistakes)


def _cell_column(name: str, options: dict[str, Any], mistakes: list[tuple[tuple[str, ...], str]]) -> CellColumn | None:
    family, qualifier = options.pop("cell")
    kind = options.get("type", "BYTES" if options.get("encoding") == "bytes" else "STRING")
    encoding = options.get("encoding", _ENCODINGS[kind][0])
    if encoding not in _ENCODINGS[kind]:
        takes = " or ".join(_ENCODINGS[kind])
        mistakes.append(((name, "encoding"), f"column {name}: {kind} is encoded as {takes}, not as {encoding}"))
        return None
    options |= {"type": kind, "encoding": encoding}
    return CellColumn(name=name, family=family, qualifier=qualifier, **options)


def _taken_twice(columns: list[CellColumn | FamilyColumn]) -> list[tuple[tuple[str, ...], str]]:
    mistakes: list[tuple[tuple[str, ...], str]] = []
    owners: dict[str, str] = {ROW_KEY: "the row's key"}
    families: dict[str, str] = {}
    for column in columns:
        names: list[tuple[tuple[str, ...], str]] = [((column.name,), column.name)]
        if isinstance(column, CellColumn) and column.timestamp is not None:
            names.append(((column.name, "timestamp"), column.timestamp))
        for path, name in names:
            owner = owners.get(name.lower())  # BigQuery does not distinguish upper from lower case
            if owner is not None:
                mistakes.append((path, f"column {column.name}: the name {name} is taken by {owner}"))
            owners[name.lower()] = f"column {column.name}"
        if isinstance(column, FamilyColumn):
            owner = families.setdefault(column.family, column.name)
            if owner != column.name:
                what = f"column {column.name}: family {column.family} is column {owner} already"
                mistakes.append(((column.name,), what))
    return mistakes


def _wrong_name(name: str) -> str | None:
    if _COLUMN.fullmatch(name) is None:
        return f"column name {shown(name)}: letters, digits and '_', not a digit first, 1 to 300 characters"
    reserved = next((prefix for prefix in RESERVED_PREFIXES if name.upper().startswith(prefix)), None)
    if reserved is not None:
        return f"column name {shown(name)}: no column of BigQuery may begin with {reserved}; give it another name"
    return None


def _column_name(value: object) -> str:
    name = text(value)
    if (wrong := _wrong_name(name)) is not None:
        raise ValueError(wrong)
    return name


_CELL_KEYS: Final[Mapping[str, Callable[[object], object]]] = {
    "cell": _cell,
    "type": one_of(get_args(CellType)),
    "encoding": one_of(get_args(CellEncoding)),
    "timestamp": _column_name,
}
_FAMILY_KEYS: Final[Mapping[str, Callable[[object], object]]] = {
    "family": text,
    "values": one_of(get_args(ValueEncoding)),
    "qualifiers": one_of(get_args(QualifierEncoding)),
}

BIGTABLE_OPTIONS: Final[Mapping[str, Callable[[object], object]]] = {
    "row_key": one_of(get_args(KeyType)),
    "key_prefixes": texts,
    "families": patterns_if_any,
    "excluded_families": patterns_if_any,
    "excluded_columns": _cells,
    "values": one_of(get_args(ValueEncoding)),
    "qualifiers": one_of(get_args(QualifierEncoding)),
    "versions": whole_number(1, _MOST_VERSIONS),
    "cell_timestamps": boolean,
    "garbage_collection": one_of(get_args(GarbageCollection)),
    "strip_values": boolean,
    "timestamps": one_of(get_args(TimestampType)),
    "columns": _columns,
}
