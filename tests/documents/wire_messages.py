"""`docs/reference/wire-format/`: one message of each kind, from the code that makes it in a service.

A file has a message's ordering key, its attributes and its data, byte for byte.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import msgspec
from structlog.testing import capture_logs

from services.bigtable_reader.core.changes.images import CellVersion
from services.bigtable_reader.core.changes.refused import Made
from services.bigtable_reader.core.stream.records import DataChange, Microseconds, SetCell
from services.spanner_reader.core.snapshot.snapshot import RowMaker
from services.spanner_reader.core.stream.changes import ChangeMaker
from services.spanner_reader.core.stream.completion import QueuedChange, row_as_it_is_now
from services.spanner_reader.core.stream.records import DataChangeRecord, Mod, SpannerColumnType
from shared.contracts.change_batch import Change, Header
from shared.contracts.change_sequence import four_sections
from shared.contracts.dead_letter import DeadLetter, replayed_attributes
from shared.contracts.row_id import ordering_key
from shared.contracts.timestamps import Nanoseconds, microseconds, parse_timestamp
from shared.pubsub.dead_letters import dead_letter_message
from shared.pubsub.packer import Packer, PackerLimits
from shared.pubsub.publisher import batch_message
from shared.pubsub.stubs import PubsubMessage
from tests.unit.bigtable_reader.readings import outputs
from tests.unit.cdc_consumer.world import World

FOLDER: Final = "reference/wire-format"
COMMITTED: Final = parse_timestamp("2024-05-01T09:00:00.123456Z")
_SECOND: Final = 1_000_000_000
_BUCKETS: Final = 16
_SOURCE: Final = "//spanner.googleapis.com/projects/p/instances/i/databases/shop/changeStreams/everything"
_COLUMNS: Final = (
    SpannerColumnType("Id", '{"code":"INT64"}', is_primary_key=True, ordinal_position=1),
    SpannerColumnType("Item", '{"code":"STRING"}', is_primary_key=False, ordinal_position=2),
    SpannerColumnType("Pieces", '{"code":"INT64"}', is_primary_key=False, ordinal_position=3),
)
_CAPTURED: Final = "NEW_ROW_AND_OLD_VALUES"

Keyed = Sequence[tuple[str, Change]]
"""Changes, each with its ordering key."""


def messages_of(header: Header, changes: Keyed, limits: PackerLimits | None = None) -> Sequence[Any]:
    """Return the messages that a reader publishes for changes; none announces the header's table."""
    packer = Packer(limits)
    packer.add(header, changes, announce_under=ordering_key(header.table, 0))
    messages: list[Any] = []
    while not packer.idle:
        for request in packer.requests():
            messages += [batch_message(message, request.ordering_key) for message in request.messages]
            packer.confirm(request.ordering_key)
    return messages


def orders() -> ChangeMaker:
    """Return what makes the changes of a Spanner table Orders."""
    return ChangeMaker(_SOURCE, _BUCKETS, {"Orders": ("Id",)})


def order_record(mod_type: str, *mods: Mod, second: int = 0) -> DataChangeRecord:
    """Return a record of a transaction of its own, so many seconds after `COMMITTED`."""
    return DataChangeRecord(
        commit_timestamp=Nanoseconds(COMMITTED + second * _SECOND),
        record_sequence="00000000",
        server_transaction_id="MTc=",
        is_last_record_in_transaction_in_partition=True,
        table="Orders",
        column_types=_COLUMNS,
        mods=mods,
        mod_type=mod_type,
        value_capture_type=_CAPTURED,
        number_of_records_in_transaction=1,
        number_of_partitions_in_transaction=1,
    )


def _of_record(record: DataChangeRecord) -> Any:
    (message,) = messages_of(*orders().changes(record))
    return message


def _upsert() -> Any:
    return _of_record(order_record("UPDATE", Mod('{"Id":"17"}', '{"Item":"bolt","Pieces":"40"}', '{"Pieces":"39"}')))


def _not_a_number() -> Any:
    return _of_record(order_record("INSERT", Mod('{"Id":"20"}', '{"Item":"washer","Pieces":"many"}', "{}")))


def _delete() -> Any:
    return _of_record(order_record("DELETE", Mod('{"Id":"18"}', "{}", '{"Item":"nut","Pieces":"2"}'), second=1))


def _orders_header() -> Header:
    return orders().header("Orders", _COLUMNS, _CAPTURED)


