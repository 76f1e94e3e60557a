"""What the consumer says of its tables, and what `status` makes of it."""

import io
import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from services.cdc_consumer.app.status.metrics import ConsumerMetrics
from services.cdc_consumer.commands.command_line import ConsumerStatusCommand
from services.cdc_consumer.commands.status import exit_code, lines, status
from services.cdc_consumer.core.stream.counts import Applied, Counts, Report, TableNote
from services.cdc_consumer.ports import MASKS_CHANGED, ROWS_TOO_OLD, Mirror, PartlyListedError
from services.cdc_consumer.wiring.doctor import running_consumer
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.contracts.timestamps import Nanoseconds, format_timestamp
from shared.runtime.findings import Level
from shared.runtime.health import Health, serving_health
from shared.runtime.stop import Stop
from tests.unit.cdc_consumer.status_world import LATEST, MICROS, WAITS, World
from tests.unit.cdc_consumer.world import NOW


@pytest.fixture
def world() -> World:
    return World()


def test_datasets_that_only_a_schema_names_are_inspected_once_a_table_of_theirs_was_reported(world: World) -> None:
    world.take(Counts(messages=2, tables={"planes": TableNote(), "mirror_air.crew": TableNote()}))
    world.mirrors = [Mirror("mirror_air.crew", MICROS, "table_made_anew")]

    assert world.states() == {"planes": "running", "mirror_air.crew": "pending resync"}
    assert world.asked_of == {"mirror_air"}


def test_every_table_has_its_state_since_and_why(world: World) -> None:
    world.mirrors = [Mirror("quiet", MICROS), Mirror("anew", MICROS - 5_000_000, "table_made_anew")]
    world.take(
        Counts(
            messages=3,
            tables={
                "planes": WAITS,
                "airports": TableNote(latest=LATEST),
                "pilots": TableNote(unfit="no_primary_key: table pilots"),
            },
        )
    )

    assert world.states() == {
        "airports": "running",
        "anew": "pending resync",
        "pilots": "refused",
        "planes": "deferred",
        "quiet": "running",
    }
    assert world.table("planes")["troubles"] == [
        {"state": "deferred", "since": format_timestamp(NOW), "why": "PERMISSION_DENIED"}
    ]
    assert world.table("anew")["troubles"][0]["since"] == "2026-11-21T12:00:00Z"
    assert world.table("pilots")["troubles"][0]["why"].startswith("no_primary_key")
    assert world.table("airports")["troubles"] == []
    assert exit_code(world.document()) == 1


def test_missing_rows_that_wait_to_be_deleted_are_reported_and_are_no_trouble(world: World) -> None:
    world.mirrors = [
        Mirror("waits", MICROS, complete_since=MICROS - 1_000_000, deleted_before=MICROS - 2_000_000),
        Mirror("done", MICROS, complete_since=MICROS - 1_000_000, deleted_before=MICROS - 1_000_000),
        Mirror("never", MICROS),
    ]
    shown = {
        name: (world.table(name)["complete_since"], world.table(name)["delete_missing_rows_before"])
        for name in world.states()
    }

    assert shown == {
        "waits": ("2026-11-21T12:00:04Z", "2026-11-21T12:00:04Z"),
        "done": ("2026-11-21T12:00:04Z", None),
        "never": (None, None),
    }
    assert exit_code(world.document()) == 0
    assert "waits: rows older than 2026-11-21T12:00:04Z may wait to be deleted" in list(lines(world.document()))


def test_a_change_is_unapplied_since_its_write_until_the_watermark_has_passed_it(world: World) -> None:
    def written(second: int) -> None:
        at = MICROS + 1_000_000 * second
        world.take(Counts(tables={"planes": TableNote(latest=Applied(at, at, at))}))

    def after(watermark: int | None = None) -> str | None:
        if watermark is not None:
            world.status.applied_up_to({"planes": datetime.fromtimestamp(MICROS / 1e6 + watermark, UTC)})
        since: str | None = world.table("planes")["unapplied_since"]
        return since

    def moment(second: int) -> str:
        return format_timestamp(Nanoseconds(NOW + 1_000_000_000 * second))

    world.mirrors = [Mirror("planes", MICROS)]
    assert after() is None
    written(1)
    written(2)
    written(3)
    assert after() == moment(1)
    assert after(watermark=0) == moment(1), "an old watermark"
    assert after(watermark=2) == moment(3), "of those that wait the last is known"
    assert after(watermark=4) is None
    written(9)
    assert after(watermark=5) == moment(9), "the first change after a rest"


