"""Which change of a row is newest. Only that one needs to be written; the older ones are superseded by it."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from services.cdc_consumer.core.schema.tables import CHANGE_SEQUENCE_NUMBER
from services.cdc_consumer.core.stream.columns import CHANGE, MESSAGE, TableChanges
from services.cdc_consumer.core.types.sequence_array import sections_of


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
        wins = _winners(pa.concat_tables(tables), group[members[0]].definition.primary_key)
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


def _winners(rows: pa.Table, primary_key: Sequence[str]) -> npt.NDArray[np.bool_]:
    """Return which rows are the newest of their key."""
    keys = _key_numbers([rows.column(name) for name in primary_key])
    wins: npt.NDArray[np.bool_] = np.bincount(keys, minlength=1)[keys] == 1
    rivals = np.flatnonzero(~wins)
    if len(rivals):
        compared = rows.take(pa.array(rivals))
        numbers = keys[rivals]
        sections = sections_of(_one_array(compared.column(CHANGE_SEQUENCE_NUMBER)))
        arrival = [compared.column(name).to_numpy() for name in (CHANGE, MESSAGE)]
        order = np.lexsort([*arrival, *sections[::-1], numbers])  # the last sorts first
        ordered = numbers[order]
        last_of_key = np.append(ordered[1:] != ordered[:-1], True)
        wins[rivals[order[last_of_key]]] = True
    return wins


def _key_numbers(columns: Sequence[pa.ChunkedArray]) -> npt.NDArray[np.int64]:
    """Return a number for each row, the same for rows whose keys are equal: from 0, without gaps."""
    numbers = _numbered(_one_array(columns[0]))
    for column in columns[1:]:
        further = _numbered(_one_array(column))
        # Numbered again after each column, so that the product never leaves 64 bits.
        numbers = _numbered(pa.array(numbers * (int(further.max(initial=0)) + 1) + further))
    return numbers


def _numbered(column: pa.Array) -> npt.NDArray[np.int64]:
    return np.asarray(pc.dictionary_encode(column).indices.to_numpy(zero_copy_only=False), np.int64)


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
