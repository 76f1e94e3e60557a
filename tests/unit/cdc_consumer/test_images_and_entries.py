"""Images of rows and entries of change logs: images make mirrors only, entries are appended as they came."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from structlog.testing import capture_logs

from services.cdc_consumer.core.schema.views import view_name, view_query
from services.cdc_consumer.core.stream.columns import decode_messages
from shared.contracts.change_batch import Change, Header
from shared.contracts.errors import PoisonRecordError
from shared.contracts.reasons import Reason
from shared.contracts.timestamps import Nanoseconds, microseconds
from tests.builders import a_change, a_header, a_message
from tests.seeds import examples
from tests.unit.cdc_consumer.decoded import decode_changes, history_of, in_mode, tables_of, wanted
from tests.unit.cdc_consumer.wire import (
    AN_HOUR_LATER,
    COMMITTED,
    COMMITTED_MICROS,
    batch_of,
    delete,
    header_of,
    messages_of,
    upsert,
)
from tests.unit.cdc_consumer.world import World

MODES = ("mirror", "history", "both")
BOTH = in_mode("both")
COLUMNS = {
    "id": "STRING",
    "row_key": "STRING",
    "mod_type": "STRING",
    "commit_timestamp": "TIMESTAMP",
    "value": "BYTES",
    "entry_index": "INT64",
}


def images_of(header: Header) -> Header:
    return structs.replace(header, content="images")


def entries_header(columns: Mapping[str, str] = COLUMNS) -> Header:
    return structs.replace(header_of(columns), content="entries")


def an_entry(identity: str, index: int = 0, **row: object) -> Change:
    values = {"row_key": "r", "mod_type": "SET_CELL", "commit_timestamp": COMMITTED, "value": "AP9h"} | row
    return upsert({"id": identity}, values | {"entry_index": str(index)}, sequence=f"5/{index}")


@pytest.mark.parametrize("name", ["mirror", "both"])
def test_images_make_a_mirror_as_changes_do_and_never_a_history(name: str) -> None:
    changes = [upsert(1, {"note": "a"}), delete(2)]
    (found,) = tables_of(in_mode(name), *changes, header=images_of(header_of())).values()
    (mirror,) = tables_of("", *changes).values()

    assert found.definition == mirror.definition
    assert found.rows.equals(mirror.rows)


@pytest.mark.parametrize("name", MODES)
def test_entries_are_appended_as_they_came_in_every_mode(name: str) -> None:
    entries = an_entry("x"), an_entry("y", 1, value=None), an_entry("x")
    (found,) = tables_of(in_mode(name), *entries, header=entries_header()).values()

    assert found.definition == history_of("", entries_header())
    assert found.rows.to_pylist()[1] == {
        "id": "y",
        "row_key": "r",
        "mod_type": "SET_CELL",
        "commit_timestamp": COMMITTED_MICROS,
        "value": None,
        "entry_index": 1,
        "big_query_commit_timestamp": microseconds(AN_HOUR_LATER),
        "_millrace_sequence": "/".join(["0" * 15 + "5", "0" * 15 + "1", "0" * 16, "0" * 16]),
        "_millrace_message": 0,
        "_millrace_change": 1,
    }
    assert found.rows["id"].to_pylist() == ["x", "y", "x"]
    assert found.rows["value"].to_pylist() == [b"\x00\xffa", None, b"\x00\xffa"]


def test_a_table_of_entries_is_no_mirror_has_no_pseudo_columns_and_lies_by_time_and_row() -> None:
    log = history_of("", entries_header())

    assert (log.name, log.append_only, log.pseudo_columns) == ("orders_changelog", True, ())
    assert (log.commit_timestamp, log.clustering, log.primary_key) == ("commit_timestamp", ("row_key",), ("id",))


@pytest.mark.parametrize("columns", [{"id": "STRING", "row_key": "BYTES"}, {"id": "STRING", "note": "STRING"}])
def test_what_bigquery_cannot_cluster_by_is_not_clustered_by(columns: Mapping[str, str]) -> None:
    assert history_of("", entries_header(columns)).clustering == ("id",)


def test_entries_that_do_not_say_when_have_the_time_of_the_wire_beside_them() -> None:
    header = entries_header({"id": "STRING", "commit_timestamp": "STRING"})
    (found,) = tables_of(BOTH, upsert({"id": "x"}, {"commit_timestamp": "noon"}), header=header).values()

    assert found.definition.commit_timestamp == "_millrace_commit_timestamp"
    assert found.rows["_millrace_commit_timestamp"].to_pylist() == [COMMITTED_MICROS]
    assert found.rows["commit_timestamp"].to_pylist() == ["noon"]


def test_a_delete_among_entries_is_poison_and_its_neighbours_are_not() -> None:
    found = decode_changes([an_entry("x"), delete({"id": "y"}), an_entry("z")], entries_header(), BOTH)

    assert [(each.change, each.reason) for each in found.poison] == [(1, Reason.BAD_CHANGE)]
    assert found.tables[0].rows["id"].to_pylist() == ["x", "z"]


def test_an_entry_is_never_too_old_for_nothing_that_is_appended_can_undo_a_delete() -> None:
    old = structs.replace(an_entry("x"), commit_timestamp="2023-01-02T03:04:05Z")

    assert len(tables_of(BOTH, old, header=structs.replace(entries_header(), origin="snapshot"))) == 1


@pytest.mark.parametrize(
    ("versioned", "refused"),
    [
        (timedelta(), False),  # days late in all, but versioned when it was published: what is newer comes after it
        (timedelta(hours=45), False),
        (timedelta(hours=47), True),  # its reader slept
    ],
)
def test_an_image_that_was_held_back_for_days_is_too_old_and_a_late_one_is_not(
    versioned: timedelta, refused: bool
) -> None:
    now = datetime(2024, 1, 12, tzinfo=UTC)
    published = now - timedelta(hours=1)
    version = int((published - versioned).timestamp() * 1_000_000)
    changes = [
        upsert(1, {"note": "a"}, sequence=version, committed="2024-01-02T03:04:05Z"),
        delete(2, sequence=version, committed="2024-01-02T03:04:05Z"),
    ]
    messages = messages_of(batch_of(changes, images_of(header_of())), published=published)

    found = decode_messages(messages, Nanoseconds(int(now.timestamp()) * 10**9))

    assert [each.reason for each in found.poison] == [Reason.TOO_OLD_TO_BE_SAFE] * refused
    kept = ["DELETE"] if refused else ["UPSERT", "DELETE"]
    assert found.tables[0].rows["_CHANGE_TYPE"].to_pylist() == kept


@pytest.mark.parametrize("name", ["big_query_commit_timestamp", "Millrace_Repeat", "_millrace_sequence"])
def test_a_column_that_a_table_of_entries_has_itself_is_a_bad_name(name: str) -> None:
    with pytest.raises(PoisonRecordError) as raised:
        wanted("", entries_header({"id": "STRING", name: "STRING"}))
    assert raised.value.reason is Reason.BAD_NAME


def test_a_column_that_the_file_names_is_missed_only_where_all_columns_of_the_table_are_known() -> None:
    def unknown(header: Header, name: str) -> tuple[str, ...]:
        return wanted(f'[tables.orders]\nmode = "{name}"\nignored_columns = ["noet"]', header).unknown

    images, entries = images_of(header_of()), entries_header()
    assert [unknown(images, "both"), unknown(entries, "both")] == [(), ()]
    assert [unknown(images, "mirror"), unknown(entries, "history"), unknown(header_of(), "both")] == [("noet",)] * 3


def test_the_view_over_entries_is_named_for_what_it_is_and_no_validity_is_in_it() -> None:
    log = history_of("", entries_header())

    assert view_name(log) == "orders_changelog_once"
    assert "valid_from" not in view_query("p.d.orders_changelog", ["id"], log)


LOG = structs.replace(
    a_header(columns=(("id", "INT64"), ("name", "STRING"), ("commit_timestamp", "TIMESTAMP"))), content="entries"
)
IMAGES = structs.replace(a_header(), content="images")


def logged(world: World) -> list[tuple[int, str]]:
    return [(row["id"], row["name"]) for row in world.writer.appended.get("planes_changelog", ())]


def a_line(identity: int, sequence: int = 1) -> Change:
    return a_change(identity, sequence, commit_timestamp="2026-11-21T12:00:00.123456Z")


def test_of_images_the_newest_is_mirrored_and_of_entries_every_one_is_appended() -> None:
    world = World(tables_file=BOTH)
    counts = world.apply(
        a_message(a_change(1, 1), a_change(1, 2), a_change(2, 1), header=IMAGES),
        a_message(a_line(7, 1), a_line(7, 1), a_line(8, 2), header=LOG),
        a_message(a_change(2, 3, op="DELETE"), header=IMAGES),
        a_message(header=LOG),
    )

    assert world.names() == {1: "name 2"}
    assert logged(world) == [(7, "name 1"), (7, "name 1"), (8, "name 2")]
    assert (counts.superseded, counts.acked, counts.dead_letters) == (2, 4, {})
    assert set(counts.tables) == {"planes", "planes_changelog"}


def test_images_that_no_table_takes_are_acked_and_reported_once() -> None:
    world = World(tables_file='[defaults]\nmode = "history"')
    with capture_logs() as logs:
        counts = [world.apply(a_message(a_change(1), header=IMAGES), a_message(a_line(1), header=LOG)) for _ in "ab"]

    assert [(each.left_out, each.acked, each.rows_written) for each in counts] == [(1, 2, 1)] * 2
    left_out = [(line["source_table"], line["content"]) for line in logs if line["event"] == "table_left_out"]
    assert left_out == [("planes", "images")]
    assert set(world.tables.there) == {"planes_changelog"}


def test_trouble_with_the_one_table_holds_up_no_message_of_the_other() -> None:
    world = World(tables_file=BOTH)
    world.tables.forbidden.add("planes")
    world.apply(a_message(a_change(1), header=IMAGES), a_message(a_line(1), header=LOG))

    assert world.leases.acked == ["a1"]
    assert logged(world) == [(1, "name 1")]


@settings(max_examples=examples(60), deadline=None)
@given(data=st.data(), lines=st.lists(st.tuples(st.integers(1, 5), st.integers(0, 3)), min_size=1, max_size=12))
def test_every_delivery_of_an_entry_is_appended_once(data: st.DataObject, lines: list[tuple[int, int]]) -> None:
    """Whatever the order, the batches and the tasks: nothing is thought superseded, not even an equal line."""
    world = World(tables_file=BOTH)
    delivered: Sequence[Any] = data.draw(st.permutations(lines))
    cut = data.draw(st.integers(0, len(delivered)))
    for part in (delivered[:cut], delivered[cut:]):
        world.apply(*(a_message(a_line(*line), header=LOG) for line in part))

    assert sorted(logged(world)) == sorted((identity, f"name {sequence}") for identity, sequence in lines)
    assert world.reasons() == []
