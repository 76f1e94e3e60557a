"""What a statement did."""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from emulators.bigquery.catalog import TableName
from emulators.bigquery.query_costs import FREE, QueryCost


@dataclass(frozen=True)
class Outcome:
    """The rows of a query, the number of rows that were changed, or the table that DDL met and what it did to it.

    ``read``: the tables of a query.
    """

    statement_type: str
    rows: pa.Table | None = None
    affected: int | None = None
    operation: str = ""
    target: TableName | None = None
    cost: QueryCost = FREE
    read: Sequence[TableName] = ()
