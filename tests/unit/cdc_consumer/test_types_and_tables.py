"""The type map and what a header asks BigQuery for."""

import re

import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto

from services.cdc_consumer.core.schema.tables import row_schema
from services.cdc_consumer.core.types.types import COLUMN_TYPES, KEY_TYPES, column_type, is_known
from shared.contracts.errors import PoisonRecordError
from shared.contracts.reasons import Reason
from tests import source_values
from tests.builders import a_header, table_definition
from tests.unit.cdc_consumer.wire import header_of

DOCUMENTED = {
    # BigQuery, "Supported protocol buffer data types": what each type is taken from.
    "BOOL": {"TYPE_BOOL", "TYPE_INT32", "TYPE_INT64", "TYPE_UINT32", "TYPE_UINT64"},
    "INT64": {"TYPE_INT32", "TYPE_INT64", "TYPE_UINT32", "TYPE_ENUM"},
    "FLOAT64": {"TYPE_DOUBLE", "TYPE_FLOAT"},
    "NUMERIC": {"TYPE_INT32", "TYPE_INT64", "TYPE_DOUBLE", "TYPE_FLOAT", "TYPE_STRING", "TYPE_BYTES"},
    "STRING": {"TYPE_STRING", "TYPE_ENUM"},
    "BYTES": {"TYPE_BYTES", "TYPE_STRING"},
    "DATE": {"TYPE_INT32", "TYPE_INT64"},
    "TIMESTAMP": {"TYPE_INT64", "TYPE_INT32", "TYPE_UINT32"},
    "JSON": {"TYPE_STRING"},
}
SCALARS = [name for name in source_values.SCALARS.values() if name != "TIME"]
"""Spanner's types, in GoogleSQL and in the PostgreSQL dialect, that have values of their own in BigQuery."""


def test_every_type_travels_as_a_protobuf_type_that_bigquery_documents_for_it() -> None:
    assert [*COLUMN_TYPES] == [*SCALARS, *(f"ARRAY<{name}>" for name in SCALARS)]
    for kind in COLUMN_TYPES.values():
        assert kind.proto in DOCUMENTED[(kind.element or kind).bigquery]
        assert FieldDescriptorProto.Type.Value(kind.proto)


@pytest.mark.parametrize("googlesql", SCALARS)
def test_an_array_is_a_repeated_column_of_what_its_elements_are(googlesql: str) -> None:
    element, array = column_type(googlesql), column_type(f"ARRAY<{googlesql}>")
    assert (array.element, array.proto) == (element, element.proto)
    assert array.bigquery == f"ARRAY<{element.bigquery}>"
    assert array.wire == pa.list_(pa.field("item", element.wire, nullable=False))


@pytest.mark.parametrize(
    ("googlesql", "bigquery"),
    [
        ("FLOAT32", "FLOAT64"),
        ("PG_NUMERIC", "STRING"),
        ("UUID", "STRING"),
        ("ENUM", "INT64"),
        ("PROTO", "BYTES"),
        ("INTERVAL", "STRING"),
    ],
)
def test_what_bigquery_has_no_type_for_has_the_one_that_holds_it_without_loss(googlesql: str, bigquery: str) -> None:
    assert column_type(googlesql).bigquery == bigquery
    assert column_type(googlesql).wire == column_type(bigquery).wire


@pytest.mark.parametrize("googlesql", ["TIME", "STRUCT", "PG_NEW", "`app.User`", "something new", "x" * 300])
def test_a_type_that_is_not_known_is_a_text_and_so_is_each_element_of_its_arrays(googlesql: str) -> None:
    assert not is_known(column_type(googlesql))
    assert (column_type(googlesql).bigquery, column_type(googlesql).wire) == ("STRING", pa.string())
    array = column_type(f"ARRAY<{googlesql}>")
    assert (array.element, array.bigquery) == (column_type(googlesql), "ARRAY<STRING>")


@pytest.mark.parametrize(
    "googlesql",
    ["ARRAY<ARRAY<INT64>>", "ARRAY<>", "array<INT64>", "", "STRUCT<a INT64>", "STRING(64)", "a\nb", "x" * 301],
)
def test_what_is_no_name_of_a_columns_type_is_poison_that_quotes_it(googlesql: str) -> None:
    with pytest.raises(PoisonRecordError, match=re.escape(f"type {googlesql[:80]!r} is not")) as caught:
        column_type(googlesql)
    assert caught.value.reason is Reason.UNSUPPORTED_TYPE


def test_a_table_has_the_headers_columns_and_ours_last() -> None:
    definition = table_definition(header_of(table="shop.Orders"))

    assert definition.name == "shop_Orders"
    assert [(column.name, column.type.bigquery) for column in definition.columns] == [
        ("id", "INT64"),
        ("note", "STRING"),
        ("_millrace_sequence", "STRING"),
        ("_millrace_commit_timestamp", "TIMESTAMP"),
    ]
    assert definition.primary_key == ("id",)


def test_the_pseudo_columns_follow_the_tables_columns_on_the_wire() -> None:
    schema = row_schema(table_definition(header_of(columns={"id": "INT64"}, key=("id",))))

    assert schema == pa.schema(
        [
            ("id", pa.int64()),
            ("_millrace_sequence", pa.string()),
            ("_millrace_commit_timestamp", pa.int64()),
            ("_CHANGE_TYPE", pa.string()),
            ("_CHANGE_SEQUENCE_NUMBER", pa.string()),
        ]
    )


