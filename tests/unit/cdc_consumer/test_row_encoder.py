"""Rows to protobuf: `ptars` writes what the plain classes write, or it is not used."""

import math
from collections.abc import Mapping, Sequence

import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto
from hypothesis import example, given, settings
from hypothesis import strategies as st

from services.cdc_consumer.adapters.bigquery import row_encoder
from services.cdc_consumer.adapters.bigquery.row_encoder import RowEncoder, message_class, row_descriptor
from services.cdc_consumer.core.schema.tables import TableDefinition, row_schema
from services.cdc_consumer.core.stream.columns import CHANGE, MESSAGE
from services.cdc_consumer.core.types.types import COLUMN_TYPES
from tests.builders import table_definition
from tests.unit.cdc_consumer.wire import header_of

ALL_TYPES = {"id": "INT64"} | {f"c_{name.lower()}".replace("<", "_").rstrip(">"): name for name in COLUMN_TYPES}
DEFINITION = table_definition(header_of(ALL_TYPES))
EXTREMES: Mapping[pa.DataType, Sequence[object]] = {
    pa.bool_(): [True, False],
    pa.int64(): [0, 1, -1, 127, 128, 2**63 - 1, -(2**63), 253_402_300_799_999_999, -62_135_596_800_000_000],
    pa.int32(): [0, -1, 2**31 - 1, -(2**31), -719_162, 2_932_896],
    pa.float64(): [0.0, -0.0, 1.5, math.nan, math.inf, -math.inf, 5e-324, 1.7976931348623157e308],
    pa.string(): ["", "a", "é😀\0", "x" * 300, "1.10", "{}"],
    pa.binary(): [b"", b"\x00", bytes(range(256)), b"\xff" * 300],
}
ANY: Mapping[pa.DataType, st.SearchStrategy[object]] = {
    pa.bool_(): st.booleans(),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.float64(): st.floats(),
    pa.string(): st.text(),
    pa.binary(): st.binary(),
}


def extremes_of(kind: pa.DataType) -> Sequence[object]:
    """Return the values of a wire type; of an array, the empty one and one with every value of its elements."""
    if pa.types.is_list(kind):
        return [[], list(EXTREMES[kind.value_type]), list(EXTREMES[kind.value_type])[:1]]
    return EXTREMES[kind]


def any_of(kind: pa.DataType) -> st.SearchStrategy[object]:
    if pa.types.is_list(kind):
        return st.lists(st.sampled_from(EXTREMES[kind.value_type]) | ANY[kind.value_type], max_size=4)
    return ANY[kind]


def a_table(definition: TableDefinition, rows: Sequence[Mapping[str, object]]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=row_schema(definition))


def any_row() -> st.SearchStrategy[Mapping[str, object]]:
    return st.fixed_dictionaries(
        {
            field.name: st.none() | st.sampled_from(extremes_of(field.type)) | any_of(field.type)
            for field in row_schema(DEFINITION)
        }
    )


ENCODER = RowEncoder(DEFINITION)


@settings(deadline=None)
@given(st.lists(any_row(), max_size=20), st.integers(0, 5), st.integers(1, 7))
@example([], 0, 1)
def test_ptars_writes_the_bytes_that_the_plain_classes_write(
    rows: Sequence[Mapping[str, object]], start: int, chunk: int
) -> None:
    """In one chunk and in many, in a slice of a table and after a choice of its rows."""
    table = a_table(DEFINITION, rows)
    chunks = [table.slice(at, chunk) for at in range(0, len(table), chunk)]
    for each in (
        table,
        table.slice(start),
        pa.concat_tables(chunks) if chunks else table,
        table.take(pa.array(range(len(table) - 1, -1, -1), pa.int64())),
    ):
        assert ENCODER.encode(each).to_pylist() == ENCODER.encode_plainly(each).to_pylist()


