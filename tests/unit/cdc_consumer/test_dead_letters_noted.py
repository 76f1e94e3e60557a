"""Changes that become dead letters: the mirror that lacks them says so, before their message is acked."""

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import pytest
from google.api_core import exceptions
from structlog.testing import capture_logs

from services.cdc_consumer.adapters.bigquery.mirror_labels import DEAD_LETTERS, dead_lettered
from services.cdc_consumer.adapters.schema.tables import BigQueryTables
from services.cdc_consumer.app.delete_missing_rows.automatic_deletion import check_dead_letters
from services.cdc_consumer.app.delete_missing_rows.deletion import DeletionRefusedError
from services.cdc_consumer.app.stream.table_notes import note_dead_letters
from services.cdc_consumer.core.schema.destinations import Plan, mirror_name
from services.cdc_consumer.ports import MirrorTable, RowCount
from shared.contracts.mirrors import MIRROR_OF
from shared.contracts.row_id import ordering_key
from shared.contracts.tables_file import read_tables_file
from tests.builders import a_change, a_header, a_message, table_definition
from tests.fakes.effects import Effects
from tests.unit.cdc_consumer.bigquery_client import FakeBigQuery, resource
from tests.unit.cdc_consumer.world import AIRPORTS, NOW, World, killed_anywhere

SINCE = NOW // 1_000
UNFIT = a_message(a_change(7, seats="many"))


def a_world(effects: Effects | None = None) -> World:
    """Return one that has mirrors already."""
    world = World()
    world.apply(a_message(a_change(1)), a_message(a_change(1), header=AIRPORTS))
    if effects is not None:
        world.effects = effects
        for port in (world.tables, world.dead_letters, world.leases, world.writer):
            port.effects = effects
    return world


def unread(key: str) -> Mapping[str, object]:
    return dict(a_message(data=b"garbage")) | {"ordering_key": key}


def test_it_is_reported_when_the_dead_letter_is_kept_and_before_the_message_is_acked() -> None:
    world = a_world()
    world.effects.done.clear()
    world.apply(UNFIT, a_message(a_change(2), header=AIRPORTS))

    assert world.tables.dead_letters == {"planes": SINCE}
    settled = [one for one in world.effects.done if one.startswith(("keep 1", "note", "ack"))]
    assert settled == ["keep 1 dead letters", "note dead letters of planes", "ack 2"]


def test_killed_anywhere_it_is_reported_before_any_ack() -> None:
    for world, acked in killed_anywhere(a_world, UNFIT):
        assert "planes" in world.tables.dead_letters or not acked


@pytest.mark.parametrize(
    ("key", "tables"),
    [
        (ordering_key("planes", 3), {"planes"}),
        ("planes/snapshot-3", {"planes"}),
        pytest.param("", set(), id="of a message without one nobody knows the table"),
    ],
)
def test_a_message_that_cannot_be_read_is_of_the_table_that_its_ordering_key_names(key: str, tables: set[str]) -> None:
    world = a_world()

    assert world.apply(unread(key)).acked == 1
    assert world.tables.dead_letters == dict.fromkeys(tables, SINCE)


def test_a_table_whose_columns_do_not_fit_any_more_may_have_a_mirror_from_before() -> None:
    world = a_world()
    header = a_header(columns=[("id", "INT64"), ("name", "STRUCT<>")])
    assert world.apply(a_message(a_change(2), header=header)).dead_letters

    assert world.tables.dead_letters == {"planes": SINCE}


def test_a_mirror_that_cannot_be_labelled_holds_up_nothing_and_is_reported_of() -> None:
    world = a_world()
    world.tables.unlabelled = {"planes"}
    with capture_logs() as logs:
        counts = world.apply(unread("planes/1"))

    assert (counts.acked, world.tables.dead_letters) == (1, {})
    assert [line["table"] for line in logs if line["event"] == "dead_letters_not_noted"] == ["planes"]


def test_a_mirror_that_is_refused_for_now_keeps_the_message_until_it_is_labelled() -> None:
    world = a_world()
    world.leases.acked.clear()
    world.tables.forbidden = {"planes"}
    counts = world.apply(unread("planes/1"))
    assert (counts.acked, counts.deferred, world.leases.acked) == (0, 1, [])
    assert "permission denied" in counts.tables["planes"].deferred

    world.tables.forbidden = set()
    assert world.apply(unread("planes/1")).acked == 1
    assert world.tables.dead_letters == {"planes": SINCE}


def of_one_mirror(**errors: Exception) -> FakeBigQuery:
    """Return a client of one mirror, some calls of which fail."""
    return FakeBigQuery(resource("planes", labels={MIRROR_OF: "x"}), **errors)


def refusal(kind: Callable[[str], Exception]) -> Exception:
    return kind("the words of BigQuery")


