"""JSON objects to columns of text: the keys of many changes, or their rows, parsed together in C.

The fast way is `pyarrow.json` with an explicit schema over one line an object. It takes a block whole or refuses it,
and it is stricter than the wire (INT64 as a JSON integer, ``"NaN"`` among numbers), so a block that it refuses is
halved, and the last few are read one by one by `_exact_object`, which reports what is wrong and with which column.
Its values are the same as the fast way's; what they mean is decided in one place, `values`.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final, NoReturn

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from services.cdc_consumer.core.schema.tables import TableColumn
from services.cdc_consumer.core.types.arrays import by_halves, json_table, one_array
from services.cdc_consumer.core.types.types import ColumnType, is_known
from shared.contracts.errors import PoisonRecordError
from shared.contracts.reasons import Reason

_BLOCK_CHANGES: Final = 4096
"""Changes parsed at once: about what stays in a processor's cache, and what a bad one sends back to be halved."""
_BLOCK_LIMIT: Final = 1 << 28
"""Bytes parsed at once, at most: pyarrow counts a block in 32 bits."""

_OBJECT: Final = "o"
"""The one member of a line: pyarrow takes no line that is null."""

_NOT_A_NUMBER: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
"""FLOAT64 values that JSON has no numbers for; Spanner and BigQuery both write them as these texts."""

_AS_NUMBER: Final = frozenset({"FLOAT64", "FLOAT32"})
_AS_TEXT_OR_DIGITS: Final = frozenset({"INT64", "ENUM", "NUMERIC", "PG_NUMERIC"})
"""What is text, and in the documentation's examples a JSON number here and there."""


@dataclass(frozen=True, slots=True)
class Parsed:
    """Objects in columns. One that could not be parsed is NULL everywhere and named in ``refused``."""

    columns: Mapping[str, pa.Array]
    """Per column its values: BOOL, FLOAT64 and FLOAT32 (64 bits) as such, all others as the text they came in.

    Of a type that is not known, what is no JSON string is its JSON text.
    """
    there: pa.BooleanArray
    """Whether it is an object (and not null)."""
    refused: Mapping[int, tuple[Reason, str]]


def parse_objects(
    what: str, objects: Sequence[msgspec.Raw], columns: Sequence[TableColumn], ignored: frozenset[str] = frozenset()
) -> Parsed:
    """Return the columns of keys, or of rows; ``what`` they are, an error says.

    What objects hold under an ``ignored`` name is passed over, whatever it is.
    """
    schema = pa.schema([(_OBJECT, pa.struct([(column.name, parsed_type(column.type)) for column in columns]))])
    constants = _bare_constants(columns)
    refused: dict[int, tuple[Reason, str]] = {}

    def fast(start: int, stop: int) -> pa.Table | None:
        return _fast(schema, objects[start:stop], constants, ignored)

    def exact(start: int, stop: int) -> pa.Table:
        lines = []
        for index in range(start, stop):
            try:
                lines.append({_OBJECT: _exact_object(what, bytes(objects[index]), columns, ignored)})
            except PoisonRecordError as error:
                refused[index] = (error.reason, error.detail)
                lines.append({_OBJECT: None})
        return pa.Table.from_pylist(lines, schema=schema)

    starts = range(0, len(objects), _BLOCK_CHANGES)
    blocks = (by_halves(start, min(start + _BLOCK_CHANGES, len(objects)), fast, exact) for start in starts)
    parsed_blocks = list(chain.from_iterable(blocks)) or [schema.empty_table()]
    structs = one_array(pa.concat_tables(parsed_blocks).column(_OBJECT))
    names = [column.name for column in columns]
    return Parsed(dict(zip(names, structs.flatten(), strict=True)), structs.is_valid(), refused)


def parsed_type(kind: ColumnType) -> pa.DataType:
    """Return the Arrow type that values of a column type are parsed to."""
    if kind.element is not None:
        return pa.list_(parsed_type(kind.element))
    if kind.googlesql == "BOOL":
        return pa.bool_()
    return pa.float64() if kind.googlesql in _AS_NUMBER else pa.string()


def _fast(
    schema: pa.Schema, objects: Sequence[msgspec.Raw], constants: Sequence[tuple[bytes, bytes]], ignored: frozenset[str]
) -> pa.Table | None:
    """Return the objects as a table, or None if they cannot be taken as a whole."""
    # Each object is exactly one JSON value (the envelope was validated), so each line is exactly one document,
    # whatever white space is in it: no line can shift its neighbours against their message.
    text = b'{"o":' + b'}\n{"o":'.join(objects) + b"}\n"
    if len(text) > _BLOCK_LIMIT and len(objects) > 1:
        return None
    table, bare_words = _read(schema, text, ignored), False
    if table is None:
        numbers = text
        for quoted, bare in constants:
            numbers = numbers.replace(quoted, bare)
        table, bare_words = _read(schema, numbers, ignored) if numbers != text else None, True
    if table is None or table.num_rows != len(objects):
        return None
    infinities = _infinities(table)
    if not infinities:
        return table
    if ignored:  # they have words of their own, so the exact way decides
        return None
    # pyarrow takes a number beyond 64 bits for infinity: only as many are meant as there were words.
    words = sum(text.count(quoted) for quoted, bare in constants if bare.endswith(b"Infinity")) if bare_words else 0
    return table if infinities == words else None


def _infinities(table: pa.Table) -> int:
    """Return how many numbers of a table's objects are infinite."""
    columns = chain.from_iterable(chunk.flatten() for chunk in table.column(_OBJECT).chunks)
    numbers = (column.flatten() if pa.types.is_list(column.type) else column for column in columns)
    return sum(pc.sum(pc.is_inf(each)).as_py() or 0 for each in numbers if pa.types.is_floating(each.type))


