"""Messages decoded to columns and poison, for tests: what is in them, by row."""

from collections.abc import Sequence

from services.cdc_consumer.core.schema.destinations import Destinations, Plan, destinations
from services.cdc_consumer.core.schema.tables import TableDefinition
from services.cdc_consumer.core.stream.columns import Decoded, TableChanges, decode_messages
from services.cdc_consumer.core.stream.poison import Poison
from services.cdc_consumer.core.types.masks import MaskKey
from shared.contracts.change_batch import Change, Header
from shared.contracts.tables_file import read_tables_file
from shared.contracts.timestamps import Nanoseconds
from tests.unit.cdc_consumer.wire import (
    AN_HOUR_LATER,
    batch_of,
    header_of,
    messages_of,
    upsert,
)


def planned(text: str = "", key: MaskKey | None = None) -> Plan:
    """Return the plan of a tables file; the consumer's own dataset is ``mirror``."""
    return Plan(read_tables_file(text), "mirror", key)


def in_mode(mode: str) -> str:
    """Return the tables file that says one thing."""
    return f'[defaults]\nmode = "{mode}"\n'


def wanted(text: str, header: Header | None = None, key: MaskKey | None = None) -> Destinations:
    """Return where the changes of a table go that a tables file does not leave out."""
    found = destinations(header or header_of(), planned(text, key))
    assert found is not None
    return found


def mirror_of(text: str, header: Header | None = None, key: MaskKey | None = None) -> TableDefinition:
    mirror = wanted(text, header, key).mirror
    assert mirror is not None
    return mirror


def history_of(text: str, header: Header | None = None, key: MaskKey | None = None) -> TableDefinition:
    history = wanted(text, header, key).history
    assert history is not None
    return history


def decode(*data: bytes, now: Nanoseconds = AN_HOUR_LATER) -> Decoded:
    return decode_messages(messages_of(*data), now)


def decode_changes(
    changes: Sequence[Change], header: Header | None = None, text: str = "", key: MaskKey | None = None
) -> Decoded:
    return decode_messages(messages_of(batch_of(changes, header)), AN_HOUR_LATER, planned(text, key))


def tables_of(
    text: str, *changes: Change, header: Header | None = None, key: MaskKey | None = None
) -> dict[str, TableChanges]:
    """Return what a tables file makes of changes, by table; none of them is poison."""
    found = decode_changes(changes, header, text, key)
    assert found.poison == []
    return {one.definition.identity: one for one in found.tables}


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
