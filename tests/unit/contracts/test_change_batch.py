"""The wire format: what is written is read, and every kind of damage has its own answer."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.contracts.change_batch import FORMAT, Change, Column, Content, Header, decode_batch, encode_batch
from shared.contracts.errors import MisconfiguredError, PoisonRecordError
from shared.contracts.reasons import Reason

HEADER = Header(
    source="//spanner.googleapis.com/projects/p/instances/i/databases/d/changeStreams/s",
    table="Singers",
    primary_key=("Id",),
    columns=(Column("Id", "INT64"), Column("Name", "STRING")),
    value_capture_type="NEW_ROW",
)
UPSERT = Change(
    "UPSERT", "INSERT", "1/2/3/0", "2026-11-21T09:00:00Z", '{"tag":""}', '{"Id":"1"}', '{"Name": "a\\u00e9"}'
)
DELETE = Change("DELETE", "DELETE", "2/2/3/0", "2026-11-21T09:00:01Z", '{"tag":""}', '{"Id":"1"}', None, '{"Name":"a"}')


def damaged(**changes: object) -> bytes:
    """Return a good batch of two changes with parts of the document replaced."""
    return json.dumps(json.loads(encode_batch(HEADER, [UPSERT, DELETE])) | changes).encode()


def with_header(**changes: object) -> bytes:
    """Return a good batch with parts of its header replaced."""
    return damaged(header=json.loads(damaged())["header"] | changes)


def reason_of(data: bytes) -> Reason:
    """Return the reason for which a batch that is poison is refused."""
    with pytest.raises(PoisonRecordError) as caught:
        decode_batch(data)
    return caught.value.reason


def test_what_is_written_is_read_and_the_sources_text_is_untouched() -> None:
    batch = decode_batch(encode_batch(HEADER, [UPSERT, DELETE]))

    assert batch.header == HEADER
    assert batch.op == ["UPSERT", "DELETE"]
    assert [bytes(row) for row in batch.rows] == [b'{"Name": "a\\u00e9"}', b"null"]
    assert [bytes(old) for old in batch.old] == [b"null", b'{"Name":"a"}']
    assert len(batch) == 2


def test_the_document_is_plain_json_for_every_subscriber() -> None:
    document = json.loads(encode_batch(HEADER, [UPSERT, DELETE]))

    assert list(document) == [
        "header",
        "op",
        "mod_type",
        "sequence",
        "commit_timestamp",
        "place",
        "keys",
        "rows",
        "old",
    ]
    assert document["header"]["format"] == 1
    assert document["rows"] == [{"Name": "aé"}, None]


@pytest.mark.parametrize(("content", "needed"), [("changes", 1), ("images", 2), ("entries", 2)])
def test_a_batch_names_the_oldest_format_that_can_hold_its_content(content: Content, needed: int) -> None:
    """One who reads format 1 only knows of no content, and would take it for changes: he has to stop."""
    header = msgspec.structs.replace(HEADER, content=content)
    text = encode_batch(header, [UPSERT])

    assert header.format == json.loads(text)["header"]["format"] == needed
    assert decode_batch(text).header == header
    assert decode_batch(text).cut(0) == text


def test_what_does_not_name_its_content_is_changes() -> None:
    header = {name: value for name, value in json.loads(damaged())["header"].items() if name != "content"}

    assert decode_batch(damaged(header=header)).header == HEADER


def test_an_empty_batch_announces_a_table() -> None:
    batch = decode_batch(encode_batch(HEADER, []))

    assert len(batch) == 0
    assert batch.header.columns == HEADER.columns


END_OF_SNAPSHOT = "00063B1E00000000/0000000000000000/0000000000000000/0000000000000000"


def test_the_end_of_a_snapshot_is_announced_in_the_header() -> None:
    header = msgspec.structs.replace(HEADER, origin="snapshot", complete_since=END_OF_SNAPSHOT)
    batch = decode_batch(encode_batch(header, []))

    assert batch.header == header
    assert batch.header.complete_since == END_OF_SNAPSHOT
    assert batch.header.format == 1, "who does not know it takes it for an announcement, and is right"


def test_beside_it_is_reported_since_when_its_rows_were_read_where_that_is_known() -> None:
    header = msgspec.structs.replace(HEADER, complete_since=END_OF_SNAPSHOT, read_since=1_790_000_000_000_000)
    assert decode_batch(encode_batch(header, [])).header == header
    encoded = json.loads(encode_batch(msgspec.structs.replace(HEADER, complete_since=END_OF_SNAPSHOT), []))["header"]
    assert "read_since" not in encoded


def test_a_header_that_is_not_of_the_end_of_a_snapshot_has_the_bytes_it_always_had() -> None:
    assert "complete_since" not in json.loads(damaged())["header"]
    assert decode_batch(damaged()).header.complete_since is msgspec.UNSET


@pytest.mark.parametrize(
    "data", [b"", b"\xff\xfe", b"{}", b"[]", b"null", b'{"header":{}}', b"{" * 200_000, damaged()[:-1]]
)
def test_garbage_is_poison(data: bytes) -> None:
    assert reason_of(data) is Reason.UNDECODABLE


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("content", "rumours"),
        *[("complete_since", end) for end in ("", "0", END_OF_SNAPSHOT.lower(), f"{END_OF_SNAPSHOT}\n", 7)],
        ("complete_since", END_OF_SNAPSHOT[:-17]),
        *[("read_since", instant) for instant in (-1, "2026-11-21T12:00:00Z")],
        *[("format", version) for version in (0, -1, "2", 1.5, None)],
    ],
)
def test_a_header_with_a_value_that_no_format_has_is_poison_and_stops_no_task(field: str, wrong: object) -> None:
    assert reason_of(with_header(**{field: wrong})) is Reason.UNDECODABLE


@pytest.mark.parametrize("more", [b"x", b"{}", encode_batch(HEADER, [])])
def test_trailing_bytes_are_poison_of_their_own(more: bytes) -> None:
    assert reason_of(encode_batch(HEADER, [UPSERT]) + more) is Reason.TRAILING_BYTES


def test_trailing_white_space_is_no_damage() -> None:
    assert len(decode_batch(encode_batch(HEADER, [UPSERT]) + b" \n")) == 1


@pytest.mark.parametrize("name", ["op", "mod_type", "sequence", "commit_timestamp", "place", "keys", "rows", "old"])
def test_unequal_lists_are_poison_of_their_own(name: str) -> None:
    with pytest.raises(PoisonRecordError, match=f"{name} 1") as caught:
        decode_batch(damaged(**{name: json.loads(damaged())[name][:1]}))

    assert caught.value.reason is Reason.UNEQUAL_LISTS


@pytest.mark.parametrize(
    "document",
    [
        {"header": {"format": 99, "table": "t", "source": "s", "columns": 5}, "op": {}},
        {"header": {"format": FORMAT + 1, "table": "t", "source": "s"}},
    ],
)
def test_a_newer_format_stops_the_consumer_even_where_nothing_else_is_understood(document: object) -> None:
    with pytest.raises(MisconfiguredError, match="upgrade the consumer"):
        decode_batch(json.dumps(document).encode())


def test_a_newer_format_that_looks_like_ours_stops_the_consumer_too() -> None:
    with pytest.raises(MisconfiguredError, match=f"format {FORMAT + 1}"):
        decode_batch(with_header(format=FORMAT + 1))


@pytest.mark.parametrize("data", [b'{"header":{"format":3}}', b'{"header":{"format":3,"table":"t","source":5}}'])
def test_junk_that_names_a_format_stops_no_task(data: bytes) -> None:
    assert reason_of(data) is Reason.UNDECODABLE


def test_bytes_that_are_not_utf_8_are_garbage_also_inside_what_is_not_parsed() -> None:
    assert reason_of(encode_batch(HEADER, [UPSERT]).replace(b"a\\u00e9", b"a\xff")) is Reason.UNDECODABLE


def test_a_field_that_a_later_version_adds_is_passed_over() -> None:
    assert len(decode_batch(with_header(colour="blue"))) == 2
    assert len(decode_batch(damaged(more=[1]))) == 2


def test_a_word_that_no_reader_writes_is_read_as_it_is() -> None:
    batch = decode_batch(damaged(op=["UPSERT", "MERGE"], mod_type=["REPLACE", ""]))

    assert batch.op == ["UPSERT", "MERGE"]
    assert batch.mod_type == ["REPLACE", ""]


def test_of_a_known_word_there_is_one_object_and_not_one_for_each_change() -> None:
    several = decode_batch(encode_batch(HEADER, [UPSERT, UPSERT, UPSERT]))

    assert len(set(map(id, several.op))) == 1
    assert len(set(map(id, several.mod_type))) == 1


def test_one_change_is_cut_out_verbatim_under_the_same_header() -> None:
    spaced = json.dumps(json.loads(encode_batch(HEADER, [UPSERT, DELETE])), indent=1, ensure_ascii=False).encode()
    batch = decode_batch(spaced)

    alone = decode_batch(batch.cut(1))

    assert alone.header_text == batch.header_text
    assert (alone.op, alone.sequence) == (["DELETE"], ["2/2/3/0"])
    assert bytes(alone.old[0]) == bytes(batch.old[1])
    assert decode_batch(batch.cut(0)).cut(0) == batch.cut(0), (
        "cutting what was cut changes nothing: a replay is the same dead letter"
    )


def test_an_upsert_without_a_row_cannot_be_built() -> None:
    with pytest.raises((ValueError, TypeError)):
        Change("UPSERT", "INSERT", "1", "2026-11-21T09:00:00Z", "{}", "{}", None)
    with pytest.raises((ValueError, TypeError)):
        Change("DELETE", "DELETE", "1", "2026-11-21T09:00:00Z", "{}", "{}", "{}")


@given(st.dictionaries(st.text(), st.text() | st.integers() | st.none(), max_size=4), st.text(), st.integers(0, 5))
def test_the_size_of_a_change_is_never_less_than_what_it_adds(row: dict[str, object], name: str, count: int) -> None:
    text = msgspec.json.encode(row).decode()
    key = msgspec.json.encode({"k": name}).decode()
    change = Change(
        "UPSERT", "INSERT", "/".join(["F" * 16] * 4), "2026-11-21T09:00:00.123456789Z", "{}", key, text, text
    )

    assert len(encode_batch(HEADER, [change] * count)) <= len(encode_batch(HEADER, [])) + count * change.size()


def test_a_heartbeat_is_an_announcement_to_a_consumer_that_does_not_know_it() -> None:
    header = Header(source="s", table="t", primary_key=(), columns=(), published_until=7)

    data = encode_batch(header, ())

    assert b'"format":1' in data
    assert FORMAT > 1, "the format before this one reads it, too"
    unknown = decode_batch(data.replace(b"published_until", b"a_member_to_come"))
    assert unknown.header == Header(source="s", table="t", primary_key=(), columns=())
    assert len(unknown) == 0
    assert b"published_until" not in encode_batch(unknown.header, ())
