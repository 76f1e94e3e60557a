"""Messages decoded to columns and poison, for tests: what is in them, by row."""

from collections.abc import Sequence

from services.cdc_consumer.core.stream.columns import Decoded, decode_messages
from services.cdc_consumer.core.stream.poison import Poison
from shared.contracts.change_batch import Change, Header
from shared.contracts.timestamps import Nanoseconds
from tests.unit.cdc_consumer.wire import (
    AN_HOUR_LATER,
    batch_of,
    header_of,
    messages_of,
    upsert,
)

ALL_TYPES = {
    "b": "BOOL",
    "i": "INT64",
    "f": "FLOAT64",
    "n": "NUMERIC",
    "s": "STRING",
    "y": "BYTES",
    "d": "DATE",
    "t": "TIMESTAMP",
    "j": "JSON",
    "g": "FLOAT32",
    "a": "ARRAY<INT64>",
    "af": "ARRAY<FLOAT64>",
    "at": "ARRAY<TIMESTAMP>",
}


def decode(*data: bytes, now: Nanoseconds = AN_HOUR_LATER) -> Decoded:
    return decode_messages(messages_of(*data), now)


def decode_changes(changes: Sequence[Change], header: Header | None = None) -> Decoded:
    return decode(batch_of(changes, header))


def rows(decoded: Decoded) -> list[dict[str, object]]:
    return [row for changes in decoded.tables for row in changes.rows.to_pylist()]


def only(decoded: Decoded) -> Poison:
    (poison,) = decoded.poison
    return poison


def poison_of_value(kind: str, text: str) -> Poison:
    """Return the poison of a row whose column ``c`` is this JSON text; its neighbours are applied."""
    changes = [upsert(1), upsert(2, f'{{"c":{text}}}'), *(upsert(key) for key in range(3, 50))]
    decoded = decode_changes(changes, header_of({"id": "INT64", "c": kind}))
    assert [row["id"] for row in rows(decoded)] == [1, *range(3, 50)]
    poison = only(decoded)
    assert (poison.message, poison.change) == (0, 1)
    return poison
