"""The JSON Schemas and the example messages of `docs/reference/wire-format/` are what the services write and read.

`make docs` writes the example messages; `tests/unit/test_documents.py` compares them with what the code makes today.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import pytest
from jsonschema import Draft202012Validator

from services.bigtable_reader.core.changes.refused import Made
from services.bigtable_reader.core.snapshot.snapshot import SnapshotPlace
from services.bigtable_reader.core.stream.records import Aggregated, DataChange, DeleteCells, DeleteFamily, UnknownEntry
from services.spanner_reader.core.stream.records import Mod
from shared.contracts.change_batch import FORMAT, ChangeBatch, Header, decode_batch, encode_batch
from shared.contracts.dead_letter import DeadLetter, from_message
from shared.contracts.reasons import Reason
from shared.contracts.timestamps import Nanoseconds
from shared.pubsub.dead_letters import dead_letter_message
from tests.documents.made import DOCS
from tests.documents.wire_messages import (
    BATCHES,
    COMMITTED,
    DEAD_LETTER,
    FOLDER,
    as_delivered,
    messages_of,
    order_record,
    orders,
)
from tests.unit.bigtable_reader.readings import a_record, outputs
from tests.unit.cdc_consumer.world import World


class Example(msgspec.Struct):
    """A message as its file has it; the data are the file's own bytes."""

    ordering_key: str
    attributes: dict[str, str]
    data: msgspec.Raw


def schema(name: str) -> Any:
    return json.loads((DOCS / FOLDER / f"{name}.schema.json").read_text(encoding="utf-8"))


def example(name: str) -> Example:
    return msgspec.json.decode((DOCS / FOLDER / f"{name}.json").read_bytes(), type=Example)


CHANGE_BATCH: Final = Draft202012Validator(schema("change-batch"))
ATTRIBUTES: Final = Draft202012Validator(schema("attributes"))
DEAD_LETTER_ATTRIBUTES: Final = Draft202012Validator(schema("dead-letter"))


def problems(validator: Draft202012Validator, document: Any) -> Sequence[str]:
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(document)]


