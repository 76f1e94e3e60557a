"""The rows that travel from the source to the sink: one Pub/Sub message each, its lease (`ack_id`) beside its bytes.

One schema in two spellings: Arrow's, which the batches have, and Spark's, which the data sources declare. Spark
compares them field by field and refuses a batch that differs, so every field is nullable in both.
"""

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

MESSAGE_SCHEMA: Final = pa.schema(
    [
        pa.field("ack_id", pa.string()),
        pa.field("message_id", pa.string()),
        pa.field("ordering_key", pa.string()),
        pa.field("data", pa.binary()),
        pa.field("attributes", pa.map_(pa.string(), pa.string())),
        pa.field("publish_time", pa.timestamp("us", tz="UTC")),
        pa.field("delivery_attempt", pa.int32()),
    ]
)
"""``delivery_attempt`` counts from 1; it is 0 where the subscription has no dead-letter policy."""

DATA_AT: Final = "data_at"
"""The column that says where a message's data is, if it does not travel with its row: ``data`` is NULL then.

Or how many bytes the data has, and the checksum of ``data``, which is compressed then.
"""
Kept = tuple[Sequence[bytes | None], Sequence[str]]
"""The columns ``data`` and DATA_AT of some messages."""

KEPT_SCHEMA: Final = MESSAGE_SCHEMA.append(pa.field(DATA_AT, pa.string()))
"""The schema of rows whose data is elsewhere or compressed, as they travel through Spark."""

KEPT_DDL: Final = (
    "ack_id STRING, message_id STRING, ordering_key STRING, data BINARY, attributes MAP<STRING, STRING>, "
    f"publish_time TIMESTAMP, delivery_attempt INT, {DATA_AT} STRING"
)
"""KEPT_SCHEMA as Spark's data definition language."""
