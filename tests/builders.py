"""Values for tests. A builder names what matters to the test; everything else has a plain default."""

import json
from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow as pa

from services.cdc_consumer.core.schema.tables import TableDefinition, checked_name, mirror_definition, source_columns
from services.cdc_consumer.core.stream.messages import MESSAGE_SCHEMA
from shared.contracts.change_batch import Change, Column, Header, Op, encode_batch
from shared.contracts.change_sequence import four_sections

COMMITTED: Final = "2026-11-21T12:00:00.123456Z"
PLANE_COLUMNS: Final = (("id", "INT64"), ("name", "STRING"), ("seats", "INT64"))


def a_header(
    table: str = "planes", columns: Sequence[tuple[str, str]] = PLANE_COLUMNS, key: Sequence[str] = ("id",)
) -> Header:
    """Return the header of a table with a key ``id``, a ``name`` and a number of ``seats``."""
    return Header(
        source="//spanner.googleapis.com/projects/p/instances/i/databases/d/changeStreams/s",
        table=table,
        primary_key=tuple(key),
        columns=tuple(Column(name, kind) for name, kind in columns),
        value_capture_type="NEW_ROW",
    )


def table_definition(header: Header) -> TableDefinition:
    """Return the mirror that a header asks for without a tables file; PoisonRecordError as `source_columns`."""
    name = checked_name(header.table.replace(".", "_"), header.table)
    return mirror_definition(header, name, source_columns(header))


def a_change(
    identity: int = 1, sequence: int = 1, op: Op = "UPSERT", *, committed: str = COMMITTED, **row: object
) -> Change:
    """Return a change of the row with this ``id``; the larger ``sequence`` is the newer one.

    Where a real clock decides what is old, ``committed`` has to be by that clock.
    """
    values = {"name": f"name {sequence}"} | row
    return Change(
        op=op,
        mod_type="DELETE" if op == "DELETE" else "UPDATE",
        sequence=str(four_sections(sequence)),
        commit_timestamp=committed,
        place='{"transaction":"t"}',
        key=json.dumps({"id": str(identity)}),
        row=None if op == "DELETE" else json.dumps(values),
    )


def a_message(
    *changes: Change,
    header: Header | None = None,
    data: bytes | None = None,
    ack_id: str = "",
    delivery_attempt: int = 1,
) -> Mapping[str, object]:
    """Return a message as the source hands it over: a change batch, or ``data`` as it is."""
    header = header or a_header()
    return {
        "ack_id": ack_id,
        "message_id": "1",
        "ordering_key": f"{header.table}/3",
        "data": encode_batch(header, changes) if data is None else data,
        "attributes": [("table", header.table), ("change_count", str(len(changes)))],
        "publish_time": None,
        "delivery_attempt": delivery_attempt,
    }


def messages_table(*messages: Mapping[str, object]) -> pa.Table:
    """Return messages as the rows that travel from source to sink; ack ids are ``a0``, ``a1``, ..."""
    rows = [dict(message) | {"ack_id": f"a{index}"} for index, message in enumerate(messages)]
    return pa.Table.from_pylist(rows, schema=MESSAGE_SCHEMA)
