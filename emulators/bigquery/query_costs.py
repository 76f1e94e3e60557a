"""What a query reads and is billed for: the logical bytes of all values in the columns that it names.

Sources: GoogleSQL, "Data definition language", section "On-demand query size calculation" (each column of a table
once); BigQuery, "Pricing", "On-demand compute pricing" (rounded up to a mebibyte, ten of each table at least), and
"Estimate and control costs", section "Restrict the number of bytes billed per query". A partition or cluster that a
condition passes over is counted all the same: the figure is an upper bound.
"""

from dataclasses import dataclass
from typing import Final

from emulators.bigquery.errors import ApiError
from emulators.bigquery.row_sizes import bytes_of
from emulators.bigquery.sql import Translated
from emulators.bigquery.storage import view
from emulators.bigquery.warehouse import Warehouse

_MEBIBYTE: Final = 1 << 20
_LEAST: Final = 10 * _MEBIBYTE


@dataclass(frozen=True)
class QueryCost:
    """How many bytes a query reads, and is billed for."""

    processed: int = 0
    billed: int = 0

    def check(self, most: int | None) -> None:
        """Refuse a query that would be billed for more bytes than ``most``."""
        if most is not None and self.billed > most:
            raise ApiError(
                "bytesBilledLimitExceeded",
                f"Query exceeded limit for bytes billed: {most}. {self.billed} or higher required.",
            )


FREE: Final = QueryCost()


def query_cost(warehouse: Warehouse, translated: Translated) -> QueryCost:
    """Return what a query costs as the tables are now."""
    processed = billed = 0
    for table in {table.number: table for table in translated.tables}.values():
        names = translated.columns[table.number]
        named = [column for column in table.columns if names is None or column.name.lower() in names]
        if not named:
            continue
        size = int(warehouse.query(f"SELECT {bytes_of(named)} FROM {view(table)}", [table]).column(0)[0].as_py())
        processed += size
        billed += max(_LEAST, -(-size // _MEBIBYTE) * _MEBIBYTE)
    return QueryCost(processed, billed)