def test_every_extreme_is_read_back_as_it_was_and_null_is_left_out() -> None:
    assert ENCODER.vectorised
    longest = max(len(values) for values in EXTREMES.values())
    rows: list[dict[str, object]] = [
        {field.name: [*extremes_of(field.type), *[None] * longest][n] for field in row_schema(DEFINITION)}
        for n in range(longest)
    ]
    read = message_class(ENCODER.descriptor)
    for row, content in zip(rows, ENCODER.encode(a_table(DEFINITION, rows)).to_pylist(), strict=True):
        message = read.FromString(content)
        found = {field.name: value for field, value in message.ListFields()}
        # An array that is NULL and one that is empty are written alike.
        assert repr(found) == repr({name: value for name, value in row.items() if value not in (None, [])})


def test_the_descriptor_is_proto2_and_optional_with_the_pseudo_columns_last() -> None:
    descriptor = row_descriptor(DEFINITION)

    assert [field.name for field in descriptor.field] == row_schema(DEFINITION).names
    assert [field.name for field in descriptor.field][-2:] == ["_CHANGE_TYPE", "_CHANGE_SEQUENCE_NUMBER"]
    assert [field.number for field in descriptor.field] == list(range(1, len(descriptor.field) + 1))
    repeated = {field.name for field in descriptor.field if field.label == FieldDescriptorProto.LABEL_REPEATED}
    assert repeated == {name for name, googlesql in ALL_TYPES.items() if googlesql.startswith("ARRAY<")}
    assert {field.label for field in descriptor.field if field.name not in repeated} == {
        FieldDescriptorProto.LABEL_OPTIONAL
    }
    assert not any(field.proto3_optional or field.HasField("oneof_index") for field in descriptor.field)
    assert {field.name: FieldDescriptorProto.Type.Name(field.type) for field in descriptor.field} == {
        column.name: column.type.proto for column in DEFINITION.columns
    } | {"_CHANGE_TYPE": "TYPE_STRING", "_CHANGE_SEQUENCE_NUMBER": "TYPE_STRING"}
    assert DescriptorProto.FromString(descriptor.SerializeToString()) == descriptor


def test_book_keeping_is_not_encoded() -> None:
    table = a_table(DEFINITION, [{"id": 1}, {"id": 2}])
    kept = table.append_column(MESSAGE, pa.array([0, 1], pa.int32())).append_column(
        CHANGE, pa.array([0, 0], pa.int32())
    )
    assert ENCODER.encode(kept) == ENCODER.encode(table)


@pytest.mark.parametrize("wrong", ["missing", "further", "type", "large", "order"])
def test_rows_of_any_other_schema_are_refused(wrong: str) -> None:
    table = a_table(DEFINITION, [{"id": 1}])
    names = table.schema.names
    others = {
        "missing": table.drop_columns(["c_bool"]),
        "further": table.append_column("more", pa.array(["x"])),
        "type": table.set_column(0, "id", pa.array([1], pa.int32())),
        "large": table.set_column(names.index("c_string"), "c_string", pa.array(["x"], pa.large_string())),
        "order": table.select(names[::-1]),
    }
    with pytest.raises(TypeError, match="rows of table orders are not of its schema"):
        ENCODER.encode(others[wrong])


@pytest.mark.parametrize("values", [[[1, None]], [[1], [None], None], [None, [2, None, 3], []]])
def test_an_array_with_null_in_it_is_never_encoded(values: Sequence[Sequence[int | None] | None]) -> None:
    """`ptars` would make 0 of it, or leave it out: what lets one through is a mistake that has to be seen."""
    definition = table_definition(header_of({"id": "INT64", "c": "ARRAY<INT64>"}))
    encoder = RowEncoder(definition)
    nullable = pa.array(values, pa.list_(pa.int64()))
    arrays = pa.ListArray.from_buffers(
        row_schema(definition).field("c").type, len(nullable), nullable.buffers()[:2], children=[nullable.values]
    )
    table = a_table(definition, [{"id": n} for n in range(len(values))]).set_column(1, "c", arrays)

    with pytest.raises(TypeError, match="column c of table orders: an array holds NULL"):
        encoder.encode(table)
    without = [n for n, value in enumerate(values) if None not in (value or [])]
    kept = table.take(pa.array(without, pa.int64()))
    assert encoder.encode(kept).to_pylist() == encoder.encode_plainly(kept).to_pylist()


