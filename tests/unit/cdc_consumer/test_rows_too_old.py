"""Rows of a snapshot that are too old to be applied: their mirror needs a re-sync, and nothing else is the worse."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from google.cloud import bigquery
from msgspec import UNSET, UnsetType, structs
from structlog.testing import capture_logs

from services.cdc_consumer.adapters.bigquery.mirror_labels import (
    COMPLETE_SINCE,
    NEEDS_RESYNC,
    READ_SINCE,
    RESYNC_AFTER,
    completed,
    recreated,
    rows_too_old,
    swept,
)
from services.cdc_consumer.adapters.schema.tables import BigQueryTables
from services.cdc_consumer.app.stream.trouble import RetryLimits
from services.cdc_consumer.commands.status import exit_code, lines
from services.cdc_consumer.core.schema.tables import table_definition
from services.cdc_consumer.ports import RECREATED, ROWS_TOO_OLD, Mirror
from shared.contracts.change_batch import Change
from shared.contracts.change_sequence import four_sections
from shared.contracts.mirrors import MIRROR_OF
from shared.contracts.safe_age import SAFE_AGE
from shared.contracts.timestamps import Nanoseconds, format_timestamp
from tests.builders import a_change, a_header, a_message
from tests.fakes.effects import CrashError, Effects
from tests.unit.cdc_consumer.status_world import MICROS
from tests.unit.cdc_consumer.status_world import World as StatusWorld
from tests.unit.cdc_consumer.world import AT_ONCE, NOW, World

READ = NOW // 1_000 - SAFE_AGE // timedelta(microseconds=1) - 1
"""When the latest snapshot row was read that is too old."""
HOUR = 3_600_000_000
MADE = datetime.fromtimestamp(1_000, UTC)


def rows_of(table: str, *changes: Change, complete_since: str | UnsetType = UNSET) -> dict[str, object]:
    header = structs.replace(a_header(table), origin="snapshot", complete_since=complete_since)
    return dict(a_message(*changes, header=header))


def old(identity: int, **row: object) -> Change:
    return a_change(identity, 1, "UPSERT", committed=format_timestamp(Nanoseconds(READ * 1_000)), **row)


def an_end(since: int) -> Mapping[str, object]:
    return rows_of("planes", complete_since=str(four_sections(since))) | {
        "publish_time": datetime.fromtimestamp(NOW / 1e9, UTC)
    }


@pytest.fixture
def world() -> World:
    return World()


def test_a_consumer_that_is_days_behind_a_snapshot_goes_on_with_every_live_change(world: World) -> None:
    """As after a long weekend: thousands of snapshot rows of several tables, and live changes among them."""
    tables = ("planes", "airports", "pilots")
    snapshot = [rows_of(table, *[old(n) for n in range(1_000)]) for table in tables]
    live = [a_message(a_change(7, 2), header=a_header(table)) for table in tables]
    counts = world.apply(*snapshot, *live)

    assert (counts.dead_letters, counts.acked, counts.outdated) == ({}, 6, 3_000)
    assert [world.names(table) for table in tables] == [{7: "name 2"}] * 3
    assert world.tables.needs_resync == dict.fromkeys(tables, ROWS_TOO_OLD)
    assert counts.superseded == 0


def test_they_hide_no_flood_of_other_poison_and_make_none(world: World) -> None:
    for _ in range(5):
        world.apply(rows_of("planes", *[old(n) for n in range(2_000)]))
    bad = a_message(*[a_change(n, seats="many") for n in range(400)], header=a_header("airports"))
    assert world.apply(bad).dead_letters == {"value_does_not_fit": 400}


def test_killed_anywhere_the_mirror_says_so_before_any_ack() -> None:
    for crash in range(30):
        world = World(Effects(crash_before=crash))
        try:
            world.apply(rows_of("planes", old(1), a_change(2)), a_message(a_change(3)))
        except CrashError:
            acked = any(effect.startswith("ack") for effect in world.effects.done)
            assert "planes" in world.tables.needs_resync or not acked
        else:
            assert world.names() == {2: "name 1", 3: "name 1"}, "what is young enough is applied"
            return
    pytest.fail("it never got to its end")


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
    assert world.tables.needs_resync == {"planes": ROWS_TOO_OLD}


def test_while_bigquery_does_not_answer_for_the_table_they_wait(world: World) -> None:
    airport = a_message(a_change(1), header=a_header("airports"))
    world.apply(a_message(a_change(1)), airport)
    world.tables.away = 3
    counts = world.apply(rows_of("planes", old(1)), airport)
    assert (counts.acked, counts.deferred) == (1, 1)
    world.tables.away = 0
    world.clock.pass_time(timedelta(minutes=1))
    assert world.apply(rows_of("planes", old(1))).acked == 1
    assert world.tables.needs_resync == {"planes": ROWS_TOO_OLD}


def test_a_mirror_that_conflicts_says_so_all_the_same(world: World) -> None:
    world.apply(a_message(a_change(1), header=a_header(columns=[("id", "INT64"), ("name", "INT64")])))
    counts = world.apply(rows_of("planes", old(1)))

    assert (counts.dead_letters, counts.acked) == ({}, 1)
    assert world.tables.needs_resync == {"planes": ROWS_TOO_OLD}


def test_one_that_conflicts_is_asked_until_it_says_so() -> None:
    world = World(limits=RetryLimits(between_calls=AT_ONCE))
    world.apply(a_message(a_change(1), header=a_header(columns=[("id", "INT64"), ("name", "INT64")])))
    airport = a_message(a_change(1), header=a_header("airports"))
    world.apply(a_message(a_change(1)), airport)  # from now on the conflict is known without a look at the table
    world.tables.away = 1
    assert world.apply(rows_of("planes", old(1)), airport).acked == 2

    assert world.tables.needs_resync == {"planes": ROWS_TOO_OLD}


@pytest.mark.parametrize(("mode", "marked", "in_history"), [("history", {}, {1, 2}), ("both", {"planes"}, {2})])
def test_a_history_alone_takes_them_and_one_beside_a_mirror_does_not(
    mode: str, marked: set[str], in_history: set[int]
) -> None:
    world = World(tables_file=f'[defaults]\nmode = "{mode}"')
    assert world.apply(rows_of("planes", old(1), a_change(2))).dead_letters == {}

    assert world.tables.needs_resync.keys() == set(marked)
    assert {row["id"] for row in world.writer.appended["planes_changelog"]} == in_history


def test_one_that_could_not_be_applied_anyway_is_a_dead_letter(world: World) -> None:
    counts = world.apply(rows_of("planes", old(1), old(2, seats="many")))

    assert (counts.dead_letters, counts.outdated) == ({"value_does_not_fit": 1}, 1)


def test_a_replayed_one_is_a_dead_letter_again_for_the_store_takes_it_for_applied(world: World) -> None:
    message = rows_of("planes", old(1)) | {"attributes": [("replay_of", "letter")]}

    assert world.apply(message).dead_letters == {"too_old_to_be_safe": 1}
    assert world.tables.needs_resync == {}


def test_a_snapshot_that_was_read_later_heals_and_one_that_is_complete_already_needs_nothing(world: World) -> None:
    world.apply(rows_of("planes", old(1)))
    world.apply(an_end(READ))
    assert world.tables.needs_resync == {"planes": ROWS_TOO_OLD}, "these rows are of that snapshot"
    world.apply(an_end(READ + HOUR))
    assert (world.tables.needs_resync, world.tables.complete_since) == ({}, {"planes": READ + HOUR})
    world.apply(rows_of("planes", old(1)))
    assert world.tables.needs_resync == {}


def test_status_names_the_table_and_the_commands_that_heal_it() -> None:
    world = StatusWorld()
    world.mirrors = [Mirror("planes", MICROS, ROWS_TOO_OLD)]

    assert world.states() == {"planes": "needs re-sync"}
    assert exit_code(world.document()) == 1
    (line,) = [line for line in lines(world.document()) if line.startswith("planes")]
    assert "take another snapshot" in line
    assert "python -m services.spanner_reader snapshot TABLE" in line


OURS = {MIRROR_OF: "x"}


def test_the_label_stays_until_a_snapshot_that_was_read_later_is_complete() -> None:
    labels = rows_too_old({**OURS, COMPLETE_SINCE: "5"}, 2 * HOUR)
    assert labels == {**OURS, COMPLETE_SINCE: None, NEEDS_RESYNC: ROWS_TOO_OLD, RESYNC_AFTER: str(2 * HOUR)}
    said = {name: value for name, value in labels.items() if value is not None}
    assert rows_too_old(said, 2 * HOUR - 1) is None
    later = rows_too_old(said, 2 * HOUR + 1)
    assert later is not None
    assert later[RESYNC_AFTER] == str(3 * HOUR)

    zero = timedelta(0)
    assert completed(said, MADE, 2 * HOUR, 2 * HOUR, 1, zero) is None
    assert completed(said, MADE, 2 * HOUR + 5, 2 * HOUR, 1, zero) is None, "what counts is when it was read"
    healed = completed(said, MADE, 2 * HOUR + 1, 2 * HOUR + 1, 1, zero)
    assert healed is not None
    assert (healed[NEEDS_RESYNC], healed[RESYNC_AFTER], healed[COMPLETE_SINCE]) == (None, None, str(2 * HOUR + 1))


def test_a_hundred_late_micro_batches_change_the_table_once_and_a_snapshot_an_hour_later_heals() -> None:
    """Each row of a Bigtable snapshot has a read time of its own; BigQuery allows five changes in ten seconds."""
    labels, changes, first = OURS, 0, 2 * HOUR + 1
    for number in range(100):
        changed = rows_too_old(labels, first + number * 10_000_000)
        if changed is not None:
            changes += 1
            labels = {name: value for name, value in changed.items() if value is not None}

    assert changes == 1
    assert completed(labels, MADE, first + 990_000_000, first + 990_000_000, 1, timedelta(0)) is None
    healed = completed(labels, MADE, first + HOUR, first + HOUR, 1, timedelta(0))
    assert healed is not None
    assert healed[NEEDS_RESYNC] is None


def test_the_log_says_why_a_snapshot_leaves_a_table_pending_resync() -> None:
    class OneTable:
        """A client of one table, which anybody may change."""

        table = bigquery.Table.from_api_repr(
            {
                "tableReference": {"projectId": "p", "datasetId": "d", "tableId": "planes"},
                "creationTime": "1000000",
                "labels": {**OURS, NEEDS_RESYNC: ROWS_TOO_OLD, RESYNC_AFTER: str(3 * HOUR)},
            }
        )

        def get_table(self, _table: object, **_more: object) -> bigquery.Table:
            return self.table

        def update_table(self, table: bigquery.Table, _fields: object, **_more: object) -> bigquery.Table:
            return table

    client: Any = OneTable()
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


def test_a_mirror_that_was_made_anew_still_needs_its_sweep() -> None:
    anew = {name: value for name, value in recreated(OURS).items() if value is not None}
    both = rows_too_old(anew, 2 * HOUR)
    assert both == {**OURS, NEEDS_RESYNC: RECREATED, RESYNC_AFTER: str(2 * HOUR)}
    told = completed({**anew, RESYNC_AFTER: str(2 * HOUR)}, MADE, 3 * HOUR, 3 * HOUR, 1, timedelta(0))
    assert told is not None
    assert (told[NEEDS_RESYNC], told[RESYNC_AFTER]) == (RECREATED, None)
    there = {name: value for name, value in told.items() if value is not None}
    healed = swept(there, 3 * HOUR)
    assert healed is not None
    assert healed[NEEDS_RESYNC] is None


def test_a_live_change_is_applied_however_old_it_is(world: World) -> None:
    """What deleted its row later is still to come."""
    counts = world.apply(a_message(old(1)))

    assert (counts.acked, counts.outdated, counts.dead_letters) == (1, 0, {})
    assert world.names().keys() == {1}
