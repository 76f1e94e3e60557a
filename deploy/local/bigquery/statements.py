"""What each kind of SQL statement does: a query returns rows, DDL changes the catalog, DML changes plain tables."""

from collections.abc import Mapping

import duckdb
from sqlglot import exp

from deploy.local.bigquery.definitions import define
from deploy.local.bigquery.errors import ApiError, invalid_query
from deploy.local.bigquery.outcome import Outcome
from deploy.local.bigquery.row_changes import STATEMENTS, change_rows
from deploy.local.bigquery.sql import Defaults, parse, translate
from deploy.local.bigquery.storage import MORE_THAN_ONCE
from deploy.local.bigquery.warehouse import Warehouse


def run(warehouse: Warehouse, text: str, defaults: Defaults, parameters: Mapping[str | int, exp.Expr]) -> Outcome:
    """Run one GoogleSQL statement; ApiError where it is refused."""
    statement = parse(text)
    try:
        if isinstance(statement, exp.Query):
            translated = translate(statement, warehouse, defaults, parameters)
            return Outcome("SELECT", rows=warehouse.query(translated.sql, translated.tables, translated.beside))
        if isinstance(statement, STATEMENTS):
            return change_rows(statement, warehouse, defaults, parameters)
    except duckdb.Error as error:
        raise invalid_query(_message(error)) from error
    outcome = define(statement, warehouse, defaults)
    if outcome is not None:
        return outcome
    if isinstance(statement, exp.Condition):  # sqlglot also reads a bare expression
        raise invalid_query(f"Syntax error: {text[:40]!r} is not a statement")
    raise ApiError("notImplemented", f"This stand-in does not serve {statement.key.upper()} statements")


def _message(error: duckdb.Error) -> str:
    text = str(error)
    if "cannot affect the same target row more than once" in text:
        return MORE_THAN_ONCE
    if 'Referenced column "' in text:
        return f"Unrecognized name: {text.split(chr(34))[1]}"
    return text.split("\n\n", maxsplit=1)[0]
