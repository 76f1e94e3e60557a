"""Types and functions of GoogleSQL that DuckDB has under another name, in another form, or not at all.

sqlglot, which reads and writes both dialects, knows most of them; these are the rest. What is written as a literal is
checked here as BigQuery does. `column_types` documents stored types; of those that DuckDB does not have, a value
is made of a literal (a BIGNUMERIC of anything that has a number's text), and no operation is served but comparison,
order and what takes them apart.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final, TypeVar

import sqlglot
from sqlglot import exp

from emulators.bigquery import decimals
from emulators.bigquery.civil_times import datetime_microseconds, time_microseconds, timestamp_microseconds
from emulators.bigquery.column_types import (
    BIGNUMERIC,
    BOUNDED,
    DATETIME,
    END,
    GEOGRAPHY,
    START,
    TEXT,
    TIMESTAMP,
    UNITS,
    ColumnType,
    column_type,
    range_type,
)
from emulators.bigquery.decimals import BIGNUMERIC_OF
from emulators.bigquery.errors import ApiError, invalid_query
from emulators.bigquery.geographies import geography_text
from emulators.bigquery.intervals import Interval, parse_interval, parse_span
from emulators.bigquery.texts import FORMATTED, JSON_OF, TEXT_OF

_Type = exp.DataType.Type
_T = TypeVar("_T")
_DUCKDB: Final = "duckdb"
"""Marks a type that is DuckDB's already."""
_TIMESTAMPS: Final = (
    exp.Timestamp,
    exp.TimestampAdd,
    exp.TimestampSub,
    exp.TimestampTrunc,
    exp.UnixToTime,
    exp.StrToTime,
)
_DATETIMES: Final = (
    exp.TsOrDsToDatetime,
    exp.Datetime,
    exp.DatetimeAdd,
    exp.DatetimeSub,
    exp.DatetimeTrunc,
    exp.ParseDatetime,
    exp.TimestampFromParts,
)


def adapt(statement: exp.Expr, now: int) -> None:
    """Put a statement's types and functions into forms that DuckDB takes; ApiError for a literal that is none.

    ``now``, in microseconds since the epoch, is the time of the statement.
    """
    _make_floats(statement)
    for node in reversed(list(statement.walk())):  # what is inside first
        replacement = _replacement(node, now)
        if replacement is not None:
            node.replace(replacement)
    for data_type in list(statement.find_all(exp.DataType)):
        _adapt_type(data_type)
    for node in reversed(list(statement.find_all(*_TIMESTAMPS, *_DATETIMES))):
        stored_as = TIMESTAMP if isinstance(node, _TIMESTAMPS) else DATETIME
        node.replace(_cast(node.copy(), stored_as))


def _make_floats(statement: exp.Expr) -> None:
    """Make a number with a point or an exponent a FLOAT64, as it is in GoogleSQL; but where it is cast to a decimal."""
    for node in list(statement.find_all(exp.Literal)):
        if node.is_string or node.name.isdigit() or node.name.lower().startswith("0x"):
            continue
        within = node.parent
        while isinstance(within, exp.Neg | exp.Paren):
            within = within.parent
        exact = isinstance(within, exp.Cast) and within.to.this in (_Type.DECIMAL, _Type.BIGDECIMAL, _Type.DOUBLE)
        if not exact and not isinstance(within, exp.DataTypeParam | exp.Interval):
            node.replace(exp.cast(node.copy(), "DOUBLE"))


def bignumeric(value: exp.Expr) -> exp.Expr | None:
    """Return a BIGNUMERIC made of a literal; None where the expression is none."""
    text = _literal_text(value)
    if text is None:
        return None
    units = _checked("BIGNUMERIC", text, decimals.BIGNUMERIC.units)
    return _duckdb(f"{{'{UNITS}': from_hex('{decimals.sortable(units).hex()}')}}")


