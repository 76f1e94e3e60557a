"""What each kind of SQL statement does: a query returns rows, DDL changes the catalog, DML changes plain tables."""

from collections.abc import Mapping

import duckdb
from sqlglot import exp

from deploy.local.bigquery.catalog import PSEUDO_COLUMNS
from deploy.local.bigquery.definitions import define
from deploy.local.bigquery.errors import ApiError, invalid_query
from deploy.local.bigquery.outcome import Outcome
from deploy.local.bigquery.sql import Defaults, parse, translate
from deploy.local.bigquery.warehouse import Warehouse


def run(warehouse: Warehouse, text: str, defaults: Defaults, parameters: Mapping[str | int, exp.Expr]) -> Outcome:
    """Run one GoogleSQL statement; ApiError where it is refused."""
    statement = parse(text)
    try:
        if isinstance(statement, exp.Query):
            translated = translate(statement, warehouse, defaults, parameters)
            return Outcome("SELECT", rows=warehouse.query(translated.sql, translated.tables, translated.beside))
        if isinstance(statement, exp.Insert | exp.Update | exp.Delete | exp.Merge | exp.TruncateTable):
            return _change_rows(statement, warehouse, defaults, parameters)
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
    if 'Referenced column "' in text:
        return f"Unrecognized name: {text.split(chr(34))[1]}"
    return text.split("\n\n", maxsplit=1)[0]


def _check_row_change(statement: exp.Expr) -> None:
    """Refuse what BigQuery refuses of a statement by itself (GoogleSQL, "Data manipulation language")."""
    if isinstance(statement, exp.Update | exp.Delete) and statement.args.get("where") is None:
        raise invalid_query(f"{statement.key.upper()} must have a WHERE clause")
    for column in statement.find_all(exp.Identifier):
        if column.name.upper() in PSEUDO_COLUMNS:
            raise invalid_query(f"Unrecognized name: {column.name}")


def _change_rows(
    statement: exp.Expr, warehouse: Warehouse, defaults: Defaults, parameters: Mapping[str | int, exp.Expr]
) -> Outcome:
    kind = "TRUNCATE_TABLE" if isinstance(statement, exp.TruncateTable) else statement.key.upper()
    _check_row_change(statement)
    if isinstance(statement, exp.TruncateTable):
        statement = exp.Delete(this=statement.expressions[0])
    target = statement.this.this if isinstance(statement.this, exp.Schema) else statement.this
    table = warehouse.table(defaults.table_name(target))
    if isinstance(statement, exp.Merge):
        warehouse.check_modifiable(table)
        raise ApiError("notImplemented", "This stand-in does not serve MERGE statements")
    if isinstance(statement, exp.Insert) and not isinstance(statement.this, exp.Schema):
        names = [exp.to_identifier(column.name, quoted=True) for column in table.columns]
        statement.set("this", exp.Schema(this=target.copy(), expressions=names))
    if isinstance(statement, exp.Insert):
        given = {column.name.lower() for column in statement.this.expressions}
        missing = [c.name for c in table.columns if c.mode == "REQUIRED" and c.name.lower() not in given]
        if missing:
            raise invalid_query(f"Required field {missing[0]} cannot be null")
    translated = translate(statement, warehouse, defaults, parameters)
    if isinstance(statement, exp.Insert):
        return Outcome(kind, affected=warehouse.insert(translated.sql, translated.tables), target=table.name)
    return Outcome(kind, affected=warehouse.modify(translated.sql, table, translated.tables), target=table.name)
