"""Values and arrays in columns: what fits, exactly as it came, and what does not, by name of its column."""

import json
import math
from dataclasses import replace
from typing import NoReturn

import msgspec
import pytest

from services.cdc_consumer.core.schema.tables import TableColumn
from services.cdc_consumer.core.stream import parsing
from services.cdc_consumer.core.types import values
from services.cdc_consumer.core.types.types import COLUMN_TYPES, column_type
from shared.contracts.reasons import Reason
from tests.unit.cdc_consumer.decoded import decode, decode_changes, poison_of_value, rows
from tests.unit.cdc_consumer.wire import (
    batch_of,
    header_of,
    upsert,
)


@pytest.mark.parametrize(
    ("kind", "text", "detail"),
    [
        ("BOOL", '"true"', "not a JSON boolean"),
        ("BOOL", "1", "not a JSON boolean"),
        ("INT64", '"0x10"', "not a whole number of 64 bits"),
        ("INT64", "9223372036854775808", "not a whole number of 64 bits"),
        ("INT64", "1e3", "not a JSON string"),
        ("INT64", "true", "not a JSON string"),
        ("FLOAT64", "1e400", "neither a JSON number of 64 bits"),
        ("FLOAT64", '"nan"', "neither a JSON number of 64 bits"),
        ("FLOAT64", "true", "neither a JSON number of 64 bits"),
        ("TIME", "[" * 700 + "]" * 700, "nested too deeply"),  # a type that is not known
        ("NUMERIC", '"0.0000000001"', "not a decimal number of 38 digits"),
        ("NUMERIC", "1.5", "not a JSON string"),
        ("STRING", "5", "not a JSON string"),
        ("STRING", '{"a":1}', "not a JSON string"),
        ("BYTES", '"YQ"', "not base64"),
        ("DATE", '"0000-12-31"', "not a date from 0001-01-01 to 9999-12-31"),
        ("TIMESTAMP", '"2024-01-01"', "not an RFC 3339 timestamp"),
        ("JSON", '"{"', "not a JSON text"),
        ("JSON", '{"a":1}', "not a JSON string"),
        ("ARRAY<INT64>", '["1",null]', "an element is NULL, which a BigQuery array cannot hold"),
        ("ARRAY<STRING>", "[null]", "an element is NULL, which a BigQuery array cannot hold"),
        ("ARRAY<BOOL>", "[true,null]", "an element is NULL, which a BigQuery array cannot hold"),
        ("ARRAY<FLOAT64>", '["NaN",null]', "an element is NULL, which a BigQuery array cannot hold"),
        ("ARRAY<TIMESTAMP>", '[null,"x"]', "an element is NULL, which a BigQuery array cannot hold"),
        ("ARRAY<INT64>", '["1","NULL"]', "an element is not a whole number of 64 bits"),
        ("ARRAY<INT64>", "[1.5]", "an element is not a JSON string"),
        ("ARRAY<BOOL>", '[true,"true"]', "an element is not a JSON boolean"),
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
        ("ENUM", '"ON"', "not a whole number of 64 bits"),
        ("PROTO", '"?"', "not base64"),
        ("INTERVAL", '"1 day"', "not an ISO 8601 duration"),
        ("ARRAY<TIME>", '"10:00"', "not a JSON array"),
        ("ARRAY<TIME>", '["10:00", null]', "an element is NULL, which a BigQuery array cannot hold"),
    ],
)
def test_a_value_that_does_not_fit_names_column_type_and_limit(kind: str, text: str, detail: str) -> None:
    poison = poison_of_value(kind, text)
    assert poison.reason is Reason.VALUE_DOES_NOT_FIT
    assert poison.detail.startswith(f"column c of type {kind}: {detail}")


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("INT64", "9007199254740993", 9_007_199_254_740_993),
        ("NUMERIC", "12345678901234567890123456789", "12345678901234567890123456789"),
        ("FLOAT64", "1e-400", 0.0),
        # As a JSONB writes them, which Spanner's PostgreSQL dialect has its records in.
        ("FLOAT64", "1" + "0" * 300, 1e300),
        ("FLOAT64", "0." + "0" * 323 + "5", 5e-324),
        ("TIME", "12345678901234567890.123", "12345678901234567890.123"),
        ("TIME", '{"a" : [1, "é\\n"], "b":null}', '{"a":[1,"\\u00e9\\n"],"b":null}'),
        ("STRUCT", '["1", 2]', '["1",2]'),
        ("STRING", '"\\ud83d\\ude00\\u0000\\n"', "😀\0\n"),
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
    ("kind", "text", "value"),
    [
        ("ARRAY<ENUM>", '[1, "2", -3]', [1, 2, -3]),
        ("ARRAY<TIME>", '["10:00", 5, {"b" :[ 1.50, null]}, "x"]', ["10:00", "5", '{"b":[1.50,null]}', "x"]),
        ("ARRAY<NUMERIC>", '["1.10", 5]', ["1.10", "5"]),
        ("ARRAY<PG_NUMERIC>", '["NaN", 5]', ["NaN", "5"]),
        ("ARRAY<FLOAT32>", '[ "-Infinity" , 1.1]', [-math.inf, 1.100000023841858]),
        ("ARRAY<STRING>", '["NaN", ",\\"NaN\\"", "[\\"NaN\\"", ""]', ["NaN", ',"NaN"', '["NaN"', ""]),
        ("ARRAY<JSON>", '["[null,\\"NaN\\"]", "null"]', ['[null,"NaN"]', "null"]),
    ],
)
def test_an_array_is_its_elements_among_rows_of_every_other_kind(kind: str, text: str, value: object) -> None:
    changes = [upsert(key, f'{{"c":{text},"f":"NaN"}}' if key % 20 == 0 else '{"f":1}') for key in range(60)]
    decoded = decode_changes(changes, header_of({"id": "INT64", "c": kind, "f": "FLOAT64"}))
    assert not decoded.poison
    assert [row["c"] for row in rows(decoded)] == ([value] + [None] * 19) * 3
    assert {str(row["f"]) for row in rows(decoded)} == {"nan", "1.0"}


