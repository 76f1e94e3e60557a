"""What each kind of SQL statement does: a query returns rows, DDL changes the catalog, DML changes plain tables."""

from collections.abc import Mapping

import duckdb
from sqlglot import exp

from emulators.bigquery.definitions import define
from emulators.bigquery.errors import ApiError, invalid_query
from emulators.bigquery.outcome import Outcome
from emulators.bigquery.query_costs import query_cost
from emulators.bigquery.row_changes import STATEMENTS, change_rows
from emulators.bigquery.sql import Defaults, message_of, parse, translate
from emulators.bigquery.table_of_query import create_table_of_query, is_table_of_query
from emulators.bigquery.warehouse import Warehouse


def run(
    warehouse: Warehouse,
    text: str,
    defaults: Defaults,
    parameters: Mapping[str | int, exp.Expr],
    most: int | None = None,
) -> Outcome:
    """Run one GoogleSQL statement; ApiError where it is refused. ``most``: the bytes that it may be billed for."""
    statement = parse(text)
    try:
        if isinstance(statement, exp.Query):
            translated = translate(statement, warehouse, defaults, parameters)
            cost = query_cost(warehouse, translated)
            cost.check(most)
            rows = warehouse.query(translated.sql, translated.tables, translated.beside)
            return Outcome("SELECT", rows=rows, cost=cost, read=translated.names)
        if is_table_of_query(statement):
            return create_table_of_query(statement, warehouse, defaults, parameters, most)
        if isinstance(statement, STATEMENTS):
            return change_rows(statement, warehouse, defaults, parameters)
    except duckdb.Error as error:
        raise invalid_query(message_of(error)) from error
    outcome = define(statement, warehouse, defaults)
    if outcome is not None:
        return outcome
    if isinstance(statement, exp.Condition):  # sqlglot also reads a bare expression
        raise invalid_query(f"Syntax error: {text[:40]!r} is not a statement")
    raise ApiError("notImplemented", f"This stand-in does not serve {_kind(text)} statements")


def _kind(text: str) -> str:
    """Return the words by which a statement's kind is known: the first two of one that makes or changes something."""
    words = text.replace("(", " ").upper().split()
    return " ".join(words[: 2 if words[0] in ("CREATE", "ALTER", "DROP") else 1])


def check(warehouse: Warehouse, text: str, defaults: Defaults, parameters: Mapping[str | int, exp.Expr]) -> Outcome:
    """Return what a query would return, without rows; ApiError where it is refused, or is no query."""
    statement = parse(text)
    if not isinstance(statement, exp.Query):
        raise ApiError("notImplemented", "This stand-in does not serve a dry run of anything but a query")
    try:
        translated = translate(statement, warehouse, defaults, parameters)
        nothing = f"SELECT * FROM ({translated.sql}) LIMIT 0"
        rows = warehouse.query(nothing, translated.tables, translated.beside)
        return Outcome("SELECT", rows=rows, cost=query_cost(warehouse, translated))
    except duckdb.Error as error:
        raise invalid_query(message_of(error)) from error