def test_a_table_is_clustered_by_the_first_four_key_columns_in_key_order() -> None:
    names = ["e", "d", "c", "b", "a"]
    header = header_of(columns=dict.fromkeys(sorted(names), "INT64"), key=tuple(names))

    assert table_definition(header).clustering == ("e", "d", "c", "b")


def test_sixteen_key_columns_are_the_most() -> None:
    sixteen = {f"k{number}": "STRING" for number in range(16)}
    assert len(table_definition(header_of(columns=sixteen, key=tuple(sixteen))).primary_key) == 16

    seventeen = sixteen | {"k16": "STRING"}
    assert refused(columns=seventeen, key=tuple(seventeen)) is Reason.TOO_MANY_COLUMNS


def test_two_thousand_columns_are_the_most_ours_included() -> None:
    most = {f"c{number}": "STRING" for number in range(1998)}
    assert len(table_definition(header_of(columns=most, key=("c0",))).columns) == 2000

    assert refused(columns=most | {"c1998": "STRING"}, key=("c0",)) is Reason.TOO_MANY_COLUMNS


@pytest.mark.parametrize(
    "googlesql", ["JSON", "PG_JSONB", "PG_NUMERIC", "INTERVAL", "TIME", *(f"ARRAY<{name}>" for name in SCALARS)]
)
def test_a_key_column_of_a_type_that_no_source_has_in_a_key_is_poison(googlesql: str) -> None:
    assert refused(columns={"id": googlesql}, key=("id",)) is Reason.KEY_NOT_REPRESENTABLE


@pytest.mark.parametrize("googlesql", ["BOOL", "INT64", "NUMERIC", "STRING", "DATE", "TIMESTAMP", "UUID", "ENUM"])
def test_a_key_column_of_a_type_that_bigquery_has_in_a_key_is_what_it_is_anywhere(googlesql: str) -> None:
    kind = column_type(googlesql)
    assert KEY_TYPES[kind] == kind
    assert table_definition(header_of(columns={"id": googlesql}, key=("id",))).columns[0].type == kind


@pytest.mark.parametrize("googlesql", ["BYTES", "PROTO", "FLOAT64", "FLOAT32"])
def test_a_key_column_of_a_type_that_bigquery_has_in_no_key_is_a_text_there(googlesql: str) -> None:
    columns = {"id": googlesql, "other": googlesql}
    in_key, elsewhere = table_definition(header_of(columns=columns, key=("id",))).columns[:2]

    assert (in_key.type.bigquery, in_key.type.wire, in_key.type.googlesql) == ("STRING", pa.string(), googlesql)
    assert elsewhere.type == column_type(googlesql)


def test_a_column_of_an_unsupported_type_is_poison_that_names_it() -> None:
    with pytest.raises(PoisonRecordError, match="column tags: type 'STRUCT<a INT64>'") as caught:
        table_definition(header_of(columns={"id": "INT64", "tags": "STRUCT<a INT64>"}, key=("id",)))
    assert caught.value.reason is Reason.UNSUPPORTED_TYPE


@pytest.mark.parametrize(
    "name",
    [
        "",
        "1st",
        "a b",
        "a-b",
        "é",
        "id\n",
        "x" * 301,
        "_TABLE_x",
        "_file_x",
        "_PARTITIONTIME",
        "_row_timestamp",
        "__ROOT__x",
        "_colidentifier_1",
        "_CHANGE_TYPE",
        "_change_sequence_number",
        "_CHANGE_TIMESTAMP",
        "_millrace_sequence",
        "_millrace_message",
    ],
)
def test_a_column_name_that_bigquery_does_not_take_or_that_is_reserved_is_poison(name: str) -> None:
    assert refused(columns={"id": "INT64", name: "STRING"}, key=("id",)) is Reason.BAD_NAME


@pytest.mark.parametrize("name", ["x" * 300, "_", "message", "_change", "self", "from"])
def test_other_names_are_taken(name: str) -> None:
    assert table_definition(header_of(columns={"id": "INT64", name: "STRING"}, key=("id",))).columns[1].name == name


def test_column_names_that_differ_in_case_only_are_the_same_to_bigquery() -> None:
    assert refused(columns={"id": "INT64", "Name": "STRING", "name": "STRING"}, key=("id",)) is Reason.BAD_NAME


def test_a_column_twice_in_the_key_is_poison() -> None:
    assert refused(columns={"id": "INT64"}, key=("id", "id")) is Reason.BAD_NAME


@pytest.mark.parametrize("table", ["", "a b", "a/b", "é", "a\n", "x" * 1025, "a`b"])
def test_a_table_name_that_bigquery_does_not_take_is_poison(table: str) -> None:
    with pytest.raises(PoisonRecordError) as caught:
        table_definition(a_header(table))
    assert caught.value.reason is Reason.BAD_NAME
    assert len(caught.value.detail) < 300


def refused(columns: dict[str, str], key: tuple[str, ...]) -> Reason:
    with pytest.raises(PoisonRecordError) as caught:
        table_definition(header_of(columns=columns, key=key))
    return caught.value.reason
