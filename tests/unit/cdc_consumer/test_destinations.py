"""What the tables file makes of a source table's changes: where they go, and what is in their rows."""

import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from services.cdc_consumer.core.stream.columns import decode_messages
from services.cdc_consumer.core.types.arrays import json_arrays
from services.cdc_consumer.core.types.sequence_array import normal_sequences
from shared.contracts.change_batch import Change, Header
from shared.contracts.change_sequence import parse_sequence
from shared.contracts.errors import PoisonRecordError
from shared.contracts.reasons import Reason
from shared.contracts.timestamps import microseconds
from tests.unit.cdc_consumer.decoded import decode_changes, in_mode, mirror_of, planned, tables_of, wanted
from tests.unit.cdc_consumer.wire import (
    AN_HOUR_LATER,
    COMMITTED_MICROS,
    batch_of,
    delete,
    header_of,
    messages_of,
    upsert,
)

BOTH = in_mode("both")
HISTORY = in_mode("history")
SOFT = "[defaults]\nsoft_delete = true\n"


def rows(text: str, *changes: Change, header: Header | None = None) -> list[dict[str, Any]]:
    (table,) = tables_of(text, *changes, header=header).values()
    return table.rows.to_pylist()  # type: ignore[no-any-return]


def with_old(change: Change, **old: object) -> Change:
    return structs.replace(change, old=json.dumps(old))


def test_a_table_has_the_dataset_and_name_that_the_file_gives_it() -> None:
    mirror = mirror_of('[defaults]\nname = "m_{table}"\ndataset = "d_{schema}"', header_of(table="s.orders"))

    assert (mirror.dataset, mirror.name, mirror.identity) == ("d_s", "m_orders", "d_s.m_orders")


def test_the_consumers_own_dataset_is_the_same_whether_it_is_named_or_not() -> None:
    assert wanted('[defaults]\ndataset = "mirror"').mirror == wanted("").mirror


@pytest.mark.parametrize(
    ("mode", "made"), [("mirror", [True, False]), ("history", [False, True]), ("both", [True] * 2)]
)
def test_a_mode_reports_which_tables_there_are(mode: str, made: list[bool]) -> None:
    found = wanted(f'[defaults]\nmode = "{mode}"\nsoft_delete = true\nmax_staleness = "1h"')

    assert [found.mirror is not None, found.history is not None] == made
    assert [one.max_staleness for one in (found.mirror,) if one is not None] == [timedelta(hours=1)] * made[0]
    if found.history is not None:
        assert (found.history.name, found.history.instead_of) == ("orders_changelog", "" if made[0] else "orders")
        assert found.history.max_staleness is None
        assert "_millrace_deleted" not in [column.name for column in found.history.columns]


def test_ignored_columns_are_nowhere_whatever_they_hold() -> None:
    header = header_of({"id": "INT64", "Secret": "INTERVAL", "_PARTITION_x": "STRING", "note": "STRING"})
    text = '[defaults]\nignored_columns = ["secret", "_partition_X"]\nmode = "both"\n'
    changes = [
        upsert(1, {"Secret": {"deep": [1, "a"]}, "_PARTITION_x": "p", "note": "a"}),
        upsert(2, {"Secret": "text", "note": "b"}),
        with_old(upsert(3, {"note": "c"}), Secret="s", note="before", x=1.50),
    ]

    for one in tables_of(text, *changes, header=header).values():
        assert one.rows.column("note").to_pylist() == ["a", "b", "c"]
        assert not {"Secret", "_PARTITION_x"} & set(one.rows.schema.names)
        assert "s" not in str(one.rows.column("_millrace_old_values").to_pylist() if one.definition.append_only else "")


@pytest.mark.parametrize("count", [1, 40])
def test_beside_ignored_columns_unknown_ones_are_poison_as_ever(count: int) -> None:
    header = header_of({"id": "INT64", "secret": "STRING", "note": "STRING"})
    changes = [upsert(n, {"secret": "s", "note": "n"}) for n in range(count)] + [upsert(99, {"nobody": "knows"})]
    found = decode_changes(changes, header, '[defaults]\nignored_columns = ["secret"]')

    assert [(each.change, each.reason) for each in found.poison] == [(count, Reason.BAD_CHANGE)]
    assert found.tables[0].rows.num_rows == count


def test_all_columns_beside_the_key_may_be_ignored() -> None:
    (row,) = rows('[defaults]\nignored_columns = ["note"]', upsert(7, {"note": "n"}))

    assert row["id"] == 7
    assert "note" not in row


