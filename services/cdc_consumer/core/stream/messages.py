"""What travels from the source to the sink: Pub/Sub messages, each with its lease (`ack_id`) beside its bytes.

They travel in portions, as Arrow: a portion is the messages of one answer of Pub/Sub for one task of the sink. To Spark
a portion is a row of bytes. Its schema is written in two spellings: Arrow's, which the batches have, and Spark's, which
the data sources declare. Spark compares them field by field and refuses a batch that differs, so every field is
nullable in both.
"""

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
"""The column that says where a message's data is, if it is in a file: ``data`` is NULL then."""

KEPT_SCHEMA: Final = MESSAGE_SCHEMA.append(pa.field(DATA_AT, pa.string()))
"""The schema of messages whose data is in files."""

PORTION_SCHEMA: Final = pa.schema(
    [pa.field("task", pa.int32()), pa.field("checksum", pa.int64()), pa.field("messages", pa.binary())]
)
"""``task``: what Spark makes the task of the sink of. ``checksum``: CRC-32 of ``messages``, an Arrow IPC stream."""

PORTION_DDL: Final = "task INT, checksum BIGINT, messages BINARY"
"""PORTION_SCHEMA as Spark's data definition language."""
