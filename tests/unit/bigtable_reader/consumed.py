"""What the consumer makes of what this reader publishes: its own decoding, from the bytes of a message to columns."""

from collections.abc import Sequence
from typing import Any

from services.cdc_consumer.core.schema.destinations import Plan
from services.cdc_consumer.core.stream.columns import decode_messages
from shared.contracts.change_batch import Change, Header, encode_batch
from shared.contracts.tables_file import read_tables_file
from shared.contracts.timestamps import parse_timestamp
from tests.unit.cdc_consumer.wire import messages_of

_MODES = {"images": "mirror", "entries": "history"}
_THE_CONSUMERS = {"_millrace_message", "_millrace_change", "big_query_commit_timestamp"}
_NOW = parse_timestamp("2030-01-01T00:00:00Z")


def consumed(header: Header, changes: Sequence[Change]) -> list[dict[str, Any]]:
    """Return the rows that go to BigQuery, in the wire types of their columns; nothing may be poison."""
    tables, poison = consumed_or_dead_lettered(header, changes)
    assert poison == []
    return tables


def consumed_or_dead_lettered(header: Header, changes: Sequence[Change]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the rows that go to BigQuery, and the reasons of what does not."""
    plan = Plan(read_tables_file(f'[defaults]\nmode = "{_MODES[header.content]}"'), "mirror")
    found = decode_messages(messages_of(encode_batch(header, changes)), _NOW, plan)
    assert not found.unfit
    rows = [
        {name: value for name, value in row.items() if name not in _THE_CONSUMERS}
        for table in found.tables
        for row in table.rows.to_pylist()
    ]
    return rows, [each.reason.value for each in found.poison]