def test_the_widest_table_and_every_kind_of_name_is_encoded() -> None:
    names = ["self", "from", "class", "message", "DESCRIPTOR", "Clear", "a_b", "aB", "_", "x" * 300]
    columns = {"id": "INT64"} | dict.fromkeys(names, "STRING")
    columns |= {f"c{number}": "INT64" for number in range(1998 - len(columns))}
    definition = table_definition(header_of(columns))
    encoder = RowEncoder(definition)
    table = a_table(definition, [{name: name for name in names} | {"id": 1, "c0": -1}, {"id": 2, "c1900": 7}])

    assert (
        encoder.encode(table).to_pylist()
        == encoder.encode_plainly(table.select(row_schema(definition).names)).to_pylist()
    )
    message = message_class(encoder.descriptor).FromString(encoder.encode(table)[0].as_py())
    assert {field.name: value for field, value in message.ListFields()} == {name: name for name in names} | {
        "id": 1,
        "c0": -1,
    }


def test_what_is_not_proven_of_ptars_goes_the_plain_way(monkeypatch: pytest.MonkeyPatch) -> None:
    table = a_table(DEFINITION, [{"id": 1, "c_float64": -0.0, "c_bytes": b""}])
    expected = ENCODER.encode(table)
    monkeypatch.setattr(row_encoder, "_PROVEN", {})

    encoder = RowEncoder(DEFINITION)

    assert not encoder.vectorised
    assert encoder.encode(table) == expected


@pytest.mark.parametrize(
    ("kind", "label", "column"),
    [
        # An array's NULL becomes 0 or vanishes, and of another integer type the whole array does, without an error.
        ("TYPE_INT64", "LABEL_REPEATED", pa.list_(pa.int64())),
        ("TYPE_INT64", "LABEL_REPEATED", pa.int64()),
        ("TYPE_INT64", "LABEL_OPTIONAL", pa.int32()),
        ("TYPE_FLOAT", "LABEL_OPTIONAL", pa.float32()),
        ("TYPE_STRING", "LABEL_OPTIONAL", pa.large_string()),
        ("TYPE_INT64", "LABEL_OPTIONAL", pa.list_(pa.field("item", pa.int64(), nullable=False))),
        ("TYPE_INT64", "LABEL_REPEATED", pa.list_(pa.field("item", pa.int32(), nullable=False))),
        # Not said to be packed, which is how `ptars` writes it all the same.
        ("TYPE_INT64", "LABEL_REPEATED", pa.list_(pa.field("item", pa.int64(), nullable=False))),
        ("TYPE_STRING", "LABEL_REPEATED", pa.list_(pa.string())),
    ],
)
def test_ptars_is_never_given_what_it_may_corrupt(kind: str, label: str, column: pa.DataType) -> None:
    field = FieldDescriptorProto(
        name="c",
        number=1,
        type=FieldDescriptorProto.Type.Value(kind),
        label=FieldDescriptorProto.Label.Value(label),
    )
    resolved = row_encoder.resolve(DescriptorProto(name="Row", field=[field]))
    assert row_encoder.ptars_handler(resolved, pa.schema([("c", column)])) is None


def test_two_tables_of_one_name_and_different_columns_do_not_meet() -> None:
    one, other = (RowEncoder(table_definition(header_of({"id": "INT64", "v": kind}))) for kind in ("STRING", "BOOL"))
    assert one.encode(a_table(one.definition, [{"v": "x"}]))[0].as_py() == b"\x12\x01x"
    assert other.encode(a_table(other.definition, [{"v": True}]))[0].as_py() == b"\x10\x01"
