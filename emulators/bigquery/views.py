"""Logical views: a query under a name. Its columns are those that the query has when the view is made."""

from dataclasses import replace

import duckdb

from emulators.bigquery.catalog import Table
from emulators.bigquery.errors import invalid_query
from emulators.bigquery.resources import read_columns
from emulators.bigquery.rest_values import result_schema
from emulators.bigquery.sql import Defaults, message_of, parse, translate
from emulators.bigquery.warehouse import Warehouse


def with_columns(warehouse: Warehouse, definition: Table) -> Table:
    """Return a view's definition with the columns of its query; ApiError where the query is not one that can run."""
    try:
        translated = translate(parse(definition.query), warehouse, Defaults(definition.name.project), {})
        result = warehouse.query(f"SELECT * FROM ({translated.sql}) LIMIT 0", translated.tables, translated.beside)
    except duckdb.Error as error:
        raise invalid_query(message_of(error)) from error
    return replace(definition, columns=read_columns(result_schema(result.schema)))
