"""When missing rows are deleted by itself, and when a person has to decide."""

import threading
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import cast

import pytest

from services.cdc_consumer.app.delete_missing_rows.automatic_deletion import (
    AutomaticDeletion,
    check_part,
    check_unchanged,
)
from services.cdc_consumer.app.delete_missing_rows.deletion import Deletion, DeletionRefusedError
from services.cdc_consumer.app.status.oldest_messages import OldestMessages
from services.cdc_consumer.app.status.status import ConsumerStatus
from services.cdc_consumer.core.stream.counts import Report
from services.cdc_consumer.ports import Mirror, MirrorTable, RowCount
from services.cdc_consumer.wiring.delete_missing_rows import source_of
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.contracts.mirrors import label_of
from shared.contracts.source_rows import Done
from tests.builders import a_change, a_header, a_message, table_definition
from tests.fakes.mirror_rows import FakeSource
from tests.unit.cdc_consumer.world import NOW, SetClock
from tests.unit.cdc_consumer.world import World as MicroBatches

AFTER = timedelta(minutes=10)
HOUR = timedelta(hours=1)
SINCE = NOW // 1000
MIRRORS = [Mirror("planes", 1, complete_since=SINCE)]


def automatic(status: ConsumerStatus, clock: SetClock) -> AutomaticDeletion:
    """Return what deletes by what a consumer's status says."""
    return AutomaticDeletion(
        status, lambda _mirror: Deletion(SINCE, left=0), clock, after=AFTER, keep_messages_for=timedelta(days=7)
    )


@dataclass
class Known:
    """What is known of the tables, as the test sets it."""

    listed: Sequence[Mirror] = ()
    in_trouble: Collection[str] = ()
    oldest: int | None = None
    refused: dict[str, str] = field(default_factory=dict)

    def mirrors(self) -> Sequence[Mirror]:
        return self.listed

    def troubled(self) -> Collection[str]:
        return self.in_trouble

    def oldest_outstanding_lately(self) -> int | None:
        return self.oldest

    def deletion_refused(self, table: str, why: str) -> None:
        self.refused[table] = why


