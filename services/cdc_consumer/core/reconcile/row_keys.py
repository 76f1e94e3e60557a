"""Which row is which: the keys of a mirror's rows as one text each, as a bucket, and as the source writes them.

All of it is made of the values after the type map, on both sides: however a value was written, its key is the same.
"""

from collections.abc import Mapping, Sequence
from datetime import date
from typing import Final
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from services.cdc_consumer.core.schema.tables import TableDefinition
from services.cdc_consumer.core.types.arrays import one_array
from services.cdc_consumer.core.types.types import (
    BYTES_KEY,
    DATE,
    ENUM,
    FLOAT32_KEY,
    FLOAT64_KEY,
    INT64,
    NUMERIC,
    TIMESTAMP,
    ColumnType,
)
from services.cdc_consumer.core.types.values import exact_bytes_text, normal_numerics
from shared.contracts.source_rows import Key, keys_of
from shared.contracts.timestamps import Nanoseconds, format_timestamp

_NOT_NUMBERS: Final = frozenset({"NaN", "Infinity", "-Infinity"})
_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()


def key_kinds(definition: TableDefinition) -> Mapping[str, ColumnType]:
    """Return the types of a mirror's key columns, in key order."""
    types = {column.name: column.type for column in definition.columns}
    return {name: types[name] for name in definition.primary_key}


def key_texts(rows: pa.Table, kinds: Mapping[str, ColumnType]) -> pa.Array:
    """Return a text for each row that two rows share if and only if their keys are the same."""
    parts = []
    for name, kind in kinds.items():
        values = one_array(rows.column(name))
        texts = (normal_numerics(values) if kind == NUMERIC else values).cast(pa.string())
        lengths = pc.fill_null(pc.binary_length(texts), -1).cast(pa.string())
        parts += [lengths, pc.fill_null(texts, "")]
    return pc.binary_join_element_wise(*parts, ":").cast(pa.large_string())


def buckets_of(texts: pa.Array, buckets: int) -> npt.NDArray[np.int64]:
    """Return which of so many buckets each text is in: a hash of its bytes."""
    hashes = np.fromiter((crc32(text.as_buffer()) for text in texts), np.int64, len(texts))
    return hashes % buckets


def wire_keys(rows: pa.Table, kinds: Mapping[str, ColumnType]) -> Sequence[Key | None]:
    """Return the keys of rows as the source writes them, None for what is no key of its; for a few rows."""
    columns = [rows.column(name).to_pylist() for name in kinds]
    return [_wire_key(values, list(kinds.values())) for values in zip(*columns, strict=True)]


def _wire_key(values: Sequence[object], kinds: Sequence[ColumnType]) -> Key | None:
    try:
        (key,) = keys_of([[_written(kind, value) for kind, value in zip(kinds, values, strict=True)]])
    except ValueError:
        return None
    return key


def _written(kind: ColumnType, value: object) -> object:
    match value:
        case None:
            return None
        case int() if kind in (INT64, ENUM):
            return str(value)
        case int() if kind == DATE:
            return date.fromordinal(_EPOCH_DAY + value).isoformat()
        case int() if kind == TIMESTAMP:
            return format_timestamp(Nanoseconds(value * 1_000))
        case str() if kind in (FLOAT64_KEY, FLOAT32_KEY) and value not in _NOT_NUMBERS:
            return float(value)
        case str() if kind == BYTES_KEY:
            return exact_bytes_text(value)
        case _:
            return value
