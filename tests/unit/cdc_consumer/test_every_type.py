"""No type of either dialect makes each change of its table a dead letter: from Spanner's name of it to a row."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from google.cloud.spanner_v1.types import TypeAnnotationCode, TypeCode
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from services.cdc_consumer.adapters.bigquery.row_encoder import RowEncoder, message_class
from services.cdc_consumer.core.stream.columns import decode_messages
from services.cdc_consumer.core.types.types import column_type, is_known
from services.spanner_reader.core.stream.changes import header_type
from tests.builders import PLANE_COLUMNS, a_change, a_header, a_message
from tests.seeds import examples
from tests.source_values import COLUMNS, SCALARS, VALUES, Written, json_values
from tests.unit.cdc_consumer.decoded import decode_changes, rows
from tests.unit.cdc_consumer.wire import AN_HOUR_LATER, batch_of, delete, header_of, messages_of, upsert
from tests.unit.cdc_consumer.world import World

UNSPECIFIED = "TYPE_ANNOTATION_CODE_UNSPECIFIED"
WRITTEN: Mapping[str, object] = {
    "BOOL": True, "INT64": "5", "FLOAT64": 1.5, "FLOAT32": 1.5, "TIMESTAMP": "2024-01-02T03:04:05Z",
    "DATE": "2024-01-02", "STRING": "a", "BYTES": "YQ==", "ARRAY": ["1"], "STRUCT": ["1"], "NUMERIC": "1.5",
    "JSON": '{"a":1}', "PROTO": "CAU=", "ENUM": "1", "INTERVAL": "P1Y", "UUID": "f47ac10b-58cc-4372-a567-0e02b2c3d479",
    "TYPE_CODE_UNSPECIFIED": {"a": [1.50]},
}  # fmt: skip
"""A value of each type, as records have it."""
KEYS = {
    *("BOOL", "INT64", "FLOAT64", "TIMESTAMP", "DATE", "STRING", "BYTES", "NUMERIC", "ENUM", "UUID"),
    *("FLOAT32", "PROTO"),  # by Spanner's emulator, or by an older version of its documents
}
"""Spanner, "Data types": valid key column types."""


def names_of(codes: Any) -> Sequence[str]:
    """Return all codes of one of the client's enumerations, whose classes have no types."""
    return [each.name for each in codes]


def described(code: str, annotation: str, *, array: bool) -> str:
    """Return what a record calls a column's type."""
    kind: dict[str, Any] = {"code": code}
    if annotation != UNSPECIFIED:
        kind["type_annotation"] = annotation
    return json.dumps({"code": "ARRAY", "array_element_type": kind} if array else kind)


def test_every_row_of_the_documented_table_has_its_property() -> None:
    """Each type of `SCALARS`, and its arrays, goes through the rows and the stand-in's queries as a property."""
    text = (Path(__file__).parents[3] / "docs/reference/types.md").read_text()
    rows = [
        line.split("|")[1].strip() for line in text.partition("\n| Spanner |")[2].partition("\n\n")[0].splitlines()[2:]
    ]
    documented = {"TIME" if name == "any other type" else name for name in rows if name != "ARRAY of any of these"}
    assert documented == set(SCALARS.values())
    assert {f"ARRAY<{name}>" for name in documented} | documented == set(COLUMNS.values())
    assert VALUES.keys() == COLUMNS.keys()


def test_a_value_of_every_type_is_written_here() -> None:
    assert WRITTEN.keys() == {*names_of(TypeCode)}


@pytest.mark.parametrize("array", [False, True], ids=["", "array"])
@pytest.mark.parametrize("annotation", [*names_of(TypeAnnotationCode), "PG_OF_A_LATER_VERSION"])
@pytest.mark.parametrize("code", [*names_of(TypeCode), "OF_A_LATER_VERSION"])
def test_no_type_of_a_column_keeps_a_change_out_of_bigquery(code: str, annotation: str, array: bool) -> None:
    value = WRITTEN.get(code, "as text")
    if annotation == "PG_JSONB" and code != "JSON":  # which Spanner has of no other type
        value = WRITTEN["JSON"]
    if annotation in ("PG_OID", "PG_NUMERIC"):
        value = WRITTEN["INT64"]
    header = header_of({"id": "INT64", "c": header_type(described(code, annotation, array=array)), "s": "STRING"})
    written = [[value, value], [], None] if array else [value, None]

    decoded = decode_changes([upsert(n, {"c": each, "s": "x"}) for n, each in enumerate(written)], header)

    assert not decoded.poison
    assert [(row["s"], row["c"] is None) for row in rows(decoded)] == [("x", each is None) for each in written]