@pytest.mark.parametrize(
    ("client", "waits"),
    [
        (of_one_mirror(), ""),
        (of_one_mirror(get_table=refusal(exceptions.Forbidden)), "the words of BigQuery"),
        (of_one_mirror(get_table=refusal(exceptions.BadRequest)), "the words of BigQuery"),
        (of_one_mirror(update_table=refusal(exceptions.PreconditionFailed)), "altered by others all the time"),
        (of_one_mirror(update_table=refusal(exceptions.Conflict)), "altered by others all the time"),
        (of_one_mirror(update_table=refusal(exceptions.BadRequest)), "the words of BigQuery"),
        (of_one_mirror(update_table=refusal(exceptions.Forbidden)), ""),
        (of_one_mirror(get_table=refusal(exceptions.NotFound)), ""),
    ],
)
def test_only_a_right_to_label_that_is_missing_lets_the_message_go_without_a_label(client: Any, waits: str) -> None:
    tables = BigQueryTables(client, "p", "d")
    with capture_logs() as logs:
        why = note_dead_letters(tables, ("planes", ""), NOW)
        again = note_dead_letters(tables, ("planes", ""), NOW)

    assert (waits in why, bool(why), bool(again)) == (True, bool(waits), bool(waits))
    fixes = [line["fix"] for line in logs if line["event"] == "dead_letters_not_noted"]
    assert len(fixes) == (2 if waits or "Forbidden" in repr(client.__dict__) else 0)
    assert all(("come again until it succeeds" in fix) is bool(waits) for fix in fixes)
    assert all("roles/bigquery.dataEditor" in fix for fix in fixes if not waits)


def test_a_mirror_that_cannot_be_labelled_now_holds_up_its_dead_letters_messages_and_no_other() -> None:
    world = a_world()
    world.leases.acked.clear()
    world.tables.interrupted = lambda table: table == "planes"
    messages = [UNFIT, a_message(a_change(2), header=AIRPORTS), a_message(a_change(3)), unread("planes/1")]
    with capture_logs() as logs:
        counts = world.apply(*messages)

    assert world.leases.acked == ["a1", "a2"]
    assert set(world.leases.deferred_for) == {"a0", "a3"}
    assert (len(world.dead_letters.kept), world.effects.done.count("keep 2 dead letters")) == (2, 1)
    assert (set(world.names()), set(world.names("airports"))) == ({1, 3}, {1, 2})
    again_at = SINCE + timedelta(seconds=30) // timedelta(microseconds=1)
    assert counts.tables["planes"].deferred == "its dead letters could not be noted on it: BigQuery is unavailable"
    assert counts.tables["planes"].again_at == again_at, "no deletion before it says so"
    assert [line["table"] for line in logs if line["event"] == "dead_letters_not_noted"] == ["planes"]

    world.tables.interrupted = lambda _table: False
    counts = world.apply(UNFIT, unread("planes/1"))
    assert (counts.acked, counts.tables_in_trouble, len(world.dead_letters.kept)) == (2, (), 2)
    assert world.tables.dead_letters == {"planes": SINCE}


def test_dead_letters_are_kept_once_in_a_task_whatever_else_is_waited_for() -> None:
    world = a_world()
    world.clock.ticks = timedelta(seconds=1)
    world.tables.interrupted = lambda table: table == "planes"
    world.writer.failing.add("airports")
    counts = world.apply(UNFIT, a_message(a_change(2), header=AIRPORTS), a_message(a_change(3)))

    assert world.effects.done.count("keep 1 dead letters") == 1
    assert (counts.acked, counts.deferred, counts.dead_letters) == (1, 2, {"value_does_not_fit": 1})


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("", ("s_planes", "")),
        ('[tables."s.planes"]\nname = "flying"\ndataset = "other"', ("flying", "other")),
        ('[defaults]\ndataset = "usual"', ("s_planes", "")),
        ('[defaults]\nmode = "both"', ("s_planes", "")),
        ('[defaults]\nmode = "history"', None),
        ('exclude = ["s.*"]', None),
    ],
)
def test_a_mirror_is_named_as_the_tables_file_says(file: str, name: tuple[str, str] | None) -> None:
    assert mirror_name("s.planes", Plan(read_tables_file(file), "usual")) == name


def test_a_table_that_has_no_name_in_bigquery_has_no_mirror() -> None:
    assert mirror_name("a table", Plan()) is None


def test_a_label_never_goes_back_and_is_a_mirrors_alone() -> None:
    mirror = {MIRROR_OF: "x"}
    assert dead_lettered(mirror, 5, 9) == {**mirror, DEAD_LETTERS: "9"}
    assert dead_lettered({**mirror, DEAD_LETTERS: "5"}, 6, 10) == {**mirror, DEAD_LETTERS: "10"}
    assert dead_lettered({**mirror, DEAD_LETTERS: "5"}, 5, 9) is None
    assert dead_lettered({**mirror, DEAD_LETTERS: "9"}, 6, 10) is None, "another has said enough a moment before"
    assert dead_lettered({"a": "b"}, 5, 9) is None


@pytest.mark.parametrize(
    ("until", "older", "read_since", "refused"),
    [
        (0, 3, 0, False),
        (SINCE - 1, 3, 0, False),
        (SINCE, 3, 0, True),
        (SINCE, 0, 0, False),
        (SINCE - 100, 3, SINCE - 100, True),
        (SINCE - 100, 3, SINCE - 99, False),
    ],
)
def test_without_a_source_nothing_is_deleted_by_a_snapshot_of_before_the_dead_letters(
    until: int, older: int, read_since: int, refused: bool
) -> None:
    definition = table_definition(a_header())
    mirror = MirrorTable(definition, "label", False, SINCE, read_since=read_since, dead_letters_until=until)
    if not refused:
        check_dead_letters(mirror, RowCount(older, 100), SINCE)
        return
    with pytest.raises(DeletionRefusedError, match=r"dead letters since .*; or delete by command"):
        check_dead_letters(mirror, RowCount(older, 100), SINCE)
