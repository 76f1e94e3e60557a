"""Messages and changes that are poison: each alone, named without its values, and never with its neighbours."""

import json
from collections.abc import Mapping
from datetime import timedelta

import msgspec
import pytest
from msgspec import structs

from services.cdc_consumer.core.stream.columns import CHANGE, MESSAGE, decode_messages
from services.cdc_consumer.core.stream.poison import Poison
from shared.contracts.change_batch import Change, Origin, decode_batch
from shared.contracts.change_sequence import four_sections
from shared.contracts.reasons import Reason
from shared.contracts.safe_age import SAFE_AGE
from shared.contracts.timestamps import Nanoseconds
from tests.unit.cdc_consumer.decoded import decode, decode_changes, only, rows
from tests.unit.cdc_consumer.wire import (
    COMMITTED,
    COMMITTED_MICROS,
    batch_of,
    delete,
    header_of,
    messages_of,
    upsert,
)


def test_garbage_is_poison_as_a_whole_message_that_reports_what_is_wrong_and_its_neighbours_are_applied() -> None:
    good = batch_of([upsert(1)])
    not_text = batch_of([upsert(1, {"note": "x"})]).replace(b'"x"', b'"\xff"')
    deep = batch_of([upsert(1, '{"note":' + "[" * 200_000 + "]" * 200_000 + "}")])
    unequal = good.replace(b'"op":["UPSERT"]', b'"op":[]')

    decoded = decode(b"", good, b"{}", good + b" {}", not_text, deep, unequal, good, b"junk", b"\xff\xfe")

    assert [(poison.message, poison.change, poison.reason) for poison in decoded.poison] == [
        (0, None, Reason.UNDECODABLE),
        (2, None, Reason.UNDECODABLE),
        (3, None, Reason.TRAILING_BYTES),
        (4, None, Reason.UNDECODABLE),
        (5, None, Reason.UNDECODABLE),
        (6, None, Reason.UNEQUAL_LISTS),
        (8, None, Reason.UNDECODABLE),
        (9, None, Reason.UNDECODABLE),
    ]
    details = {poison.message: poison.detail for poison in decoded.poison}
    assert "Input data was truncated (0 bytes)" in details[0]
    assert "missing required field `header` (2 bytes)" in details[2]
    assert "JSON is malformed: invalid character (byte 0) (4 bytes)" in details[8]
    assert "'utf-8' codec can't decode byte 0xff in position 0" in details[9]
    assert [row[MESSAGE] for row in rows(decoded)] == [1, 7]
    assert sorted(decoded.batches) == [1, 7]


def test_a_wrong_header_poisons_each_change_alone_so_that_each_can_be_replayed_alone() -> None:
    keyless = header_of(key=())
    array = header_of({"id": "INT64", "tags": "ARRAY<ARRAY<STRING>>"})

    decoded = decode(batch_of([upsert(1), upsert(2)], keyless), batch_of([upsert(3)], array), batch_of([upsert(4)]))

    assert [(each.message, each.change, each.reason, each.key) for each in decoded.poison] == [
        (0, 0, Reason.NO_PRIMARY_KEY, "[]"),
        (0, 1, Reason.NO_PRIMARY_KEY, "[]"),
        (1, 0, Reason.UNSUPPORTED_TYPE, "[3]"),
    ]
    assert [row["id"] for row in rows(decoded)] == [4]


def test_a_wrong_header_without_changes_is_poison_as_a_message() -> None:
    poison = only(decode_changes([], header_of(key=())))
    assert (poison.change, poison.reason, poison.table) == (None, Reason.NO_PRIMARY_KEY, "orders")


def test_poison_reports_where_it_is_and_never_what_the_row_holds() -> None:
    header = header_of({"id": "INT64", "qty": "INT64"}, table="shop.Orders")
    decoded = decode(
        batch_of([upsert(1)], header),
        batch_of([upsert(2), upsert(3, {"qty": "secret"}, sequence="AB")], header),
    )

    assert only(decoded) == Poison(
        1,
        1,
        Reason.VALUE_DOES_NOT_FIT,
        "column qty of type INT64: not a whole number of 64 bits",
        table="shop.Orders",
        key="[3]",
        sequence="AB",
        commit_timestamp=COMMITTED,
    )
    assert [row["id"] for row in rows(decoded)] == [1, 2]
    assert json.loads(decoded.batches[1].cut(1))["rows"] == [{"qty": "secret"}]


