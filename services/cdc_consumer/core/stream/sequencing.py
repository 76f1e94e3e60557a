"""Which change of a row is newest. Only that one needs to be written; the older ones are superseded by it."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from services.cdc_consumer.core.schema.tables import CHANGE_SEQUENCE_NUMBER
from services.cdc_consumer.core.stream.columns import CHANGE, MESSAGE, TableChanges, newest_rows


def rows_to_write(group: Sequence[TableChanges], excluded: Sequence[pa.Array | None]) -> Sequence[pa.Array]:
    """Return, for each column list of one table, the row indices to write: of a history all, else the newest per key.

    As `newest_per_key`.
    """
    if group and group[0].definition.append_only:
        return [
            pa.array(_candidates(len(changes.rows), left_out), pa.int64())
            for changes, left_out in zip(group, excluded, strict=True)
        ]
    return newest_per_key(group, excluded)


def newest_per_key(group: Sequence[TableChanges], excluded: Sequence[pa.Array | None]) -> Sequence[pa.Array]:
    """Return, for each column list of one table, the row indices (int64, ascending) to write: the newest per key.

    Keys are compared across all the column lists. ``excluded`` holds per column list the row indices that BigQuery
    refused (None: none); they are left out, so that asking again gives the next newest of their keys. Of equal
    sequences the one delivered last is newest, as in BigQuery.
    """
    candidates = [_candidates(len(changes.rows), left_out) for changes, left_out in zip(group, excluded, strict=True)]
    newest: list[npt.NDArray[np.int64]] = [np.empty(0, np.int64)] * len(group)
    for members in _same_key_columns(group):
        tables = [_rows_to_compare(group[member], candidates[member]) for member in members]
        compared = pa.concat_tables(tables)
        wins = newest_rows(compared, group[members[0]].definition.primary_key, np.ones(len(compared), np.bool_))
        for member, won in zip(members, np.split(wins, np.cumsum([len(table) for table in tables])[:-1]), strict=True):
            newest[member] = candidates[member][won]
    return [pa.array(indices, pa.int64()) for indices in newest]


def _candidates(count: int, left_out: pa.Array | None) -> npt.NDArray[np.int64]:
    kept = np.ones(count, np.bool_)
    if left_out is not None:
        kept[left_out.to_numpy(zero_copy_only=False).astype(np.int64)] = False
    return np.flatnonzero(kept)


def _same_key_columns(group: Sequence[TableChanges]) -> Sequence[Sequence[int]]:
    """Group column lists by their key columns and types: rows of differing keys are never the same row."""
    found: dict[tuple[tuple[str, pa.DataType], ...], list[int]] = {}
    for index, changes in enumerate(group):
        schema = changes.rows.schema
        key = tuple((name, schema.field(name).type) for name in changes.definition.primary_key)
        found.setdefault(key, []).append(index)
    return list(found.values())


def _rows_to_compare(changes: TableChanges, candidates: npt.NDArray[np.int64]) -> pa.Table:
    rows = changes.rows.select([*changes.definition.primary_key, CHANGE_SEQUENCE_NUMBER, MESSAGE, CHANGE])
    return rows if len(candidates) == len(rows) else rows.take(pa.array(candidates))
