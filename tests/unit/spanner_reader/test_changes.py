import json
import tracemalloc
from dataclasses import replace

import pytest

from services.spanner_reader.core.stream.changes import (
    ChangeMaker,
    googlesql_type,
    header_type,
    is_whole,
)
from services.spanner_reader.core.stream.records import DataChangeRecord, Mod, SpannerColumnType
from shared.contracts.change_batch import Change, Header
from shared.contracts.change_sequence import parse_sequence
from shared.contracts.errors import MisconfiguredError
from shared.contracts.row_id import bucket_of, canonical_key, ordering_key
from shared.contracts.timestamps import Nanoseconds
from tests.unit.spanner_reader.accounts import COMMIT
from tests.unit.spanner_reader.scripts import COLUMNS, a_record


def maker(**primary_keys: tuple[str, ...]) -> ChangeMaker:
    return ChangeMaker("//spanner/s", 16, primary_keys)


def only(record: DataChangeRecord, made_by: ChangeMaker | None = None) -> Change:
    """Return the one change of a record."""
    _header, ((_key, change),) = (made_by or maker()).changes(record)
    return change


def sequence_of(commit_micros: int, record_sequence: str) -> str:
    """Return the change sequence number of the first change of a record."""
    return only(replace(a_record(Nanoseconds(commit_micros * 1_000)), record_sequence=record_sequence)).sequence


@pytest.mark.parametrize(
    ("mod_type", "op", "row"),
    [("INSERT", "UPSERT", '{"Name":"n"}'), ("UPDATE", "UPSERT", '{"Name":"n"}'), ("DELETE", "DELETE", None)],
)
def test_an_insert_may_hit_a_row_that_is_there_so_insert_and_update_are_the_same(
    mod_type: str, op: str, row: str | None
) -> None:
    change = only(replace(a_record(COMMIT), mod_type=mod_type))
    assert (change.op, change.mod_type, change.row) == (op, mod_type, row)


def test_the_text_of_keys_and_values_is_passed_on_as_it_came() -> None:
    mod = Mod('{ "Id" : "007" }', '{"Name":"é\\u00e9 ","x":1.10}', '{ "Name":null}')
    change = only(replace(a_record(COMMIT), mods=(mod,)))
    assert (change.key, change.row, change.old) == (mod.keys, mod.new_values, mod.old_values)


@pytest.mark.parametrize("values", ["{}", None, ""])
def test_a_table_of_key_columns_only_has_an_empty_row_and_no_old_values(values: str | None) -> None:
    key_alone = tuple(column for column in a_record(COMMIT).column_types if column.is_primary_key)
    change = only(replace(a_record(COMMIT), column_types=key_alone, mods=(Mod('{"Id":"1"}', values, values),)))
    assert (change.row, change.old) == ("{}", None)


@pytest.mark.parametrize("values", [None, ""])
def test_an_upsert_whose_values_are_missing_does_not_become_an_empty_row(values: str | None) -> None:
    assert only(replace(a_record(COMMIT), mods=(Mod('{"Id":"1"}', values, None),))).row == "null"


@pytest.mark.parametrize(
    ("capture", "whole"), [("OLD_AND_NEW_VALUES", "NEW_ROW_AND_OLD_VALUES"), ("NEW_VALUES", "NEW_ROW")]
)
def test_only_an_update_of_what_changed_is_flagged_as_no_whole_row(capture: str, whole: str) -> None:
    partial = replace(a_record(COMMIT), mod_type="UPDATE", value_capture_type=capture)
    assert not is_whole(partial)
    assert maker().changes(partial)[0].value_capture_type == capture
    for each in (replace(partial, mod_type="INSERT"), replace(partial, mod_type="DELETE")):
        assert is_whole(each)
        assert maker().changes(each)[0].value_capture_type == whole
    assert is_whole(replace(a_record(COMMIT), mod_type="UPDATE"))
    assert not is_whole(replace(partial, value_capture_type="A_LATER_ONE"))


