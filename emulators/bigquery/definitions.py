"""DDL: statements that define datasets, tables and views."""

from collections.abc import Mapping, Sequence

from sqlglot import exp

from emulators.bigquery.catalog import DatasetName, Partitioning, Table, TableName
from emulators.bigquery.column_types import Column, ColumnType, column_type, range_type, struct_type
from emulators.bigquery.errors import ApiError, invalid_query
from emulators.bigquery.intervals import interval_text
from emulators.bigquery.outcome import Outcome
from emulators.bigquery.sql import Defaults
from emulators.bigquery.views import with_columns
from emulators.bigquery.warehouse import Warehouse


def define(statement: exp.Expr, warehouse: Warehouse, defaults: Defaults) -> Outcome | None:
    """Run a DDL statement; None where it is no DDL, or none that is served. ApiError where it is refused."""
    match statement:
        case exp.Create(kind="SCHEMA"):
            return _create_schema(statement, warehouse, defaults)
        case exp.Create(kind="TABLE" | "VIEW"):
            return _create(statement, warehouse, defaults)
        case exp.Drop(kind="SCHEMA"):
            return _drop_schema(statement, warehouse, defaults)
        case exp.Drop(kind="TABLE" | "VIEW"):
            return _drop(statement, warehouse, defaults)
        case exp.Alter(kind="TABLE"):
            return _alter_table(statement, warehouse, defaults)
        case exp.Command():
            statement_type, operation = warehouse.reservations.run(statement, defaults.project)
            return Outcome(statement_type, operation=operation) if operation else None
        case _:
            return None


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


def _create(statement: exp.Create, warehouse: Warehouse, defaults: Defaults) -> Outcome:
    definition = (
        _view_definition(statement, warehouse, defaults)
        if statement.kind == "VIEW"
        else _table_definition(statement, defaults)
    )
    try:
        if statement.args.get("replace") and _exists(warehouse, definition.name):
            _check_kind(warehouse.table(definition.name), statement.kind)
            warehouse.drop_table(definition.name)
            operation = "REPLACE"
        else:
            operation = "CREATE"
        warehouse.create_table(definition)
    except ApiError as error:
        if error.reason != "duplicate" or not statement.args.get("exists"):
            raise
        operation = "SKIP"
    return Outcome(f"CREATE_{statement.kind}", operation=operation, target=definition.name)


def _view_definition(statement: exp.Create, warehouse: Warehouse, defaults: Defaults) -> Table:
    if isinstance(statement.this, exp.Schema) or statement.expression is None:
        raise ApiError("notImplemented", "This stand-in creates views from a query only")
    if (materialized := statement.find(exp.MaterializedProperty)) is not None:
        raise _unserved("CREATE VIEW with", materialized)
    query = statement.expression.sql(dialect="bigquery")
    return with_columns(warehouse, Table(defaults.table_name(statement.this), (), query=query))


def _table_definition(statement: exp.Create, defaults: Defaults) -> Table:
    if statement.args.get("clone") is not None:
        raise _unserved("CREATE TABLE", statement.args["clone"])
    if not isinstance(statement.this, exp.Schema):
        raise ApiError("notImplemented", "This stand-in creates tables from a list of columns only, or from a query")
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
            raise _unserved("CREATE TABLE with", node)
    clustering: Sequence[str] = ()
    partitioning: Partitioning | None = None
    properties: dict[str, object] = {}
    for node in statement.args["properties"].expressions if statement.args.get("properties") else ():
        if isinstance(node, exp.ClusterProperty):
            clustering = tuple(column.name for column in node.expressions)
        elif isinstance(node, exp.PartitionedByProperty):
            partitioning = _partitioning(node.this)
        elif isinstance(node, exp.Property):
            properties |= _option(node)
        else:
            raise _unserved("CREATE TABLE with", node)
    name = defaults.table_name(statement.this.this)
    return Table(name, tuple(columns), primary_key, clustering, partitioning, properties=properties)


def _unserved(where: str, node: exp.Expr) -> ApiError:
    return ApiError("notImplemented", f"This stand-in does not serve {where} {node.sql(dialect='bigquery')}")


def _partitioning(node: exp.Expr) -> Partitioning:
    """Read PARTITION BY: a column, DATE(column), or one cut to HOUR, DAY, MONTH or YEAR."""
    if isinstance(node, exp.Date | exp.TsOrDsToDate):
        return Partitioning(node.this.name)
    if isinstance(node, exp.TimestampTrunc | exp.DatetimeTrunc | exp.DateTrunc):
        unit = node.args["unit"].name.upper()
        return Partitioning(node.this.name, unit)
    if isinstance(node, exp.Identifier | exp.Column):
        return Partitioning(node.name)
    raise _unserved("PARTITION BY", node)


def _column(node: exp.ColumnDef) -> Column:
    required, description = False, ""
    for constraint in node.constraints:
        match constraint.kind:
            case exp.NotNullColumnConstraint():
                required = True
            case exp.PrimaryKeyColumnConstraint():
                pass
            case exp.Properties() as options:
                description = _column_description(options)
            case other:
                text = other.sql(dialect="bigquery")
                raise ApiError("notImplemented", f"This stand-in does not serve {text} of a column: {node.name}")
    data_type = node.args["kind"]
    if data_type.is_type(exp.DataType.Type.ARRAY):
        if required:
            raise invalid_query(f"NOT NULL cannot be applied to ARRAY fields: {node.name}")
        return Column(node.name, _column_type(data_type.expressions[0]), "REPEATED", description)
    return Column(node.name, _column_type(data_type), "REQUIRED" if required else "NULLABLE", description)