def test_since_is_when_it_began_until_it_is_healthy_again(world: World) -> None:
    world.take(Counts(tables={"planes": WAITS}))
    world.clock.pass_time(timedelta(minutes=1))
    world.take(Counts(tables={"planes": replace(WAITS, deferred="NOT_FOUND")}))
    (trouble,) = world.table("planes")["troubles"]
    assert (trouble["since"], trouble["why"]) == (format_timestamp(NOW), "NOT_FOUND")

    world.take(Counts(tables={"planes": TableNote()}))
    assert world.states() == {"planes": "running"}
    world.take(Counts(tables={"planes": WAITS}))
    assert world.table("planes")["troubles"][0]["since"] == "2026-11-21T12:01:05Z"


def test_rows_that_are_stuck_put_their_table_off_until_they_have_come_again(world: World) -> None:
    stuck = TableNote(stuck="rows fail: INTERNAL", again_at=MICROS + 600_000_000, latest=LATEST)
    world.take(Counts(tables={"planes": stuck}))
    world.clock.pass_time(timedelta(minutes=5))
    world.take(Counts(tables={"planes": TableNote(latest=LATEST)}))  # nothing of theirs came in that micro-batch

    assert world.table("planes")["troubles"] == [
        {"state": "deferred", "since": format_timestamp(NOW), "why": "rows fail: INTERNAL"}
    ]
    assert world.status.deferred() == {"planes": "rows fail: INTERNAL"}
    assert world.status.troubled() == {"planes"}
    world.clock.pass_time(timedelta(minutes=5))
    world.take(Counts(tables={"planes": replace(stuck, again_at=MICROS + 1_200_000_000)}))
    assert world.table("planes")["troubles"][0]["since"] == format_timestamp(NOW)

    world.clock.pass_time(timedelta(minutes=11))
    assert (world.states(), world.status.deferred()) == ({"planes": "running"}, {})
    assert world.status.troubled() == set()


def test_what_was_deferred_holds_up_a_deletion_until_it_has_come_again_though_its_table_is_healthy(
    world: World,
) -> None:
    world.take(Counts(tables={"planes": replace(WAITS, again_at=MICROS + 600_000_000)}))
    world.take(Counts(tables={"planes": TableNote(latest=LATEST)}))
    assert world.states() == {"planes": "running"}
    assert world.status.troubled() == {"planes"}

    world.clock.pass_time(timedelta(minutes=10))
    assert world.status.troubled() == {"planes"}
    world.clock.pass_time(timedelta(minutes=1))
    assert world.status.troubled() == set()


def test_a_table_may_have_several_troubles_and_what_holds_it_up_comes_first(world: World) -> None:
    world.mirrors = [Mirror("planes", MICROS, "table_made_anew")]
    for _ in range(2):
        world.take(Counts(tables={"planes": replace(WAITS, unfit="schema_conflict: x")}))
        world.clock.pass_time(timedelta(minutes=1))

    assert [one["state"] for one in world.table("planes")["troubles"]] == ["deferred", "refused", "pending resync"]


def test_a_table_that_is_another_one_than_it_was_is_pending_resync_once(world: World) -> None:
    for made_at in (MICROS, MICROS, MICROS + 1_000_000, MICROS + 1_000_000):
        world.inspect(Mirror("planes", made_at), Mirror("quiet", MICROS))

    assert world.labelled == ["planes"]
    world.inspect()  # dropped, and not made again yet
    assert world.inspect(Mirror("planes", MICROS + 9_000_000))["planes"] == "pending resync"
    assert world.labelled == ["planes", "planes"]


