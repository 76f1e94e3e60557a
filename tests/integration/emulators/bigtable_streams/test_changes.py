"""What the seed document on Bigtable change streams says is recorded, and how changes of several clusters are settled.

Source: "Änderungsstreams" (cloud.google.com/bigtable/docs/change-streams-overview), with the lines given.
"""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import grpc
import pytest
from google.cloud.bigtable_v2 import types as data_types

from tests.integration.bigtable_front import (
    CLUSTER,
    INSTANCE,
    Front,
    FrontTable,
    ReadChangeStreamResponse,
    add_to_cell,
    delete_column,
    delete_family,
    delete_row,
    set_cell,
)

pytestmark = pytest.mark.integration

USER = ReadChangeStreamResponse.DataChange.Type.Value("USER")
GARBAGE_COLLECTION = ReadChangeStreamResponse.DataChange.Type.Value("GARBAGE_COLLECTION")
FAR = "front-c2"


@pytest.fixture(scope="module")
def front(bigtable_front: str) -> Iterator[Front]:
    with Front(bigtable_front) as front:
        front.control.add_cluster(INSTANCE, FAR)
        yield front


def kinds(change: Any) -> list[str]:
    return [chunk.mutation.WhichOneof("mutation") for chunk in change.chunks]


def deleted_families(change: Any) -> list[str]:
    return [chunk.mutation.delete_from_family.family_name for chunk in change.chunks]


def test_every_call_that_changes_rows_is_recorded_with_one_row_in_a_record(front: Front) -> None:
    """A18 (L19, L21, L31, L49-51): the five calls, DeleteFromRow by family, DropRowRange row by row."""
    table = front.table("f", "g")
    both = [set_cell("f", b"q", b"1"), set_cell("g", b"q", b"2")]
    table.write(b"a", *both)
    entries = data_types.MutateRowsRequest.pb()(table_name=table.name)
    for key in (b"b1", b"b2"):
        entries.entries.add(row_key=key, mutations=both)
    list(front.data.mutate_rows(data_types.MutateRowsRequest.wrap(entries)))
    check = data_types.CheckAndMutateRowRequest.pb()(table_name=table.name, row_key=b"a")
    check.true_mutations.append(set_cell("f", b"taken", b"yes"))
    check.false_mutations.append(set_cell("f", b"not taken", b"no"))
    front.data.check_and_mutate_row(data_types.CheckAndMutateRowRequest.wrap(check))
    modify = data_types.ReadModifyWriteRowRequest.pb()(table_name=table.name, row_key=b"a")
    modify.rules.add(family_name="f", column_qualifier=b"q", append_value=b"+")
    front.data.read_modify_write_row(data_types.ReadModifyWriteRowRequest.wrap(modify))
    table.write(b"a", delete_row())
    front.tables.drop_row_range({"name": table.name, "row_key_prefix": b"b"})

    changes = table.changes()

    assert [(change.row_key, kinds(change)) for change in changes] == [
        (b"a", ["set_cell", "set_cell"]),
        (b"b1", ["set_cell", "set_cell"]),
        (b"b2", ["set_cell", "set_cell"]),
        (b"a", ["set_cell"]),
        (b"a", ["set_cell"]),
        (b"a", ["delete_from_family", "delete_from_family"]),
        (b"b1", ["delete_from_family", "delete_from_family"]),
        (b"b2", ["delete_from_family", "delete_from_family"]),
    ]
    assert [deleted_families(change) for change in changes[5:]] == [["f", "g"]] * 3
    assert changes[3].chunks[0].mutation.set_cell.column_qualifier == b"taken"
    assert changes[4].chunks[0].mutation.set_cell.value == b"1+"
    assert {(change.type_, change.source_cluster_id, change.done) for change in changes} == {(USER, CLUSTER, True)}
    assert all(change.token for change in changes)
    assert table.rows() == {}