def _column_description(options: exp.Properties) -> str:
    unserved = [option.name for option in options.expressions if option.name.lower() != "description"]
    if unserved:
        raise ApiError("notImplemented", f"This stand-in does not serve the column option {unserved[0]}")
    return str(options.expressions[-1].args["value"].name) if options.expressions else ""


def _column_type(node: exp.DataType) -> ColumnType:
    if node.is_type(exp.DataType.Type.STRUCT):
        if not all(isinstance(field, exp.ColumnDef) for field in node.expressions):
            raise invalid_query("CREATE TABLE columns must be named")
        return struct_type([_column(field) for field in node.expressions])
    if node.is_type(exp.DataType.Type.RANGE):
        return range_type(_column_type(node.expressions[0]))
    if node.is_type(exp.DataType.Type.ARRAY):
        raise invalid_query("Cannot construct array with element type ARRAY: nested arrays are not supported")
    return column_type(node.sql(dialect="bigquery"))


def _check_not_enforced(node: exp.Expr) -> None:
    options = " ".join(str(option) for option in node.args.get("options") or ()).upper()
    if "NOT ENFORCED" not in options:
        raise invalid_query("Enforced primary keys are not supported: use PRIMARY KEY ... NOT ENFORCED")


def _option(node: exp.Property) -> Mapping[str, object]:
    """Return a table option as the REST resource has it."""
    value = node.args["value"]
    match node.name.lower():
        case "max_staleness" if isinstance(value, exp.Interval):
            return {"maxStaleness": interval_text(int(value.this.name), str(value.args["unit"].name).upper())}
        case "max_staleness" if isinstance(value, exp.Null):
            return {"maxStaleness": None}
        case "labels" if isinstance(value, exp.Array):
            return {"labels": {pair.expressions[0].name: pair.expressions[1].name for pair in value.expressions}}
        case "description":
            return {"description": value.name}
        case "friendly_name":
            return {"friendlyName": value.name}
        case _:
            pass
    raise ApiError("notImplemented", f"Unknown option of a table, or this stand-in does not serve it: {node.name}")


def _drop(statement: exp.Drop, warehouse: Warehouse, defaults: Defaults) -> Outcome:
    name = defaults.table_name(statement.args["tables"][0])
    kind = statement.args["kind"]
    if statement.args.get("exists") and not _exists(warehouse, name):
        return Outcome(f"DROP_{kind}", operation="SKIP", target=name)
    _check_kind(warehouse.table(name), kind)
    warehouse.drop_table(name)
    return Outcome(f"DROP_{kind}", operation="DROP", target=name)


def _check_kind(table: Table, kind: str | None) -> None:
    if bool(table.query) is not (kind == "VIEW"):
        raise invalid_query(f"{table.name} is not allowed for this operation because it is not a {kind}.")


def _alter_table(statement: exp.Alter, warehouse: Warehouse, defaults: Defaults) -> Outcome:
    name = defaults.table_name(statement.this)
    _check_kind(warehouse.table(name), "TABLE")
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
            elif isinstance(action, exp.Drop) and action.args["kind"] == "COLUMN":
                _drop_column(columns, action)
            elif isinstance(action, exp.AlterSet):
                for node in action.find_all(exp.Property):
                    properties |= _option(node)
            elif isinstance(action, exp.AddConstraint) and isinstance(action.expressions[0], exp.PrimaryKey):
                if primary_key:
                    raise invalid_query(f"Already Exists: Primary key of table {table.name.table}")
                _check_not_enforced(action.expressions[0])
                primary_key = tuple(key.name for key in action.expressions[0].expressions)
            elif action.sql(dialect="bigquery").upper() in ("DROP PRIMARY KEY", "DROP PRIMARY KEY IF EXISTS"):
                if not primary_key and "IF EXISTS" not in action.sql(dialect="bigquery").upper():
                    raise invalid_query(f"Not found: Primary key of table {table.name.table}")
                primary_key = ()
            else:
                raise _unserved("ALTER TABLE", action)
        kept = {name: value for name, value in properties.items() if value is not None}
        return {"columns": tuple(columns), "properties": kept, "primary_key": primary_key}

    drops = [action for action in actions if isinstance(action, exp.Drop)]
    warehouse.alter_table(name, change, dropped={_column_name(action).lower() for action in drops})
    return Outcome("ALTER_TABLE", operation="ALTER", target=name)


def _drop_column(columns: list[Column], action: exp.Drop) -> None:
    name = _column_name(action)
    found = [column for column in columns if column.name.lower() == name.lower()]
    if not found and not action.args.get("exists"):
        raise invalid_query(f"Column not found: {name}")
    if found == columns:
        raise invalid_query("ALTER TABLE DROP COLUMN cannot drop the only column of a table")
    for column in found:
        columns.remove(column)


def _column_name(action: exp.Drop) -> str:
    return str(action.args["tables"][0].name)


def _exists(warehouse: Warehouse, name: TableName) -> bool:
    try:
        warehouse.table(name)
    except ApiError as error:
        if error.reason != "notFound":
            raise
        return False
    return True
