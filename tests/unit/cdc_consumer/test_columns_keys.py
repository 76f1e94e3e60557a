"""Keys in columns: what BigQuery can hold as one, and what is refused."""

from collections.abc import Sequence

import pytest

from services.cdc_consumer.core.stream.poison import Poison
from shared.contracts.reasons import Reason
from tests.unit.cdc_consumer.decoded import decode_changes, only, rows
from tests.unit.cdc_consumer.wire import (
    delete,
    header_of,
    upsert,
)


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
