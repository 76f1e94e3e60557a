"""A table of the entries of a change log: each appended as it came, and a view of it that drops repeats.

The source names the columns, and as Google's templates do; what they call the time of writing is called so here too,
so that queries written for their tables run on ours.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow as pa

from services.cdc_consumer.core.schema.history import CHANGELOG_SUFFIX
from services.cdc_consumer.core.schema.tables import COMMIT_TIMESTAMP_COLUMN, TableColumn, TableDefinition, within_limit
from services.cdc_consumer.core.types.sequence_array import normal_sequences
from services.cdc_consumer.core.types.types import KEY_TYPES, STRING, TIMESTAMP
from shared.contracts.change_batch import Header
from shared.contracts.errors import PoisonRecordError
from shared.contracts.mirrors import SEQUENCE_COLUMN, source_table
from shared.contracts.reasons import Reason
from shared.contracts.timestamps import Nanoseconds, microseconds

WRITTEN_COLUMN: Final = "big_query_commit_timestamp"
"""When the entry was on its way into BigQuery; of an entry that is repeated each row has its own."""
ROW_KEY_COLUMN: Final = "row_key"
COMMITTED_COLUMN: Final = "commit_timestamp"

_REPEAT: Final = "millrace_repeat"


def entries_definition(header: Header, name: str, columns: Sequence[TableColumn], dataset: str) -> TableDefinition:
    """Return the table with the entries of a table of this name; PoisonRecordError where it cannot be.

    It is partitioned by the entries' own ``commit_timestamp``, or else by what the wire says, and clustered by their
    ``row_key`` where BigQuery clusters by its type (not by BYTES).
    """
    for column in columns:
        if column.name.lower() in (WRITTEN_COLUMN, _REPEAT):
            raise PoisonRecordError(
                Reason.BAD_NAME, f"column name {column.name!r}: a table of entries has a column of its own so named"
            )
    ours = [TableColumn(WRITTEN_COLUMN, TIMESTAMP), TableColumn(SEQUENCE_COLUMN, STRING)]
    committed = COMMITTED_COLUMN
    if TableColumn(COMMITTED_COLUMN, TIMESTAMP) not in columns:
        committed = COMMIT_TIMESTAMP_COLUMN
        ours.append(TableColumn(committed, TIMESTAMP))
    row_key = [each for each in columns if each.name == ROW_KEY_COLUMN and KEY_TYPES.get(each.type) == each.type]
    return TableDefinition(
        name + CHANGELOG_SUFFIX,
        within_limit(header, (*columns, *ours)),
        header.primary_key,
        source_table(header),
        dataset,
        append_only=True,
        entries=True,
        clustered_by=tuple(each.name for each in row_key),
        commit_timestamp=committed,
    )


def entry_columns(sequence: pa.StringArray, commit: pa.Array, now: Nanoseconds) -> Mapping[str, pa.Array]:
    """Return what the rows of a table of entries hold beside the source's columns."""
    return {
        WRITTEN_COLUMN: pa.repeat(pa.scalar(microseconds(now), pa.int64()), len(sequence)),
        SEQUENCE_COLUMN: normal_sequences(sequence),
        COMMIT_TIMESTAMP_COLUMN: commit,
    }


def once_view_query(changelog: str, columns: Sequence[str], primary_key: Sequence[str]) -> str:
    """Return the view over a table of entries, by its full name: each entry once, as it was written first."""
    keys = ", ".join(f"`{name}`" for name in primary_key)
    shown = ", ".join(f"`{name}`" for name in columns)
    return (
        f"SELECT {shown}\n"  # noqa: S608  of names only
        f"FROM (\n"
        f"  SELECT *, ROW_NUMBER() OVER (PARTITION BY {keys} ORDER BY `{WRITTEN_COLUMN}`) AS {_REPEAT}\n"
        f"  FROM `{changelog}`\n"
        f")\n"
        f"WHERE {_REPEAT} = 1"
    )
