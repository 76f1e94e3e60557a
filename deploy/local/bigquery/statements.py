"""What each kind of SQL statement does: a query returns rows, DDL changes the catalog, DML changes plain tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import duckdb
import pyarrow as pa
from sqlglot import exp

from deploy.local.bigquery.catalog import Column, DatasetName, Table, TableName
from deploy.local.bigquery.column_types import column_type
from deploy.local.bigquery.errors import ApiError, invalid_query
from deploy.local.bigquery.sql import Defaults, parse, translate
from deploy.local.bigquery.warehouse import Warehouse


@dataclass(frozen=True)
class Outcome:
    """What a statement did: the rows of a query, the number of rows that were changed, or the table that DDL met."""

    statement_type: str
    rows: pa.Table | None = None
    affected: int | None = None
    operation: str = ""
    target: TableName | None = None


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
    match statement:  # the kinds of DDL; whatever else there is falls through to the refusal
        case exp.Create(kind="SCHEMA"):
            return _create_schema(statement, warehouse, defaults)
        case exp.Create(kind="TABLE"):
            return _create_table(statement, warehouse, defaults)
        case exp.Drop(kind="SCHEMA"):
            return _drop_schema(statement, warehouse, defaults)
        case exp.Drop(kind="TABLE"):
            return _drop_table(statement, warehouse, defaults)
        case exp.Alter(kind="TABLE"):
            return _alter_table(statement, warehouse, defaults)
        case _:
            pass
    if isinstance(statement, exp.Condition):  # sqlglot also reads a bare expression
        raise invalid_query(f"Syntax error: {text[:40]!r} is not a statement")
    raise ApiError("notImplemented", f"This stand-in does not serve {statement.key.upper()} statements")


def _message(error: duckdb.Error) -> str:
    text = str(error)
    if 'Referenced column "' in text:
        return f"Unrecognized name: {text.split(chr(34))[1]}"
    return text.split("\n\n", maxsplit=1)[0]


def _change_rows(
    statement: exp.Expr, warehouse: Warehouse, defaults: Defaults, parameters: Mapping[str | int, exp.Expr]
) -> Outcome:
    kind = "TRUNCATE_TABLE" if isinstance(statement, exp.TruncateTable) else statement.key.upper()
    if isinstance(statement, exp.Merge):
        raise ApiError("notImplemented", "This stand-in does not serve MERGE statements")
    if isinstance(statement, exp.TruncateTable):
        statement = exp.Delete(this=statement.expressions[0])
    target = statement.this.this if isinstance(statement.this, exp.Schema) else statement.this
    table = warehouse.table(defaults.table_name(target))
    if isinstance(statement, exp.Insert) and not isinstance(statement.this, exp.Schema):
        names = [exp.to_identifier(column.name, quoted=True) for column in table.columns]
        statement.set("this", exp.Schema(this=target.copy(), expressions=names))
    translated = translate(statement, warehouse, defaults, parameters)
    if isinstance(statement, exp.Insert):
        return Outcome(kind, affected=warehouse.storage.modify(translated.sql, translated.tables), target=table.name)
    return Outcome(kind, affected=warehouse.modify(translated.sql, table, translated.tables), target=table.name)


def _create_schema(statement: exp.Create, warehouse: Warehouse, defaults: Defaults) -> Outcome:
    name = _dataset_name(statement.this, defaults)
    warehouse.create_dataset(name, {}, exists_ok=bool(statement.args.get("exists")))
    return Outcome("CREATE_SCHEMA", operation="CREATE")


def _drop_schema(statement: exp.Drop, warehouse: Warehouse, defaults: Defaults) -> Outcome:
    name = _dataset_name(statement.args["tables"][0], defaults)
    try:
        warehouse.drop_dataset(name, contents=bool(statement.args.get("cascade")))
    except ApiError as error:
        if error.reason != "notFound" or not statement.args.get("exists"):
            raise
        return Outcome("DROP_SCHEMA", operation="SKIP")
    return Outcome("DROP_SCHEMA", operation="DROP")


def _dataset_name(node: exp.Table, defaults: Defaults) -> DatasetName:
    return defaults.dataset_name(node.catalog, node.db)


def _create_table(statement: exp.Create, warehouse: Warehouse, defaults: Defaults) -> Outcome:
    if statement.expression is not None or not isinstance(statement.this, exp.Schema):
        raise ApiError("notImplemented", "This stand-in creates tables from a list of columns only")
    definition = _table_definition(statement, defaults)
    try:
        if statement.args.get("replace") and _exists(warehouse, definition.name):
            warehouse.drop_table(definition.name)
            operation = "REPLACE"
        else:
            operation = "CREATE"
        warehouse.create_table(definition)
    except ApiError as error:
        if error.reason != "duplicate" or not statement.args.get("exists"):
            raise
        operation = "SKIP"
    return Outcome("CREATE_TABLE", operation=operation, target=definition.name)


def _table_definition(statement: exp.Create, defaults: Defaults) -> Table:
    columns = []
    primary_key: Sequence[str] = ()
    for node in statement.this.expressions:
        if isinstance(node, exp.ColumnDef):
            columns.append(_column(node))
            for constraint in node.constraints:
                if isinstance(constraint.kind, exp.PrimaryKeyColumnConstraint):
                    _check_not_enforced(constraint.kind)
                    primary_key = (node.name,)
        elif isinstance(node, exp.PrimaryKey):
            _check_not_enforced(node)
            primary_key = tuple(key.name for key in node.expressions)
        else:
            raise invalid_query(f"Not served in CREATE TABLE: {node.sql(dialect='bigquery')}")
    clustering: Sequence[str] = ()
    properties: dict[str, object] = {}
    for node in statement.args["properties"].expressions if statement.args.get("properties") else ():
        if isinstance(node, exp.ClusterProperty):
            clustering = tuple(column.name for column in node.expressions)
        elif isinstance(node, exp.Property):
            properties |= _option(node)
        else:
            raise invalid_query(f"Not served in CREATE TABLE: {node.sql(dialect='bigquery')}")
    name = defaults.table_name(statement.this.this)
    return Table(name, tuple(columns), primary_key, clustering, properties)


def _column(node: exp.ColumnDef) -> Column:
    kinds = [constraint.kind for constraint in node.constraints]
    required = any(isinstance(kind, exp.NotNullColumnConstraint) for kind in kinds)
    return Column(
        node.name, column_type(str(node.args["kind"].sql(dialect="bigquery"))), "REQUIRED" if required else "NULLABLE"
    )


def _check_not_enforced(node: exp.Expr) -> None:
    options = " ".join(str(option) for option in node.args.get("options") or ()).upper()
    if "NOT ENFORCED" not in options:
        raise invalid_query("Enforced primary keys are not supported: use PRIMARY KEY ... NOT ENFORCED")


def _option(node: exp.Property) -> Mapping[str, object]:
    """Return a table option as the REST resource has it. max_staleness is kept and shown; queries are always fresh."""
    value = node.args["value"]
    match node.name.lower():
        case "max_staleness" if isinstance(value, exp.Interval):
            return {"maxStaleness": _interval(value)}
        case "description":
            return {"description": value.name}
        case "friendly_name":
            return {"friendlyName": value.name}
        case _:
            pass
    raise invalid_query(f"Unknown option, or not served: {node.name}")


def _interval(node: exp.Interval) -> str:
    amount, unit = int(node.this.name), str(node.args["unit"].name).upper()
    seconds = {"SECOND": 1, "MINUTE": 60, "HOUR": 3600}.get(unit)
    if seconds is None:
        return f"0-0 {amount} 0:0:0"
    minutes, rest = divmod(amount * seconds, 60)
    return f"0-0 0 {minutes // 60}:{minutes % 60}:{rest}"


def _drop_table(statement: exp.Drop, warehouse: Warehouse, defaults: Defaults) -> Outcome:
    name = defaults.table_name(statement.args["tables"][0])
    if statement.args.get("exists") and not _exists(warehouse, name):
        return Outcome("DROP_TABLE", operation="SKIP", target=name)
    warehouse.drop_table(name)
    return Outcome("DROP_TABLE", operation="DROP", target=name)


def _alter_table(statement: exp.Alter, warehouse: Warehouse, defaults: Defaults) -> Outcome:
    name = defaults.table_name(statement.this)
    actions = statement.args["actions"]

    def change(table: Table) -> Mapping[str, object]:
        columns = list(table.columns)
        properties = dict(table.properties)
        primary_key = table.primary_key
        for action in actions:
            if isinstance(action, exp.ColumnDef):
                known = {column.name.lower() for column in columns}
                if not (action.args.get("exists") and action.name.lower() in known):
                    columns.append(_column(action))
            elif isinstance(action, exp.AlterSet):
                for node in action.find_all(exp.Property):
                    properties |= _option(node)
            elif isinstance(action, exp.AddConstraint) and isinstance(action.expressions[0], exp.PrimaryKey):
                if primary_key:
                    raise invalid_query(f"Already Exists: Primary key of table {table.name.table}")
                _check_not_enforced(action.expressions[0])
                primary_key = tuple(key.name for key in action.expressions[0].expressions)
            elif action.sql(dialect="bigquery").upper() == "DROP PRIMARY KEY":
                primary_key = ()
            else:
                raise invalid_query(f"Not served in ALTER TABLE: {action.sql(dialect='bigquery')}")
        return {"columns": tuple(columns), "properties": properties, "primary_key": primary_key}

    warehouse.alter_table(name, change)
    return Outcome("ALTER_TABLE", operation="ALTER", target=name)


def _exists(warehouse: Warehouse, name: TableName) -> bool:
    try:
        warehouse.table(name)
    except ApiError as error:
        if error.reason != "notFound":
            raise
        return False
    return True