def _replacement(node: exp.Expr, now: int) -> exp.Expr | None:
    match node:
        case exp.CurrentTimestamp():
            return _moment(now)
        case exp.CurrentDatetime():
            return _cast(_moment(now), DATETIME)
        case exp.CurrentDate():  # of UTC, and of this clock
            return exp.cast(_moment(now), "DATE")
        case exp.CurrentTime():
            return exp.cast(_moment(now), "TIME")
        case exp.ApproxQuantiles():
            return _quantiles(node)
        case exp.Interval(unit=exp.IntervalSpan() as span):
            return _interval(_checked("INTERVAL", node.this.name, lambda text: parse_span(text, *_units(span))))
        case exp.TryCast():
            return _adapt_safe_cast(node)
        case exp.Cast():
            return _adapt_cast(node)
        case exp.String():
            if node.args.get("zone") is not None:
                raise ApiError("notImplemented", "This stand-in does not serve STRING with a time zone")
            return _text(node.this)
        case exp.Concat() | exp.DPipe():
            _check_concatenated(node.expressions if isinstance(node, exp.Concat) else (node.this, node.expression))
            return None
        case exp.Format():
            return _format(node)
        case exp.JSONFormat():
            return _json(node)
        case exp.Bracket() if node.args.get("offset") is not None:
            _type_places(node)
            return None
        case exp.Anonymous() if node.name.upper() in _FUNCTIONS:
            return _FUNCTIONS[node.name.upper()](node)
        case _:
            return None


def _type_places(node: exp.Bracket) -> None:
    """Say that places in an array are whole numbers: else those that no literal gives would be counted from one."""
    places = [each if isinstance(each, exp.Literal) else exp.cast(each.copy(), "BIGINT") for each in node.expressions]
    node.set("expressions", places)


def _adapt_safe_cast(node: exp.TryCast) -> exp.Expr | None:
    try:
        adapted = _adapt_cast(node)
    except ApiError as error:
        if error.reason != "invalidQuery":
            raise
        return exp.Cast(this=exp.Null(), to=node.to.copy())
    return exp.Anonymous(this="try", expressions=[adapted]) if adapted is not None else None


def _adapt_cast(node: exp.Cast) -> exp.Expr | None:
    if node.args.get("format") is not None:
        raise ApiError("notImplemented", "This stand-in does not serve CAST with a FORMAT clause")
    if isinstance(node.this, exp.Null):
        return None
    match node.to.this:
        case _Type.TEXT if not node.this.is_string:
            return _text(node.this)
        case _Type.BIGDECIMAL:
            return bignumeric(node.this) or exp.func(BIGNUMERIC_OF, exp.cast(node.this.copy(), "VARCHAR"))
        case _Type.RANGE:
            element = column_type(node.to.expressions[0].sql(dialect="bigquery"))
            return _range_literal(node.this.name, element) if node.this.is_string else _not_served(node)
        case _Type.GEOGRAPHY:
            return _geography(node.this.name) if node.this.is_string else _not_served(node)
        case _Type.INTERVAL:
            if not node.this.is_string:
                return _not_served(node)
            return _interval(_checked("INTERVAL", node.this.name, parse_interval))
        case _Type.TIMESTAMPTZ if node.this.is_string:
            # DuckDB's cast to a TIMESTAMP without zone passes over an offset in the text; without one it is UTC anyway.
            with suppress(ValueError):
                return _moment(timestamp_microseconds(node.this.name))
        case _Type.TIMESTAMP if node.this.is_string:
            moment = _moment(_checked("DATETIME", node.this.name, datetime_microseconds))
            return _cast(moment, DATETIME)
        case _Type.TIME if node.this.is_string:
            _checked("TIME", node.this.name, time_microseconds)
        case _:
            pass
    return None


def _text(value: exp.Expr) -> exp.Expr:
    """Return a value as STRING; what DuckDB writes in another way than GoogleSQL is written by `texts`."""
    return _of_value(
        "CASE WHEN typeof(given) IN ('VARCHAR', 'BIGINT', 'INTEGER', 'DATE', 'BOOLEAN') THEN given::VARCHAR "
        f"ELSE {TEXT_OF}(typeof(given), given::VARCHAR) END",
        value,
    )


