"""Messages to columns: what is applied, and in which columns."""

import math

import pyarrow as pa
import pytest

from services.cdc_consumer.adapters.bigquery.row_encoder import RowEncoder
from services.cdc_consumer.core.schema.tables import table_definition
from services.cdc_consumer.core.stream.columns import CHANGE, MESSAGE, Decoded, conform, decode_messages
from tests.unit.cdc_consumer.decoded import ALL_TYPES, decode, decode_changes, rows
from tests.unit.cdc_consumer.wire import (
    AN_HOUR_LATER,
    COMMITTED_MICROS,
    batch_of,
    delete,
    header_of,
    messages_of,
    upsert,
)


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


def test_messages_are_decoded_from_any_part_of_any_piece_of_a_table() -> None:
    messages = messages_of(*[batch_of([upsert(number)]) for number in range(6)])
    pieces = pa.concat_tables([messages.slice(1, 2), messages.slice(4)])

    assert [row["id"] for row in rows(decode_messages(pieces, AN_HOUR_LATER))] == [1, 2, 4, 5]


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


def test_line_breaks_and_spaces_between_tokens_shift_no_row() -> None:
    texts = ['{\n"note"\n:\r\n"a"\n}\n', '  {"note" : "b"}\t', '{"note":"c"}', "{\n\n}"]
    data = batch_of([upsert(f'{{\n "id" :\n"{n}"}}', text) for n, text in enumerate(texts)])
    assert [(row["id"], row["note"]) for row in rows(decode(data))] == [(0, "a"), (1, "b"), (2, "c"), (3, None)]


def test_an_escaped_column_name_is_that_column() -> None:
    assert rows(decode_changes([upsert(1, '{"\\u006eote":"a"}')]))[0]["note"] == "a"


def test_a_row_larger_than_any_block_of_the_parser_is_taken_whole() -> None:
    text = "x" * 5_000_000
    assert [row["note"] for row in rows(decode_changes([upsert(1, {"note": text}), upsert(2)]))] == [text, None]


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


def test_the_rows_are_of_the_definitions_schema() -> None:
    changes = decode_changes([upsert(1)], header_of({"id": "INT64"} | ALL_TYPES)).tables[0]
    assert changes.rows.schema.names[-2:] == [MESSAGE, CHANGE]
    assert changes.rows.schema.field(MESSAGE).type == changes.rows.schema.field(CHANGE).type == pa.int32()