def test_records_of_garbage_collection_differ_from_those_of_users(front: Front) -> None:
    """A18 (L20): GC by number of versions; type GARBAGE_COLLECTION, no cluster, one millisecond for each version."""
    table = front.table("f", "g", rules={"f": {"max_num_versions": 1}, "g": {"max_age": timedelta(days=1)}})
    table.write(b"a", *(set_cell("f", b"q", b"v", time) for time in (1_000, 2_000, 3_000)))
    table.write(
        b"b", set_cell("f", b"q", b"kept", 1_000), set_cell("g", b"q", b"old", 5_000), set_cell("g", b"q", b"new")
    )

    collected = front.control.collect_garbage(table.name)

    assert (collected.rows, collected.cells) == (2, 3)
    assert front.control.collect_garbage(table.name).cells == 0
    *users, of_a, of_b = table.changes()
    assert {change.type_ for change in users} == {USER}
    assert {(change.type_, change.source_cluster_id) for change in (of_a, of_b)} == {(GARBAGE_COLLECTION, "")}
    gone = [chunk.mutation.delete_from_column for change in (of_a, of_b) for chunk in change.chunks]
    times = [(each.time_range.start_timestamp_micros, each.time_range.end_timestamp_micros) for each in gone]
    assert sorted(times) == [(1_000, 2_000), (2_000, 3_000), (5_000, 6_000)]
    rows = table.rows()
    assert list(rows[b"a"]) == [("f", b"q", 3_000)]
    assert sorted(rows[b"b"].values()) == [b"kept", b"new"]


def test_a_write_has_the_commit_time_of_the_first_cluster_in_every_cluster(front: Front) -> None:
    """A19 (L33): read through a profile of the other cluster it is the same change."""
    table = front.table("f")
    far = front.app_profile(single_cluster_routing={"cluster_id": FAR, "allow_transactional_writes": False})
    table.write(b"a", set_cell("f", b"q", b"1"))

    (here,) = table.changes()
    there = next(table.read(start=table.since, profile=far)).data_change

    assert there.commit_timestamp == here.commit_timestamp
    assert there.source_cluster_id == here.source_cluster_id == CLUSTER


def test_a_record_older_than_the_low_watermark_still_comes(front: Front) -> None:
    """A19 (L98): the low watermark is an estimate; what arrives late is told, and changes what no later write has."""
    table = front.table("f", "g")
    before = front.control.describe(table.name).now
    table.write(b"a", set_cell("f", b"set", b"here", 1_000), delete_column("f", b"deleted"), delete_family("g"))
    (here,) = table.changes()
    watermark = here.estimated_low_watermark.ToMicroseconds()
    late = [set_cell("f", name, b"far", 1_000) for name in (b"set", b"deleted", b"new")]

    arrive(table, [*late, set_cell("g", b"q", b"far", 1_000)], before, 7)

    latest = table.changes()[-1]
    assert latest.commit_timestamp.ToMicroseconds() == before < watermark
    assert len(latest.chunks) == 4
    assert table.rows() == {b"a": {("f", b"set", 1_000): b"here", ("f", b"new", 1_000): b"far"}}


def test_what_could_not_have_arrived_is_refused(front: Front) -> None:
    table = front.table("f")
    now = front.control.describe(table.name).now
    for commit in (now + 3_600_000_000, now):
        arrived = [arrive_code(table, commit) for _ in range(2)]
        assert arrived[-1] is grpc.StatusCode.INVALID_ARGUMENT, "in the future, or there already"


def test_aggregate_mutations_are_recorded_as_they_were_sent(front: Front) -> None:
    table = front.table("f", aggregates=["sums"])
    table.write(b"a", add_to_cell("sums", b"q", 1_000, 5))
    table.write(b"a", add_to_cell("sums", b"q", 1_000, 6))

    assert [change.chunks[0].mutation.add_to_cell.input.int_value for change in table.changes()] == [5, 6]
    assert table.rows() == {b"a": {("sums", b"q", 1_000): bytes(7) + b"\x0b"}}


def arrive(table: FrontTable, mutations: list[Any], commit: int, tiebreaker: int) -> None:
    """Let a write of the far cluster arrive at row a."""
    table.front.control.replicate(table.name, b"a", mutations, commit=commit, cluster=FAR, tiebreaker=tiebreaker)


def arrive_code(table: FrontTable, commit: int) -> grpc.StatusCode:
    """Let a write of the far cluster arrive and say how that ended."""
    try:
        arrive(table, [set_cell("f", b"q", b"far")], commit, 7)
    except grpc.RpcError as error:
        code: grpc.StatusCode = error.code()
        return code
    return grpc.StatusCode.OK