def test_a_mirror_that_is_not_there_any_more_is_dropped_until_it_is_recreated(world: World) -> None:
    planes, crew = Mirror("planes", MICROS), Mirror("air.crew", MICROS)
    world.take(Counts(tables={"planes": TableNote(latest=LATEST)}))
    world.inspect(planes, crew)
    with capture_logs() as logs:
        assert world.inspect() == {"planes": "dropped", "air.crew": "dropped"}
        assert world.inspect() == {"planes": "dropped", "air.crew": "dropped"}

    assert [(one["event"], one["table"]) for one in logs] == [
        ("table_dropped", "air.crew"),
        ("table_dropped", "planes"),
    ]
    assert world.table("planes")["troubles"][0]["since"] == "2026-11-21T12:00:27Z"
    assert world.status.troubled() == {"planes", "air.crew"}
    assert world.asked_of == {"air"}  # though none of it is known any more but by name
    assert exit_code(world.document()) == 1
    states = world.inspect(crew, replace(planes, made_at=MICROS + 1))
    assert states == {"planes": "pending resync", "air.crew": "running"}
    assert world.status.troubled() == set()


def test_a_table_that_fails_is_a_gauge_until_any_process_finds_it_healthy(world: World) -> None:
    metrics = ConsumerMetrics(registry := CollectorRegistry(), world.clock)
    metrics.show_tables(world.status.failing, world.status.refused, world.status.pending_resync)
    world.take(Counts(messages=1, tables={"planes": WAITS, "airports": WAITS}))
    world.clock.pass_time(timedelta(seconds=30))
    world.take(Counts(messages=1, tables={"planes": WAITS, "airports": TableNote(), "others": TableNote()}))
    world.take(Counts(taken=1))

    name = "millrace_consumer_table_failing_since_timestamp_seconds"
    since = [registry.get_sample_value(name, {"table": table}) for table in ("planes", "airports")]
    assert since == [NOW / 1e9, None]
    assert registry.get_sample_value("millrace_consumer_failing_tables") == 1


def test_what_was_deferred_and_has_not_come_again_for_half_an_hour_is_forgotten(world: World) -> None:
    """Another consumer of the subscription has applied it, or it is a dead letter."""
    metrics = ConsumerMetrics(registry := CollectorRegistry(), world.clock)
    metrics.show_tables(world.status.failing, world.status.refused, world.status.pending_resync)
    shown = []
    world.take(Counts(tables={"planes": WAITS}))
    for minutes in (31, 1):
        world.clock.pass_time(timedelta(minutes=minutes))
        failing = registry.get_sample_value("millrace_consumer_failing_tables")
        shown.append((world.states(), world.status.troubled(), world.status.deferred(), failing))

    assert shown == [
        ({"planes": "deferred"}, {"planes"}, {"planes": "PERMISSION_DENIED"}, 1),
        ({"planes": "running"}, set(), {}, 0),
    ]
    world.take(Counts(tables={"planes": replace(WAITS, again_at=MICROS + 3_600_000_000)}))
    assert world.table("planes")["troubles"][0]["since"] == "2026-11-21T12:32:05Z"


def test_a_table_whose_write_a_task_still_attempts_is_deferred_and_fails_until_none_is_heard_of(world: World) -> None:
    """A task that keeps its messages reports each attempt, and no time at which they come again."""
    world.take(Counts(tables={"planes": TableNote(deferred="UNAVAILABLE")}))
    assert (world.states(), list(world.status.failing())) == ({"planes": "deferred"}, ["planes"])
    world.clock.pass_time(timedelta(minutes=30))
    assert (world.states(), list(world.status.failing())) == ({"planes": "running"}, [])


