"""Entries of a change log and images of rows on the stand-in: the view shows each entry once, the mirror the newest."""

import itertools
import json
from datetime import datetime

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs

from services.cdc_consumer.adapters.doctor.dataset_inspection import inspect_dataset
from shared.contracts.change_batch import Change, Header
from shared.contracts.change_sequence import four_sections
from tests.builders import a_header, a_message
from tests.integration.stand_in import PROJECT, StandIn
from tests.worlds.history_consumer import Fed, a_plane, at

pytestmark = pytest.mark.integration

COLUMNS = (
    ("id", "STRING"),
    ("row_key", "STRING"),
    ("mod_type", "STRING"),
    ("commit_timestamp", "TIMESTAMP"),
    ("column_family", "STRING"),
    ("column", "STRING"),
    ("timestamp", "TIMESTAMP"),
    ("value", "BYTES"),
    ("is_gc", "BOOL"),
    ("entry_index", "INT64"),
)
_numbers = itertools.count()


def log_of(table: str, row_key: str = "STRING") -> Header:
    columns = [(name, row_key if name == "row_key" else kind) for name, kind in COLUMNS]
    return structs.replace(a_header(table, columns=columns), content="entries")


def an_entry(identity: str, second: int = 1, index: int = 0, **row: object) -> Change:
    values = {"row_key": "JFK#1", "mod_type": "SET_CELL", "commit_timestamp": f"2026-11-21T12:00:{second:02}Z"}
    cell = {"column_family": "w", "column": "temp", "timestamp": "2013-01-01T00:00:00Z", "value": "AP9h"}
    return Change(
        op="UPSERT",
        mod_type="SET_CELL",
        sequence=str(four_sections(second, 2**31, index)),
        commit_timestamp=values["commit_timestamp"],
        place="{}",
        key=json.dumps({"id": identity}),
        row=json.dumps(values | cell | {"is_gc": False, "entry_index": str(index)} | row),
    )


def test_a_table_of_entries_is_made_as_googles_template_names_it_and_without_a_key(stand_in: StandIn, fed: Fed) -> None:
    fed().apply(a_message(an_entry("x", 3, 1), header=log_of("made")))

    table = stand_in.client.get_table(f"{PROJECT}.{stand_in.dataset}.made_changelog")
    assert (table.time_partitioning.type_, table.time_partitioning.field) == ("DAY", "commit_timestamp")
    assert table.clustering_fields == ["row_key"]
    assert table.table_constraints is None or table.table_constraints.primary_key is None
    (row,) = stand_in.client.query_and_wait(f"SELECT * FROM `{stand_in.dataset}.made_changelog`")
    values = dict(row)
    assert values.pop("big_query_commit_timestamp") > at(-365 * 86_400)
    assert values == {
        "id": "x",
        "row_key": "JFK#1",
        "mod_type": "SET_CELL",
        "commit_timestamp": at(3),
        "column_family": "w",
        "column": "temp",
        "timestamp": datetime.fromisoformat("2013-01-01T00:00:00+00:00"),
        "value": b"\x00\xffa",
        "is_gc": False,
        "entry_index": 1,
        "_millrace_sequence": "0000000000000003/0000000080000000/0000000000000001/0000000000000000",
    }


def test_a_table_of_entries_whose_rows_have_keys_of_bytes_is_made_too(stand_in: StandIn, fed: Fed) -> None:
    entry = an_entry("x", row_key="AP9h")
    fed().apply(a_message(entry, header=log_of("of_bytes", "BYTES")))

    (row,) = stand_in.client.query_and_wait(f"SELECT row_key FROM `{stand_in.dataset}.of_bytes_changelog_once`")
    assert row["row_key"] == b"\x00\xffa"


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    data=st.data(),
    lines=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2)), min_size=1, max_size=12, unique=True),
)
def test_the_view_has_each_entry_once_whatever_was_repeated_and_reordered(
    stand_in: StandIn, fed: Fed, data: st.DataObject, lines: list[tuple[int, int]]
) -> None:
    table = f"log{next(_numbers)}"
    consumer, header = fed(), log_of(table)
    repeated = data.draw(st.lists(st.sampled_from(lines), max_size=8))
    delivered = data.draw(st.permutations([*lines, *repeated]))
    cuts = sorted(data.draw(st.sets(st.integers(1, len(delivered)), max_size=3)) | {len(delivered)})
    for start, end in itertools.pairwise([0, *cuts]):
        batch = (an_entry(f"{second}/{index}", second, index) for second, index in delivered[start:end])
        consumer.apply(a_message(*batch, header=header))

    def in_order(name: str) -> list[tuple[object, ...]]:
        return list(stand_in.run(f"SELECT id, commit_timestamp FROM {name} ORDER BY _millrace_sequence"))

    assert in_order(f"{table}_changelog_once") == [(f"{s}/{i}", at(s)) for s, i in sorted(lines)]
    assert in_order(f"{table}_changelog") == [(f"{s}/{i}", at(s)) for s, i in sorted(delivered)]


def test_images_and_entries_of_one_table_lie_side_by_side(stand_in: StandIn, fed: Fed) -> None:
    images = structs.replace(a_header("beside"), content="images")
    fed().apply(
        a_message(a_plane(1, 2, name="new"), a_plane(1, 1, name="old"), header=images),
        a_message(an_entry("x"), an_entry("x"), header=log_of("beside")),
        a_message(a_plane(2, 1, name="b"), a_plane(2, 2, delete=True), header=images),
    )

    assert stand_in.run("SELECT id, name FROM beside") == [(1, "new")]
    assert stand_in.run("SELECT COUNT(*) FROM beside_changelog") == [(2,)]
    assert stand_in.run("SELECT id FROM beside_changelog_once") == [("x",)]
    assert stand_in.run("SELECT table_name FROM INFORMATION_SCHEMA.TABLES WHERE table_name = 'beside_history'") == []


def test_doctor_takes_a_table_of_entries_for_what_it_is(stand_in: StandIn, fed: Fed, storage: grpc.Channel) -> None:
    images = structs.replace(a_header("examined"), content="images")
    consumer = fed()
    consumer.apply(
        a_message(a_plane(1, 1, name="a"), header=images), a_message(an_entry("x"), header=log_of("examined"))
    )

    found = {one.check: one for one in inspect_dataset(stand_in.client, storage, PROJECT, stand_in.dataset)}
    assert found["table examined_changelog"].detail == "a change log"
    assert found["table examined"].detail.startswith("a mirror, primary key (id)")
    assert not [check for check in found if check.startswith("table examined_changelog:")]
