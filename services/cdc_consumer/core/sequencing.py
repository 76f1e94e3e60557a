"""Which change of a row is newest. Only that one needs to be written; the older ones are superseded by it."""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from services.cdc_consumer.core.columns import CHANGE, MESSAGE, TableChanges
from services.cdc_consumer.core.tables import CHANGE_SEQUENCE_NUMBER
from shared.contracts.change_sequence import parse_sequence

_SECTIONS: Final = 4
_SECTION_WIDTH: Final = 17  # sixteen digits and a '/'
_WIDTH: Final = _SECTIONS * _SECTION_WIDTH - 1
"""The length of every sequence that Millrace writes: four sections of sixteen digits."""


def _digit_values() -> npt.NDArray[np.uint8]:
    values = np.zeros(256, np.uint8)
    for digits in (b"0123456789ABCDEF", b"0123456789abcdef"):
        values[np.frombuffer(digits, np.uint8)] = np.arange(16, dtype=np.uint8)
    return values


_DIGITS: Final = _digit_values()


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
        sections = _sections(_one_array(compared.column(CHANGE_SEQUENCE_NUMBER)))
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


def _sections(texts: pa.StringArray) -> Sequence[npt.NDArray[np.uint64]]:
    """Return change sequence numbers as columns to sort by: four sections, and how many there were.

    BigQuery's document leaves open how ``A`` compares with ``A/0``; as in our contract the shorter is older.
    """
    columns = [np.zeros(len(texts), np.uint64) for _ in range(_SECTIONS + 1)]
    ours = pc.equal(pc.binary_length(texts), _WIDTH).to_numpy(zero_copy_only=False)
    indices = np.flatnonzero(ours)
    if len(indices):
        text = texts.take(pa.array(indices)) if len(indices) < len(texts) else texts
        _, offsets, data = text.buffers()
        start = int(np.frombuffer(offsets, np.int32)[text.offset])
        characters = np.frombuffer(data, np.uint8)[start : start + _WIDTH * len(text)].reshape(-1, _WIDTH)
        for section in range(_SECTIONS):
            digits = _DIGITS[characters[:, section * _SECTION_WIDTH : (section + 1) * _SECTION_WIDTH - 1]]
            octets = np.ascontiguousarray(digits[:, ::2] << 4 | digits[:, 1::2])
            columns[section][indices] = octets.view(">u8").reshape(-1)
        columns[_SECTIONS][indices] = _SECTIONS
    for index in np.flatnonzero(~ours).tolist():
        numbers = parse_sequence(texts[index].as_py()).sections
        for section, number in enumerate(numbers):
            columns[section][index] = number
        columns[_SECTIONS][index] = len(numbers)
    return columns


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
