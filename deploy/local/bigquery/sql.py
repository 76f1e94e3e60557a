"""GoogleSQL to DuckDB: which tables a statement reads, and the same statement for the relations behind them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from deploy.local.bigquery.catalog import DatasetName, Table, TableName
from deploy.local.bigquery.errors import ApiError, invalid_query
from deploy.local.bigquery.expressions import adapt
from deploy.local.bigquery.information_schema import dataset_view, region_view
from deploy.local.bigquery.storage import relation, view
from deploy.local.bigquery.warehouse import Warehouse

_INFORMATION_SCHEMA: Final = "INFORMATION_SCHEMA."
_VIEWS_IN_VIEWS: Final = 16


@dataclass(frozen=True)
class Defaults:
    """What a name without project or dataset is completed with."""

    project: str
    dataset: str | None = None

    def dataset_name(self, project: str, dataset: str) -> DatasetName:
        """Complete the name of a dataset."""
        if not dataset and self.dataset is None:
            raise invalid_query("Table must be qualified with a dataset (e.g. dataset.table).")
        return DatasetName(project or self.project, dataset or self.dataset or "")

    def table_name(self, table: exp.Table) -> TableName:
        """Complete the name of a table."""
        within = self.dataset_name(table.catalog, table.db)
        return TableName(within.project, within.dataset, table.name)


@dataclass
class Translated:
    """A statement in DuckDB's dialect, with the tables that it reads and what it reads beside tables."""

    sql: str
    tables: list[Table] = field(default_factory=list)
    beside: dict[str, pa.Table] = field(default_factory=dict)


def parse(text: str) -> exp.Expr:
    """Return the one statement in a text; ApiError for a syntax error or a script."""
    try:
        statements = [statement for statement in sqlglot.parse(text, read="bigquery") if statement is not None]
    except SqlglotError as error:
        raise invalid_query(f"Syntax error: {error}") from error
    if len(statements) != 1:
        raise invalid_query(f"One statement at a time: {len(statements)} found; scripts are not served here")
    return statements[0]


def translate(
    statement: exp.Expr, warehouse: Warehouse, defaults: Defaults, parameters: Mapping[str | int, exp.Expr]
) -> Translated:
    """Return a query or a row change in DuckDB's dialect; ApiError for a table that does not exist."""
    result = Translated("")
    result.sql = _translate(statement.copy(), warehouse, defaults, parameters, result).sql(dialect="duckdb")
    return result


def _translate(
    statement: exp.Expr,
    warehouse: Warehouse,
    defaults: Defaults,
    parameters: Mapping[str | int, exp.Expr],
    result: Translated,
    depth: int = 0,
) -> exp.Expr:
    if depth > _VIEWS_IN_VIEWS:
        raise invalid_query(f"Views are nested more than {_VIEWS_IN_VIEWS} deep")
    target = statement.this if isinstance(statement, exp.DML) else None
    target = target.this if isinstance(target, exp.Schema) else target
    if isinstance(statement, exp.Select):
        _name_columns(statement)
    unserved = statement.find(exp.Version, exp.TableSample)
    if unserved is not None:
        raise ApiError("notImplemented", f"This stand-in does not serve {unserved.sql(dialect='bigquery').strip()}")
    _shorten_columns(statement)
    local = {cte.alias.lower() for cte in statement.find_all(exp.CTE)}
    for node in list(statement.find_all(exp.Table)):
        if node.name.lower() in local and not node.db:
            continue
        alias = node.alias or node.name.removeprefix(_INFORMATION_SCHEMA)
        table = None if _of_information_schema(node) else warehouse.table(defaults.table_name(node))
        replacement: exp.Expr
        if table is not None and table.query:
            if node is target:
                raise invalid_query(f"{table.name} is not allowed for this operation because it is currently a VIEW.")
            within = Defaults(table.name.project)  # a view names its tables in full
            query = _translate(parse(table.query), warehouse, within, {}, result, depth + 1)
            replacement = exp.Subquery(this=query).as_(alias, quoted=True)
        else:
            name_of = relation if node is target else view
            replacement = exp.to_table(_physical(node, table, warehouse, defaults, result, name_of))
            if not (node is target and isinstance(statement, exp.Insert)):
                replacement = replacement.as_(alias, quoted=True)
        node.replace(replacement)
    _fill_in(statement, parameters)
    adapt(statement, warehouse.now())
    return statement