@pytest.mark.parametrize(
    ("begins", "ends"),
    [
        ({"not_pulled": "PERMISSION_DENIED"}, {"not_pulled": ""}),
        ({"not_pulled": "PERMISSION_DENIED"}, {"counts": Counts(taken=1)}),
        ({"counts": Counts(taken=1)}, {"counts": Counts(messages=1)}),
    ],
    ids=["no right to pull", "until messages are taken", "a micro-batch that waits"],
)
def test_what_was_deferred_is_not_forgotten_while_it_cannot_come_again(
    world: World, begins: Mapping[str, Any], ends: Mapping[str, Any]
) -> None:
    stuck = TableNote(stuck="rows fail: INTERNAL", again_at=WAITS.again_at)
    healthy = {"airports": TableNote(latest=LATEST)}
    world.take(Counts(messages=3, tables={"planes": WAITS, "airports": WAITS, "crew": stuck}))
    world.take(Counts(messages=1, tables=healthy))
    world.take(**begins)
    seen: list[tuple[set[str], set[str]]] = []

    def wait(minutes: int) -> None:
        world.clock.pass_time(timedelta(minutes=minutes))
        seen.append(({*world.status.troubled()}, {*world.status.deferred()}))

    wait(120)
    world.take(Counts(tables={"pilots": TableNote(deferred="UNAVAILABLE")}), process="that waits")
    wait(10)
    for report in ({"process": "that waits"}, ends):
        world.take(**report)
    world.take(Counts(messages=1, tables={"pilots": TableNote(latest=LATEST)}))
    for minutes in (0, 2, 27, 1):
        wait(minutes)

    everything, waits = {"planes", "airports", "crew"}, {"planes", "crew"}
    assert seen[0] == (everything, waits)
    assert seen[1] == (everything | {"pilots"}, waits | {"pilots"})
    assert seen[2:] == [(everything, waits), ({"planes"}, {"planes"}), ({"planes"}, {"planes"}), (set(), set())]