def _of_value(template: str, value: exp.Expr) -> exp.Expr:
    return _duckdb(template).transform(lambda node: value.copy() if isinstance(node, exp.Column) else node)


def _check_concatenated(values: Sequence[exp.Expr]) -> None:
    """Let what is put together be STRING, BYTES or ARRAY: DuckDB would write any other value in its own way."""
    for value in values:
        if not (value.is_string or isinstance(value, exp.Concat | exp.DPipe)):
            value.replace(
                _of_value(
                    "CASE WHEN typeof(given) IN ('VARCHAR', 'BLOB', '\"NULL\"') OR typeof(given) LIKE '%[]' THEN given "
                    "ELSE error('No matching signature for function CONCAT: its arguments are STRING or BYTES') END",
                    value,
                )
            )


def _format(node: exp.Format) -> exp.Expr:
    kinds = [_of_value("typeof(given)", value) for value in node.expressions]
    texts = [_of_value("given::VARCHAR", value) for value in node.expressions]
    lists = (exp.cast(exp.Array(expressions=each), "VARCHAR[]", dialect="duckdb") for each in (kinds, texts))
    return exp.func(FORMATTED, node.this.copy(), *lists)


def _json(node: exp.JSONFormat) -> exp.Expr:
    if node.args.get("options") or node.args.get("is_json"):
        raise ApiError("notImplemented", "This stand-in serves TO_JSON and TO_JSON_STRING of one argument only")
    numbers = bool(node.args.get("to_json"))
    made = _of_value(
        f"{JSON_OF}(typeof(given), given::VARCHAR, to_json(given)::VARCHAR, {str(numbers).lower()})", node.this
    )
    return exp.cast(made, "JSON") if numbers else made


def _not_served(node: exp.Cast) -> exp.Expr:
    name = node.to.sql(dialect="bigquery")
    raise ApiError("notImplemented", f"This stand-in makes values of {name} from literals only")


def _adapt_type(node: exp.DataType) -> None:
    if _DUCKDB in node.meta:
        return
    match node.this:
        case _Type.TIMESTAMPTZ:
            node.set("this", _Type.TIMESTAMP)
        case _Type.TIMESTAMP:
            node.set("this", _Type.TIMESTAMPTZ)
        case _Type.DECIMAL if not node.expressions:
            node.set("expressions", [exp.DataTypeParam(this=exp.Literal.number(n)) for n in (38, 9)])
        case _Type.BIGDECIMAL:
            node.replace(_stored_type(BIGNUMERIC))
        case _Type.GEOGRAPHY:
            node.replace(_stored_type(GEOGRAPHY))
        case _Type.RANGE:
            element = node.expressions[0].sql(dialect="bigquery")  # not adapted yet: it comes after what it is in
            node.replace(_stored_type(range_type(column_type(element))))
        case _:
            pass


def _stored_type(kind: ColumnType) -> exp.DataType:
    stored_type = exp.DataType.build(kind.duckdb, dialect="duckdb")
    for part in stored_type.find_all(exp.DataType):
        part.meta[_DUCKDB] = True
    return stored_type


def _cast(value: exp.Expr, kind: ColumnType) -> exp.Expr:
    return exp.Cast(this=value, to=_stored_type(kind))


def _moment(micros: int) -> exp.Expr:
    return exp.func("make_timestamp", exp.Literal.number(micros))


def _quantiles(node: exp.ApproxQuantiles) -> exp.Expr:
    count = int(node.expression.name)
    bounds = [exp.Literal.number(str(number / count)) for number in range(count + 1)]
    return exp.func("quantile_disc", node.this.copy(), exp.Array(expressions=bounds))


