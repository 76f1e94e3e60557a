"""The end of a snapshot as the consumer takes it: the mirror says so before the message is acked, if it is believed."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import pytest
from msgspec import UNSET, UnsetType, structs
from structlog.testing import capture_logs

from services.cdc_consumer.adapters.bigquery import mirror_labels
from services.cdc_consumer.adapters.bigquery.mirror_labels import (
    CLOCK_MARGIN,
    COMPLETE_SINCE,
    COMPLETE_TOLD,
    LEFT_OUT_UNTIL,
    NEEDS_RESYNC,
    READ_SINCE,
    SWEPT,
    left_out,
    recreated,
    swept,
    taken_up,
    too_early,
)
from services.cdc_consumer.ports import LEFT_OUT, RECREATED
from shared.contracts.change_batch import Change
from shared.contracts.change_sequence import four_sections
from shared.contracts.dead_letter import REPLAY_OF
from shared.contracts.mirrors import MIRROR_OF
from shared.contracts.safe_age import SNAPSHOT_END_AGE
from tests.builders import a_change, a_header, a_message
from tests.fakes.effects import CrashError, Effects
from tests.unit.cdc_consumer.world import NOW, World

SINCE = NOW // 1000 - 60_000_000
MADE = datetime.fromtimestamp(1_000, UTC)
MADE_MICROS = 1_000_000_000
LATER, EARLIER = 2_000_000_000, 500_000_000
"""In microseconds: than the table was made."""


def an_end(
    *changes: Change,
    since: int = SINCE,
    read_since: int | UnsetType = UNSET,
    age: timedelta = timedelta(0),
    attributes: object = (),
) -> Mapping[str, object]:
    """Return the message that says that a snapshot is at its end, published some time ago."""
    header = structs.replace(a_header(), origin="snapshot", complete_since=str(four_sections(since)))
    header = structs.replace(header, read_since=read_since)
    published = datetime.fromtimestamp(NOW / 1e9, UTC) - age
    return dict(a_message(*changes, header=header)) | {"publish_time": published, "attributes": attributes}


def completed(
    labels: Mapping[str, str],
    made_at: datetime,
    since: int,
    read_since: int,
    now: int,
    margin: timedelta = CLOCK_MARGIN,
) -> dict[str, str] | None:
    """Return the labels that a mirror has once a snapshot is at its end."""
    found = mirror_labels.completed(labels, made_at, since, read_since, now, margin)
    return None if found is None else {name: value for name, value in found.items() if value is not None}


@pytest.fixture
def world() -> World:
    return World()


def test_the_mirror_says_it_before_the_message_is_acked(world: World) -> None:
    world.apply(a_message(a_change(1)), an_end())

    assert world.tables.complete_since == {"planes": SINCE}
    assert world.effects.done.index("complete planes") < min(
        place for place, effect in enumerate(world.effects.done) if effect.startswith("ack")
    )
    assert world.names() == {1: "name 1"}


def test_of_several_the_latest_counts(world: World) -> None:
    world.apply(an_end(since=SINCE - 1), an_end(), an_end(since=SINCE - 2))
    world.apply(an_end(since=SINCE - 1))

    assert world.tables.complete_since == {"planes": SINCE}


def test_where_that_is_no_time_what_counts_is_when_its_rows_were_read(world: World) -> None:
    world.apply(a_message(a_change(1)))
    world.tables.made_at = {"planes": SINCE - 5}
    world.apply(an_end(read_since=SINCE - 6))
    assert world.tables.complete_since == {}, "its rows may have gone into the table before"

    world.apply(an_end(read_since=SINCE - 4))
    assert world.tables.complete_since == {"planes": SINCE}


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(
            an_end(age=SNAPSHOT_END_AGE + timedelta(minutes=1)), id="its rows may have been refused meanwhile"
        ),
        pytest.param(an_end(attributes=[(REPLAY_OF, "letter")]), id="replayed"),
        pytest.param(an_end(a_change(1)), id="with changes"),
    ],
)
def test_what_cannot_be_believed_says_nothing_and_is_acked(world: World, message: Mapping[str, object]) -> None:
    counts = world.apply(message)

    assert world.tables.complete_since == {}
    assert counts.acked == 1


def test_one_that_comes_too_late_is_said_with_what_fixes_it(world: World) -> None:
    with capture_logs() as logs:
        world.apply(an_end(age=SNAPSHOT_END_AGE + timedelta(minutes=1)))

    (said,) = [log for log in logs if log["event"] == "snapshot_end_too_late"]
    assert (said["source_table"], said["log_level"]) == ("planes", "warning")
    assert "take a snapshot again" in said["fix"]


def test_it_is_believed_as_long_as_its_rows_are_safe(world: World) -> None:
    world.apply(an_end(age=SNAPSHOT_END_AGE))

    assert world.tables.complete_since == {"planes": SINCE}


def test_a_history_is_never_swept(world: World) -> None:
    world.tables_file = '[defaults]\nmode = "history"'
    world.start_anew()
    world.apply(an_end())

    assert world.tables.complete_since == {}


def test_while_the_table_cannot_be_labelled_the_message_is_deferred(world: World) -> None:
    world.apply(a_message(a_change(1)))
    world.tables.forbidden = {"planes"}
    assert world.apply(an_end()).deferred == 1
    assert world.tables.complete_since == {}

    world.tables.forbidden = set()
    world.clock.pass_time(timedelta(minutes=1))
    assert world.apply(an_end()).acked == 1
    assert world.tables.complete_since == {"planes": SINCE}


def test_killed_anywhere_it_is_said_in_the_end() -> None:
    for crash in range(20):
        world = World(effects=Effects(crash_before=crash))
        try:
            world.apply(a_message(a_change(1)), an_end())
        except CrashError:
            acked = any(effect.startswith("ack") for effect in world.effects.done)
            assert world.tables.complete_since == {"planes": SINCE} or not acked
        else:
            return
    pytest.fail("it never got to its end")


def test_a_label_never_goes_back_and_says_nothing_of_a_table_that_is_younger() -> None:
    first = completed({"a": "b"}, MADE, LATER, LATER, 7)
    assert first == {"a": "b", COMPLETE_SINCE: str(LATER), COMPLETE_TOLD: "7"}
    assert completed(first, MADE, LATER, LATER, 8) is None
    assert completed(first, MADE, LATER - 1, LATER - 1, 8) is None
    assert completed(first, MADE, LATER + 1, LATER + 1, 8) == {
        "a": "b",
        COMPLETE_SINCE: str(LATER + 1),
        COMPLETE_TOLD: "8",
    }
    assert completed({}, MADE, EARLIER, EARLIER, 7) is None
    assert completed({}, MADE, MADE_MICROS + 300_000_000, MADE_MICROS + 300_000_000, 7) is None, (
        "the source's clock may be ahead of BigQuery's"
    )
    assert completed({}, MADE, MADE_MICROS + 300_000_001, MADE_MICROS + 300_000_001, 7) is not None
    assert completed({}, MADE, MADE_MICROS + 1, MADE_MICROS + 1, 7, timedelta(0)) is not None
    assert completed({COMPLETE_SINCE: "nonsense"}, MADE, LATER, LATER, 7) == {
        COMPLETE_SINCE: str(LATER),
        COMPLETE_TOLD: "7",
    }


def test_a_number_that_is_ahead_of_all_clocks_is_no_time_that_a_table_may_be_younger_than() -> None:
    margin = 300_000_000
    assert completed({}, MADE, LATER, MADE_MICROS + margin, 7) is None
    first = completed({}, MADE, LATER, MADE_MICROS + margin + 1, 7)
    assert first == {COMPLETE_SINCE: str(LATER), COMPLETE_TOLD: "7", READ_SINCE: str(MADE_MICROS + margin + 1)}
    second = completed(first, MADE, LATER + 1, LATER + 1, 8)
    assert second == {COMPLETE_SINCE: str(LATER + 1), COMPLETE_TOLD: "8", READ_SINCE: str(LATER + 1)}
    assert completed({}, MADE, LATER, LATER + 1, 7) == {COMPLETE_SINCE: str(LATER), COMPLETE_TOLD: "7"}


def test_what_a_table_says_that_was_made_anew_is_of_the_one_before() -> None:
    assert recreated({"a": "b"}) == {"a": "b", NEEDS_RESYNC: RECREATED}
    stale = {"a": "b", COMPLETE_SINCE: "1", COMPLETE_TOLD: "1", READ_SINCE: "1", SWEPT: "1"}
    assert recreated(stale) == {"a": "b", NEEDS_RESYNC: RECREATED} | dict.fromkeys(list(stale)[1:])


def test_a_mirror_that_was_left_out_is_healed_by_a_snapshot_from_after_it_was_written_again_and_a_sweep() -> None:
    whole = {MIRROR_OF: "x", "a": "b", COMPLETE_SINCE: "1", COMPLETE_TOLD: "1", SWEPT: "1"}
    assert left_out(whole, "another") is None
    out = left_out(whole, "x")
    assert out == {MIRROR_OF: "x", "a": "b", NEEDS_RESYNC: LEFT_OUT} | dict.fromkeys(list(whole)[2:])
    mirror = {name: value for name, value in out.items() if value is not None}
    assert left_out(mirror, "x") is None
    assert completed(mirror, MADE, LATER, LATER, 7) is None, "it still is"

    assert taken_up({MIRROR_OF: "x"}, LATER) is None
    again = taken_up(mirror, LATER)
    assert again == mirror | {LEFT_OUT_UNTIL: str(LATER)}
    assert taken_up(again, LATER + 1) is None
    beyond = LATER + 300_000_001
    assert completed(again, MADE, beyond, beyond - 1, 7) is None, "it was, by another clock"
    done = completed(again, MADE, beyond, beyond, 7)
    assert done is not None
    assert [too_early(done, told_by) for told_by in (6, 7)] == [True, False]
    healed = swept(done, beyond)
    assert healed is not None
    assert {name for name, value in healed.items() if value is None} == {NEEDS_RESYNC, LEFT_OUT_UNTIL}
    assert left_out(again, "x") == mirror | {LEFT_OUT_UNTIL: None}


def test_a_table_that_was_made_anew_is_healed_once_it_is_complete_and_swept() -> None:
    anew = {NEEDS_RESYNC: RECREATED}
    assert completed(anew, MADE, LATER, LATER, 7) == anew | {COMPLETE_SINCE: str(LATER), COMPLETE_TOLD: "7"}
    assert [too_early(anew | {COMPLETE_TOLD: "7"}, told_by) for told_by in (6, 7)] == [True, False]
    assert not too_early({COMPLETE_TOLD: "7"}, 6)
    assert swept(anew | {COMPLETE_SINCE: str(LATER)}, LATER) == {
        COMPLETE_SINCE: str(LATER),
        SWEPT: str(LATER),
        NEEDS_RESYNC: None,
    }
    assert swept(anew, LATER) == {SWEPT: str(LATER), NEEDS_RESYNC: RECREATED}, "it is not complete"
    assert swept({NEEDS_RESYNC: "another reason", COMPLETE_SINCE: str(LATER), SWEPT: str(LATER)}, LATER) is None
    assert swept({SWEPT: str(LATER)}, LATER - 1) is None