def _read(schema: pa.Schema, text: bytes, ignored: frozenset[str]) -> pa.Table | None:
    table = json_table(schema, text, "infer" if ignored else "error")
    if ignored and table is not None:
        table = _without(table, schema, ignored)
    return table if table is not None and table.schema == schema else None


def _without(table: pa.Table, schema: pa.Schema, ignored: frozenset[str]) -> pa.Table | None:
    """Return a table without the ignored members of its objects; None if it has others that are not expected."""
    rows, wanted = table.column(_OBJECT), schema.field(_OBJECT).type
    if not {field.name for field in rows.type} - {field.name for field in wanted} <= ignored:
        return None
    chunks = [
        pa.StructArray.from_arrays(
            [chunk.field(field.name) for field in wanted], fields=list(wanted), mask=chunk.is_null()
        )
        for chunk in rows.chunks
    ]
    return table.set_column(0, schema.field(_OBJECT), pa.chunked_array(chunks, wanted))


def _bare_constants(columns: Sequence[TableColumn]) -> Sequence[tuple[bytes, bytes]]:
    """Return what to replace so that ``"NaN"``, ``"Infinity"``, ``"-Infinity"`` are bare words where numbers stand.

    pyarrow takes the bare words for numbers. In valid JSON a name in quotes, a colon and one of these in quotes can
    only be a member and its whole value: inside a string its quotes would be escaped. So a bracket or a comma and one
    of these in quotes can only be an element or a name; where it is a name, or an element that is a text, the block
    fails again and goes the exact way.
    """
    before = [f'"{each.name}":' for each in columns if each.type.googlesql in _AS_NUMBER]
    if any(each.type.element is not None and each.type.element.googlesql in _AS_NUMBER for each in columns):
        before += ["[", ","]
    return [(f'{each}"{word}"'.encode(), f"{each}{word}".encode()) for each in before for word in _NOT_A_NUMBER]


@dataclass(frozen=True, slots=True)
class _Number:
    """A JSON number's own text: nothing of it is lost in a float."""

    text: str
    whole: bool


def _exact_object(
    what: str, text: bytes, columns: Sequence[TableColumn], ignored: frozenset[str] = frozenset()
) -> Mapping[str, object] | None:
    try:
        value = _decoder.decode(text.decode())
    except (ValueError, RecursionError) as error:
        detail = str(error) if isinstance(error, _TwiceError) else "not JSON"
        raise PoisonRecordError(Reason.BAD_CHANGE, f"{what}: {detail}") from None
    if value is None:
        return None
    if not isinstance(value, dict):
        raise PoisonRecordError(Reason.BAD_CHANGE, f"{what} is not a JSON object")
    unknown = value.keys() - {column.name for column in columns} - ignored
    if unknown:
        name = min(unknown)[:80]
        raise PoisonRecordError(Reason.BAD_CHANGE, f"{what} has {name!r}, which is not one of the header's columns")
    return {column.name: _exact_value(column, value.get(column.name)) for column in columns}


def _exact_value(column: TableColumn, value: object) -> object:
    try:
        return _exact(column.type, value)
    except (_InvalidValueError, RecursionError) as error:
        what = f"column {column.name} of type {column.type.googlesql}"
        why = error if isinstance(error, _InvalidValueError) else "nested too deeply"
        raise PoisonRecordError(Reason.VALUE_DOES_NOT_FIT, f"{what}: {why}") from None


def _exact(kind: ColumnType, value: object) -> object:
    if value is None:
        return None
    if kind.element is not None:
        if not isinstance(value, list):
            raise _InvalidValueError("not a JSON array")
        try:
            return [_exact(kind.element, each) for each in value]
        except _InvalidValueError as error:
            raise _InvalidValueError(f"an element is {error}") from None
    match kind.googlesql, value:
        case "BOOL", bool():
            return value
        case "BOOL", _:
            raise _InvalidValueError("not a JSON boolean")
        case name, _Number() if name in _AS_NUMBER and math.isfinite(float(value.text)):
            return float(value.text)
        case name, str() if name in _AS_NUMBER and value in _NOT_A_NUMBER:
            return _NOT_A_NUMBER[value]
        case name, _ if name in _AS_NUMBER:
            raise _InvalidValueError('neither a JSON number of 64 bits nor "NaN", "Infinity", "-Infinity"')
        case name, _Number(whole=True) if name in _AS_TEXT_OR_DIGITS:
            return value.text
        case _, str():
            return value
        case _, _ if not is_known(kind):
            return _json_text(value)
        case _, _:
            raise _InvalidValueError("not a JSON string")


def _json_text(value: object) -> str:
    """Return a decoded value as compact JSON, each number as it was written."""
    match value:
        case _Number():
            return value.text
        case dict():
            return "{" + ",".join(f"{json.dumps(name)}:{_json_text(each)}" for name, each in value.items()) + "}"
        case list():
            return "[" + ",".join(map(_json_text, value)) + "]"
        case _:
            return json.dumps(value)


class _InvalidValueError(ValueError):
    """A JSON value is of another kind than its column's type is written in."""


class _TwiceError(ValueError):
    """A JSON object names a member twice: which one is meant cannot be known."""


def _object(pairs: Sequence[tuple[str, object]]) -> Mapping[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise _TwiceError("a JSON object has a member twice")
    return found


def _refuse_constant(_text: str) -> NoReturn:
    raise ValueError("NaN and Infinity are not JSON")


_decoder: Final = json.JSONDecoder(
    object_pairs_hook=_object,
    parse_int=lambda text: _Number(text, whole=True),
    parse_float=lambda text: _Number(text, whole=False),
    parse_constant=_refuse_constant,
)