def _interval(interval: Interval) -> exp.Expr:
    return _duckdb(
        f"(to_months({interval.months}) + to_days({interval.days}) + to_microseconds({interval.microseconds}))"
    )


def _units(span: exp.IntervalSpan) -> tuple[str, str]:
    return span.this.name.upper(), span.expression.name.upper()


def _range_literal(text: str, element: ColumnType) -> exp.Expr:
    """Return ``[start, end)``, of which either may be UNBOUNDED or NULL."""
    ends = text[1:-1].split(",") if text.startswith("[") and text.endswith(")") else []
    if len(ends) != 2:
        raise invalid_query(f"Invalid RANGE literal: {text}")
    start, end = (_range_end(end.strip(), element) for end in ends)
    return _range(start, end)


def _range_end(text: str, element: ColumnType) -> exp.Expr:
    kind = exp.DataType.build(element.googlesql, dialect="bigquery")
    value = exp.Null() if text.upper() in ("UNBOUNDED", "NULL") else exp.Literal.string(text)
    cast = exp.Cast(this=value, to=kind)
    adapted = _adapt_cast(cast)
    if adapted is None:
        _adapt_type(cast.to)
    return adapted or cast


def _range(start: exp.Expr, end: exp.Expr) -> exp.Expr:
    start = _typed_as(start, end)
    end = _typed_as(end, start)
    made = _duckdb(
        "CASE WHEN (first) >= (last) THEN error('Invalid RANGE: its start must be earlier than its end') "
        f"ELSE {{'{BOUNDED}': (first) IS NOT NULL, '{START}': first, '{END}': last}} END"
    )
    ends = {"first": start, "last": end}
    return made.transform(lambda node: ends[node.name].copy() if isinstance(node, exp.Column) else node)


def _typed_as(value: exp.Expr, other: exp.Expr) -> exp.Expr:
    if isinstance(value, exp.Null) and not isinstance(other, exp.Null):
        return exp.case().when(exp.false(), other.copy())
    return value


def _range_function(node: exp.Anonymous) -> exp.Expr:
    start, end = (value.copy() for value in node.expressions)
    return _range(start, end)


def _geography(text: str) -> exp.Expr:
    literal = exp.Literal.string(_checked("GEOGRAPHY", text, geography_text)).sql(dialect="duckdb")
    return _duckdb(f"{{'{TEXT}': {literal}}}")


def _geography_function(node: exp.Anonymous) -> exp.Expr:
    if len(node.expressions) != 1 or not node.expressions[0].is_string:
        raise ApiError("notImplemented", f"This stand-in serves {node.name.upper()} of a literal only")
    return _geography(node.expressions[0].name)


def _extracting(part: str) -> Callable[[exp.Anonymous], exp.Expr]:
    return lambda node: exp.func("struct_extract", node.expressions[0].copy(), exp.Literal.string(part))


_FUNCTIONS: Final[Mapping[str, Callable[[exp.Anonymous], exp.Expr]]] = {
    "RANGE": _range_function,
    "RANGE_START": _extracting(START),
    "RANGE_END": _extracting(END),
    "ST_GEOGFROMTEXT": _geography_function,
    "ST_GEOGFROMGEOJSON": _geography_function,
    "ST_ASTEXT": _extracting(TEXT),
}


def _literal_text(value: exp.Expr) -> str | None:
    """Return the text of a literal, a number's with its sign; None for any other expression."""
    if isinstance(value, exp.Paren):
        return _literal_text(value.this)
    if isinstance(value, exp.Neg) and isinstance(value.this, exp.Literal) and not value.this.is_string:
        return f"-{value.this.name}"
    return str(value.name) if isinstance(value, exp.Literal) else None


def _checked(kind: str, text: str, read: Callable[[str], _T]) -> _T:
    try:
        return read(text)
    except ValueError as error:
        raise invalid_query(f'Could not cast literal "{text}" to type {kind}: {error}') from error


def _duckdb(text: str) -> exp.Expr:
    return sqlglot.parse_one(text, read="duckdb")
