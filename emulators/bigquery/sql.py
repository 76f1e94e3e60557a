"""GoogleSQL to DuckDB: which tables a statement reads, and the same statement for the relations behind them."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import duckdb
import msgspec
import pyarrow as pa
import sqlglot
from sqlglot import exp
from sqlglot.errors import ParseError, SqlglotError

from emulators.bigquery.catalog import DatasetName, Table, TableName
from emulators.bigquery.errors import ApiError, invalid_query
from emulators.bigquery.expressions import adapt
from emulators.bigquery.information_schema import dataset_view, region_view
from emulators.bigquery.storage import MORE_THAN_ONCE, relation, view
from emulators.bigquery.warehouse import Warehouse

_INFORMATION_SCHEMA: Final = "INFORMATION_SCHEMA."
_VIEWS_IN_VIEWS: Final = 16
_KIND_OF_ERROR: Final = re.compile(r"^[A-Z][A-Za-z -]* Error: ")
_RAISED: Final = re.compile(r"ValueError: ([^\n]+)")
_ONE_LITERAL: Final = frozenset({"INT64", "STRING"})
"""Types whose values DuckDB reads from text as BigQuery does."""
_UNKNOWN_FUNCTION: Final = re.compile(r"Function with name (\w+) does not exist")


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
    columns: dict[int, set[str] | None] = field(default_factory=dict)
    """Which columns of each table, by its number, are named, in lower case; None: all of them."""

    @property
    def names(self) -> Sequence[TableName]:
        """Return the names of the tables, each once."""
        return list(dict.fromkeys(table.name for table in self.tables))


def parse(text: str) -> exp.Expr:
    """Return the one statement in a text; ApiError for a syntax error or a script."""
    try:
        statements = [statement for statement in sqlglot.parse(text, read="bigquery") if statement is not None]
    except SqlglotError as error:
        raise invalid_query(_syntax_error(error)) from None
    if len(statements) != 1:
        raise invalid_query(f"One statement at a time: {len(statements)} found; scripts are not served here")
    return statements[0]


def _syntax_error(error: SqlglotError) -> str:
    """Return where a text stops being GoogleSQL, in BigQuery's words."""
    found: Any = next(iter(error.errors), {}) if isinstance(error, ParseError) else {}
    if not found.get("line"):
        return "Syntax error: the statement cannot be read"
    near = found.get("highlight") or ""
    at = f'at or near "{near}" at [{found["line"]}:{max(1, found["col"] - len(near) + 1)}]'
    hint = ". Legacy SQL writes names in brackets; GoogleSQL writes `names`" if near == "[" else ""
    return f"Syntax error {at}{hint}"


def message_of(error: duckdb.Error) -> str:
    """Return what DuckDB refuses a statement for, as far as possible in BigQuery's words."""
    text = str(error)
    if "cannot affect the same target row more than once" in text:
        return MORE_THAN_ONCE
    if 'Referenced column "' in text:
        return f"Unrecognized name: {text.split(chr(34))[1]}"
    if raised := _RAISED.search(text):
        return raised[1]
    if unknown := _UNKNOWN_FUNCTION.search(text):
        return f"Function not found: {unknown[1].upper()}, or this stand-in does not serve it"
    return _KIND_OF_ERROR.sub("", text.split("\n\n", maxsplit=1)[0].partition("\nLINE ")[0])


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
    named = _named_columns(statement)
    _qualify_elements(statement)
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
            if table is not None:
                before = result.columns.get(table.number, set[str]())
                result.columns[table.number] = None if named is None or before is None else before | named
            if not (node is target and isinstance(statement, exp.Insert)):
                replacement = replacement.as_(alias, quoted=True)
        node.replace(replacement)
    _fill_in(statement, parameters)
    adapt(statement, warehouse.now())
    return statement


def _named_columns(statement: exp.Expr) -> set[str] | None:
    """Return the names of the columns that a statement reads, of whatever table; None where it reads whole rows."""
    if any(not isinstance(star.parent, exp.Count) for star in statement.find_all(exp.Star)):
        return None
    rows = {table.alias_or_name.lower() for table in statement.find_all(exp.Table)}
    columns = list(statement.find_all(exp.Column))
    if any(not column.table and column.name.lower() in rows for column in columns):
        return None
    joined = [name for join in statement.find_all(exp.Join) for name in join.args.get("using") or ()]
    return {part.name.lower() for column in columns for part in column.parts} | {each.name.lower() for each in joined}