def _reconstructed() -> Any:
    """Return a row as it is now, whose update came too late to be completed from its row of then."""
    update = order_record("UPDATE", Mod('{"Id":"21"}', '{"Pieces":"7"}', "{}"))
    header, ((key, change),) = orders().changes(replace(update, value_capture_type="NEW_VALUES"))
    entry = QueuedChange(b"21", update.commit_timestamp, update.server_transaction_id, False, header, key, change)
    now, whole = Nanoseconds(COMMITTED + _SECOND), orders().header("Orders", _COLUMNS, "NEW_VALUES")
    (message,) = messages_of(whole, [(key, row_as_it_is_now(entry, {"Item": "gear", "Pieces": "7"}, now, whole))])
    return message


def _announcement() -> Any:
    (message,) = messages_of(_orders_header(), [])
    return message


def _snapshot_row() -> Any:
    header = msgspec.structs.replace(_orders_header(), origin="snapshot")
    rows = RowMaker(header, Nanoseconds(COMMITTED - _SECOND), _BUCKETS)
    (message,) = messages_of(header, rows.changes([["19", "screw", None]]))
    return message


def _snapshot_end() -> Any:
    since = str(four_sections(microseconds(Nanoseconds(COMMITTED - _SECOND))))
    (message,) = messages_of(msgspec.structs.replace(_orders_header(), origin="snapshot", complete_since=since), [])
    return message


def _weather() -> DataChange:
    at = Microseconds(microseconds(COMMITTED))
    return DataChange(
        row_key=b"JFK#2024-05-01",
        kind="USER",
        source_cluster="c1",
        commit=at,
        tiebreaker=0,
        entries=(SetCell("f", b"temperature", Microseconds(at // 1_000 * 1_000), b"17.5"),),
        token="t1",
        low_watermark=at,
    )


def _image() -> Any:
    images, record = outputs().images, _weather()
    assert images is not None
    cells = {"f": {b"temperature": [CellVersion(record.commit, b"17.5")]}}
    made = images.image(record.row_key, cells, record, record.commit)
    assert isinstance(made, Made)
    (message,) = messages_of(made.header, [(made.ordering_key, made.change)])
    return message


def _entry() -> Any:
    entries = outputs(images=False, entries=True).entries
    assert entries is not None
    changes, _refused = entries.changes(_weather())
    (message,) = messages_of(entries.header, changes)
    return message


def as_delivered(message: Any) -> Mapping[str, object]:
    """Return a message as the consumer's source hands it over."""
    return {
        "ack_id": "",
        "message_id": "1",
        "ordering_key": message.ordering_key,
        "data": bytes(message.data),
        "attributes": list(dict(message.attributes).items()),
        "publish_time": None,
        "delivery_attempt": 1,
    }


def _kept() -> DeadLetter:
    """Return what the consumer makes of a change that its table cannot take."""
    world = World()
    world.clock.time = Nanoseconds(COMMITTED + _SECOND)
    with capture_logs():
        world.apply(as_delivered(_not_a_number()))
    (dead_letter,) = world.dead_letters.kept.values()
    return dead_letter


def _dead_letter() -> Any:
    return dead_letter_message(_kept())


def _replay() -> Any:
    dead_letter = _kept()
    return PubsubMessage(
        data=dead_letter.data,
        attributes=replayed_attributes(dead_letter, forced=False),
        ordering_key=dead_letter.ordering_key,
    )


BATCHES: Final[Mapping[str, Callable[[], Any]]] = {
    "spanner-upsert": _upsert,
    "spanner-delete": _delete,
    "spanner-reconstructed": _reconstructed,
    "spanner-snapshot-row": _snapshot_row,
    "spanner-snapshot-end": _snapshot_end,
    "table-announcement": _announcement,
    "bigtable-image": _image,
    "bigtable-entry": _entry,
    "replay": _replay,
}
"""Messages of the topic."""
DEAD_LETTER: Final = "dead-letter"
"""A message of the dead-letter topic."""


def _file(name: str) -> str:
    return f"{FOLDER}/{name}.json"


def _text(make: Callable[[], Any]) -> str:
    """Return a message as a file has it."""
    message = make()
    attributes = dict(sorted(message.attributes.items()))
    lines = ",\n".join(f"    {json.dumps(name)}: {json.dumps(value)}" for name, value in attributes.items())
    key, data = json.dumps(message.ordering_key), message.data.decode()
    return f'{{\n  "ordering_key": {key},\n  "attributes": {{\n{lines}\n  }},\n  "data": {data}\n}}\n'


FILES: Final[Mapping[str, Callable[[], str]]] = {
    _file(name): partial(_text, make) for name, make in {**BATCHES, DEAD_LETTER: _dead_letter}.items()
}
