"""Change batches of any table, of any JSON text: what tests of the columnar core say that `tests.builders` cannot."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime

import pyarrow as pa

from services.cdc_consumer.core.stream.messages import MESSAGE_SCHEMA
from shared.contracts.change_batch import Change, Column, Header, Op, Origin, encode_batch
from shared.contracts.change_sequence import four_sections
from shared.contracts.timestamps import parse_timestamp

COMMITTED = "2024-01-02T03:04:05.000001Z"
COMMITTED_MICROS = 1_704_164_645_000_001
AN_HOUR_LATER = parse_timestamp("2024-01-02T04:04:05Z")


def header_of(
    columns: Mapping[str, str] | None = None,
    key: tuple[str, ...] = ("id",),
    *,
    table: str = "orders",
    origin: Origin = "stream",
) -> Header:
    """Return the header of a table with these columns; without any, with a key ``id`` and a ``note``."""
    types = {"id": "INT64", "note": "STRING"} if columns is None else columns
    return Header("spanner", table, key, tuple(Column(*each) for each in types.items()), "NEW_ROW", origin)


def upsert(key: object = 1, row: object = None, *, sequence: str | int = 1, committed: str = COMMITTED) -> Change:
    """Return an upsert. A key that is no object is the ``id``; keys and rows may be given as JSON text."""
    return _change("UPSERT", key, _text({} if row is None else row), sequence, committed)


def delete(key: object = 1, *, sequence: str | int = 1, committed: str = COMMITTED) -> Change:
    """Return a delete."""
    return _change("DELETE", key, None, sequence, committed)


def batch_of(changes: Sequence[Change], header: Header | None = None) -> bytes:
    """Return a message's bytes."""
    return encode_batch(header or header_of(), changes)


def messages_of(
    *data: bytes, attributes: Sequence[Mapping[str, str]] | None = None, published: datetime | None = None
) -> pa.Table:
    """Return messages with these bytes as the source hands them to the sink."""
    rows = [
        {
            "ack_id": f"a{n}",
            "message_id": f"m{n}",
            "ordering_key": "",
            "data": each,
            "attributes": list(attributes[n].items()) if attributes else None,
            "publish_time": published,
        }
        for n, each in enumerate(data)
    ]
    return pa.Table.from_pylist(rows, schema=MESSAGE_SCHEMA)


def _change(op: Op, key: object, row: str | None, sequence: str | int, committed: str) -> Change:
    key_text = _text(key) if isinstance(key, str | Mapping) else _text({"id": str(key)})
    sequence_text = sequence if isinstance(sequence, str) else str(four_sections(sequence))
    return Change(op, "UPDATE" if op == "UPSERT" else op, sequence_text, committed, "{}", key_text, row)


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
