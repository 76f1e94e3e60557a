"""Which change of a row is the newest, of many changes of many rows."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from services.cdc_consumer.core.types.arrays import one_array
from services.cdc_consumer.core.types.sequence_array import first_sections, sections_of


def newest_of(
    keys: Sequence[pa.ChunkedArray],
    sequence: pa.ChunkedArray,
    arrival: Sequence[pa.ChunkedArray],
    candidates: npt.NDArray[np.bool_],
) -> npt.NDArray[np.bool_]:
    """Return which rows are the newest of their key among the candidates, by their change sequence numbers.

    Of equal ones the one that arrived last is newest, as in BigQuery; ``arrival``: the most significant number first.
    """
    numbers = _key_numbers(keys)
    wins: npt.NDArray[np.bool_] = candidates & (np.bincount(numbers, weights=candidates, minlength=1)[numbers] == 1)
    rivals = np.flatnonzero(candidates & ~wins)
    if not len(rivals):
        return wins
    texts = one_array(sequence)
    # The first section nearly always decides; only what is equal in it is sorted.
    first = first_sections(texts.take(pa.array(rivals)))
    highest = np.zeros(int(numbers.max()) + 1, np.uint64)
    np.maximum.at(highest, numbers[rivals], first)
    rivals = rivals[first == highest[numbers[rivals]]]
    alone = np.bincount(numbers[rivals])[numbers[rivals]] == 1
    wins[rivals[alone]] = True
    rivals = rivals[~alone]
    if len(rivals):
        of_rivals, rival_numbers = pa.array(rivals), numbers[rivals]
        arrived = [column.take(of_rivals).to_numpy() for column in arrival]
        order = np.lexsort([*arrived[::-1], *sections_of(texts.take(of_rivals))[::-1], rival_numbers])
        ordered = rival_numbers[order]  # the last of what it sorts by sorts first
        last_of_key = np.append(ordered[1:] != ordered[:-1], True)
        wins[rivals[order[last_of_key]]] = True
    return wins


def _key_numbers(columns: Sequence[pa.ChunkedArray]) -> npt.NDArray[np.int64]:
    """Return a number for each row, the same for rows whose keys are equal: from 0, without gaps."""
    numbers = _numbered(one_array(columns[0]))
    for column in columns[1:]:
        further = _numbered(one_array(column))
        # Numbered again after each column, so that the product never leaves 64 bits.
        numbers = _numbered(pa.array(numbers * (int(further.max(initial=0)) + 1) + further))
    return numbers


def _numbered(column: pa.Array) -> npt.NDArray[np.int64]:
    return np.asarray(
        pc.dictionary_encode(column, null_encoding="encode").indices.to_numpy(zero_copy_only=False), np.int64
    )