@pytest.mark.parametrize("code", sorted(KEYS))
def test_a_key_of_every_type_that_spanner_has_in_keys_is_applied(code: str) -> None:
    kind = header_type(described(code, UNSPECIFIED, array=False))
    decoded = decode_changes([upsert({"k": WRITTEN[code]}, {})], header_of({"k": kind}, key=("k",)))
    assert (decoded.poison, len(rows(decoded))) == ([], 1)


@settings(max_examples=examples(100))
@given(st.lists(json_values(st.integers()).filter(lambda value: value is not None), min_size=1, max_size=5))
def test_of_a_type_that_is_not_known_a_text_is_itself_and_any_other_value_its_json_text(values: list[object]) -> None:
    assert not is_known(column_type("TIME"))
    changes = [upsert(n, json.dumps({"c": value, "a": [value]})) for n, value in enumerate(values)]

    decoded = decode_changes(changes, header_of({"id": "INT64", "c": "TIME", "a": "ARRAY<TIME>"}))

    assert not decoded.poison
    texts = [each if isinstance(each, str) else json.dumps(each, separators=(",", ":")) for each in values]
    assert [(row["c"], row["a"]) for row in rows(decoded)] == [(text, [text]) for text in texts]


def test_a_column_of_an_unknown_type_is_named_and_warned_of_once() -> None:
    header = header_of({"id": "INT64", "c": "TIME", "a": "ARRAY<TIME>", "e": "ENUM"})
    assert decode_changes([upsert(1)], header).of_unknown_type == {
        ("orders", "c", "TIME"),
        ("orders", "a", "ARRAY<TIME>"),
    }

    world, unknown = World(), a_header(columns=(*PLANE_COLUMNS, ("c", "TIME")))
    with capture_logs() as logs:
        for _ in range(2):
            world.apply(a_message(a_change(1), header=unknown))
    (event,) = [line for line in logs if line["event"] == "column_of_unknown_type"]
    assert (event["source_table"], event["column"], event["type"]) == ("planes", "c", "TIME")
    assert "ignored_columns" in event["fix"]


# JSON to columns to protobuf, read back: against plain Python.


NULL = Written(None, None)
rows_written = st.none() | st.fixed_dictionaries(
    {}, optional={name: st.one_of(st.just(NULL), values, values, values) for name, values in VALUES.items()}
)


@settings(deadline=None, max_examples=examples(200))
@given(st.lists(rows_written, min_size=1, max_size=25), st.integers(1, 9), st.booleans())
def test_every_value_arrives_as_it_must_by_plain_python(
    rows: Sequence[Mapping[str, Written] | None], per_message: int, ascii_only: bool
) -> None:
    """A row that is None is a delete; a column left out is NULL."""
    header = header_of({"id": "INT64"} | COLUMNS)
    changes = [
        delete(key)
        if row is None
        else upsert(key, json.dumps({name: value.json for name, value in row.items()}, ensure_ascii=ascii_only))
        for key, row in enumerate(rows)
    ]
    data = [batch_of(changes[start : start + per_message], header) for start in range(0, len(changes), per_message)]

    decoded = decode_messages(messages_of(*data), AN_HOUR_LATER)
    assert not decoded.poison
    (table,) = decoded.tables
    encoder = RowEncoder(table.definition)
    messages = [message_class(encoder.descriptor).FromString(each) for each in encoder.encode(table.rows).to_pylist()]

    assert len(messages) == len(rows)
    for key, (row, message) in enumerate(zip(rows, messages, strict=True)):
        arrived = {field.name: value for field, value in message.ListFields() if field.name in COLUMNS}
        expected = {name: value.arrives for name, value in (row or {}).items() if value.arrives is not None}
        # repr, so that NaN is NaN and -0.0 is not 0.0
        assert {name: repr(value) for name, value in arrived.items()} == {
            name: repr(value) for name, value in expected.items()
        }
        assert getattr(message, "id", None) == key
        assert getattr(message, "_CHANGE_TYPE", None) == ("DELETE" if row is None else "UPSERT")
