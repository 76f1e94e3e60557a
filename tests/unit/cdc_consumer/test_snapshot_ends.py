"""Snapshots as the consumer takes them, before it acks their messages.

At the end of one its mirror says so, if that is believed. A mirror whose snapshot rows are too old to be applied needs
a resync, and nothing else is the worse.
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec import UNSET, UnsetType, structs
from structlog.testing import capture_logs

from services.cdc_consumer.adapters.bigquery import mirror_labels
from services.cdc_consumer.adapters.bigquery.mirror_labels import (
    CLOCK_MARGIN,
    COMPLETE_SINCE,
    COMPLETE_TOLD,
    LEFT_OUT_UNTIL,
    MISSING_ROWS_DELETED,
    NEEDS_RESYNC,
    READ_SINCE,
    RESYNC_AFTER,
    left_out,
    recreated,
    rows_too_old,
    taken_up,
    too_early,
    without_missing_rows,
)
from services.cdc_consumer.adapters.schema.tables import BigQueryTables
from services.cdc_consumer.app.stream.trouble import RetryLimits
from services.cdc_consumer.commands.status import exit_code, lines
from services.cdc_consumer.ports import LEFT_OUT, RECREATED, ROWS_TOO_OLD, Mirror
from shared.contracts.change_batch import Change
from shared.contracts.dead_letter import REPLAY_OF
from shared.contracts.mirrors import MIRROR_OF
from shared.contracts.safe_age import SAFE_AGE, SNAPSHOT_END_AGE
from shared.contracts.timestamps import Nanoseconds, format_timestamp
from tests.builders import a_change, a_header, a_message, table_definition
from tests.unit.cdc_consumer.bigquery_client import FakeBigQuery, resource
from tests.unit.cdc_consumer.status_world import MICROS
from tests.unit.cdc_consumer.status_world import World as StatusWorld
from tests.unit.cdc_consumer.world import AT_ONCE, NOW, PUBLISHED, World, an_end, killed_anywhere

SINCE = NOW // 1000 - 60_000_000
TOO_LATE = an_end(since=SINCE, published=PUBLISHED - SNAPSHOT_END_AGE - timedelta(minutes=1))
MADE = datetime.fromtimestamp(1_000, UTC)
MADE_MICROS = 1_000_000_000
HOUR = 3_600_000_000
LATER, EARLIER = 2_000_000_000, 500_000_000
"""In microseconds: than the table was made."""


def completed(
    labels: Mapping[str, str],
    since: int,
    now: int = 7,
    *,
    read_since: int | None = None,
    margin: timedelta = CLOCK_MARGIN,
) -> dict[str, str] | None:
    """Return the labels that a mirror has once a snapshot is at its end; None: they stay."""
    found = mirror_labels.completed(labels, MADE, since, since if read_since is None else read_since, now, margin)
    return None if found is None else there(found)


def there(labels: Mapping[str, str | None] | None) -> dict[str, str]:
    """Return the labels that a mirror has once these are set, and those removed that are None."""
    assert labels is not None
    return {name: value for name, value in labels.items() if value is not None}


def test_the_mirror_reports_it_before_the_message_is_acked(world: World) -> None:
    world.apply(a_message(a_change(1)), an_end(since=SINCE))

    assert world.tables.complete_since == {"planes": SINCE}
    assert world.effects.done.index("complete planes") < min(
        place for place, effect in enumerate(world.effects.done) if effect.startswith("ack")
    )
    assert world.names() == {1: "name 1"}


def test_of_several_the_latest_counts(world: World) -> None:
    world.apply(an_end(since=SINCE - 1), an_end(since=SINCE), an_end(since=SINCE - 2))
    world.apply(an_end(since=SINCE - 1))

    assert world.tables.complete_since == {"planes": SINCE}


def test_where_that_is_no_time_what_counts_is_when_its_rows_were_read(world: World) -> None:
    world.apply(a_message(a_change(1)))
    world.tables.made_at = {"planes": SINCE - 5}
    world.apply(an_end(since=SINCE, read_since=SINCE - 6))
    assert world.tables.complete_since == {}, "its rows may have gone into the table before"

    world.apply(an_end(since=SINCE, read_since=SINCE - 4))
    assert world.tables.complete_since == {"planes": SINCE}


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(TOO_LATE, id="its rows may have been refused meanwhile"),
        pytest.param(an_end(since=SINCE, attributes=[(REPLAY_OF, "letter")]), id="replayed"),
        pytest.param(an_end(a_change(1), since=SINCE), id="with changes"),
    ],
)
def test_what_cannot_be_believed_reports_nothing_and_is_acked(world: World, message: Mapping[str, object]) -> None:
    counts = world.apply(message)

    assert world.tables.complete_since == {}
    assert counts.acked == 1


def test_one_that_comes_too_late_is_reported_with_what_fixes_it(world: World) -> None:
    with capture_logs() as logs:
        world.apply(TOO_LATE)

    (event,) = [log for log in logs if log["event"] == "snapshot_end_too_late"]
    assert (event["source_table"], event["log_level"]) == ("planes", "warning")
    assert "take a snapshot again" in event["fix"]


def test_it_is_believed_as_long_as_its_rows_are_safe(world: World) -> None:
    world.apply(an_end(since=SINCE, published=PUBLISHED - SNAPSHOT_END_AGE))

    assert world.tables.complete_since == {"planes": SINCE}


def test_missing_rows_are_never_deleted_of_a_history_alone(world: World) -> None:
    world.tables_file = '[defaults]\nmode = "history"'
    world.restart()
    world.apply(an_end(since=SINCE))

    assert world.tables.complete_since == {}


def test_while_the_table_cannot_be_labelled_the_message_is_deferred(world: World) -> None:
    world.apply(a_message(a_change(1)))
    world.tables.forbidden = {"planes"}
    assert world.apply(an_end(since=SINCE)).deferred == 1
    assert world.tables.complete_since == {}

    world.tables.forbidden = set()
    world.clock.pass_time(timedelta(minutes=1))
    assert world.apply(an_end(since=SINCE)).acked == 1
    assert world.tables.complete_since == {"planes": SINCE}


def test_killed_anywhere_it_is_reported_before_any_ack() -> None:
    for world, acked in killed_anywhere(World, a_message(a_change(1)), an_end(since=SINCE)):
        assert world.tables.complete_since == {"planes": SINCE} or not acked


def test_a_label_never_goes_back_and_reports_nothing_of_a_table_that_is_younger() -> None:
    first = completed({"a": "b"}, LATER)
    assert first == {"a": "b", COMPLETE_SINCE: str(LATER), COMPLETE_TOLD: "7"}
    assert completed(first, LATER, 8) is None
    assert completed(first, LATER - 1, 8) is None
    assert completed(first, LATER + 1, 8) == {
        "a": "b",
        COMPLETE_SINCE: str(LATER + 1),
        COMPLETE_TOLD: "8",
    }
    assert completed({}, EARLIER) is None
    assert completed({}, MADE_MICROS + 300_000_000) is None, "the source's clock may be ahead of BigQuery's"
    assert completed({}, MADE_MICROS + 300_000_001) is not None
    assert completed({}, MADE_MICROS + 1, margin=timedelta(0)) is not None
    assert completed({COMPLETE_SINCE: "nonsense"}, LATER) == {
        COMPLETE_SINCE: str(LATER),
        COMPLETE_TOLD: "7",
    }


def test_a_number_that_is_ahead_of_all_clocks_is_no_time_that_a_table_may_be_younger_than() -> None:
    margin = 300_000_000
    assert completed({}, LATER, read_since=MADE_MICROS + margin) is None
    first = completed({}, LATER, read_since=MADE_MICROS + margin + 1)
    assert first == {COMPLETE_SINCE: str(LATER), COMPLETE_TOLD: "7", READ_SINCE: str(MADE_MICROS + margin + 1)}
    second = completed(first, LATER + 1, 8)
    assert second == {COMPLETE_SINCE: str(LATER + 1), COMPLETE_TOLD: "8", READ_SINCE: str(LATER + 1)}
    assert completed({}, LATER, read_since=LATER + 1) == {COMPLETE_SINCE: str(LATER), COMPLETE_TOLD: "7"}


def test_what_a_table_says_that_was_recreated_is_of_the_one_before() -> None:
    assert recreated({"a": "b"}) == {"a": "b", NEEDS_RESYNC: RECREATED}
    stale = {"a": "b", COMPLETE_SINCE: "1", COMPLETE_TOLD: "1", READ_SINCE: "1", MISSING_ROWS_DELETED: "1"}
    assert recreated(stale) == {"a": "b", NEEDS_RESYNC: RECREATED} | dict.fromkeys(list(stale)[1:])


def test_a_mirror_that_was_left_out_is_healed_by_a_later_snapshot_and_the_deletion_of_missing_rows() -> None:
    whole = {MIRROR_OF: "x", "a": "b", COMPLETE_SINCE: "1", COMPLETE_TOLD: "1", MISSING_ROWS_DELETED: "1"}
    assert left_out(whole, "another") is None
    out = left_out(whole, "x")
    assert out == {MIRROR_OF: "x", "a": "b", NEEDS_RESYNC: LEFT_OUT} | dict.fromkeys(list(whole)[2:])
    mirror = there(out)
    assert left_out(mirror, "x") is None
    assert completed(mirror, LATER) is None, "it still is"

    assert taken_up({MIRROR_OF: "x"}, LATER) is None
    again = taken_up(mirror, LATER)
    assert again == mirror | {LEFT_OUT_UNTIL: str(LATER)}
    assert taken_up(again, LATER + 1) is None
    beyond = LATER + 300_000_001
    assert completed(again, beyond, read_since=beyond - 1) is None, "it was, by another clock"
    done = completed(again, beyond)
    assert done is not None
    assert [too_early(done, announced_by) for announced_by in (6, 7)] == [True, False]
    earlier = without_missing_rows(done, beyond - 1)
    assert earlier == {**done, MISSING_ROWS_DELETED: str(beyond - 1)}, "what went between the two is left"
    healed = without_missing_rows(done, beyond)
    assert healed is not None
    assert {name for name, value in healed.items() if value is None} == {NEEDS_RESYNC, LEFT_OUT_UNTIL}
    assert left_out(again, "x") == mirror | {LEFT_OUT_UNTIL: None}


def test_a_recreated_table_is_healed_once_it_is_complete_and_its_missing_rows_are_deleted() -> None:
    labels = {NEEDS_RESYNC: RECREATED}
    assert completed(labels, LATER) == labels | {COMPLETE_SINCE: str(LATER), COMPLETE_TOLD: "7"}
    assert [too_early(labels | {COMPLETE_TOLD: "7"}, announced_by) for announced_by in (6, 7)] == [True, False]
    assert not too_early({COMPLETE_TOLD: "7"}, 6)
    assert without_missing_rows(labels | {COMPLETE_SINCE: str(LATER)}, LATER) == {
        COMPLETE_SINCE: str(LATER),
        MISSING_ROWS_DELETED: str(LATER),
        NEEDS_RESYNC: None,
    }
    assert without_missing_rows(labels, LATER) == {MISSING_ROWS_DELETED: str(LATER), NEEDS_RESYNC: RECREATED}, (
        "it is not complete"
    )
    assert (
        without_missing_rows(
            {NEEDS_RESYNC: "another reason", COMPLETE_SINCE: str(LATER), MISSING_ROWS_DELETED: str(LATER)}, LATER
        )
        is None
    )
    assert without_missing_rows({MISSING_ROWS_DELETED: str(LATER)}, LATER - 1) is None


# Rows of a snapshot that are too old to be applied.


READ = NOW // 1_000 - SAFE_AGE // timedelta(microseconds=1) - 1
"""When the latest snapshot row was read that is too old."""


def rows_of(table: str, *changes: Change, complete_since: str | UnsetType = UNSET) -> dict[str, object]:
    header = structs.replace(a_header(table), origin="snapshot", complete_since=complete_since)
    return dict(a_message(*changes, header=header))


def old(identity: int, **row: object) -> Change:
    return a_change(identity, 1, "UPSERT", committed=format_timestamp(Nanoseconds(READ * 1_000)), **row)


def test_a_consumer_that_is_days_behind_a_snapshot_goes_on_with_every_live_change(world: World) -> None:
    """As after a long weekend: thousands of snapshot rows of several tables, and live changes among them."""
    tables = ("planes", "airports", "pilots")
    snapshot = [rows_of(table, *[old(n) for n in range(1_000)]) for table in tables]
    live = [a_message(a_change(7, 2), header=a_header(table)) for table in tables]
    counts = world.apply(*snapshot, *live)

    assert (counts.dead_letters, counts.acked, counts.outdated) == ({}, 6, 3_000)
    assert [world.names(table) for table in tables] == [{7: "name 2"}] * 3
    assert world.tables.pending_resync == dict.fromkeys(tables, ROWS_TOO_OLD)
    assert counts.superseded == 0


def test_they_hide_no_trip_of_the_limit_by_other_poison_and_make_none(world: World) -> None:
    for _ in range(5):
        world.apply(rows_of("planes", *[old(n) for n in range(2_000)]))
    bad = a_message(*[a_change(n, seats="many") for n in range(400)], header=a_header("airports"))
    assert world.apply(bad).dead_letters == {"value_does_not_fit": 400}


def test_killed_anywhere_the_mirror_reports_so_before_any_ack() -> None:
    for world, acked in killed_anywhere(World, rows_of("planes", old(1), a_change(2)), a_message(a_change(3))):
        assert "planes" in world.tables.pending_resync or not acked
    assert world.names() == {2: "name 1", 3: "name 1"}, "what is young enough is applied"


def test_a_mirror_whose_labels_cannot_be_written_is_in_trouble_and_others_are_not(world: World) -> None:
    world.tables.unlabelled = {"planes"}
    messages = [rows_of("planes", old(1)), a_message(a_change(1), header=a_header("airports"))]
    for _ in range(3):
        counts = world.apply(*messages)
        assert (counts.acked, counts.deferred) == (1, 1)
    assert "labels may not be written" in counts.tables["planes"].deferred
    assert world.leases.deferred_for.keys() == {"a0"}

    world.tables.unlabelled = set()
    world.clock.pass_time(timedelta(minutes=1))
    assert world.apply(*messages).acked == 2
    assert world.tables.pending_resync == {"planes": ROWS_TOO_OLD}


def test_while_bigquery_does_not_answer_for_the_table_they_wait(world: World) -> None:
    airport = a_message(a_change(1), header=a_header("airports"))
    world.apply(a_message(a_change(1)), airport)
    world.tables.unavailable = 3
    counts = world.apply(rows_of("planes", old(1)), airport)
    assert (counts.acked, counts.deferred) == (1, 1)
    world.tables.unavailable = 0
    world.clock.pass_time(timedelta(minutes=1))
    assert world.apply(rows_of("planes", old(1))).acked == 1
    assert world.tables.pending_resync == {"planes": ROWS_TOO_OLD}


def test_a_mirror_that_conflicts_reports_so_all_the_same(world: World) -> None:
    world.apply(a_message(a_change(1), header=a_header(columns=[("id", "INT64"), ("name", "INT64")])))
    counts = world.apply(rows_of("planes", old(1)))

    assert (counts.dead_letters, counts.acked) == ({}, 1)
    assert world.tables.pending_resync == {"planes": ROWS_TOO_OLD}


def test_one_that_conflicts_is_asked_until_it_reports_so() -> None:
    world = World(limits=RetryLimits(between_calls=AT_ONCE))
    world.apply(a_message(a_change(1), header=a_header(columns=[("id", "INT64"), ("name", "INT64")])))
    airport = a_message(a_change(1), header=a_header("airports"))
    world.apply(a_message(a_change(1)), airport)  # from now on the conflict is known without a look at the table
    world.tables.unavailable = 1
    assert world.apply(rows_of("planes", old(1)), airport).acked == 2

    assert world.tables.pending_resync == {"planes": ROWS_TOO_OLD}


@pytest.mark.parametrize(("mode", "pending", "in_history"), [("history", {}, {1, 2}), ("both", {"planes"}, {2})])
def test_a_history_alone_takes_them_and_one_beside_a_mirror_does_not(
    mode: str, pending: set[str], in_history: set[int]
) -> None:
    world = World(tables_file=f'[defaults]\nmode = "{mode}"')
    assert world.apply(rows_of("planes", old(1), a_change(2))).dead_letters == {}

    assert world.tables.pending_resync.keys() == set(pending)
    assert {row["id"] for row in world.writer.appended["planes_changelog"]} == in_history


def test_one_that_could_not_be_applied_anyway_is_a_dead_letter(world: World) -> None:
    counts = world.apply(rows_of("planes", old(1), old(2, seats="many")))

    assert (counts.dead_letters, counts.outdated) == ({"value_does_not_fit": 1}, 1)


def test_a_replayed_one_is_a_dead_letter_again_for_the_store_takes_it_for_applied(world: World) -> None:
    message = rows_of("planes", old(1)) | {"attributes": [("replay_of", "letter")]}

    assert world.apply(message).dead_letters == {"too_old_to_be_safe": 1}
    assert world.tables.pending_resync == {}


def test_a_snapshot_that_was_read_later_heals_and_one_that_is_complete_already_needs_nothing(world: World) -> None:
    world.apply(rows_of("planes", old(1)))
    world.apply(an_end(since=READ))
    assert world.tables.pending_resync == {"planes": ROWS_TOO_OLD}, "these rows are of that snapshot"
    world.apply(an_end(since=READ + HOUR))
    assert (world.tables.pending_resync, world.tables.complete_since) == ({}, {"planes": READ + HOUR})
    world.apply(rows_of("planes", old(1)))
    assert world.tables.pending_resync == {}


def test_status_names_the_table_and_the_commands_that_heal_it() -> None:
    world = StatusWorld()
    world.mirrors = [Mirror("planes", MICROS, ROWS_TOO_OLD)]

    assert world.states() == {"planes": "pending resync"}
    assert exit_code(world.document()) == 1
    (line,) = [line for line in lines(world.document()) if line.startswith("planes")]
    assert "take another snapshot" in line
    assert "python -m services.spanner_reader snapshot TABLE" in line


OURS = {MIRROR_OF: "x"}


def test_the_label_stays_until_a_snapshot_that_was_read_later_is_complete() -> None:
    labels = rows_too_old({**OURS, COMPLETE_SINCE: "5"}, 2 * HOUR)
    assert labels == {**OURS, COMPLETE_SINCE: None, NEEDS_RESYNC: ROWS_TOO_OLD, RESYNC_AFTER: str(2 * HOUR)}
    kept = there(labels)
    assert rows_too_old(kept, 2 * HOUR - 1) is None
    assert there(rows_too_old(kept, 2 * HOUR + 1))[RESYNC_AFTER] == str(3 * HOUR)

    zero = timedelta(0)
    assert completed(kept, 2 * HOUR, 1, margin=zero) is None
    assert completed(kept, 2 * HOUR + 5, 1, read_since=2 * HOUR, margin=zero) is None, "what counts is when it was read"
    healed = completed(kept, 2 * HOUR + 1, 1, margin=zero)
    assert healed == {**OURS, COMPLETE_SINCE: str(2 * HOUR + 1), COMPLETE_TOLD: "1"}


def test_a_hundred_late_micro_batches_change_the_table_once_and_a_snapshot_an_hour_later_heals() -> None:
    """Each row of a Bigtable snapshot has a read time of its own; BigQuery allows five changes in ten seconds."""
    labels, changes, first = OURS, 0, 2 * HOUR + 1
    for number in range(100):
        changed = rows_too_old(labels, first + number * 10_000_000)
        if changed is not None:
            changes += 1
            labels = there(changed)

    assert changes == 1
    assert completed(labels, first + 990_000_000, 1, margin=timedelta(0)) is None
    assert NEEDS_RESYNC not in there(completed(labels, first + HOUR, 1, margin=timedelta(0)))


def test_the_log_reports_why_a_snapshot_leaves_a_table_pending_resync() -> None:
    labels = {**OURS, NEEDS_RESYNC: ROWS_TOO_OLD, RESYNC_AFTER: str(3 * HOUR)}
    client: Any = FakeBigQuery(resource("planes", creationTime="1000000", labels=labels))
    tables = BigQueryTables(client, "p", "d", clock_margin=timedelta(0))
    with capture_logs() as logs:
        tables.complete(table_definition(a_header()), 3 * HOUR, 3 * HOUR)
    (line,) = logs
    assert (line["event"], line["log_level"], line["table"]) == ("table_pending_resync", "warning", "planes")
    assert (line["snapshot_read"], line["resync_after"]) == (3 * HOUR, 3 * HOUR)
    assert "take another snapshot" in line["fix"]

    with capture_logs() as logs:
        tables.complete(table_definition(a_header()), 3 * HOUR + 1, 3 * HOUR + 1)
    assert [line["event"] for line in logs] == ["table_complete"]


def test_what_a_later_snapshot_holds_needs_no_label() -> None:
    assert rows_too_old({**OURS, COMPLETE_SINCE: "9"}, 8) is None
    assert rows_too_old({**OURS, COMPLETE_SINCE: "9"}, 9) is not None
    assert rows_too_old({**OURS, COMPLETE_SINCE: "9", READ_SINCE: "7"}, 8) is not None


def test_a_recreated_mirror_still_needs_the_deletion_of_missing_rows() -> None:
    again = there(recreated(OURS))
    both = rows_too_old(again, 2 * HOUR)
    assert both == {**OURS, NEEDS_RESYNC: RECREATED, RESYNC_AFTER: str(2 * HOUR)}
    kept = there(completed({**again, RESYNC_AFTER: str(2 * HOUR)}, 3 * HOUR, 1, margin=timedelta(0)))
    assert (kept[NEEDS_RESYNC], RESYNC_AFTER in kept) == (RECREATED, False)
    assert NEEDS_RESYNC not in there(without_missing_rows(kept, 3 * HOUR))


def test_a_live_change_is_applied_however_old_it_is(world: World) -> None:
    """What deleted its row later is still to come."""
    counts = world.apply(a_message(old(1)))

    assert (counts.acked, counts.outdated, counts.dead_letters) == (1, 0, {})
    assert world.names().keys() == {1}