def test_good_rows_of_every_type_and_their_arrays_are_never_inspected_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_arguments: object) -> NoReturn:
        raise AssertionError("a row or a value was looked at by itself")

    monkeypatch.setattr(parsing, "_exact_object", refuse)
    fittings = {kind: replace(fitting, exact=refuse) for kind, fitting in values._FITTINGS.items()}
    monkeypatch.setattr(values, "_FITTINGS", fittings)
    written: dict[str, list[object]] = {
        "BOOL": [True], "INT64": ["-1", "9223372036854775807"], "FLOAT64": ["NaN", 1.5, "-Infinity"],
        "FLOAT32": [1.1, "NaN"], "NUMERIC": ["1.10", "-0.5"], "STRING": ["", "é"], "BYTES": ["AP9hYmM=", ""],
        "DATE": ["0001-01-01"], "TIMESTAMP": ["2024-01-01T00:00:00.123456789Z", "1969-12-31T23:59:59Z"],
        "JSON": ['{"a":[1]}'], "PG_JSONB": ['{"a":[1]}'],
        "PG_NUMERIC": ["NaN"], "UUID": ["f47ac10b-58cc-4372-a567-0e02b2c3d479"], "ENUM": ["-1", "2147483647"],
        "PROTO": ["CAU=", ""], "INTERVAL": ["P1Y2M3DT4H5M6.5S", "P0Y"],
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


@pytest.mark.parametrize("number", ["1.7976931348623159e308", "-1.8e308"])
@pytest.mark.parametrize("neighbour", ["1", '"Infinity"', '"NaN"'])
@pytest.mark.parametrize("kind", ["FLOAT64", "ARRAY<FLOAT64>"])
def test_a_number_just_beyond_the_largest_is_never_infinity_whatever_its_neighbours(
    kind: str, neighbour: str, number: str
) -> None:
    values = [neighbour, number, neighbour, '"-Infinity"']
    texts = [f"[{value}]" if kind.startswith("ARRAY") else value for value in values]
    changes = [upsert(n, f'{{"c":{text},"note":":Infinity"}}') for n, text in enumerate(texts)]
    decoded = decode_changes(changes, header_of({"id": "INT64", "c": kind, "note": "STRING"}))
    assert [each.change for each in decoded.poison] == [1]
    assert "neither a JSON number of 64 bits" in decoded.poison[0].detail
    assert [row["id"] for row in rows(decoded)] == [0, 2, 3]


def test_no_number_is_infinity_for_a_word_that_an_ignored_member_has() -> None:
    objects = [msgspec.Raw(b'{"c":["NaN"],"x":["Infinity"]}'), msgspec.Raw(b'{"c":[1.8e308]}')]
    column = TableColumn("c", column_type("ARRAY<FLOAT64>"))
    assert parsing.parse_objects("row", objects, [column], frozenset({"x"})).refused.keys() == {1}


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
