"""Messages to columns: what is applied, what is poison, and that one never drags the other along."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import NoReturn

import msgspec
import pyarrow as pa
import pytest
from msgspec import structs

from services.cdc_consumer.adapters.row_encoder import RowEncoder
from services.cdc_consumer.core import parsing, values
from services.cdc_consumer.core.columns import CHANGE, MESSAGE, Decoded, conform, decode_messages
from services.cdc_consumer.core.poison import SAFE_AGE, Poison
from services.cdc_consumer.core.tables import table_definition
from services.cdc_consumer.core.types import COLUMN_TYPES
from shared.contracts.change_batch import Change, Header, Origin, decode_batch
from shared.contracts.change_sequence import four_sections
from shared.contracts.errors import MisconfiguredError
from shared.contracts.reasons import Reason
from shared.contracts.timestamps import Nanoseconds
from tests.unit.cdc_consumer.wire import (
    AN_HOUR_LATER,
    COMMITTED,
    COMMITTED_MICROS,
    batch_of,
    delete,
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


# What is applied


def test_every_type_comes_out_in_its_wire_type() -> None:
    row = {
        "b": True, "i": "9223372036854775807", "f": -0.5, "n": "1.10", "s": "é\u0000😀", "y": "AP9hYmM=",
        "d": "2024-02-29", "t": "1969-12-31T23:59:59.9999999Z", "j": '{"a":[1,2.5,null]}',
        "g": 1.1, "a": ["9223372036854775807", "0"], "af": [1, "-Infinity"], "at": ["1969-12-31T23:59:59.9999999Z"],
    }  # fmt: skip
    decoded = decode_changes([upsert(1, row)], header_of({"id": "INT64"} | ALL_TYPES))

    assert not decoded.poison
    assert rows(decoded) == [
        {
            "id": 1, "b": True, "i": 2**63 - 1, "f": -0.5, "n": "1.10", "s": "é\u0000😀", "y": b"\x00\xffabc",
            "d": 19_782, "t": -1, "j": '{"a":[1,2.5,null]}',
            "g": 1.100000023841858, "a": [2**63 - 1, 0], "af": [1.0, -math.inf], "at": [-1],
            "_millrace_sequence": "0000000000000001/0000000000000000/0000000000000000/0000000000000000",
            "_millrace_commit_timestamp": COMMITTED_MICROS,
            "_CHANGE_TYPE": "UPSERT",
            "_CHANGE_SEQUENCE_NUMBER": "0000000000000001/0000000000000000/0000000000000000/0000000000000000",
            MESSAGE: 0, CHANGE: 0,
        }
    ]  # fmt: skip


def test_a_delete_carries_its_key_and_ours_and_nothing_else() -> None:
    decoded = decode_changes([delete(7, sequence="A/B")], header_of({"note": "STRING", "id": "INT64", "ok": "BOOL"}))

    assert rows(decoded) == [
        {
            "note": None, "id": 7, "ok": None, "_millrace_sequence": "A/B",
            "_millrace_commit_timestamp": COMMITTED_MICROS, "_CHANGE_TYPE": "DELETE",
            "_CHANGE_SEQUENCE_NUMBER": "A/B", MESSAGE: 0, CHANGE: 0,
        }
    ]  # fmt: skip


def test_a_missing_column_and_a_null_are_both_null() -> None:
    decoded = decode_changes([upsert(1, "{}"), upsert(2, '{"note":null}'), upsert(3, '{"note":""}')])
    assert [row["note"] for row in rows(decoded)] == [None, None, ""]


def test_a_table_of_nothing_but_key_columns_is_applied() -> None:
    decoded = decode_changes([upsert(1), delete(2)], header_of({"id": "INT64"}))
    assert [(row["id"], row["_CHANGE_TYPE"]) for row in rows(decoded)] == [(1, "UPSERT"), (2, "DELETE")]


def test_key_columns_are_where_the_table_has_them_whatever_their_order_in_the_key() -> None:
    header = header_of({"a": "STRING", "v": "STRING", "b": "INT64"}, key=("b", "a"))
    decoded = decode_changes([upsert({"a": "x", "b": "1"}, {"v": "y"})], header)
    assert decoded.tables[0].rows.schema.names[:3] == ["a", "v", "b"]
    assert [(row["a"], row["v"], row["b"]) for row in rows(decoded)] == [("x", "y", 1)]


def test_changes_of_a_table_and_column_list_come_together_whatever_messages_they_came_in() -> None:
    wider = header_of({"id": "INT64", "note": "STRING", "more": "INT64"})
    decoded = decode(
        batch_of([upsert(1), upsert(2)]),
        batch_of([upsert(3)], header_of(table="other")),
        batch_of([upsert(4)], header_of(origin="snapshot")),
        batch_of([upsert(5)], wider),
    )

    assert [(each.definition.name, each.rows["id"].to_pylist()) for each in decoded.tables] == [
        ("orders", [1, 2, 4]),
        ("other", [3]),
        ("orders", [5]),
    ]
    assert decoded.tables[0].rows.select([MESSAGE, CHANGE]).to_pylist() == [
        {MESSAGE: 0, CHANGE: 0},
        {MESSAGE: 0, CHANGE: 1},
        {MESSAGE: 2, CHANGE: 0},
    ]


def test_source_columns_may_be_called_like_anything_that_is_not_reserved() -> None:
    names = ["message", "change", "k", "r", "self", "op"]
    header = header_of({"id": "INT64"} | dict.fromkeys(names, "STRING"))
    decoded = decode_changes([upsert(1, {name: name for name in names})], header)
    assert [[row[name] for name in names] for row in rows(decoded)] == [names]


def test_a_batch_without_changes_announces_its_table() -> None:
    decoded = decode_changes([])
    assert [(each.definition.name, len(each.rows)) for each in decoded.tables] == [("orders", 0)]
    assert not decoded.poison
    assert len(decoded.batches[0]) == 0


def test_no_messages_are_no_tables() -> None:
    assert decode_messages(messages_of(), AN_HOUR_LATER) == Decoded([], [], {})


# Messages


def test_garbage_is_poison_as_a_whole_message_and_its_neighbours_are_applied() -> None:
    good = batch_of([upsert(1)])
    not_text = batch_of([upsert(1, {"note": "x"})]).replace(b'"x"', b'"\xff"')
    deep = batch_of([upsert(1, '{"note":' + "[" * 200_000 + "]" * 200_000 + "}")])
    unequal = good.replace(b'"op":["UPSERT"]', b'"op":[]')

    decoded = decode(b"", good, b"{}", good + b" {}", not_text, deep, unequal, good)

    assert [(poison.message, poison.change, poison.reason) for poison in decoded.poison] == [
        (0, None, Reason.UNDECODABLE),
        (2, None, Reason.UNDECODABLE),
        (3, None, Reason.TRAILING_BYTES),
        (4, None, Reason.UNDECODABLE),
        (5, None, Reason.UNDECODABLE),
        (6, None, Reason.UNEQUAL_LISTS),
    ]
    assert [row[MESSAGE] for row in rows(decoded)] == [1, 7]
    assert sorted(decoded.batches) == [1, 7]


def test_a_newer_format_stops_everything() -> None:
    with pytest.raises(MisconfiguredError, match="upgrade the consumer"):
        decode(batch_of([upsert(1)]), batch_of([upsert(1)]).replace(b'"format":1', b'"format":3'))


def test_a_wrong_header_poisons_each_change_alone_so_that_each_can_be_replayed_alone() -> None:
    keyless = header_of(key=())
    array = header_of({"id": "INT64", "tags": "ARRAY<INTERVAL>"})

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


# One change


def test_poison_says_where_it_is_and_never_what_the_row_holds() -> None:
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
    ("kind", "text", "detail"),
    [
        ("BOOL", '"true"', "not a JSON boolean"),
        ("BOOL", "1", "not a JSON boolean"),
        ("INT64", '"0x10"', "not a whole number of 64 bits"),
        ("INT64", '"+5"', "not a whole number of 64 bits"),
        ("INT64", '" 5"', "not a whole number of 64 bits"),
        ("INT64", '"9223372036854775808"', "not a whole number of 64 bits"),
        ("INT64", "9223372036854775808", "not a whole number of 64 bits"),
        ("INT64", "1e3", "not a JSON string"),
        ("INT64", "1.0", "not a JSON string"),
        ("INT64", "true", "not a JSON string"),
        ("FLOAT64", "1e400", "neither a JSON number of 64 bits"),
        ("FLOAT64", '"1.5"', "neither a JSON number of 64 bits"),
        ("FLOAT64", '"nan"', "neither a JSON number of 64 bits"),
        ("FLOAT64", "true", "neither a JSON number of 64 bits"),
        ("NUMERIC", '"0.0000000001"', "not a decimal number of 38 digits"),
        ("NUMERIC", "1.5", "not a JSON string"),
        ("STRING", "5", "not a JSON string"),
        ("STRING", '{"a":1}', "not a JSON string"),
        ("STRING", '["a"]', "not a JSON string"),
        ("BYTES", '"YQ"', "not base64"),
        ("DATE", '"0000-12-31"', "not a date from 0001-01-01 to 9999-12-31"),
        ("TIMESTAMP", '"2024-01-01"', "not an RFC 3339 timestamp"),
        ("JSON", '"{"', "not a JSON text"),
        ("JSON", '{"a":1}', "not a JSON string"),
    ],
)
def test_a_value_that_does_not_fit_names_column_type_and_limit(kind: str, text: str, detail: str) -> None:
    poison = poison_of_value(kind, text)
    assert poison.reason is Reason.VALUE_DOES_NOT_FIT
    assert poison.detail.startswith(f"column c of type {kind}: {detail}")


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("INT64", "5", 5),
        ("INT64", "-9223372036854775808", -(2**63)),
        ("INT64", "9007199254740993", 9_007_199_254_740_993),
        ("NUMERIC", "12345678901234567890123456789", "12345678901234567890123456789"),
        ("FLOAT64", "5", 5.0),
        ("FLOAT64", "1e-400", 0.0),
        ("FLOAT64", '"Infinity"', float("inf")),
        ("FLOAT64", '"-Infinity"', float("-inf")),
        ("FLOAT64", "0.1", 0.1),
        # As a JSONB writes them, which Spanner's PostgreSQL dialect has its records in.
        ("FLOAT64", "1" + "0" * 300, 1e300),
        ("FLOAT64", "0." + "0" * 323 + "5", 5e-324),
        ("FLOAT64", "-0.0", -0.0),
        ("STRING", '"\\ud83d\\ude00\\u0000\\n"', "😀\0\n"),
        ("STRING", '"2024-01-01T00:00:00Z"', "2024-01-01T00:00:00Z"),
    ],
)
def test_what_the_fast_way_cannot_take_is_applied_exactly_and_its_neighbours_too(
    kind: str, text: str, value: object
) -> None:
    changes = [upsert(key, f'{{"c":{text}}}' if key == 20 else "{}") for key in range(40)]
    decoded = decode_changes(changes, header_of({"id": "INT64", "c": kind}))
    assert not decoded.poison
    assert [row["c"] for row in rows(decoded)] == [None] * 20 + [value] + [None] * 19


@pytest.mark.parametrize(
    ("kind", "text", "detail"),
    [
        ("ARRAY<INT64>", '["1",null]', "an element is NULL, which a BigQuery array cannot hold"),
        ("ARRAY<STRING>", "[null]", "an element is NULL, which a BigQuery array cannot hold"),
        ("ARRAY<BOOL>", "[true,null]", "an element is NULL, which a BigQuery array cannot hold"),
        ("ARRAY<FLOAT64>", '["NaN",null]', "an element is NULL, which a BigQuery array cannot hold"),
        ("ARRAY<TIMESTAMP>", '[null,"x"]', "an element is NULL, which a BigQuery array cannot hold"),
        ("ARRAY<INT64>", '["1","NULL"]', "an element is not a whole number of 64 bits"),
        ("ARRAY<INT64>", "[1.5]", "an element is not a JSON string"),
        ("ARRAY<BOOL>", '[true,"true"]', "an element is not a JSON boolean"),
        ("ARRAY<STRING>", "[5]", "an element is not a JSON string"),
        ("ARRAY<STRING>", '[["a"]]', "an element is not a JSON string"),
        ("ARRAY<STRING>", '"a"', "not a JSON array"),
        ("ARRAY<STRING>", '{"0":"a"}', "not a JSON array"),
        ("ARRAY<FLOAT64>", '["nan"]', 'an element is neither a JSON number of 64 bits nor "NaN"'),
        ("ARRAY<FLOAT32>", "[1,1e39]", "an element is not a number of 32 bits"),
        ("ARRAY<UUID>", '["f47ac10b-58cc-4372-a567-0e02b2c3d479",""]', "an element is not a UUID"),
        ("ARRAY<DATE>", '["2024-02-30"]', "an element is not a date from 0001-01-01 to 9999-12-31"),
        ("FLOAT32", "1e39", "not a number of 32 bits"),
        ("FLOAT32", '"1.1"', 'neither a JSON number of 64 bits nor "NaN"'),
        ("PG_NUMERIC", "1.5", "not a JSON string"),
        ("PG_NUMERIC", '"1e5"', "neither a decimal number nor NaN"),
        ("INT64", '["1"]', "not a JSON string"),
    ],
)
def test_an_array_that_its_column_cannot_hold_is_poison_that_names_it(kind: str, text: str, detail: str) -> None:
    poison = poison_of_value(kind, text)
    assert poison.reason is Reason.VALUE_DOES_NOT_FIT
    assert poison.detail.startswith(f"column c of type {kind}: {detail}")


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("ARRAY<INT64>", '[1, "2", -3]', [1, 2, -3]),
        ("ARRAY<NUMERIC>", '["1.10", 5]', ["1.10", "5"]),
        ("ARRAY<PG_NUMERIC>", '["NaN", 5]', ["NaN", "5"]),
        ("ARRAY<FLOAT64>", '["Infinity",1,2.5]', [math.inf, 1.0, 2.5]),
        ("ARRAY<FLOAT32>", '[ "-Infinity" , 1.1]', [-math.inf, 1.100000023841858]),
        ("ARRAY<STRING>", '["NaN", ",\\"NaN\\"", "[\\"NaN\\"", ""]', ["NaN", ',"NaN"', '["NaN"', ""]),
        ("ARRAY<JSON>", '["[null,\\"NaN\\"]", "null"]', ['[null,"NaN"]', "null"]),
        ("ARRAY<BYTES>", '["AP9hYmM=", "", "YQ=="]', [b"\x00\xffabc", b"", b"a"]),
        ("ARRAY<BOOL>", "[]", []),
        ("ARRAY<DATE>", "null", None),
    ],
)
def test_an_array_is_its_elements_among_rows_of_every_other_kind(kind: str, text: str, value: object) -> None:
    changes = [upsert(key, f'{{"c":{text},"f":"NaN"}}' if key % 20 == 0 else '{"f":1}') for key in range(60)]
    decoded = decode_changes(changes, header_of({"id": "INT64", "c": kind, "f": "FLOAT64"}))
    assert not decoded.poison
    assert [row["c"] for row in rows(decoded)] == ([value] + [None] * 19) * 3
    assert {str(row["f"]) for row in rows(decoded)} == {"nan", "1.0"}


def test_good_rows_of_every_type_and_their_arrays_are_never_looked_at_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_arguments: object) -> NoReturn:
        raise AssertionError("a row or a value was looked at by itself")

    monkeypatch.setattr(parsing, "_exact_line", refuse)
    fittings = {kind: replace(fitting, exact=refuse) for kind, fitting in values._FITTINGS.items()}
    monkeypatch.setattr(values, "_FITTINGS", fittings)
    written: dict[str, list[object]] = {
        "BOOL": [True], "INT64": ["-1", "9223372036854775807"], "FLOAT64": ["NaN", 1.5, "-Infinity"],
        "FLOAT32": [1.1, "NaN"], "NUMERIC": ["1.10", "-0.5"], "STRING": ["", "é"], "BYTES": ["AP9hYmM=", ""],
        "DATE": ["0001-01-01"], "TIMESTAMP": ["2024-01-01T00:00:00.123456789Z", "1969-12-31T23:59:59Z"],
        "JSON": ['{"a":[1]}'], "PG_NUMERIC": ["NaN"], "UUID": ["f47ac10b-58cc-4372-a567-0e02b2c3d479"],
    }  # fmt: skip
    assert {f"ARRAY<{name}>" for name in written} | written.keys() == COLUMN_TYPES.keys()
    columns = {f"s{name.lower()}": name for name in written} | {
        f"a{name.lower()}": f"ARRAY<{name}>" for name in written
    }
    row = {f"s{name.lower()}": texts[0] for name, texts in written.items()}
    # Among an array's elements a "NaN" that is a text is not told from one that is a number: both go the exact way.
    row |= {f"a{name.lower()}": texts for name, texts in written.items() if name != "PG_NUMERIC"}
    text = json.dumps(row, separators=(",", ":"))
    header = header_of({"id": "INT64", "b": "BYTES"} | columns, key=("id", "b"))

    decoded = decode_changes([upsert({"id": str(key), "b": "YQ=="}, text) for key in range(100)], header)

    assert not decoded.poison
    assert len(rows(decoded)) == 100


def test_nan_among_numbers_is_nan() -> None:
    values = ["1.5", '"NaN"', "-0.0"] * 20
    decoded = decode_changes(
        [upsert(n, f'{{"c":{text}}}') for n, text in enumerate(values)], header_of({"id": "INT64", "c": "FLOAT64"})
    )
    assert [str(row["c"]) for row in rows(decoded)] == ["1.5", "nan", "-0.0"] * 20


def test_the_words_for_what_is_no_number_stay_words_in_a_text() -> None:
    texts = ["NaN", ':"NaN"', '"c":"NaN"', "Infinity", 'x:"-Infinity",', ":", '\\:"NaN"']
    header = header_of({"id": "INT64", "c": "FLOAT64", "note": "STRING", "doc": "JSON"})
    changes = [upsert(n, {"c": "NaN", "note": text, "doc": json.dumps({"c": text})}) for n, text in enumerate(texts)]
    for each in (changes, changes[1:2], changes * 20):
        decoded = decode(batch_of(each, header).replace(b": ", b":"))
        assert not decoded.poison
        assert [(str(row["c"]), row["note"], json.loads(str(row["doc"]))["c"]) for row in rows(decoded)] == [
            ("nan", texts[int(str(row["id"]))], texts[int(str(row["id"]))]) for row in rows(decoded)
        ]
        assert len(rows(decoded)) == len(each)


def test_a_word_for_what_is_no_number_fits_no_other_type() -> None:
    for kind in ("BOOL", "INT64", "NUMERIC", "DATE", "TIMESTAMP"):
        assert poison_of_value(kind, '"Infinity"').reason is Reason.VALUE_DOES_NOT_FIT


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


@pytest.mark.parametrize("sequence", ["0/0/0/0", "ab/CD", "FFFFFFFFFFFFFFFF/" * 3 + "FFFFFFFFFFFFFFFF", "16/B374D848"])
def test_every_sequence_of_the_grammar_is_applied_as_it_is(sequence: str) -> None:
    (row,) = rows(decode_changes([upsert(1, sequence=sequence)]))
    assert row["_CHANGE_SEQUENCE_NUMBER"] == row["_millrace_sequence"] == sequence


def test_a_letters_texts_are_cut_so_that_it_can_always_be_published() -> None:
    poison = only(decode_changes([upsert("{" + '"id":"' + "9" * 5000 + '"}', sequence="F" * 5000)]))
    assert poison.reason is Reason.BAD_SEQUENCE
    assert max(len(text) for text in (poison.key, poison.sequence, poison.detail)) <= 1024


# Keys


def key_poison(kind: str, text: str) -> Poison:
    header = header_of({"id": kind, "note": "STRING"})
    other = {
        "BOOL": "true", "TIMESTAMP": '"2024-01-01T00:00:00.123456000Z"', "DATE": '"2024-01-01"', "BYTES": '"YQ=="',
        "FLOAT64": "0.5", "FLOAT32": '"NaN"',
    }.get(kind, '"5"')  # fmt: skip
    decoded = decode_changes(
        [upsert(f'{{"id":{other}}}'), upsert(f'{{"id":{text}}}'), delete(f'{{"id":{other}}}')], header
    )
    assert len(rows(decoded)) == 2
    assert only(decoded).change == 1
    return only(decoded)


@pytest.mark.parametrize(
    "kind", ["BOOL", "INT64", "NUMERIC", "STRING", "DATE", "TIMESTAMP", "BYTES", "FLOAT64", "FLOAT32"]
)
def test_null_in_a_key_is_poison(kind: str) -> None:
    poison = key_poison(kind, "null")
    assert poison.reason is Reason.KEY_NOT_REPRESENTABLE
    assert poison.detail.startswith(f"key column id of type {kind}: NULL")


def test_a_key_column_that_is_missing_is_poison() -> None:
    assert only(decode_changes([upsert("{}")])).reason is Reason.KEY_NOT_REPRESENTABLE


def test_a_timestamp_key_with_digits_beyond_the_microsecond_is_poison() -> None:
    poison = key_poison("TIMESTAMP", '"2024-01-01T00:00:00.1234567Z"')
    assert poison.reason is Reason.KEY_NOT_REPRESENTABLE
    assert poison.detail == "key column id of type TIMESTAMP: digits beyond the microsecond would be cut"


def test_a_key_value_that_does_not_fit_is_poison_like_any_other() -> None:
    assert key_poison("INT64", '"x"').reason is Reason.VALUE_DOES_NOT_FIT
    assert key_poison("TIMESTAMP", '"2024-01-01"').reason is Reason.VALUE_DOES_NOT_FIT


def test_null_in_one_part_of_a_key_is_poison_that_names_the_part_whichever_it_is() -> None:
    header = header_of({"a": "INT64", "b": "BYTES", "v": "STRING"}, key=("a", "b"))
    keys: list[dict[str, object]] = [
        {"a": "1", "b": "YQ=="},
        {"a": None, "b": "YQ=="},
        {"a": "1", "b": None},
        {"a": "1"},
    ]
    decoded = decode_changes([change(key) for key in keys for change in (upsert, delete)], header)

    assert [(row["a"], row["b"], row["_CHANGE_TYPE"]) for row in rows(decoded)] == [
        (1, "YQ==", "UPSERT"), (1, "YQ==", "DELETE"),
    ]  # fmt: skip
    assert [(each.change, each.reason, each.detail.partition(":")[0]) for each in decoded.poison] == [
        (2, Reason.KEY_NOT_REPRESENTABLE, "key column a of type INT64"),
        (3, Reason.KEY_NOT_REPRESENTABLE, "key column a of type INT64"),
        (4, Reason.KEY_NOT_REPRESENTABLE, "key column b of type BYTES"),
        (5, Reason.KEY_NOT_REPRESENTABLE, "key column b of type BYTES"),
        (6, Reason.KEY_NOT_REPRESENTABLE, "key column b of type BYTES"),
        (7, Reason.KEY_NOT_REPRESENTABLE, "key column b of type BYTES"),
    ]


@pytest.mark.parametrize(
    ("kind", "keys", "texts"),
    [
        ("BYTES", ['"AP9hYmM="', '""', '"YQ=="', '"YR=="'], ["AP9hYmM=", "", "YQ==", "YQ=="]),
        ("FLOAT64", ["1", "1.0", "-0.0", '"NaN"', '"-Infinity"'], ["1.0", "1.0", "0.0", "NaN", "-Infinity"]),
        ("FLOAT32", ["1.1", "1.100000023841858"], ["1.100000023841858"] * 2),
    ],
)
def test_a_key_that_bigquery_has_no_type_for_is_one_text_per_value_and_no_other_column_is(
    kind: str, keys: Sequence[str], texts: Sequence[str]
) -> None:
    header = header_of({"id": kind, "v": kind})
    decoded = decode_changes([upsert(f'{{"id":{key}}}', f'{{"v":{key}}}') for key in keys], header)
    assert not decoded.poison
    assert [row["id"] for row in rows(decoded)] == texts
    assert {type(row["v"]) for row in rows(decoded)} == ({bytes} if kind == "BYTES" else {float})


def test_a_key_that_its_row_id_cannot_take_is_shown_as_it_came() -> None:
    assert key_poison("NUMERIC", '"1e999999999"').key == '{"id":"1e999999999"}'


def test_numeric_keys_are_normal_so_that_one_row_has_one_key() -> None:
    header = header_of({"id": "NUMERIC", "note": "NUMERIC"})
    texts = ["1", "1.0", "1.00", "01", "-0", "0.0", "-1.50", "1e1"]
    decoded = decode_changes([upsert({"id": text}, {"note": text}) for text in texts], header)
    assert [row["id"] for row in rows(decoded)] == ["1", "1", "1", "1", "0", "0", "-1.5", "10"]


# Old changes


@pytest.mark.parametrize(("origin", "refused"), [("stream", False), ("snapshot", True), ("replay", True)])
def test_an_upsert_not_from_the_stream_and_older_than_46_hours_is_too_old(origin: Origin, refused: bool) -> None:
    data = batch_of([upsert(1), delete(2)], header_of(origin=origin))
    limit = Nanoseconds((COMMITTED_MICROS + SAFE_AGE // timedelta(microseconds=1)) * 1_000)
    assert timedelta(hours=46) == SAFE_AGE

    assert not decode(data, now=limit).poison
    decoded = decode(data, now=Nanoseconds(limit + 1_000))

    assert [(each.change, each.reason) for each in decoded.poison] == [(0, Reason.TOO_OLD_TO_BE_SAFE)] * refused
    assert [row["id"] for row in rows(decoded)] == ([2] if refused else [1, 2])


def test_a_replayed_change_is_no_change_of_the_stream_any_more() -> None:
    data = batch_of([upsert(1), delete(2)])
    late = Nanoseconds((COMMITTED_MICROS + SAFE_AGE // timedelta(microseconds=1) + 1) * 1_000)
    messages = messages_of(data, data, attributes=[{"table": "orders"}, {"table": "orders", "replay_of": "letter"}])
    decoded = decode_messages(messages, late)

    assert [(each.message, each.change, each.reason) for each in decoded.poison] == [(1, 0, Reason.TOO_OLD_TO_BE_SAFE)]
    assert [row["id"] for row in rows(decoded)] == [1, 2, 2]


# Partial images


@pytest.mark.parametrize("captured", ["OLD_AND_NEW_VALUES", "NEW_VALUES"])
def test_an_update_that_is_no_full_row_image_is_refused_and_other_changes_are_taken(captured: str) -> None:
    header = structs.replace(header_of(), value_capture_type=captured)
    insert = structs.replace(upsert(1), mod_type="INSERT")
    decoded = decode(batch_of([insert, upsert(2), delete(3)], header), batch_of([upsert(4)]))

    assert [(each.message, each.change, each.reason) for each in decoded.poison] == [(0, 1, Reason.BAD_CHANGE)]
    assert [row["id"] for row in rows(decoded)] == [1, 3, 4]


# Traps of parsing many documents as one text


def test_line_breaks_and_spaces_between_tokens_shift_no_row() -> None:
    texts = ['{\n"note"\n:\r\n"a"\n}\n', '  {"note" : "b"}\t', '{"note":"c"}', "{\n\n}"]
    data = batch_of([upsert(f'{{\n "id" :\n"{n}"}}', text) for n, text in enumerate(texts)])
    assert [(row["id"], row["note"]) for row in rows(decode(data))] == [(0, "a"), (1, "b"), (2, "c"), (3, None)]


def test_an_escaped_column_name_is_that_column() -> None:
    assert rows(decode_changes([upsert(1, '{"\\u006eote":"a"}')]))[0]["note"] == "a"


def test_a_row_larger_than_any_block_of_the_parser_is_taken_whole() -> None:
    text = "x" * 5_000_000
    assert [row["note"] for row in rows(decode_changes([upsert(1, {"note": text}), upsert(2)]))] == [text, None]


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


# To a wider definition


def test_rows_of_an_older_column_list_conform_to_the_table_with_null() -> None:
    older = decode_changes([upsert(1, {"note": "a"})]).tables[0]
    wider = table_definition(header_of({"new": "DATE", "id": "INT64", "note": "STRING"}))

    (row,) = conform(older.rows, wider).to_pylist()

    assert {name: row[name] for name in ("new", "id", "note", "_CHANGE_TYPE")} == {
        "new": None, "id": 1, "note": "a", "_CHANGE_TYPE": "UPSERT",
    }  # fmt: skip
    assert MESSAGE not in row


def test_an_array_that_an_older_column_list_lacks_is_null_and_can_be_encoded() -> None:
    older = decode_changes([upsert(1, {"note": "a"}), delete(2)]).tables[0]
    newer = header_of({"id": "INT64", "note": "STRING", "tags": "ARRAY<STRING>", "f": "ARRAY<FLOAT32>"})
    wider = table_definition(newer)
    written = decode_changes([upsert(1, {"note": "a"}), delete(2)], newer).tables[0]
    encoder = RowEncoder(wider)

    conformed = conform(older.rows, wider)

    assert [row["tags"] for row in conformed.to_pylist()] == [None, None]
    assert encoder.encode(conformed).to_pylist() == encoder.encode(written.rows).to_pylist()
    assert encoder.encode(conformed).to_pylist() == encoder.encode_plainly(conformed).to_pylist()


def test_rows_with_a_column_that_the_table_lacks_or_has_otherwise_conform_to_nothing() -> None:
    changes = decode_changes([upsert(1, {"note": "a"})]).tables[0]
    for columns in ({"id": "INT64"}, {"id": "INT64", "note": "INT64"}):
        with pytest.raises(ValueError, match="has no column note"):
            conform(changes.rows, table_definition(header_of(columns)))


def test_a_cut_change_decodes_to_the_same_poison() -> None:
    decoded = decode_changes([upsert(1), upsert(2, {"note": "x"}, sequence="Z")])
    again = decode(decoded.batches[0].cut(1))
    assert (only(again).reason, only(again).key) == (only(decoded).reason, only(decoded).key)
    assert decode_batch(decoded.batches[0].cut(1)).header == header_of()


def test_the_rows_are_of_the_definitions_schema() -> None:
    changes = decode_changes([upsert(1)], header_of({"id": "INT64"} | ALL_TYPES)).tables[0]
    assert changes.rows.schema.names[-2:] == [MESSAGE, CHANGE]
    assert changes.rows.schema.field(MESSAGE).type == changes.rows.schema.field(CHANGE).type == pa.int32()