def test_a_soft_deleted_row_keeps_its_values_where_the_stream_has_them() -> None:
    header = header_of({"id": "INT64", "note": "STRING", "tags": "ARRAY<STRING>"})
    gone = with_old(delete(1), note="last", tags=["t"])
    found = tables_of(SOFT.replace("soft", 'mode = "both"\nsoft'), upsert(2, {"note": "b"}), gone, header=header)

    mirror, history = (found[name].rows.to_pylist() for name in ("orders", "orders_changelog"))
    assert [(row["note"], row["tags"], row["_millrace_deleted"], row["_CHANGE_TYPE"]) for row in mirror] == [
        ("b", None, False, "UPSERT"),
        ("last", ["t"], True, "UPSERT"),
    ]
    assert [(row["note"], row["tags"]) for row in history] == [("b", None), (None, None)]
    assert [row["_millrace_old_values"] for row in history] == [None, '{"note": "last", "tags": ["t"]}']


@pytest.mark.parametrize("last", [{"tags": ["t", None]}, {"gone": "x"}, {"note": 5}])
def test_a_soft_delete_whose_last_values_do_not_fit_is_applied_without_them(last: Mapping[str, Any]) -> None:
    header = header_of({"id": "INT64", "note": "STRING", "tags": "ARRAY<STRING>"})
    gone, unfit = with_old(delete(1), note="last"), with_old(delete(2), **last)
    for text in (SOFT, SOFT.replace("soft", 'mode = "both"\nsoft')):
        mirror = tables_of(text, gone, unfit, header=header)["orders"].rows.to_pylist()
        assert [(row["id"], row["note"], row["tags"], row["_millrace_deleted"]) for row in mirror] == [
            (1, "last", None, True),
            (2, None, None, True),
        ]


def test_with_soft_delete_a_delete_with_a_row_of_its_own_is_still_poison() -> None:
    wrong = (
        batch_of([delete(1)])
        .replace(b'"rows":[null]', b'"rows":[{"note":"x"}]')
        .replace(b'"old":[null]', b'"old":[{"note":"y"}]')
    )
    found = decode_messages(messages_of(wrong), AN_HOUR_LATER, planned(SOFT))

    assert [each.detail for each in found.poison] == ["a delete with a row"]


def test_a_history_has_a_row_for_every_change_and_reports_where_it_comes_from() -> None:
    place = {
        "server_transaction_id": "tx",
        "record_sequence": "00000002",
        "is_last_record_in_transaction_in_partition": True,
        "number_of_records_in_transaction": 3,
        "number_of_partitions_in_transaction": 2,
        "transaction_tag": "app=x",
        "is_system_transaction": False,
    }
    first = structs.replace(upsert(1, {"note": "a"}), place=json.dumps(place | {"reconstructed": True, "mod_index": 0}))
    found = rows(
        HISTORY,
        first,
        upsert(1, {"note": "b"}, sequence=2),
        structs.replace(delete(1, sequence="a/1"), mod_type="GARBAGE"),
    )

    assert [row["note"] for row in found] == ["a", "b", None]
    assert found[0] == {f"_metadata_spanner_{name}": value for name, value in place.items()} | {
        "id": 1,
        "note": "a",
        "_metadata_spanner_mod_type": "UPDATE",
        "_metadata_spanner_table_name": "orders",
        "_metadata_spanner_commit_timestamp": COMMITTED_MICROS,
        "_metadata_big_query_commit_timestamp": microseconds(AN_HOUR_LATER),
        "_millrace_old_values": None,
        "_millrace_reconstructed": True,
        "_millrace_sequence": "/".join(["0" * 15 + "1", *["0" * 16] * 3]),
        "_millrace_message": 0,
        "_millrace_change": 0,
    }
    assert found[2]["_metadata_spanner_mod_type"] == "DELETE"
    assert found[2]["_millrace_sequence"] == "/".join(["0" * 15 + "A", "0" * 15 + "1", "0" * 16, "0" * 16])


@pytest.mark.parametrize("count", [1, 100])
def test_what_a_place_does_not_tell_in_its_type_is_null_and_its_neighbours_are_not(count: int) -> None:
    places = [{"server_transaction_id": f"t{n}", "number_of_records_in_transaction": n} for n in range(count)]
    odd: list[object] = [
        {"server_transaction_id": 7, "number_of_records_in_transaction": "x", "is_system_transaction": 1},
        ["no object"],
        None,
        {"number_of_records_in_transaction": 2**63},
        {"server_transaction_id": "last"},
    ]
    found = rows(
        HISTORY,
        *(structs.replace(upsert(n), place=json.dumps(each)) for n, each in enumerate([*places, *odd])),
    )

    assert [row["_metadata_spanner_server_transaction_id"] for row in found] == [
        *(f"t{n}" for n in range(count)), None, None, None, None, "last",
    ]  # fmt: skip
    assert [row["_metadata_spanner_number_of_records_in_transaction"] for row in found[count:]] == [None] * 5
    assert found[count]["_metadata_spanner_is_system_transaction"] is None