@pytest.mark.parametrize("name", ["change-batch", "attributes", "dead-letter"])
def test_a_schema_is_one_of_draft_2020_12(name: str) -> None:
    assert schema(name)["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    Draft202012Validator.check_schema(schema(name))


@pytest.mark.parametrize("name", BATCHES)
def test_an_example_message_is_valid_and_decoded(name: str) -> None:
    message = example(name)
    batch = decode_batch(bytes(message.data))

    assert problems(CHANGE_BATCH, json.loads(bytes(message.data))) == []
    assert problems(ATTRIBUTES, message.attributes) == []
    assert (batch.header.table, str(len(batch))) == (message.attributes["table"], message.attributes["change_count"])
    assert message.ordering_key.startswith(f"{batch.header.table}/")


def test_every_file_of_the_folder_is_a_schema_or_an_example() -> None:
    files = {path.name.removesuffix(".json") for path in (DOCS / FOLDER).iterdir()}

    assert {name for name in files if not name.endswith(".schema")} == {*BATCHES, DEAD_LETTER}
    assert {name for name in files if name.endswith(".schema")} == {
        f"{name}.schema" for name in ("change-batch", "attributes", "dead-letter")
    }


def test_the_consumer_applies_the_example_messages() -> None:
    world = World()
    world.clock.time = Nanoseconds(COMMITTED + 2_000_000_000)
    world.apply(*(as_delivered(example(name)) for name in BATCHES if name != "replay"))
    (entry,) = world.writer.appended["weather_changelog"]

    assert len(world.leases.acked) == len(BATCHES) - 1
    assert world.dead_letters.kept == {}
    assert {key: (row["Item"], row["Pieces"]) for key, row in world.writer.rows("Orders").items()} == {
        (17,): ("bolt", 40),
        (19,): ("screw", None),
        (21,): ("gear", 7),
    }
    assert [row["f"] for row in world.writer.rows("weather").values()] == ['{"temperature":"MTcuNQ=="}']
    assert (entry["mod_type"], entry["value"]) == ("SET_CELL", b"17.5")


def test_the_example_dead_letter_is_valid_and_read_by_the_dead_letter_service() -> None:
    message = example(DEAD_LETTER)
    dead_letter = from_message(bytes(message.data), message.attributes)

    assert problems(DEAD_LETTER_ATTRIBUTES, message.attributes) == []
    assert problems(CHANGE_BATCH, json.loads(bytes(message.data))) == []
    assert (dead_letter.reason, dead_letter.table, dead_letter.key) == (Reason.VALUE_DOES_NOT_FIT, "Orders", "[20]")
    assert dead_letter.identity == example("replay").attributes["replay_of"]


def made_of_spanner() -> Sequence[Any]:
    """Return messages with an insert, with a row that has a key only, and with a change without its old values."""
    maker = orders()
    records = [
        order_record("INSERT", Mod('{"Id":"1"}', '{"Item":"bolt","Pieces":"1"}', "{}"), Mod('{"Id":"2"}', "{}", None)),
        order_record("UPDATE", Mod('{"Id":"1"}', '{"Item":"nut","Pieces":null}', '{"Item":"bolt"}'), second=1),
    ]
    made = [maker.changes(record) for record in records]
    (header, ((key, change),)) = made[1]
    return [
        message
        for header, changes in [
            *made,
            (header, [(key, change.without_old_values())]),
            (header, [(key, change.completed("{}", reconstructed=True))]),
        ]
        for message in messages_of(header, changes)
    ]


def made_of_bigtable() -> Sequence[Any]:
    """Return messages with an entry of each kind, a row that is gone, and a row of a snapshot."""
    makers, record = outputs(entries=True), a_record(b"row")
    assert makers.images is not None
    assert makers.entries is not None
    entries = (
        *record.entries,
        DeleteCells("f", b"q", record.commit, record.commit),
        DeleteFamily("f"),
        Aggregated("ADD_TO_CELL", "f", b"q", record.commit, b"1"),
        UnknownEntry("NEW_KIND", "f", b"v"),
    )
    change: DataChange = msgspec.structs.replace(record, entries=entries)
    lines, refused = makers.entries.changes(change)
    assert (len(lines), refused) == (5, [])
    messages = [*messages_of(makers.entries.header, lines)]
    place = SnapshotPlace(1, 1, 1, record.commit)
    for made in (
        makers.images.image(b"row", None, change, 2),
        makers.images.row(b"row", {"f": {b"q": []}}, place),
    ):
        assert isinstance(made, Made)
        messages += messages_of(made.header, [(made.ordering_key, made.change)])
    return messages


@pytest.mark.parametrize("message", [*made_of_spanner(), *made_of_bigtable()])
def test_what_the_readers_publish_is_valid(message: Any) -> None:
    assert problems(CHANGE_BATCH, json.loads(message.data)) == []
    assert problems(ATTRIBUTES, dict(message.attributes)) == []


@pytest.mark.parametrize("reason", Reason)
def test_a_dead_letter_of_each_reason_is_valid_and_each_of_its_attributes_is_described(reason: Reason) -> None:
    dead_letter = DeadLetter(
        data=b'{"Id":"17"}',
        attributes={"table": "Orders"},
        ordering_key="Orders/3",
        reason=reason,
        detail="the change takes 10000000 bytes",
        failed_at=COMMITTED,
        failed_in="spanner_reader",
        table="Orders",
        key="[17]",
        sequence="00061760B6202640/0000000000000000/0000000000000000/0000000000000000",
        commit_timestamp="2024-05-01T09:00:00.123456Z",
        payload_bytes=10_000_000,
    )
    attributes = dict(dead_letter_message(dead_letter).attributes)

    assert problems(DEAD_LETTER_ATTRIBUTES, attributes) == []
    assert attributes.keys() - dead_letter.attributes.keys() == schema("dead-letter")["properties"].keys()


def test_the_schemas_have_the_fields_and_the_values_of_the_code() -> None:
    batch, header = schema("change-batch"), schema("change-batch")["$defs"]["header"]
    lists = [field.name for field in msgspec.structs.fields(ChangeBatch) if field.name != "header_text"]
    optional = {"complete_since", "read_since", "published_until"}

    assert batch["required"] == list(batch["properties"]) == lists
    assert list(header["properties"]) == [field.name for field in msgspec.structs.fields(Header)]
    assert set(header["required"]) == header["properties"].keys() - optional
    assert header["properties"]["format"]["maximum"] == FORMAT
    assert schema("attributes")["properties"]["format"]["enum"] == [str(one) for one in range(1, FORMAT + 1)]
    assert schema("dead-letter")["properties"]["dead_letter_reason"]["enum"] == [reason.value for reason in Reason]
    kinds = msgspec.json.schema(Header)["$defs"]["Header"]["properties"]
    for name in ("origin", "content"):
        assert set(header["properties"][name]["enum"]) == set(kinds[name]["enum"])


END: Final = "00061760B610E400/0000000000000000/0000000000000000/0000000000000000"


@pytest.mark.parametrize(
    ("name", "place", "value"),
    [
        ("spanner-upsert", ("header", "format"), FORMAT + 1),
        ("spanner-upsert", ("header", "origin"), "rumour"),
        ("spanner-upsert", ("header", "columns", 0), {"name": "Id"}),
        ("spanner-upsert", ("header", "complete_since"), END),
        ("spanner-snapshot-end", ("header", "complete_since"), END.lower()),
        ("spanner-upsert", ("header", "read_since"), 1),
        ("spanner-upsert", ("op", 0), "INSERT"),
        ("spanner-upsert", ("sequence", 0), "1/2"),
        ("spanner-upsert", ("sequence", 0), f"{END}\n"),
        ("spanner-upsert", ("commit_timestamp", 0), "2024-05-01 09:00"),
        ("spanner-upsert", ("place", 0), {}),
        ("spanner-upsert", ("place", 0, "reconstructed"), False),
        ("spanner-reconstructed", ("place", 0), {"reconstructed": True, "mod_index": 0}),
        ("bigtable-image", ("place", 0), {}),
        ("bigtable-image", ("header", "format"), 1),
        ("bigtable-entry", ("header", "format"), 1),
        ("bigtable-entry", ("op", 0), "DELETE"),
        ("spanner-upsert", ("keys", 0), None),
        ("spanner-upsert", ("rows", 0), "text"),
        ("spanner-upsert", ("rows",), None),
    ],
)
def test_a_damaged_change_batch_is_invalid(name: str, place: Sequence[str | int], value: object) -> None:
    document = json.loads(bytes(example(name).data))
    *path, last = place
    at = document
    for step in path:
        at = at[step]
    at[last] = value

    assert problems(CHANGE_BATCH, document) != []


def test_a_new_member_is_valid_in_every_format() -> None:
    document = json.loads(encode_batch(decode_batch(bytes(example("table-announcement").data)).header, []))
    document["header"]["new"] = document["new"] = 1

    assert problems(CHANGE_BATCH, document) == []
    assert decode_batch(json.dumps(document).encode()).header.table == "Orders"


@pytest.mark.parametrize(
    "damage",
    [
        {"format": "3"},
        {"change_count": "-1"},
        {"change_count": "0"},
        {"first_commit_timestamp": "yesterday"},
        {"replay_forced": "true"},
        {"replay_of": "17"},
    ],
    ids=str,
)
def test_damaged_attributes_are_invalid(damage: Mapping[str, str]) -> None:
    assert problems(ATTRIBUTES, {**example("spanner-upsert").attributes, **damage}) != []


@pytest.mark.parametrize("missing", ["dead_letter_identity", "dead_letter_reason", "dead_letter_failed_at"])
def test_attributes_of_a_dead_letter_without_an_essential_one_are_invalid(missing: str) -> None:
    attributes = {name: value for name, value in example(DEAD_LETTER).attributes.items() if name != missing}

    assert problems(DEAD_LETTER_ATTRIBUTES, attributes) != []