def test_every_mod_of_a_record_has_its_own_sequence_place_and_ordering_key() -> None:
    header, changes = maker().changes(a_record(COMMIT, 1, mods=3))
    assert [parse_sequence(change.sequence).sections[2] for _, change in changes] == [0, 1, 2]
    assert [json.loads(change.place)["mod_index"] for _, change in changes] == [0, 1, 2]
    expected = [ordering_key("Singers", bucket_of(b"Singers\0[%d]" % key, 16)) for key in (1, 2, 3)]
    assert [key for key, _ in changes] == expected
    assert canonical_key("Singers", header.key_types(), {"Id": "1"}) == b"Singers\0[1]"


def test_a_place_says_all_that_puts_a_transaction_together_again() -> None:
    record = replace(a_record(COMMIT, mods=2), transaction_tag='say "hi"', is_system_transaction=True)
    _header, changes = maker().changes(record)
    assert json.loads(changes[1][1].place) == {
        "mod_index": 1,
        "mod_count": 2,
        "record_sequence": "00000000",
        "server_transaction_id": "t",
        "is_last_record_in_transaction_in_partition": True,
        "number_of_records_in_transaction": 1,
        "number_of_partitions_in_transaction": 1,
        "transaction_tag": 'say "hi"',
        "is_system_transaction": True,
    }


@pytest.mark.parametrize("sequence", ["", "xyz", "-1", "0x1f", "1_0", " 1", "00000000000000001"])
def test_a_record_sequence_in_another_form_is_refused_with_where_it_is_and_what_to_do(sequence: str) -> None:
    with pytest.raises(MisconfiguredError, match=r"2023-11-14T22:13:20Z.*hexadecimal.*start a version"):
        sequence_of(1_700_000_000_000_000, sequence)


def test_a_record_sequence_is_read_as_hexadecimal_and_keeps_its_order() -> None:
    assert sequence_of(1_700_000_000_000_000, "00000002") == (
        "00060A24181E4000/0000000000000002/0000000000000000/0000000000000000"
    )
    decimal = [sequence_of(1, f"{n:08d}") for n in (0, 9, 10, 99, 100, 1000012389)]
    hexadecimal = [sequence_of(1, f"{n:08x}") for n in (0, 9, 10, 255, 256)]
    for sequences in (decimal, hexadecimal):
        assert sequences == sorted(sequences) == sorted(sequences, key=parse_sequence)


def test_an_update_of_a_later_commit_is_newer_whatever_its_record_and_mod() -> None:
    earlier = parse_sequence(only(replace(a_record(COMMIT), record_sequence="ffffffff")).sequence)
    later = parse_sequence(only(a_record(Nanoseconds(COMMIT + 1_000))).sequence)
    assert earlier < later


def test_a_header_tells_jsonb_from_json_and_a_remembered_shape_does_not() -> None:
    jsonb = '{"code":"JSON","type_annotation":"PG_JSONB"}'
    array = f'{{"code":"ARRAY","array_element_type":{jsonb}}}'
    for text, name, in_header in (
        (jsonb, "JSON", "PG_JSONB"),
        (array, "ARRAY<JSON>", "ARRAY<PG_JSONB>"),
        ('{"code":"JSON"}', "JSON", "JSON"),
        ('{"code":"NUMERIC","type_annotation":"PG_NUMERIC"}', "PG_NUMERIC", "PG_NUMERIC"),
    ):
        assert (googlesql_type(text), header_type(text)) == (name, in_header)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('{"code":"INT64"}', "INT64"),
        ('{"code":"INT"}', "INT64"),
        ('{"code":"ARRAY","array_element_type":{"code":"INT64"}}', "ARRAY<INT64>"),
        ('{"code": "JSON"}', "JSON"),
        ('{"code":"UUID"}', "UUID"),
        ('{"code":"PROTO","proto_type_fqn":"app.User"}', "PROTO"),
        ('{"code":"ENUM","proto_type_fqn":"app.State"}', "ENUM"),
        ('{"code":"ARRAY","array_element_type":{"code":"ENUM","proto_type_fqn":"app.State"}}', "ARRAY<ENUM>"),
        ('{"type":"?"}', "TYPE_CODE_UNSPECIFIED"),
        ('{"code":"NUMERIC","type_annotation":"PG_NUMERIC"}', "PG_NUMERIC"),
        ('{"code":"JSON","type_annotation":"PG_JSONB"}', "JSON"),
        ('{"type_annotation":"PG_OID","code":"INT64"}', "INT64"),
        ('{"code":"INT64","type_annotation":"PG_NEW"}', "PG_NEW"),
        ('{"code":"INT64","type_annotation":"TYPE_ANNOTATION_CODE_UNSPECIFIED"}', "INT64"),
        ('{"array_element_type":{"code":"JSON","type_annotation":"PG_JSONB"},"code":"ARRAY"}', "ARRAY<JSON>"),
    ],
)
def test_a_type_has_its_googlesql_name(text: str, name: str) -> None:
    assert googlesql_type(text) == name