def test_a_change_that_a_mirror_cannot_take_is_no_row_of_a_history_either() -> None:
    found = decode_changes([upsert({"id": "x"}), upsert(1)], text=BOTH)

    assert [each.reason for each in found.poison] == [Reason.VALUE_DOES_NOT_FIT]
    assert [one.rows.column("id").to_pylist() for one in found.tables] == [[1], [1]]
    assert [one.messages for one in found.tables] == [(0,), (0,)]


def test_an_old_replay_is_too_old_for_a_mirror_and_not_for_a_history_alone() -> None:
    old = upsert(1, committed="2023-01-02T03:04:05Z")
    for text, poison in ((BOTH, 1), (HISTORY, 0)):
        assert len(decode_changes([old], header_of(origin="replay"), text).poison) == poison


@pytest.mark.parametrize("name", ["valid_from", "_metadata_spanner_mod_type", "Is_Current"])
def test_a_column_that_a_history_has_itself_is_a_bad_name(name: str) -> None:
    header = header_of({"id": "INT64", name: "STRING"})
    with pytest.raises(PoisonRecordError) as raised:
        wanted(BOTH, header)
    assert raised.value.reason is Reason.BAD_NAME
    assert wanted("", header).mirror is not None


def test_an_array_written_as_json_may_hold_null() -> None:
    header = header_of({"id": "INT64", "Tags": "ARRAY<INT64>", "note": "STRING"})
    text = '[defaults]\njson_arrays = ["tags", "note"]'
    assert [column.type.bigquery for column in mirror_of(text, header).columns[:3]] == ["INT64", "JSON", "STRING"]

    found = rows(text, *(upsert(n, {"Tags": tags}) for n, tags in enumerate([["1", None], [], None])), header=header)
    assert [row["Tags"] for row in found] == ['["1",null]', "[]", None]
    wrong = decode_changes([upsert(1, {"Tags": ["x"]})], header, text)
    assert [each.reason for each in wrong.poison] == [Reason.VALUE_DOES_NOT_FIT]


def test_an_array_written_as_json_has_its_elements_in_their_normal_form() -> None:
    header = header_of({"id": "INT64", "f": "ARRAY<FLOAT32>", "u": "ARRAY<UUID>", "j": "ARRAY<PG_JSONB>"})
    text = '[defaults]\njson_arrays = ["f", "u", "j"]'
    uuid, wide = "F47AC10B-58CC-4372-A567-0E02B2C3D479", '{"p":12345678901234567890.12}'
    written = [{"f": [1.1, None, "NaN"], "u": [uuid], "j": [wide]}, {"f": [1.100000023841858, None, "NaN"]}]
    first, second = rows(text, *(upsert(n, each) for n, each in enumerate(written)), header=header)
    assert first["f"] == second["f"]
    assert json.loads(str(first["f"])) == [1.100000023841858, None, "NaN"]
    assert json.loads(str(first["u"])) == [uuid.lower()]
    assert json.loads(str(first["j"])) == [wide]
    assert (second["u"], second["j"]) == (None, None)
    wrong = decode_changes([upsert(1, {"f": [1e39]}), upsert(2, {"u": ["x"]}), upsert(3, {"j": ["{"]})], header, text)
    assert [each.reason for each in wrong.poison] == [Reason.VALUE_DOES_NOT_FIT] * 3


SEVENTEEN = {f"k{number}": "INT64" for number in range(17)}


@pytest.mark.parametrize("key", [{"k": "TIME"}, {"k": "INT64", "l": "PG_NUMERIC"}, {"k": "INTERVAL"}, SEVENTEEN])
@pytest.mark.parametrize("mode", ["mirror", "both", "history"])
def test_a_table_whose_key_no_bigquery_key_holds_is_refused_or_has_a_history_alone(
    key: Mapping[str, str], mode: str
) -> None:
    header = header_of({**key, "v": "INT64"}, key=tuple(key))
    option = in_mode(mode)
    if mode == "history":
        assert wanted(option, header).unfit_key == "", "it was asked for"
    else:
        with pytest.raises(PoisonRecordError, match='unfit_key = "history" in the tables file') as caught:
            wanted(option, header)
        assert caught.value.reason in (Reason.KEY_NOT_REPRESENTABLE, Reason.TOO_MANY_COLUMNS)
    found = wanted(f'{option}unfit_key = "history"', header)
    assert (found.mirror, found.soft_delete, bool(found.unfit_key)) == (None, False, mode != "history")
    assert found.history is not None
    assert (found.history.name, found.history.instead_of) == ("orders_changelog", "orders")
    assert [column.type.bigquery for column in found.history.columns[: len(key)]] == [
        "INT64" if kind == "INT64" else "STRING" for kind in key.values()
    ]
    values = {name: "5" if kind == "INT64" else "P1Y" if kind == "INTERVAL" else "1.5" for name, kind in key.items()}
    changes = [upsert(values, {"v": "1"}), delete(values, sequence=2)]
    decoded = decode_changes(changes, header, f'{option}unfit_key = "history"')
    assert (decoded.poison, [len(table.rows) for table in decoded.tables]) == ([], [2])
    assert [table for table, _why in decoded.history_only] == ([] if mode == "history" else ["orders"])


