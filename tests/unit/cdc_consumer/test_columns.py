"""Messages to columns: what is applied, in which columns, and which keys BigQuery can hold."""

from collections.abc import Sequence

import pyarrow as pa
import pytest

from services.cdc_consumer.adapters.bigquery.row_encoder import RowEncoder
from services.cdc_consumer.core.stream.columns import CHANGE, MESSAGE, Decoded, conform, decode_messages
from services.cdc_consumer.core.stream.poison import Poison
from shared.contracts.reasons import Reason
from tests.builders import table_definition
from tests.source_values import COLUMNS
from tests.unit.cdc_consumer.decoded import decode, decode_changes, only, rows
from tests.unit.cdc_consumer.wire import (
    AN_HOUR_LATER,
    COMMITTED_MICROS,
    batch_of,
    delete,
    header_of,
    messages_of,
    upsert,
)


def test_a_delete_carries_its_key_and_ours_and_nothing_else() -> None:
    changes = [upsert(6, {"note": "x"}, sequence="A/A"), delete(7, sequence="A/B")]
    decoded = decode_changes(changes, header_of({"note": "STRING", "id": "INT64", "ok": "BOOL"}))

    assert rows(decoded) == [
        {
            "note": note, "id": identity, "ok": None, "_millrace_sequence": sequence,
            "_millrace_commit_timestamp": COMMITTED_MICROS, "_CHANGE_TYPE": kind,
            "_CHANGE_SEQUENCE_NUMBER": sequence, MESSAGE: 0, CHANGE: change,
        }
        for change, (identity, note, kind, sequence) in enumerate(
            [(6, "x", "UPSERT", "A/A"), (7, None, "DELETE", "A/B")]
        )
    ]  # fmt: skip


def test_messages_are_decoded_from_any_part_of_any_piece_of_a_table() -> None:
    messages = messages_of(*[batch_of([upsert(number)]) for number in range(6)])
    chunked = pa.concat_tables([messages.slice(1, 2), messages.slice(4)])

    assert [row["id"] for row in rows(decode_messages(chunked, AN_HOUR_LATER))] == [1, 2, 4, 5]


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
    changes = decode_changes([upsert(1)], header_of({"id": "INT64"} | COLUMNS)).tables[0]
    assert changes.rows.schema.names[-2:] == [MESSAGE, CHANGE]
    assert changes.rows.schema.field(MESSAGE).type == changes.rows.schema.field(CHANGE).type == pa.int32()


# Keys: what BigQuery can hold as one, and what is refused.


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
