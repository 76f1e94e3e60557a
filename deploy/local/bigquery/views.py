"""Logical views: a query under a name. Its columns are those that the query has when the view is made."""

from dataclasses import replace

import duckdb

from deploy.local.bigquery.catalog import Table
from deploy.local.bigquery.errors import invalid_query
from deploy.local.bigquery.resources import read_columns
from deploy.local.bigquery.rest_values import result_schema
from deploy.local.bigquery.sql import Defaults, parse, translate
from deploy.local.bigquery.warehouse import Warehouse


def with_columns(warehouse: Warehouse, definition: Table) -> Table:
    """Return a view's definition with the columns of its query; ApiError where the query is not one that can run."""
    try:
        translated = translate(parse(definition.query), warehouse, Defaults(definition.name.project), {})
        result = warehouse.query(f"SELECT * FROM ({translated.sql}) LIMIT 0", translated.tables, translated.beside)
    except duckdb.Error as error:
        raise invalid_query(str(error).split("\n\n", maxsplit=1)[0]) from error
    return replace(definition, columns=read_columns(result_schema(result.schema)))