class World:
    def __init__(self) -> None:
        self.clock = SetClock()
        self.known = Known(MIRRORS)
        self.deleted: list[str] = []
        self.error: Exception | None = None
        self.deletes = 0
        self.troubles: Collection[str] = ()
        """What is in trouble once the first deletion is over."""
        self.automatic = AutomaticDeletion(
            self.known, self.delete, self.clock, after=AFTER, keep_messages_for=timedelta(days=7)
        )

    def delete(self, mirror: Mirror) -> Deletion:
        self.deleted.append(mirror.table)
        if self.error is not None:
            raise self.error
        self.known.in_trouble = self.troubles
        return Deletion(mirror.complete_since, left=0, deleted=self.deletes)

    def rounds(self, time: timedelta, every: timedelta = timedelta(minutes=1)) -> list[str]:
        """Go round for a time; return of which rows were deleted."""
        self.deleted = []
        for _round in range(time // every):
            self.automatic.go_round()
            self.clock.pass_time(every)
        return self.deleted


@pytest.fixture
def world() -> World:
    return World()


def test_missing_rows_are_deleted_once_their_table_has_been_complete_for_a_while(world: World) -> None:
    assert world.rounds(AFTER) == []
    assert world.rounds(timedelta(minutes=1)) == ["planes"]


def test_no_missing_row_is_deleted_of_a_table_of_which_nothing_is_known(world: World) -> None:
    world.known.listed = [Mirror("planes", 1)]

    assert world.rounds(2 * AFTER) == []


def test_another_snapshot_begins_the_while_again(world: World) -> None:
    world.rounds(AFTER)
    world.known.listed = [Mirror("planes", 1, complete_since=SINCE + 1)]

    assert world.rounds(AFTER) == []
    assert world.rounds(timedelta(minutes=1)) == ["planes"]


def test_no_missing_row_is_deleted_while_changes_of_its_table_wait_or_messages_from_before_are_outstanding(
    world: World,
) -> None:
    world.known.in_trouble = {"planes"}
    assert world.rounds(2 * AFTER) == []
    world.known.in_trouble = {"airports"}
    world.known.oldest = NOW // 1000 - 1
    assert world.rounds(AFTER) == []
    world.known.oldest = NOW // 1000 + 1
    assert world.rounds(timedelta(minutes=1)) == ["planes"]


def test_what_was_on_its_way_is_looked_for_until_no_message_can_come_any_more(world: World) -> None:
    world.rounds(AFTER + timedelta(minutes=1))
    world.known.listed = [Mirror("planes", 1, complete_since=SINCE, deleted_before=SINCE)]

    assert len(world.rounds(timedelta(days=1), every=HOUR)) == 3, "every six hours"
    world.clock.pass_time(timedelta(days=7))
    assert world.rounds(timedelta(days=1), every=HOUR) == []


def test_missing_rows_of_one_that_is_not_clean_yet_are_deleted_again_before_long(world: World) -> None:
    assert len(world.rounds(4 * AFTER)) == 3


def test_one_that_stays_unclean_is_inspected_less_and_less_until_something_is_deleted(world: World) -> None:
    assert 8 <= len(world.rounds(24 * HOUR)) <= 12
    assert len(world.rounds(24 * HOUR)) <= 4
    world.deletes = 1
    world.rounds(6 * HOUR)
    assert len(world.rounds(2 * AFTER)) == 2


@pytest.mark.parametrize("by", [-timedelta(days=1), AFTER, timedelta(days=1)])
def test_a_clock_that_is_set_shortens_no_wait(world: World, by: timedelta) -> None:
    assert world.rounds(AFTER / 2) == []
    world.clock.set(by)
    assert world.rounds(AFTER / 2) == []
    assert world.rounds(timedelta(minutes=1)) == ["planes"]


def test_messages_that_were_let_go_lately_are_remembered_whatever_the_clock_is_set_to() -> None:
    clock = SetClock()
    messages = OldestMessages(clock, lately=AFTER)
    for oldest in (SINCE, None):
        messages.take(Report(process="p", oldest_outstanding=oldest))
    clock.set(timedelta(days=1))
    assert messages.oldest_lately() == SINCE
    clock.pass_time(AFTER + timedelta(seconds=1))
    assert messages.oldest_lately() is None


def test_one_that_is_in_trouble_when_its_turn_comes_is_left(world: World) -> None:
    world.known.listed = [Mirror("planes", 1, complete_since=SINCE), Mirror("pilots", 1, complete_since=SINCE)]
    world.rounds(AFTER)
    world.troubles = ["pilots"]
    assert world.rounds(timedelta(minutes=1)) == ["planes"]


def test_one_that_is_complete_since_another_time_by_now_waits_again() -> None:
    found = MirrorTable(table_definition(a_header()), "label", soft_delete=False, complete_since=SINCE)
    check_unchanged(MIRRORS[0], found)
    with pytest.raises(TransientError, match="its wait begins again"):
        check_unchanged(MIRRORS[0], replace(found, complete_since=SINCE + 1))


def test_a_refusal_is_reported_and_asked_again_seldom(world: World) -> None:
    world.error = DeletionRefusedError("made-up", "too many")
    assert len(world.rounds(3 * HOUR)) == 1
    assert world.known.refused == {"planes": "too many [made-up]"}

    world.error = None
    assert len(world.rounds(6 * HOUR)) > 1
    assert world.known.refused == {"planes": ""}


def test_a_service_that_is_unavailable_is_tried_again_soon(world: World) -> None:
    world.error = TransientError("away")
    world.rounds(AFTER)

    assert len(world.rounds(timedelta(minutes=3))) == 3
    assert world.known.refused == {}


def test_an_unforeseen_error_is_reported_and_missing_rows_of_other_tables_are_deleted(world: World) -> None:
    world.known.listed = [Mirror("planes", 1, complete_since=SINCE), Mirror("pilots", 1, complete_since=SINCE)]
    world.error = TypeError("of a value")
    world.rounds(AFTER)

    assert world.rounds(timedelta(minutes=3)) == ["planes", "pilots"]
    assert world.known.refused == dict.fromkeys(["planes", "pilots"], "TypeError: the log says where")


class OneOfTwo(FakeSource):
    """A source with another table, which cannot be described."""

    def tables(self) -> Sequence[str]:
        return ["broken", *super().tables()]

    def describe(self, table: str) -> tuple[bytes, Done]:
        if table == "broken":
            raise MisconfiguredError("made-up", "a column of a type that nobody knows")
        return super().describe(table)


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (
            FakeSource(a_header(), {1: ""}),
            r"delete-missing-rows TABLE --before 2026-11-21T12:00:05Z\), with .* --source",
        ),
        (OneOfTwo(a_header(), {1: ""}), r"cannot say what these are: broken \(a column of a type"),
    ],
    ids=["all described", "a table that cannot be described"],
)
def test_missing_rows_are_found_by_the_mirrors_own_source_only_whatever_else_that_has(
    source: FakeSource, why: str
) -> None:
    definition = table_definition(a_header())
    mirror = MirrorTable(definition, label_of(definition.mirror_of), False, SINCE)

    assert source_of(source, mirror).header.table == "planes"
    with pytest.raises(DeletionRefusedError, match=why):
        source_of(source, replace(mirror, label="of another"))


