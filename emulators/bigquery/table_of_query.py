"""CREATE TABLE ... AS SELECT: a table with the columns and the rows of a query's result.

Source: GoogleSQL, "CREATE TABLE statement". It is how a result beyond the largest response is kept, and read in pages.
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Final, TypeGuard

from sqlglot import exp

from emulators.bigquery.catalog import Table
from emulators.bigquery.errors import ApiError, invalid_query
from emulators.bigquery.outcome import Outcome
from emulators.bigquery.query_costs import query_cost
from emulators.bigquery.resources import read_columns
from emulators.bigquery.rest_values import result_schema
from emulators.bigquery.rows import Rows
from emulators.bigquery.sql import Defaults, translate
from emulators.bigquery.warehouse import Warehouse

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def is_table_of_query(statement: exp.Expr) -> TypeGuard[exp.Create]:
    """Return whether a statement makes a table of a query."""
    return isinstance(statement, exp.Create) and statement.kind == "TABLE" and statement.expression is not None


def create_table_of_query(
    statement: exp.Create,
    warehouse: Warehouse,
    defaults: Defaults,
    parameters: Mapping[str | int, exp.Expr],
    most: int | None,
) -> Outcome:
    """Make a table of a query; ApiError, and no table, where it is refused, also for more bytes than ``most``."""
    if isinstance(statement.this, exp.Schema) or statement.args.get("replace"):
        raise ApiError("notImplemented", "This stand-in does not serve OR REPLACE nor a list of columns with AS SELECT")
    name = defaults.table_name(statement.this)
    expires = _expires(statement, warehouse, defaults)
    query = statement.expression
    _check_named(query)
    translated = translate(query, warehouse, defaults, parameters)
    cost = query_cost(warehouse, translated)
    cost.check(most)
    rows = warehouse.query(translated.sql, translated.tables, translated.beside)
    properties = {} if expires is None else {"expirationTime": str(expires)}
    definition = Table(name, read_columns(result_schema(rows.schema)), properties=properties)
    try:
        warehouse.create_table(definition, Rows(rows, changes=False))
    except ApiError as error:
        if error.reason != "duplicate" or not statement.args.get("exists"):
            raise
        return Outcome("CREATE_TABLE_AS_SELECT", operation="SKIP", target=name, cost=cost, read=translated.names)
    return Outcome("CREATE_TABLE_AS_SELECT", operation="CREATE", target=name, cost=cost, read=translated.names)


def _check_named(query: exp.Expr) -> None:
    for place, each in enumerate(query.selects if isinstance(query, exp.Query) else (), 1):
        if not isinstance(each, exp.Alias | exp.Column | exp.Dot | exp.Star):
            raise invalid_query(f"CREATE TABLE columns must be named, but column {place} has no name")


def _expires(statement: exp.Create, warehouse: Warehouse, defaults: Defaults) -> int | None:
    """Return when the table expires, in milliseconds; None where no option says so."""
    found = None
    for node in statement.args["properties"].expressions if statement.args.get("properties") else ():
        if isinstance(node, exp.TemporaryProperty):
            raise invalid_query("Use of CREATE TEMPORARY TABLE requires a script or session")
        if not isinstance(node, exp.Property) or node.name.lower() != "expiration_timestamp":
            text = node.sql(dialect="bigquery")
            raise ApiError("notImplemented", f"This stand-in does not serve {text} with AS SELECT")
        translated = translate(exp.select(node.args["value"].copy().as_("at")), warehouse, defaults, {})
        at: datetime = warehouse.query(translated.sql, []).column(0)[0].as_py()
        found = (at.replace(tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1)
    return found