@pytest.mark.parametrize("kind", ["JSON", "PG_JSONB", "ARRAY<INT64>", "ARRAY<TIME>"])
def test_a_key_by_which_no_query_tells_rows_apart_is_refused_whatever_is_kept(kind: str) -> None:
    for option in (HISTORY, '[defaults]\nunfit_key = "history"'):
        with pytest.raises(PoisonRecordError, match="rows cannot be told apart by it") as caught:
            wanted(option, header_of({"k": kind}, key=("k",)))
        assert caught.value.reason is Reason.KEY_NOT_REPRESENTABLE


def test_a_key_that_fits_has_its_mirror_whatever_is_kept_of_others() -> None:
    found = wanted('[defaults]\nunfit_key = "history"', header_of())
    assert (found.mirror is not None, found.history, found.unfit_key) == (True, None, "")


def test_a_number_of_a_jsonb_that_bigquery_does_not_hold_is_refused_or_a_text() -> None:
    header = header_of({"id": "INT64", "doc": "PG_JSONB", "docs": "ARRAY<PG_JSONB>", "plain": "JSON"})
    wide = "12345678901234567890.12"
    changes = [upsert(1, {"doc": f"[{wide},1]", "docs": [wide], "plain": wide}), upsert(2, {"doc": "[1]"})]

    for option in ("", '[defaults]\njsonb_numbers = "refuse"'):
        refused = decode_changes(changes, header, option)
        assert [(each.change, each.reason) for each in refused.poison] == [(0, Reason.VALUE_DOES_NOT_FIT)]
        assert "jsonb_numbers" in refused.poison[0].detail
    text = '[tables.orders]\njsonb_numbers = "text"'
    found = rows(text, *changes, header=header)
    assert [(row["doc"], row["docs"], row["plain"]) for row in found] == [
        (f'["{wide}",1]', [f'"{wide}"'], wide),
        ("[1]", None, None),
    ]
    types, before = ([column.type.bigquery for column in mirror_of(each, header).columns] for each in (text, ""))
    assert types == before
    as_json = f'{text}\njson_arrays = ["docs"]'
    assert [row["docs"] for row in rows(as_json, *changes, header=header)] == [f'["{wide}"]', None]
    assert wanted(text, header).of_unknown_type == ()


@given(st.lists(st.one_of(st.none(), st.lists(st.one_of(st.none(), st.text())))), st.data())
def test_json_of_texts_is_what_they_say(arrays: list[list[str | None] | None], data: st.DataObject) -> None:
    arrays = [array and [text and text.encode(errors="ignore").decode() for text in array] for array in arrays]
    start = data.draw(st.integers(0, len(arrays)))
    found = json_arrays(pa.array(arrays, pa.list_(pa.string())).slice(start))

    assert [text and json.loads(text) for text in found.to_pylist()] == arrays[start:]


@given(st.lists(st.lists(st.one_of(st.none(), st.floats()))))
def test_json_of_numbers_is_what_they_are(arrays: list[list[float | None]]) -> None:
    found = json_arrays(pa.array(arrays, pa.list_(pa.float64())))

    def meant(text: str) -> list[object]:
        return [float(each) if each is not None else None for each in json.loads(text, parse_int=float)]

    assert repr([meant(text) for text in found.to_pylist()]) == repr(arrays)


SECTION = st.integers(0, 2**64 - 1)


@given(st.lists(st.lists(SECTION, min_size=1, max_size=4), min_size=2), st.booleans())
def test_sequences_in_a_history_sort_as_text(numbers: list[list[int]], padded: bool) -> None:
    texts = ["/".join(f"{section:016x}" if padded else f"{section:x}" for section in each) for each in numbers]
    found = normal_sequences(pa.array(texts, pa.string())).to_pylist()

    def filled(text: str) -> tuple[int, ...]:
        sections = parse_sequence(text).sections
        return sections + (0,) * (4 - len(sections))

    assert sorted(found) == [text for _, text in sorted((filled(text), text) for text in found)]
    assert [filled(text) for text in found] == [filled(text) for text in texts]
