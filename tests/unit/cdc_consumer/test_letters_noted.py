"""Changes that become dead letters: the mirror that lacks them says so, before their message is acked."""

from collections.abc import Mapping

import pytest
from structlog.testing import capture_logs

from services.cdc_consumer.adapters.mirror_labels import LETTERS, lettered
from services.cdc_consumer.automatic_sweep import check_letters
from services.cdc_consumer.core.destinations import Plan, mirror_name
from services.cdc_consumer.core.tables import table_definition
from services.cdc_consumer.ports import MirrorTable, RowCount
from services.cdc_consumer.sweep import SweepRefusedError
from shared.contracts.mirrors import MIRROR_OF
from shared.contracts.row_id import ordered_table, ordering_key
from shared.contracts.tables_file import read_tables_file
from tests.builders import a_change, a_header, a_message
from tests.fakes.effects import CrashError, Effects
from tests.unit.cdc_consumer.world import AIRPORTS, NOW, World

SINCE = NOW // 1_000
UNFIT = a_message(a_change(7, seats="many"))


def a_world(effects: Effects | None = None, tables_file: str = "") -> World:
    """Return one that has mirrors already."""
    world = World(tables_file=tables_file)
    world.apply(a_message(a_change(1)), a_message(a_change(1), header=AIRPORTS))
    if effects is not None:
        world.effects = effects
        for port in (world.tables, world.letters, world.leases, world.writer):
            port.effects = effects
    return world


def unread(key: str) -> Mapping[str, object]:
    return dict(a_message(data=b"garbage")) | {"ordering_key": key}


def test_it_is_said_when_the_letter_is_kept_and_before_the_message_is_acked() -> None:
    world = a_world()
    world.effects.done.clear()
    world.apply(UNFIT, a_message(a_change(2), header=AIRPORTS))

    assert world.tables.letters == {"planes": SINCE}
    settled = [one for one in world.effects.done if one.startswith(("keep 1", "note", "ack"))]
    assert settled == ["keep 1 letters", "note letters of planes", "ack 2"]


def test_killed_anywhere_it_is_said_before_any_ack() -> None:
    for crash in range(20):
        world = a_world(Effects(crash_before=crash))
        try:
            world.apply(UNFIT)
        except CrashError:
            acked = any(effect.startswith("ack") for effect in world.effects.done)
            assert "planes" in world.tables.letters or not acked
        else:
            return
    pytest.fail("it never got to its end")


@pytest.mark.parametrize("key", [ordering_key("planes", 3), "planes/snapshot-3"])
def test_a_message_that_cannot_be_read_is_of_the_table_that_its_ordering_key_names(key: str) -> None:
    world = a_world()
    world.apply(unread(key))

    assert world.tables.letters == {"planes": SINCE}


def test_of_a_message_without_an_ordering_key_nobody_knows_the_table() -> None:
    world = a_world()
    assert world.apply(unread("")).acked == 1

    assert world.tables.letters == {}
    assert ordered_table("") == ""


def test_a_table_whose_columns_do_not_fit_any_more_may_have_a_mirror_from_before() -> None:
    world = a_world()
    header = a_header(columns=[("id", "INT64"), ("name", "TOKENLIST")])
    assert world.apply(a_message(a_change(2), header=header)).letters

    assert world.tables.letters == {"planes": SINCE}


def test_a_mirror_that_cannot_be_labelled_holds_up_nothing_and_is_told_of() -> None:
    world = a_world()
    world.tables.forbidden = {"planes"}
    with capture_logs() as logs:
        counts = world.apply(unread("planes/1"))

    assert (counts.acked, world.tables.letters) == (1, {})
    assert [line["table"] for line in logs if line["event"] == "letters_not_noted"] == ["planes"]


def test_while_bigquery_is_away_it_waits() -> None:
    world = a_world()
    world.tables.away = 3
    assert world.apply(unread("planes/1")).acked == 1

    assert world.tables.letters == {"planes": SINCE}
    assert world.waits >= 3


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
    assert lettered(mirror, 5, 9) == {**mirror, LETTERS: "9"}
    assert lettered({**mirror, LETTERS: "5"}, 6, 10) == {**mirror, LETTERS: "10"}
    assert lettered({**mirror, LETTERS: "5"}, 5, 9) is None
    assert lettered({**mirror, LETTERS: "9"}, 6, 10) is None, "another has said enough a moment before"
    assert lettered({"a": "b"}, 5, 9) is None


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
def test_where_nobody_can_be_asked_nothing_is_deleted_by_a_snapshot_of_before_the_letters(
    until: int, older: int, read_since: int, refused: bool
) -> None:
    definition = table_definition(a_header())
    mirror = MirrorTable(definition, "label", False, SINCE, read_since=read_since, letters_until=until)
    if not refused:
        check_letters(mirror, RowCount(older, 100), SINCE)
        return
    with pytest.raises(SweepRefusedError, match=r"dead letters since .*; or delete by command"):
        check_letters(mirror, RowCount(older, 100), SINCE)