@pytest.mark.parametrize(
    ("older", "rows", "small"),
    [
        (0, 0, True),
        (0, 10, True),
        (1_000, 1_001, True),
        (1_001, 100_100, True),
        (1_001, 100_099, False),
        (10, 10, False),
        (1, 1, False),
    ],
)
def test_without_a_source_no_more_than_a_small_part_of_a_table_goes_and_never_all_of_it(
    older: int, rows: int, small: bool
) -> None:
    if small:
        check_part("planes", RowCount(older, rows), SINCE)
        return
    with pytest.raises(DeletionRefusedError, match="delete-missing-rows TABLE --before 2026-11-21T12:00:05Z"):
        check_part("planes", RowCount(older, rows), SINCE)


def test_it_goes_on_by_itself_until_the_end() -> None:
    world = World()
    world.automatic = AutomaticDeletion(
        world.known, world.delete, world.clock, after=timedelta(0), keep_messages_for=timedelta(0)
    )
    with world.automatic.deleting():
        while len(world.deleted) < 2:
            time.sleep(0.01)

    assert "delete-missing-rows" not in {thread.name for thread in threading.enumerate()}


def test_no_missing_row_is_deleted_while_a_row_of_its_table_is_stuck_or_deferred() -> None:
    consumer = MicroBatches()
    status = ConsumerStatus(consumer.clock, lambda _datasets: MIRRORS, lambda _mirror: None)
    deletion = automatic(status, consumer.clock)
    consumer.writer.stuck = lambda _table, row: row["name"] == "stuck"

    def due_meanwhile(time: timedelta) -> set[str]:
        """Apply others of the table, and of another, every minute; return what was due."""
        found: set[str] = set()
        for _minute in range(time // timedelta(minutes=1)):
            consumer.clock.pass_time(timedelta(minutes=1))
            others = a_message(a_change(3)), a_message(a_change(3), header=a_header("airports"))
            status.take(Report(counts=consumer.apply(*others)))
            status.document(ready=True, alive=True)
            found |= {mirror.table for mirror in deletion.due()}
        return found

    due_meanwhile(timedelta(minutes=1))
    for delivery in range(1, 11):
        bad = a_message(a_change(1, 9, name="stuck"), delivery_attempt=delivery)
        status.take(Report(counts=consumer.apply(a_message(a_change(3)), bad)))
        if consumer.dead_letters.kept:
            break
        assert due_meanwhile(consumer.limits.deferral_at(delivery)) == set()
    assert delivery == 10
    assert due_meanwhile(timedelta(minutes=2)) == {"planes"}


def test_no_missing_row_is_deleted_in_the_gaps_between_the_tasks_of_a_backlog() -> None:
    clock = SetClock()
    status = ConsumerStatus(
        clock, lambda _datasets: MIRRORS, lambda _mirror: None, oldest_messages=OldestMessages(clock, lately=AFTER)
    )
    deletion = automatic(status, clock)

    def due() -> set[str]:
        status.document(ready=True, alive=True)
        return {mirror.table for mirror in deletion.due()}

    def micro_batches(time: timedelta, published: int) -> set[str]:
        """Let a worker hold messages for some seconds of each minute; return what was due between its tasks."""
        found: set[str] = set()
        for minute in range(time // timedelta(minutes=1)):
            status.take(Report(process="worker", oldest_outstanding=published + minute))
            clock.pass_time(timedelta(seconds=10))
            status.take(Report(process="worker"))
            clock.pass_time(timedelta(seconds=50))
            found |= due()
        return found

    assert due() == set()
    assert micro_batches(4 * AFTER, published=SINCE - 1_000) == set()
    assert micro_batches(AFTER - timedelta(minutes=1), published=SINCE + 1) == set()
    assert micro_batches(timedelta(minutes=1), published=SINCE + 1) == {"planes"}


def test_the_consumer_shows_why_missing_rows_are_not_deleted() -> None:
    status = ConsumerStatus(SetClock(), lambda _datasets: MIRRORS, lambda _mirror: None)
    status.document(ready=True, alive=True)
    assert list(status.mirrors()) == MIRRORS

    status.deletion_refused("planes", "too many")
    (shown,) = cast("list[dict[str, object]]", status.document(ready=True, alive=True)["tables"])
    assert (shown["table"], shown["deletion_refused"]) == ("planes", "too many")