@pytest.mark.parametrize(
    ("change", "detail"),
    [
        (upsert('{"id":"1","id":"2"}'), "key: a JSON object has a member twice"),
        (upsert(1, '{"note":"a","note":"b"}'), "row: a JSON object has a member twice"),
        (upsert(1, '{"note":"a","other":"b"}'), "row has 'other', which is not one of the header's columns"),
        (upsert('{"id":"1","x":"2"}'), "key has 'x', which is not one of the header's columns"),
        (upsert(1, '{"id":"1"}'), "row has 'id', which is not one of the header's columns"),
        (upsert(1, "null"), "an upsert without a row"),
        (upsert(1, '"x"'), "row is not a JSON object"),
        (upsert(1, "[]"), "row is not a JSON object"),
        (msgspec.structs.replace(delete(1), key="null"), "its key is not a JSON object"),
        (msgspec.structs.replace(delete(1), key="[1]"), "key is not a JSON object"),
        (msgspec.structs.replace(delete(1), key="5"), "key is not a JSON object"),
        (upsert(1, committed="yesterday"), "commit timestamp: not an RFC 3339 timestamp"),
    ],
)
def test_a_change_that_contradicts_itself_is_poison_alone(change: Change, detail: str) -> None:
    decoded = decode_changes([upsert(7), change, delete(8)])
    poison = only(decoded)
    assert (poison.change, poison.reason) == (1, Reason.BAD_CHANGE)
    assert poison.detail.startswith(detail)
    assert [row["id"] for row in rows(decoded)] == [7, 8]


def test_an_operation_that_does_not_fit_its_row_is_poison_alone() -> None:
    data = batch_of([upsert(1), upsert(2), upsert(3), delete(4)])
    data = data.replace(b'["UPSERT","UPSERT","UPSERT","DELETE"]', b'["UPSERT","DELETE","INSERT","UPSERT"]')

    decoded = decode(data)

    assert [(each.change, each.reason, each.detail) for each in decoded.poison] == [
        (1, Reason.BAD_CHANGE, "a delete with a row"),
        (2, Reason.BAD_CHANGE, "its operation is neither UPSERT nor DELETE"),
        (3, Reason.BAD_CHANGE, "an upsert without a row"),
    ]
    assert [row["id"] for row in rows(decoded)] == [1]


@pytest.mark.parametrize(
    "sequence",
    [
        "",
        "/",
        "1/",
        "/1",
        "1//2",
        "1/2/3/4/5",
        "10000000000000000",
        "0x1",
        "-1",
        " 1",
        "1 ",
        "G",
        "1\n",
        "١",
        "G" * 67,
        "0" * 67,
        str(four_sections(1))[::-1].replace("1", "G"),
        "/" * 67,
    ],
)
def test_what_is_no_sequence_number_is_poison(sequence: str) -> None:
    text = json.dumps(sequence)
    data = batch_of([upsert(1), upsert(2, sequence="@"), upsert(3)]).replace(b'"@"', text.encode())
    poison = only(decode(data))
    assert (poison.change, poison.reason, poison.sequence) == (1, Reason.BAD_SEQUENCE, sequence)


@pytest.mark.parametrize("sequence", ["0/0/0/0", "ab/CD", "1" + "/FFFFFFFFFFFFFFFF" * 3, "16/B374D848"])
def test_every_sequence_of_the_grammar_is_applied_as_it_is(sequence: str) -> None:
    (row,) = rows(decode_changes([upsert(1, sequence=sequence)]))
    assert row["_CHANGE_SEQUENCE_NUMBER"] == row["_millrace_sequence"] == sequence


def test_a_dead_letters_texts_are_cut_so_that_it_can_always_be_published() -> None:
    poison = only(decode_changes([upsert("{" + '"id":"' + "9" * 5000 + '"}', sequence="F" * 5000)]))
    assert poison.reason is Reason.BAD_SEQUENCE
    assert max(len(text) for text in (poison.key, poison.sequence, poison.detail)) <= 1024


REPLAY, FORCED = {"replay_of": "letter"}, {"replay_forced": "true"}