@pytest.mark.parametrize(("seconds", "minutes"), [(55, 33), (70, 66)])
def test_one_micro_batch_after_the_other_keeps_nothing_from_being_forgotten(
    world: World, seconds: int, minutes: int
) -> None:
    """What one that takes longer than a minute does not pull in time, the next one does, or none."""
    world.take(Counts(messages=1, tables={"planes": WAITS, "airports": WAITS}))
    healthy = {"airports": TableNote(latest=LATEST)}
    waited: list[frozenset[str]] = []
    for _ in range(minutes * 60 // seconds):
        world.take(Counts(taken=1))
        world.clock.pass_time(timedelta(seconds=seconds))
        world.take(Counts(messages=1, tables=healthy))
        waited.append(frozenset(world.status.troubled()))

    assert waited[0] == {"planes", "airports"}
    assert "airports" not in waited[5], "it has come again"
    assert world.states()["planes"] == "running"
    assert waited[-1] == set()


def test_what_lacks_rows_or_is_gone_is_counted_for_the_alert(world: World) -> None:
    metrics = ConsumerMetrics(registry := CollectorRegistry(), world.clock)
    metrics.show_tables(world.status.failing, world.status.refused, world.status.pending_resync)
    shown = []
    planes, crew = Mirror("planes", MICROS), Mirror("crew", MICROS)
    for mirrors in (
        [planes, crew],
        [crew],  # dropped
        [replace(planes, made_at=MICROS + 1), crew],  # made again
        [replace(planes, pending_resync=ROWS_TOO_OLD), replace(crew, pending_resync=MASKS_CHANGED)],
        [planes, crew],
    ):
        world.inspect(*mirrors)
        shown.append(registry.get_sample_value("millrace_consumer_tables_pending_resync"))

    assert shown == [0, 1, 1, 2, 0]


def test_a_mirror_is_pending_resync_that_was_recreated_around_a_restart(world: World) -> None:
    planes = Mirror("planes", MICROS)
    world.inspect(planes, Mirror("airports", MICROS))
    world.inspect()
    world.start()
    assert world.inspect() == {}  # what an operator has dropped for good is not held against it for ever
    world.start()
    recreated = replace(planes, made_at=MICROS + 1)
    healed = Mirror("airports", MICROS + 1, complete_since=MICROS + 2)

    assert world.inspect(recreated, healed) == {"planes": "pending resync", "airports": "running"}
    world.start()
    world.inspect(recreated, healed)
    assert world.labelled == ["planes"]


@pytest.mark.parametrize("data", [b"", b"[1]", b'{"planes": "x"}'])
def test_what_is_not_understood_of_what_was_kept_is_passed_over(world: World, data: bytes) -> None:
    world.kept.write(data)
    world.start()
    assert world.inspect(Mirror("planes", MICROS)) == {"planes": "running"}


def test_a_label_that_cannot_be_written_is_written_at_the_next_inspection(world: World) -> None:
    world.inspect(Mirror("planes", MICROS), Mirror("quiet", MICROS))
    fails = [True]

    def label(mirror: Mirror) -> None:
        if fails:
            fails.clear()
            raise TransientError("503")
        world.labelled.append(mirror.table)

    world.status._label_recreated = label
    last = Mirror("quiet", MICROS, "letters")  # which is listed after it, and shown as it is all the same
    states = world.inspect(Mirror("planes", MICROS + 1), last)
    assert states == {"planes": "pending resync", "quiet": "pending resync"}
    assert world.document()["labels"] == {
        "read_at": format_timestamp(world.clock.now()),
        "error": "503",
        "error_code": None,
    }
    world.mirrors = [Mirror("planes", MICROS + 1)]
    world.clock.pass_time(timedelta(seconds=11))
    assert world.states() == {"planes": "pending resync", "quiet": "dropped"}
    assert world.labelled == ["planes"]


def test_counts_and_processes_are_those_of_all_reports(world: World) -> None:
    world.take(Counts(messages=2, changes=5, rows_written=3, superseded=1, dead_letters={"undecodable": 1}, acked=2))
    world.take(
        Counts(messages=1, changes=1, rows_written=1, dead_letters={"undecodable": 2, "bad_name": 1}, deferred=1)
    )
    world.take(process="a:1", oldest_outstanding=MICROS - 60_000_000)
    world.take(process="b:1", oldest_outstanding=MICROS - 5_000_000)
    world.take(process="b:1")

    document = world.document()
    assert document["changes"] == {
        "seen": 6,
        "written": 4,
        "superseded": 1,
        "dead_letters": {"undecodable": 3, "bad_name": 1},
    }
    assert document["messages"] == {"messages": 3, "acked": 2, "deferred": 1, "released": 0}
    assert document["processes"] == {"seen": 2, "holding": 1}
    assert document["lag_seconds"]["oldest_outstanding"] == 60
    world.clock.pass_time(timedelta(minutes=11))
    assert world.document()["processes"] == {"seen": 0, "holding": 1}
    world.take(process="c:1")
    assert world.status._seen.keys() == {"c:1"}, "those that have ended are forgotten"


def test_what_a_process_held_that_was_lost_in_mid_task_is_held_no_more_once_it_has_been_silent_for_long(
    world: World,
) -> None:
    metrics = ConsumerMetrics(registry := CollectorRegistry(), world.clock, world.oldest_messages)

    def report(process: str, oldest_outstanding: int) -> None:
        world.take(process=process, oldest_outstanding=oldest_outstanding)
        metrics.take(Report(process=process, oldest_outstanding=oldest_outstanding))

    def age() -> float | None:
        return registry.get_sample_value("millrace_consumer_oldest_outstanding_message_age_seconds")

    report("lost:1", MICROS - 60_000_000)
    for _minute in range(15):
        assert world.status.oldest_outstanding_lately() == MICROS - 60_000_000
        world.clock.pass_time(timedelta(minutes=1))
        report("waits:1", MICROS - 5_000_000)
    world.clock.pass_time(timedelta(seconds=1))

    with capture_logs() as logs:
        assert world.status.oldest_outstanding_lately() == MICROS - 5_000_000
        assert age() == 15 * 60 + 1 + 5
        assert world.document()["processes"] == {"seen": 1, "holding": 1}
    assert [(one["event"], one["process"]) for one in logs] == [("process_lost", "lost:1")]


def test_lag_is_reported_by_stage_of_each_table_and_of_what_was_applied_last(world: World) -> None:
    earlier = Applied(MICROS - 90_000_000, MICROS - 80_000_000, MICROS - 70_000_000)
    world.take(Counts(tables={"airports": TableNote(latest=earlier), "planes": TableNote(latest=LATEST)}))
    world.take(Counts(tables={"planes": TableNote(latest=Applied(MICROS - 99_000_000))}))

    lag = world.document()["lag_seconds"]
    assert (lag["commit_to_published"], lag["published_to_applied"]) == (0.5, 1.5)
    assert world.table("airports")["lag_seconds"] == {"commit_to_published": 10.0, "published_to_applied": 10.0}
    assert world.table("planes")["committed"] == "2026-11-21T12:00:02Z"


def test_labels_are_inspected_now_and_then_and_what_was_known_is_kept_when_they_cannot_be(world: World) -> None:
    world.mirrors = [Mirror("planes", MICROS, "table_made_anew")]
    world.document()
    world.document()
    assert world.inspections == 1

    world.mirrors = TransientError("503")
    world.clock.pass_time(timedelta(seconds=11))
    document = world.document()
    assert world.inspections == 2
    assert document["labels"] == {"read_at": format_timestamp(NOW), "error": "503", "error_code": None}
    assert world.states() == {"planes": "pending resync"}
    assert any("as of 2026-11-21T12:00:05Z: 503" in line for line in lines(document))

    world.clock.pass_time(-timedelta(hours=3))
    world.document()
    assert world.inspections == 3, "the clock was set back"

    world.mirrors = MisconfiguredError("made-up", "grant a role")
    world.clock.pass_time(timedelta(seconds=11))
    labels = world.document()["labels"]
    assert (labels["error"], labels["error_code"]) == ("grant a role [made-up]", "made-up")


def test_a_column_list_that_fails_has_a_reason_and_an_end_of_its_own(world: World) -> None:
    def take(note: TableNote) -> None:
        world.take(Counts(tables={"planes": note}))

    take(TableNote(deferred="no column", failing=frozenset("2"), again_at=MICROS + 30_000_000))
    take(TableNote(deferred="no answer"))  # a task still attempts another list
    assert world.status.deferred() == {"planes": "no column"}
    take(TableNote(taken=frozenset("1")))
    assert world.status.deferred() == {"planes": "no column"}
    for _ in range(2):  # those of list 2 come no more
        world.clock.pass_time(timedelta(minutes=20))
        take(TableNote(deferred="no answer"))
        take(TableNote(taken=frozenset("1")))
    assert (world.status.failing(), world.states()) == ({}, {"planes": "running"})
    take(TableNote(deferred="one", failing=frozenset("1")))
    take(TableNote(deferred="two", failing=frozenset("2")))
    take(TableNote(taken=frozenset("1")))
    assert world.status.deferred() == {"planes": "two"}


def test_a_dataset_that_cannot_be_listed_keeps_its_mirrors_and_hides_no_other(world: World) -> None:
    there = [Mirror("planes", MICROS), Mirror("air.crew", MICROS), Mirror("sea.ships", MICROS)]
    assert set(world.inspect(*there)) == {"planes", "air.crew", "sea.ships"}
    world.clock.pass_time(timedelta(seconds=11))
    new = [Mirror("planes", MICROS, "table_made_anew"), Mirror("new", MICROS)]
    world.mirrors = PartlyListedError("403: grant a role on air", new, {"air"})
    assert world.states() == {
        "planes": "pending resync",
        "new": "running",
        "air.crew": "running",
        "sea.ships": "dropped",
    }
    assert world.document()["labels"]["error"] == "403: grant a role on air"
    world.inspect(*there)
    assert world.document()["labels"]["error"] == ""


def test_a_label_that_could_not_be_written_is_written_once_its_dataset_can_be_listed_again(world: World) -> None:
    made, again = Mirror("air.crew", MICROS), Mirror("air.crew", MICROS + 1)
    world.inspect(made)
    world.refuses_labels = True
    assert world.inspect(again) == {"air.crew": "pending resync"}
    world.refuses_labels = False
    world.clock.pass_time(timedelta(seconds=11))
    world.mirrors = PartlyListedError("503", [], {"air"})
    assert world.states() == {"air.crew": "pending resync"}
    assert world.labelled == []
    assert world.inspect(again) == {"air.crew": "pending resync"}
    assert world.labelled == ["air.crew"]


@pytest.mark.parametrize("back", [{"not_pulled": ""}, {"counts": Counts(taken=1)}])
def test_while_the_subscription_cannot_be_pulled_from_it_does_not_run(back: Mapping[str, Any]) -> None:
    world = World()
    world.take(not_pulled="UNAVAILABLE")
    world.take()
    assert (world.document()["state"], world.status.not_pulled()) == ("cannot pull messages", "UNAVAILABLE")
    world.take(**back)
    assert (world.document()["state"], world.status.not_pulled()) == ("running", "")


# The command.


@pytest.mark.parametrize(
    ("ready", "alive", "state"),
    [(True, True, "running"), (False, True, "starting"), (True, False, "makes no progress")],
)
def test_the_exit_code_reports_whether_everything_runs(world: World, ready: bool, alive: bool, state: str) -> None:
    world.take(Counts(tables={"planes": TableNote()}))
    document = world.document(ready=ready, alive=alive)

    assert document["state"] == state
    assert exit_code(document) == (state != "running")


def test_the_table_on_screen_has_a_line_for_each_trouble(world: World) -> None:
    world.mirrors = [Mirror("planes", MICROS, "table_made_anew")]
    world.take(Counts(dead_letters={"bad_name": 4}, tables={"planes": WAITS, "airports": TableNote(latest=LATEST)}))
    printed = list(lines(world.document()))

    assert printed[0] == "cdc_consumer: running since 2026-11-21T12:00:05Z"
    assert printed[1].split("  ")[0] == "TABLE"
    airports, planes, more = printed[2:5]
    assert airports.split() == ["airports", "running", "-", "2026-11-21T12:00:02Z", "0.5s", "1.5s"]
    assert planes.split() == ["planes", "deferred", "2026-11-21T12:00:05Z", "-", "-", "-", "PERMISSION_DENIED"]
    assert more.split() == ["pending", "resync", "2026-11-21T12:00:05Z", "table_made_anew"]
    assert "dead letters since the start: bad_name 4" in printed


@pytest.mark.parametrize(
    ("oldest", "note", "shown"),
    [
        (MICROS - 60_000_000, WAITS, "60.0s old"),
        (None, WAITS, "none; deferred messages come again by themselves"),
        (None, TableNote(), "none"),
    ],
)
def test_the_oldest_message_is_shown_and_that_deferred_ones_are_none_of_those(
    world: World, oldest: int | None, note: TableNote, shown: str
) -> None:
    world.take(Counts(tables={"planes": note}))
    world.take(process="a:1", oldest_outstanding=oldest)
    assert any(line.endswith(f"oldest outstanding message: {shown}") for line in lines(world.document()))


def test_it_asks_the_running_service(world: World) -> None:
    world.take(Counts(tables={"planes": WAITS}))

    with world.served() as address:
        out = io.StringIO()
        assert status(ConsumerStatusCommand(json=True, address=address), {}, out) == 1
        assert json.loads(out.getvalue()) == world.document()
        out = io.StringIO()
        environ = {"HOST": "0.0.0.0", "PORT": address.partition(":")[2]}  # noqa: S104  what it listens on
        assert status(ConsumerStatusCommand(), environ, out) == 1
        assert "planes" in out.getvalue()


def test_doctor_names_what_the_running_consumer_has_trouble_with(world: World) -> None:
    world.take(Counts(tables={"planes": WAITS, "airports": TableNote(latest=LATEST)}))

    with world.served() as address:
        (found,) = running_consumer(address)
    assert (found.level, found.check) == (Level.WARNING, "running consumer, table planes")
    assert found.detail == "deferred: PERMISSION_DENIED"
    assert list(running_consumer(address)) == [], "none runs there"


def test_without_a_consumer_that_answers_the_command_reports_what_to_do(world: World) -> None:
    with serving_health(Health(), CollectorRegistry(), Stop(), "127.0.0.1", 0) as port:
        address = f"127.0.0.1:{port}"
        with pytest.raises(MisconfiguredError, match=f"no consumer can be asked at {address} .HTTP Error 404"):
            status(ConsumerStatusCommand(address=address), {}, io.StringIO())
    with pytest.raises(MisconfiguredError, match=r"is it running\? --address HOST:PORT"):
        status(ConsumerStatusCommand(address=address), {}, io.StringIO())
    with (
        serving_health(Health(), CollectorRegistry(), Stop(), "127.0.0.1", 0, lambda: {"service": "other"}) as port,
        pytest.raises(MisconfiguredError, match="no cdc_consumer"),
    ):
        status(ConsumerStatusCommand(address=f"127.0.0.1:{port}"), {}, io.StringIO())


def test_dead_letters_that_are_not_kept_are_counted_under_the_name_that_the_alert_has(world: World) -> None:
    metrics = ConsumerMetrics(registry := CollectorRegistry(), world.clock)
    metrics.take(Report(counts=Counts(not_kept=2)))
    assert registry.get_sample_value("millrace_dead_letters_not_kept_total") == 2
