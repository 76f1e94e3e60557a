"""DML: what GoogleSQL asks of statements that change rows, and their forms for DuckDB.

Source: GoogleSQL, "Data manipulation language (DML) statements".
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import sqlglot
from sqlglot import exp

from emulators.bigquery.catalog import PSEUDO_COLUMNS, Table
from emulators.bigquery.column_types import BIGNUMERIC, Column
from emulators.bigquery.errors import invalid_query
from emulators.bigquery.expressions import bignumeric
from emulators.bigquery.outcome import Outcome
from emulators.bigquery.sql import Defaults, translate
from emulators.bigquery.warehouse import Warehouse

STATEMENTS: Final = (exp.Insert, exp.Update, exp.Delete, exp.Merge, exp.TruncateTable)


def change_rows(
    statement: exp.Expr, warehouse: Warehouse, defaults: Defaults, parameters: Mapping[str | int, exp.Expr]
) -> Outcome:
    """Run a statement that changes rows; ApiError where it is refused."""
    kind = "TRUNCATE_TABLE" if isinstance(statement, exp.TruncateTable) else statement.key.upper()
    _check(statement)
    if isinstance(statement, exp.TruncateTable):
        statement = exp.Delete(this=statement.expressions[0])
    target = statement.this.this if isinstance(statement.this, exp.Schema) else statement.this
    table = warehouse.table(defaults.table_name(target))
    match statement:
        case exp.Insert():
            _complete_insert(statement, target, table)
        case exp.Merge():
            warehouse.check_modifiable(table)
            _complete_merge(statement, table)
        case _:
            pass
    _fill_in_defaults(statement)
    for column_name, value in _assigned(statement):
        _coerce(value, next((c for c in table.columns if c.name.lower() == column_name.lower()), None))
    translated = translate(statement, warehouse, defaults, parameters)
    if isinstance(statement, exp.Insert):
        affected = warehouse.insert(translated.sql, table, translated.tables)
    else:
        affected = warehouse.modify(translated.sql, table, translated.tables, _joined_more_than_once(translated.sql))
    return Outcome(kind, affected=affected, target=table.name)


def _check(statement: exp.Expr) -> None:
    """Refuse what BigQuery refuses of a statement by itself."""
    if isinstance(statement, exp.Update | exp.Delete) and statement.args.get("where") is None:
        raise invalid_query(f"{statement.key.upper()} must have a WHERE clause")
    for column in statement.find_all(exp.Identifier):
        if column.name.upper() in PSEUDO_COLUMNS:
            raise invalid_query(f"Unrecognized name: {column.name}")


def _complete_insert(statement: exp.Insert, target: exp.Expr, table: Table) -> None:
    if not isinstance(statement.this, exp.Schema):
        statement.set("this", exp.Schema(this=target.copy(), expressions=_names(table.columns)))
    _check_given(table, [column.name for column in statement.this.expressions])


def _check_given(table: Table, names: Sequence[str]) -> None:
    given = {name.lower() for name in names}
    missing = [c.name for c in table.columns if c.mode == "REQUIRED" and c.name.lower() not in given]
    if missing:
        raise invalid_query(f"Required field {missing[0]} cannot be null")


def _complete_merge(statement: exp.Merge, table: Table) -> None:
    """Write out what ``INSERT ROW``, an INSERT without columns and ``SET target.column`` leave unsaid."""
    source = statement.args["using"].alias_or_name
    for when in statement.args["whens"].expressions:
        then = when.args["then"]
        if when.args.get("matched") and when.args.get("source"):
            raise invalid_query("Syntax error: WHEN MATCHED BY SOURCE")
        if isinstance(then, exp.Insert):
            if isinstance(then.this, exp.Var) and then.this.name.upper() == "ROW":
                values = [exp.column(name.copy(), table=source) for name in _names(table.columns)]
                then.set("expression", exp.Tuple(expressions=values))
                then.set("this", None)
            if then.this is None:
                then.set("this", exp.Tuple(expressions=[exp.Column(this=name) for name in _names(table.columns)]))
            _check_given(table, [column.name for column in then.this.expressions])
            if len(then.this.expressions) != len(then.expression.expressions):
                raise invalid_query("Inserted row has wrong column count")
        elif isinstance(then, exp.Update):
            for assignment in then.expressions:
                assignment.this.set("table", None)


def _joined_more_than_once(sql: str) -> str:
    """Return a query for the rows that an UPDATE joins with more than one row, which DuckDB lets pass; else nothing."""
    update = sqlglot.parse_one(sql, read="duckdb")
    source = update.args.get("from_")
    if not isinstance(update, exp.Update) or source is None:
        return ""
    rows = exp.column("rowid", table=update.this.alias_or_name, quoted=True)
    query = exp.select("1").from_(update.this.copy()).join(source.this.copy(), join_type="cross")
    query = query.where(update.args["where"].this.copy()).group_by(rows).having("COUNT(*) > 1").limit(1)
    return query.sql(dialect="duckdb")


def _names(columns: Sequence[Column]) -> list[exp.Identifier]:
    return [exp.to_identifier(column.name, quoted=True) for column in columns]


def _fill_in_defaults(statement: exp.Expr) -> None:
    """Replace DEFAULT: no column has another than NULL here."""
    for column in list(statement.find_all(exp.Column)):
        if column.name.upper() == "DEFAULT" and not column.table and not column.this.quoted:
            column.replace(exp.Null())


def _assigned(statement: exp.Expr) -> Iterator[tuple[str, exp.Expr]]:
    """Yield each column's name with a value that is written for it."""
    if isinstance(statement, exp.Insert) and isinstance(statement.expression, exp.Values):
        names = [column.name for column in statement.this.expressions]
        for row in statement.expression.expressions:
            if len(row.expressions) != len(names):
                raise invalid_query(
                    f"Inserted row has wrong column count; Has {len(row.expressions)}, expected {len(names)}"
                )
            yield from zip(names, row.expressions, strict=True)
    if isinstance(statement, exp.Update):
        yield from ((each.this.name, each.expression) for each in statement.expressions)
    if isinstance(statement, exp.Merge):
        for when in statement.args["whens"].expressions:
            then = when.args["then"]
            if isinstance(then, exp.Insert):
                names = [column.name for column in then.this.expressions]
                yield from zip(names, then.expression.expressions, strict=True)
            elif isinstance(then, exp.Update):
                yield from ((each.this.name, each.expression) for each in then.expressions)


def _coerce(value: exp.Expr, column: Column | None) -> None:
    """Put literals into the column's form: numbers into BIGNUMERIC; the fields of a STRUCT go by their order."""
    if column is None:
        return
    if column.type is BIGNUMERIC and not column.repeated and not value.is_string:
        replacement = bignumeric(value)
        if replacement is not None:
            value.replace(replacement)
    if column.type.fields:
        for struct in reversed(list(value.find_all(exp.Struct))):
            values = [each.expression if isinstance(each, exp.PropertyEQ) else each for each in struct.expressions]
            struct.replace(exp.func("row", *(each.copy() for each in values)))