@pytest.mark.parametrize(
    ("origin", "attributes", "refused"),
    [
        ("stream", {}, False),
        ("stream", REPLAY, True),
        ("snapshot", REPLAY, True),
        ("replay", {}, True),
        ("stream", REPLAY | FORCED, False),
        ("snapshot", REPLAY | FORCED, False),
        pytest.param("replay", FORCED, True, id="only a replay can be forced"),
    ],
)
def test_an_upsert_of_more_than_46_hours_ago_is_too_old_if_it_is_replayed_and_that_is_not_forced(
    origin: Origin, attributes: Mapping[str, str], refused: bool
) -> None:
    data = batch_of([upsert(1), delete(2)], header_of(origin=origin))
    messages = messages_of(data, batch_of([upsert(3)]), attributes=[attributes, REPLAY])
    limit = Nanoseconds((COMMITTED_MICROS + SAFE_AGE // timedelta(microseconds=1)) * 1_000)
    assert timedelta(hours=46) == SAFE_AGE

    assert not decode_messages(messages, limit).poison
    decoded = decode_messages(messages, Nanoseconds(limit + 1_000))

    beside = (1, 0, Reason.TOO_OLD_TO_BE_SAFE)
    found = [(each.message, each.change, each.reason) for each in decoded.poison]
    assert found == [(0, 0, Reason.TOO_OLD_TO_BE_SAFE)] * refused + [beside]
    assert [row["id"] for row in rows(decoded)] == ([2] if refused else [1, 2])


@pytest.mark.parametrize("captured", ["OLD_AND_NEW_VALUES", "NEW_VALUES"])
def test_an_update_that_is_no_full_row_image_is_refused_and_other_changes_are_taken(captured: str) -> None:
    header = structs.replace(header_of(), value_capture_type=captured)
    insert = structs.replace(upsert(1), mod_type="INSERT")
    decoded = decode(batch_of([insert, upsert(2), delete(3)], header), batch_of([upsert(4)]))

    assert [(each.message, each.change, each.reason) for each in decoded.poison] == [(0, 1, Reason.BAD_CHANGE)]
    assert [row["id"] for row in rows(decoded)] == [1, 3, 4]


@pytest.mark.parametrize("bad", [0, 1, 499, 2_500, 4_998, 4_999])
def test_one_bad_change_among_five_thousand_is_found_alone(bad: int) -> None:
    texts = {key: '{"note":5}' if key == bad else '{"note":"n"}' for key in range(5_000)}
    data = [batch_of([upsert(key, texts[key]) for key in range(start, start + 100)]) for start in range(0, 5_000, 100)]

    decoded = decode(*data)

    assert (only(decoded).message, only(decoded).change) == (bad // 100, bad % 100)
    table = decoded.tables[0].rows
    assert table["id"].to_pylist() == [key for key in range(5_000) if key != bad]
    places = zip(table[MESSAGE].to_pylist(), table[CHANGE].to_pylist(), strict=True)
    assert [message * 100 + change for message, change in places] == table["id"].to_pylist()


def test_many_bad_changes_of_every_kind_are_each_found() -> None:
    header = header_of({"id": "INT64", "q": "INT64", "n": "NUMERIC", "t": "TIMESTAMP"})
    fits: list[Mapping[str, object]] = [{"q": "1"}, {"q": 1}, {"n": "1e9"}]
    does_not: list[Mapping[str, object]] = [{"q": "x"}, {"n": 1.5}, {"t": "x"}, {"zz": 1}]
    decoded = decode_changes([upsert(key, (fits + does_not)[key % 7]) for key in range(700)], header)

    assert [row["id"] for row in rows(decoded)] == [key for key in range(700) if key % 7 < 3]
    assert [poison.change for poison in decoded.poison] == [key for key in range(700) if key % 7 >= 3]


def test_a_cut_change_decodes_to_the_same_poison() -> None:
    decoded = decode_changes([upsert(1), upsert(2, {"note": "x"}, sequence="Z")])
    again = decode(decoded.batches[0].cut(1))
    assert (only(again).reason, only(again).key) == (only(decoded).reason, only(decoded).key)
    assert decode_batch(decoded.batches[0].cut(1)).header == header_of()
