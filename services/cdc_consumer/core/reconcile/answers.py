"""What BigQuery's REST API answers a query with, as columns in the very types that messages are parsed to.

Source of the forms: BigQuery REST reference, `jobs.getQueryResults` (every value a text, a REPEATED one a list of
``{"v": ...}``) and `DataFormatOptions.useInt64Timestamp` (a TIMESTAMP is a number of microseconds).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from services.cdc_consumer.core.types.types import STRING, TIMESTAMP, ColumnType
from services.cdc_consumer.core.types.values import wire_values


def answered_column(kind: ColumnType, rows: Sequence[Mapping[str, Any]], place: int) -> pa.Array:
    """Return the column at a place of the answer's rows in its wire type; ValueError where a value is none of it."""
    cells = [row["f"][place]["v"] for row in rows]
    if kind.element is None:
        return _scalars(kind, pa.array(cells, pa.string()))
    lists = pa.array([None if cell is None else [each["v"] for each in cell] for cell in cells], pa.list_(pa.string()))
    elements = _scalars(kind.element, lists.flatten())
    return pa.ListArray.from_arrays(lists.offsets, elements, type=kind.wire, mask=lists.is_null())


def _scalars(kind: ColumnType, texts: pa.Array) -> pa.Array:
    if kind.bigquery == STRING.bigquery:
        return texts
    if pa.types.is_boolean(kind.wire):
        return pc.equal(pc.ascii_lower(texts), "true")
    if pa.types.is_floating(kind.wire) or kind == TIMESTAMP:
        return texts.cast(kind.wire)
    values, misfits = wire_values(kind, texts)
    if misfits:
        raise ValueError(f"{len(misfits)} values that are no {kind.bigquery}")
    return values