def _shorten_columns(statement: exp.Expr) -> None:
    """Take dataset and project off columns: ``dataset.table.column`` is one, ``table.column.field`` is none."""
    named = {(table.db.lower(), table.name.lower()) for table in statement.find_all(exp.Table) if table.db}
    for column in statement.find_all(exp.Column):
        if (column.db.lower(), column.table.lower()) in named:
            column.set("db", None)
            column.set("catalog", None)


def _qualify_elements(statement: exp.Expr) -> None:
    """Qualify what names an element of an UNNEST, which in GoogleSQL comes before a joined table's column of that name.

    What a subquery names is left: the columns of the subquery's own tables come first there.
    """
    for number, unnest in enumerate(list(statement.find_all(exp.Unnest))):
        alias, offset, select = unnest.args.get("alias"), unnest.args.get("offset"), unnest.parent_select
        if not isinstance(select, exp.Select) or (alias is not None and alias.this):
            continue
        table = exp.to_identifier(f"<unnested {number}>", quoted=True)
        elements = [each.name for each in alias.columns] if alias is not None else []
        names = {each.lower() for each in [*elements, *([offset.name] if isinstance(offset, exp.Expr) else [])]}
        columns = [column for column in select.find_all(exp.Column) if column.parent_select is select]
        if isinstance(offset, exp.Expr):
            unnest.replace(_from_zero(unnest, elements, offset.name, table))
        elif any(column.table.lower() in names for column in columns) or not (alias and select.args.get("joins")):
            continue  # an element is a STRUCT, whose fields are named; or there is nothing else that has names
        else:
            alias.set("this", table)
        for column in columns:
            if not column.table and column.name.lower() in names:
                column.set("table", table.copy())


def _from_zero(unnest: exp.Unnest, elements: Sequence[str], offset: str, table: exp.Identifier) -> exp.Subquery:
    """Return UNNEST ... WITH OFFSET, which counts from zero, of DuckDB's WITH ORDINALITY, which counts from one."""
    named = sqlglot.parse_one("SELECT e, o - 1 FROM UNNEST(given) WITH ORDINALITY AS u(e, o)", read="duckdb")
    array = unnest.expressions[0]
    named = named.transform(
        lambda node: array.copy() if isinstance(node, exp.Column) and node.name == "given" else node
    )
    names = (elements[0] if elements else "<element>", offset)
    columns = zip(named.expressions, names, strict=True)
    named.set("expressions", [exp.alias_(column, name, quoted=True) for column, name in columns])
    return exp.Subquery(this=named, alias=exp.TableAlias(this=table.copy()))


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
            project = node.catalog or defaults.project
            reserved = warehouse.reservations.view(what, project, node.db.lower())
            result.beside[name] = region_view(what, warehouse.history.of(project), reserved)
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


def _array(kind: str, texts: Sequence[object]) -> exp.Expr:
    """Return an array of any length as one literal: thousands of nodes would take seconds to translate."""
    literal = exp.Literal.string(msgspec.json.encode(texts).decode())
    array = exp.Anonymous(this="from_json", expressions=[literal, exp.Literal.string('["VARCHAR"]')])
    return exp.Cast(this=array, to=exp.DataType.build(f"ARRAY<{kind}>", dialect="bigquery"))


def _parameter_value(parameter_type: object, value: object) -> exp.Expr:
    assert isinstance(parameter_type, Mapping)
    value = value if isinstance(value, Mapping) else {}
    if parameter_type["type"] == "ARRAY":
        kind, values = parameter_type["arrayType"], value.get("arrayValues") or ()
        if kind["type"] in _ONE_LITERAL:
            return _array(kind["type"], [each.get("value") for each in values])
        return exp.Array(expressions=[_parameter_value(kind, each) for each in values])
    text = value.get("value")
    if text is None:
        return exp.Null()
    if parameter_type["type"] == "BYTES":
        return exp.func("from_base64", exp.Literal.string(text))
    kind = parameter_type["type"]
    if kind in ("RANGE", "STRUCT"):
        raise ApiError("notImplemented", f"This stand-in does not serve query parameters of type {kind}")
    return exp.Cast(this=exp.Literal.string(text), to=exp.DataType.build(kind, dialect="bigquery"))