def test_the_schema_orders_key_columns_and_ordinals_only_where_it_cannot() -> None:
    columns = (
        SpannerColumnType("Id", '{"code":"INT64"}', is_primary_key=True, ordinal_position=1),
        SpannerColumnType("Name", '{"code":"STRING"}', is_primary_key=False, ordinal_position=3),
        SpannerColumnType("Base", '{"code":"STRING"}', is_primary_key=True, ordinal_position=2),
    )
    record = replace(a_record(COMMIT), column_types=columns, mods=(Mod('{"Id":"1","Base":"b"}', "{}", None),))
    assert maker(Singers=("Base", "Id")).changes(record)[0].primary_key == ("Base", "Id")
    assert maker().changes(record)[0].primary_key == ("Id", "Base")
    assert maker(Singers=("Other",)).changes(record)[0].primary_key == ("Id", "Base")  # made anew with another key
    assert [c.name for c in maker().changes(record)[0].columns] == ["Id", "Base", "Name"]  # the table's order


def test_headers_of_ever_other_columns_are_not_remembered_without_end() -> None:
    made_by, names = maker(T=("Id",)), [f"c{number}" for number in range(1_500)]
    key = SpannerColumnType("Id", '{"code": "INT64"}', is_primary_key=True, ordinal_position=1)

    def header(name: str) -> Header:
        column = SpannerColumnType(name, '{"code": "INT64"}', is_primary_key=False, ordinal_position=2)
        return made_by.header("T", (key, column), "NEW_VALUES", whole=False)

    first = header(names[0])
    assert header(names[0]) is first
    for name in names[1:]:
        header(name)

    again = header(names[0])
    assert (again, again is first) == (first, False)


def test_a_header_is_made_once_for_each_column_list_and_again_when_the_schema_is_learned() -> None:
    make = maker()
    first, _ = make.changes(a_record(COMMIT))
    again, _ = make.changes(replace(a_record(COMMIT), column_types=tuple(replace(c) for c in COLUMNS)))
    assert again is first
    more = (*COLUMNS, SpannerColumnType("New", '{"code":"BOOL"}', is_primary_key=False, ordinal_position=3))
    wider, _ = make.changes(replace(a_record(COMMIT), column_types=more))
    assert [c.name for c in wider.columns] == ["Id", "Name", "New"]
    assert not make.knows("Singers")
    make.learn({"Singers": ("Id",)})
    assert make.knows("Singers")


@pytest.mark.parametrize("keys", ['{"Id":"not a number"}', '{"Other":"1"}', "[]"])
def test_a_key_that_contradicts_its_type_is_published_all_the_same(keys: str) -> None:
    _header, ((ordering, change),) = maker().changes(replace(a_record(COMMIT), mods=(Mod(keys, "{}", None),)))
    assert change.key == keys
    assert ordering.startswith("Singers/")


def test_ordering_keys_are_remembered_once_for_a_table_and_not_for_each_column_list_that_was_decoded() -> None:
    make = ChangeMaker("//spanner/s", 10_000, {})
    records = [
        replace(a_record(COMMIT, 1), column_types=tuple(replace(c) for c in COLUMNS)) for _partition in range(50)
    ]
    make.changes(records[0])
    tracemalloc.start()
    try:
        for record in records:
            make.changes(record)
        size, _peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size < 1_000_000


def test_a_table_has_as_many_ordering_keys_as_it_is_given() -> None:
    made_by = ChangeMaker("//spanner/s", 16, {}, {"Albums": 1}.get)
    keys: dict[str, set[str]] = {"Albums": set(), "Singers": set()}
    for table in keys:
        _header, changes = made_by.changes(replace(a_record(COMMIT, mods=50), table=table))
        keys[table] = {key for key, _change in changes}
    assert keys["Albums"] == {"Albums/0"}
    assert 5 < len(keys["Singers"]) <= 16