def _shorten_columns(statement: exp.Expr) -> None:
    """Take dataset and project off columns: ``dataset.table.column`` is one, ``table.column.field`` is none."""
    named = {(table.db.lower(), table.name.lower()) for table in statement.find_all(exp.Table) if table.db}
    for column in statement.find_all(exp.Column):
        if (column.db.lower(), column.table.lower()) in named:
            column.set("db", None)
            column.set("catalog", None)


def _of_information_schema(node: exp.Table) -> bool:
    return node.name.upper().startswith(_INFORMATION_SCHEMA)


def _physical(
    node: exp.Table,
    table: Table | None,
    warehouse: Warehouse,
    defaults: Defaults,
    result: Translated,
    name_of: Callable[[Table], str],
) -> str:
    if table is None:
        what = node.name[len(_INFORMATION_SCHEMA) :].upper()
        name = f"information_schema_{len(result.beside)}"
        if node.db.lower().startswith("region-"):
            result.beside[name] = region_view(what, warehouse.history.of(node.catalog or defaults.project))
        else:
            tables = warehouse.tables(defaults.dataset_name(node.catalog, node.db))
            result.beside[name] = dataset_view(what, tables, warehouse.staleness)
        return name
    if not table.columns:
        raise invalid_query(f"Table {table.name} does not have a schema.")
    result.tables.append(table)
    return name_of(table)


def _name_columns(select: exp.Select) -> None:
    """Name what has no name as BigQuery does: f0_, f1_, ..."""
    unnamed = 0
    for expression in select.expressions:
        if isinstance(expression, exp.Dot):  # a field of an expression has the field's name
            expression.replace(exp.alias_(expression.copy(), expression.name))
        elif not isinstance(expression, exp.Alias | exp.Column | exp.Star) and not expression.is_star:
            expression.replace(exp.alias_(expression.copy(), f"f{unnamed}_"))
            unnamed += 1


def _fill_in(statement: exp.Expr, parameters: Mapping[str | int, exp.Expr]) -> None:
    positional = 0
    for node in list(statement.dfs()):  # in the order of the text, which positional parameters count by
        if isinstance(node, exp.Parameter):
            node.replace(_parameter(node.name.lower(), parameters))
        elif isinstance(node, exp.Placeholder):
            node.replace(_parameter(positional, parameters))
            positional += 1


def _parameter(key: str | int, parameters: Mapping[str | int, exp.Expr]) -> exp.Expr:
    if key not in parameters:
        raise invalid_query(f"Query parameter '{key}' not found")
    return parameters[key].copy()


def read_parameters(resources: Sequence[Mapping[str, object]]) -> Mapping[str | int, exp.Expr]:
    """Return the expressions that stand for a request's query parameters, by lower-case name or position."""
    return {
        (str(resource["name"]).lower() if resource.get("name") else position): _parameter_value(
            resource["parameterType"], resource.get("parameterValue")
        )
        for position, resource in enumerate(resources)
    }


def _parameter_value(parameter_type: object, value: object) -> exp.Expr:
    assert isinstance(parameter_type, Mapping)
    value = value if isinstance(value, Mapping) else {}
    if parameter_type["type"] == "ARRAY":
        elements = [_parameter_value(parameter_type["arrayType"], each) for each in value.get("arrayValues") or ()]
        return exp.Array(expressions=elements)
    text = value.get("value")
    if text is None:
        return exp.Null()
    if parameter_type["type"] == "BYTES":
        return exp.func("from_base64", exp.Literal.string(text))
    kind = parameter_type["type"]
    if kind in ("RANGE", "STRUCT"):
        raise ApiError("notImplemented", f"This stand-in does not serve query parameters of type {kind}")
    return exp.Cast(this=exp.Literal.string(text), to=exp.DataType.build(kind, dialect="bigquery"))
