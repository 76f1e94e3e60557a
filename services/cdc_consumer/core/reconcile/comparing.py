"""The rows of a source against those of its mirror, column by column: which keys are missing, extra or different."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from services.cdc_consumer.core.reconcile.row_keys import key_kinds, key_texts
from services.cdc_consumer.core.schema.tables import TableColumn, TableDefinition
from services.cdc_consumer.core.types.arrays import one_array
from services.cdc_consumer.core.types.equality import Mask, differing
from shared.contracts.mirrors import SEQUENCE_COLUMN


class DifferenceKind(StrEnum):
    """How a row differs."""

    MISSING = "missing"
    """The source has it, the mirror has not."""
    EXTRA = "extra"
    """The mirror has it, the source has not."""
    DIFFERENT = "different"
    UNFIT = "unfit"
    """No row of BigQuery's can hold it: its changes become dead letters."""


@dataclass(frozen=True, slots=True)
class RowDifferences:
    """What comparing some rows came to."""

    source_rows: int
    mirror_rows: int
    matched: int
    """How many keys both have."""
    keys: pa.Table
    """The key columns of the rows that differ."""
    kinds: Sequence[DifferenceKind]
    """And how each does."""


def compare(
    definition: TableDefinition, columns: Sequence[TableColumn], source: pa.Table, mirror: pa.Table
) -> RowDifferences:
    """Compare rows in some columns. A key that the mirror has more than once is different, whatever it holds."""
    kinds = key_kinds(definition)
    source_rows, mirror_rows = len(source), len(mirror)
    ours, theirs = key_texts(source, kinds), key_texts(mirror, kinds)
    source, ours, _repeated = _once(source, ours)  # a reading that was begun again may repeat some
    mirror, theirs, repeated = _once(mirror, theirs)
    place = pc.index_in(ours, value_set=theirs)
    missing = place.is_null().to_numpy(zero_copy_only=False)
    extra = pc.invert(pc.is_in(theirs, value_set=ours)).to_numpy(zero_copy_only=False)
    there = source.filter(pa.array(~missing))
    counterparts = mirror.take(place.drop_null())
    differ: Mask = repeated[place.drop_null().to_numpy(zero_copy_only=False).astype(np.int64)]
    for column in columns:
        if column.name not in kinds:
            differ |= differing(
                column.type, one_array(there.column(column.name)), one_array(counterparts.column(column.name))
            )
    names = list(kinds)
    found = (
        (DifferenceKind.MISSING, source.filter(pa.array(missing)).select(names)),
        (DifferenceKind.EXTRA, mirror.filter(pa.array(extra)).select(names)),
        (DifferenceKind.DIFFERENT, there.filter(pa.array(differ)).select(names)),
    )
    return RowDifferences(
        source_rows,
        mirror_rows,
        len(there),
        pa.concat_tables([keys for _kind, keys in found]),
        [kind for kind, keys in found for _row in range(len(keys))],
    )


def newest_sequence(mirror: pa.Table, until: str) -> str:
    """Return the highest change sequence number among rows up to one (and as long as that); empty if there is none."""
    sequences = mirror.column(SEQUENCE_COLUMN)
    as_long = pc.equal(pc.binary_length(sequences), len(until))
    return str(pc.max(sequences.filter(pc.and_(as_long, pc.less_equal(sequences, until)))).as_py() or "")


def _once(rows: pa.Table, texts: pa.Array) -> tuple[pa.Table, pa.Array, Mask]:
    """Return each row once, and which of them there were several of."""
    encoded = pc.dictionary_encode(texts)
    indices = encoded.indices.to_numpy(zero_copy_only=False)
    if len(encoded.dictionary) == len(texts):
        return rows, texts, np.zeros(len(texts), np.bool_)
    places = np.zeros(len(encoded.dictionary), np.int64)
    places[indices] = np.arange(len(indices))  # the last of each
    counts = np.bincount(indices, minlength=len(places))
    return rows.take(pa.array(places)), texts.take(pa.array(places)), counts > 1
