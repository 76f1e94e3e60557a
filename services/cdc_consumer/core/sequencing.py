"""Which change of a row is newest. Only that one needs to be written; the older ones are superseded by it."""

from collections.abc import Sequence

import pyarrow as pa

from services.cdc_consumer.core.columns import TableChanges


def newest_per_key(group: Sequence[TableChanges], excluded: Sequence[pa.Array | None]) -> Sequence[pa.Array]:
    """Return, for each column list of one table, the row indices (int64, ascending) to write: the newest per key.

    Keys are compared across all the column lists. ``excluded`` holds per column list the row indices that BigQuery
    refused (None: none); they are left out, so that asking again gives the next newest of their keys.
    """
    raise NotImplementedError
