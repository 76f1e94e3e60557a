"""Trouble in its three sizes: whose it is, how long it is borne with, and that everything else flows on."""

import itertools
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest

from services.cdc_consumer.app.stream import trouble
from services.cdc_consumer.app.stream.trouble import RetryLimits
from services.cdc_consumer.core.schema.tables import TableDefinition
from services.cdc_consumer.core.stream.counts import Counts
from shared.contracts.errors import TransientError
from tests.builders import PLANE_COLUMNS, a_change, a_header, a_message, table_definition
from tests.unit.cdc_consumer.world import AIRPORTS, AT_ONCE, WIDER, World, retrying_world

LONGEST = timedelta(seconds=600)
HASTY = RetryLimits(table=AT_ONCE, between_calls=AT_ONCE)
FOUR = ("planes", "airports", "pilots", "seats")


@pytest.fixture
def world() -> World:
    return retrying_world()


@pytest.fixture
def attempts(world: World, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the tables that were looked at or appended to, one entry each time."""
    seen: list[str] = []
    append, ensure = world.writer.append, world.tables._brought_about

    def count_append(definition: Any, rows: Any) -> Any:
        seen.append(definition.name)
        return append(definition, rows)

    def count_ensure(definition: Any) -> Any:
        seen.append(definition.name)
        return ensure(definition)

    monkeypatch.setattr(world.writer, "append", count_append)
    monkeypatch.setattr(world.tables, "_brought_about", count_ensure)
    return seen


def apply_to(world: World, number: int, tables: Sequence[str]) -> Counts:
    return world.apply(*[a_message(a_change(number), header=a_header(table)) for table in tables])


def test_its_retry_time_is_spent_once_and_not_in_every_micro_batch(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.restart(RetryLimits(table=timedelta(seconds=0.2), between_calls=timedelta(seconds=0.01)))
    world.tables.forbidden.add("planes")
    tried: list[str] = []
    monkeypatch.setattr(world.tables, "forget", tried.append)
    world.clock.ticks = AT_ONCE
    world.apply(a_message(a_change(1)))
    first = len(tried)
    for _ in range(3):
        world.clock.pass_time(timedelta(seconds=11))
        world.apply(a_message(a_change(1)))

    assert first > 3
    assert len(tried) - first == 3


def test_one_probe_every_ten_seconds_finds_out_that_it_is_healthy_again(world: World, attempts: list[str]) -> None:
    world.tables.forbidden.add("planes")
    world.restart(HASTY)
    world.apply(a_message(a_change(1)))
    world.clock.ticks = AT_ONCE
    attempts.clear()
    for _ in range(60):
        world.clock.pass_time(timedelta(seconds=1))
        world.apply(a_message(a_change(1)))
    assert attempts.count("planes") == 6

    world.tables.forbidden.clear()
    world.clock.pass_time(timedelta(seconds=10))
    counts = world.apply(a_message(a_change(1)))
    assert (counts.acked, counts.tables_in_trouble) == (1, ())
    for number in range(3):
        assert world.apply(a_message(a_change(number))).acked == 1


def test_everything_else_is_acked_before_a_table_is_borne_with(world: World) -> None:
    world.restart(RetryLimits(table=timedelta(seconds=0.1), between_calls=AT_ONCE))
    world.tables.forbidden.add("planes")
    acked: list[int] = []
    forget = world.tables.forget
    world.tables.forget = lambda table: (acked.append(len(world.leases.acked)), forget(table))[1]  # type: ignore[method-assign,func-returns-value]
    world.apply(a_message(a_change(1)), a_message(a_change(1), header=AIRPORTS))

    assert acked[0] == 0
    assert set(acked[1:]) == {1}


@pytest.mark.parametrize("failing", ["planes", "airports"])
def test_others_are_acked_while_it_is_still_being_found_out(world: World, failing: str) -> None:
    acked_meanwhile: list[int] = []
    world.writer.failing.add(failing)
    world.meanwhile = lambda: acked_meanwhile.append(len(world.leases.acked))
    world.apply(a_message(a_change(1)), a_message(a_change(1), header=AIRPORTS))

    assert acked_meanwhile[0] == 0
    assert acked_meanwhile[1] == 1


def test_accepted_before_the_service_went_away_proves_nothing(world: World) -> None:
    """The service goes away in mid-batch: airports were accepted, planes never. A repeated row of airports tells."""
    append = world.writer.append

    def unavailable_after_airports(definition: Any, rows: Any) -> Any:
        appending = append(definition, rows)
        if definition.name == "airports":
            appending.refused()
            world.writer.unavailable = 100
            world.writer.append = append  # type: ignore[method-assign]
        return appending

    world.writer.append = unavailable_after_airports  # type: ignore[method-assign]
    counts = world.apply(a_message(a_change(1), header=AIRPORTS), a_message(a_change(1)))

    assert (counts.acked, counts.deferred) == (2, 0)
    assert world.names() == {1: "name 1"}


@pytest.mark.parametrize("before", [0, 1], ids=["first task", "a row of an earlier task is not taken either"])
def test_where_nothing_at_all_is_accepted_it_is_the_service_and_everything_waits(world: World, before: int) -> None:
    apply_to(world, 1, ["pilots"] * before)
    world.writer.unavailable = 2_000
    began = world.clock.time
    counts = apply_to(world, 1, ["planes", "airports"])

    assert (counts.acked, counts.deferred, world.dead_letters.kept) == (2, 0, {})
    assert world.clock.time - began > 600e9, "far longer than any limits with a table"
    assert not any(effect.startswith(("defer", "release")) for effect in world.effects.done)


def test_once_others_were_accepted_it_is_that_table_and_is_deferred_at_once(world: World) -> None:
    world.writer.failing.add("planes")
    world.apply(a_message(a_change(1)))
    assert world.apply(a_message(a_change(1), header=AIRPORTS)).acked == 1
    began = world.clock.time
    counts = world.apply(a_message(a_change(1)))

    assert counts.deferred == 1
    assert world.leases.deferred_for == {"a0": timedelta(seconds=30)}
    assert world.clock.time - began < 20e9


def test_several_tables_that_fail_for_ever_and_always_come_together_hold_up_no_other_for_ever(world: World) -> None:
    assert world.apply(a_message(a_change(1), header=a_header("pilots"))).acked == 1
    world.writer.failing |= {"planes", "airports"}
    began = world.clock.time
    counts = world.apply(a_message(a_change(1)), a_message(a_change(1), header=AIRPORTS))

    assert (counts.deferred, counts.tables_in_trouble) == (2, ("airports", "planes"))
    assert set(world.leases.deferred_for.values()) == {timedelta(seconds=30)}
    assert world.clock.time - began < 300e9
    assert world.names("pilots") == {1: "name 1"}
    assert world.dead_letters.kept == {}


@pytest.mark.parametrize(
    ("before", "after", "kept"),
    [(AT_ONCE, AT_ONCE, 1), (AT_ONCE, timedelta(hours=2), 0), (timedelta(hours=25), AT_ONCE, 0)],
    ids=["just accepted", "accepted long ago", "committed long ago"],
)
def test_a_row_is_not_sent_again_once_a_newer_delete_might_be_forgotten(
    world: World, before: timedelta, after: timedelta, kept: int
) -> None:
    world.clock.pass_time(before)
    world.apply(a_message(a_change(1), header=a_header("pilots")))
    world.clock.pass_time(after)

    assert len(world.memory.tables.canaries((), world.clock.time)) == kept


@pytest.mark.parametrize("limit", ["_CANARIES", "_CANARY_BYTES"])
def test_rows_of_some_tables_are_kept_the_latest_first(
    world: World, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    def kept() -> list[str]:
        return [one.definition.name for one in world.memory.tables.canaries({"table11"}, world.clock.time)]

    world.apply(a_message(a_change(1), header=a_header("table0")))
    (first,) = world.memory.tables.canaries((), world.clock.time)
    monkeypatch.setattr(trouble, limit, 8 if limit == "_CANARIES" else 8 * first.row.nbytes + 100)
    for _ in range(2):
        for number in range(12):
            world.apply(a_message(a_change(1), header=a_header(f"table{number}")))
        assert kept() == [f"table{number}" for number in range(10, 3, -1)]


def test_a_table_that_cannot_even_be_inspected_while_others_are_accepted_is_in_trouble(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    ensure = world.tables._brought_about

    def fail(definition: Any) -> Any:
        if definition.name == "planes":
            raise TransientError("503")
        return ensure(definition)

    monkeypatch.setattr(world.tables, "_brought_about", fail)
    counts = world.apply(a_message(a_change(1)), a_message(a_change(1), header=AIRPORTS))

    assert (counts.acked, counts.deferred, counts.tables_in_trouble) == (1, 1, ("planes",))


def test_messages_that_came_often_are_handled_last_and_together(world: World) -> None:
    world.apply(
        a_message(a_change(1), delivery_attempt=7),
        a_message(a_change(2), delivery_attempt=4),
        a_message(a_change(3)),
        a_message(a_change(4), delivery_attempt=2),
    )

    assert world.leases.acked == ["a2", "a3", "a0", "a1"]
    assert world.effects.done.count("ack 2") == 2


def world_of_four(world: World, process: str) -> None:
    """Let all four tables be there, known to the running process or made by an earlier one."""
    world.restart(HASTY)
    apply_to(world, 9, FOUR)
    if process == "new":
        world.restart(HASTY)


def refuse_the_dataset(world: World) -> None:
    world.tables.dataset_refused = True


def refuse_writes(world: World) -> None:
    world.tables.unwritable = set(FOUR)


def until_the_right_is_back(world: World, after: timedelta) -> None:
    """Let the dataset be read and written again after a while, at the beginning of an attempt."""
    ensure, until = world.tables.ensure, world.clock.time + after.total_seconds() * 1e9

    def ensure_and_see(definition: TableDefinition) -> TableDefinition:
        if world.clock.time > until:
            world.tables.dataset_refused = False
            world.tables.unwritable.clear()
        return ensure(definition)

    world.tables.ensure = ensure_and_see  # type: ignore[method-assign]


@pytest.mark.parametrize("refuse", [refuse_the_dataset, refuse_writes])
@pytest.mark.parametrize("tables", [FOUR[:1], FOUR], ids=["one table", "all tables"])
@pytest.mark.parametrize("process", ["running", "new"])
def test_while_a_dataset_or_the_right_to_write_to_it_is_refused_all_wait_and_no_delivery_attempt_is_spent(
    world: World, process: str, tables: tuple[str, ...], refuse: Callable[[World], None]
) -> None:
    world_of_four(world, process)
    world.clock.ticks = timedelta(minutes=1)
    refuse(world)
    until_the_right_is_back(world, timedelta(hours=17))
    began = world.clock.time
    counts = apply_to(world, 1, tables)

    assert world.clock.time - began > 17 * 3_600e9, "by then all 100 deliveries would have been spent"
    assert (counts.acked, counts.deferred, world.dead_letters.kept) == (len(tables), 0, {})
    assert all(1 in world.names(table) for table in tables)
    assert not any(effect.startswith(("defer", "release")) for effect in world.effects.done)


@pytest.mark.parametrize("refuse", [refuse_the_dataset, refuse_writes])
@pytest.mark.parametrize("refused", range(1, 9))
def test_a_right_that_comes_back_between_two_tables_leaves_neither_in_trouble(
    world: World, refuse: Callable[[World], None], refused: int
) -> None:
    world_of_four(world, "new")
    refuse(world)
    ensure, calls = world.tables.ensure, itertools.count(1)

    def ensure_and_see(definition: TableDefinition) -> TableDefinition:
        if next(calls) > refused:
            world.tables.dataset_refused = False
            world.tables.unwritable.clear()
        return ensure(definition)

    world.tables.ensure = ensure_and_see  # type: ignore[method-assign]
    counts = apply_to(world, 1, FOUR)

    assert (counts.acked, counts.deferred, counts.tables_in_trouble) == (len(FOUR), 0, ())


def test_a_refused_dataset_reports_its_fix_while_it_is_waited_for(world: World) -> None:
    refuse_the_dataset(world)
    until_the_right_is_back(world, timedelta(seconds=20))
    world.apply(a_message(a_change(1)))

    assert ("planes", "the dataset may not be read; give this identity a role on it") in world.waited


def test_a_stop_while_a_refused_dataset_is_waited_for_gives_everything_back(world: World) -> None:
    refuse_the_dataset(world)
    world.stop.request()
    with pytest.raises(TransientError):
        world.apply(a_message(a_change(1)), a_message(a_change(1), header=AIRPORTS))

    assert (world.leases.acked, world.leases.released, world.dead_letters.kept) == ([], ["a0", "a1"], {})


def test_tables_of_another_dataset_do_not_wait_for_the_one_that_is_refused() -> None:
    world = World(tables_file='[tables.airports]\ndataset = "other"')
    world.clock.ticks = timedelta(seconds=1)
    refuse_the_dataset(world)
    counts = world.apply(a_message(a_change(1)), a_message(a_change(1), header=AIRPORTS))

    assert (world.leases.acked, counts.deferred, counts.tables_in_trouble) == (["a1"], 1, ("planes",))


def test_a_table_whose_conflict_is_remembered_is_not_asked_for_again() -> None:
    world = World()
    world.tables.there["planes"] = table_definition(a_header(key=("name",)))
    for number in (1, 2):
        assert apply_to(world, number, ("planes", "airports")).dead_letters == {"schema_conflict": 1}
    assert [each for each in world.tables.asked_ahead_for if each] == [["planes", "airports"], ["airports"]]


def test_a_table_of_a_refused_dataset_is_asked_for_once_more_only_as_its_trouble_begins() -> None:
    world = World(limits=HASTY, tables_file='[tables.airports]\ndataset = "other"')
    refuse_the_dataset(world)
    ensure, asked = world.tables.ensure, list[str]()

    def ensure_and_note(definition: TableDefinition) -> TableDefinition:
        asked.append(definition.identity)
        return ensure(definition)

    world.tables.ensure = ensure_and_note  # type: ignore[method-assign]
    times = []
    for number in range(1, 4):
        asked.clear()
        counts = apply_to(world, number, ("planes", "airports"))
        assert (counts.acked, counts.tables_in_trouble) == (1, ("planes",))
        times.append(asked.count("planes"))
        world.clock.pass_time(HASTY.between_probes)
    assert times == [2, 1, 1]


@pytest.mark.parametrize("process", ["running", "new"])
def test_of_four_tables_the_one_that_may_not_be_written_is_deferred_alone(world: World, process: str) -> None:
    world_of_four(world, process)
    world.tables.unwritable = {"planes"}
    for number in range(1, 4):
        counts = apply_to(world, number, FOUR)
        assert (counts.acked, counts.deferred, counts.tables_in_trouble) == (3, 1, ("planes",))
    alone = apply_to(world, 4, ["planes"])

    assert (alone.acked, alone.deferred, world.dead_letters.kept) == (0, 1, {})


def test_a_table_in_trouble_waits_too_once_the_write_right_is_gone_from_all(world: World) -> None:
    """Its next attempt finds out: then its messages spend no more delivery attempts either."""
    world_of_four(world, "running")
    world.tables.unwritable = {"planes"}
    assert apply_to(world, 1, FOUR).deferred == 1
    refuse_writes(world)
    world.clock.pass_time(timedelta(seconds=11))
    world.clock.ticks = timedelta(minutes=1)
    until_the_right_is_back(world, timedelta(hours=17))
    counts = apply_to(world, 2, ["planes"])

    assert (counts.acked, counts.deferred) == (1, 0)


def test_where_bigquery_does_not_answer_about_rights_a_refused_table_is_in_trouble_by_itself(world: World) -> None:
    def unanswered(definition: TableDefinition) -> None:
        raise TransientError("away")

    world_of_four(world, "running")
    world.tables.unwritable = {"planes"}
    world.tables.check_rights = unanswered  # type: ignore[method-assign]
    counts = apply_to(world, 1, FOUR)

    assert (counts.acked, counts.deferred, counts.tables_in_trouble) == (3, 1, ("planes",))


# A table that the changes do not fit: when it is looked at again.


OTHER_KEY = a_header(columns=(("id", "STRING"), *PLANE_COLUMNS[1:]))
"""A key of another type, beside which there can be no other column."""


def test_a_schema_conflict_is_inspected_again_so_that_a_fixed_table_flows_again(world: World) -> None:
    world.apply(a_message(a_change(1), header=OTHER_KEY))
    refused = world.apply(a_message(a_change(2)))
    assert refused.dead_letters == {"schema_conflict": 1}
    assert refused.tables["planes"].unfit.startswith("schema_conflict: ")

    (wrong,) = world.tables.there.values()
    world.apply(a_message(a_change(1), header=WIDER))
    world.tables.there.clear()  # an operator drops the table, so that it is made again
    world.clock.pass_time(timedelta(seconds=11))
    counts = world.apply(a_message(a_change(2)))

    assert (counts.dead_letters, counts.rows_written, counts.tables["planes"].unfit) == ({}, 1, "")
    assert world.tables.there["planes"] != wrong
    assert world.memory.tables.knows_conflicts, "of the wider list"
    world.apply(a_message(a_change(3), header=WIDER))
    assert not world.memory.tables.knows_conflicts


@pytest.mark.parametrize("by", [-timedelta(hours=3), timedelta(hours=3)])
def test_a_clock_that_was_set_delays_no_inspection_and_no_attempt(world: World, by: timedelta) -> None:
    world.restart(HASTY)
    world.apply(a_message(a_change(1), header=OTHER_KEY))
    assert world.apply(a_message(a_change(2))).dead_letters == {"schema_conflict": 1}
    world.tables.forbidden.add("airports")
    assert apply_to(world, 1, ("airports",)).tables_in_trouble == ("airports",)

    world.clock.set(by)
    world.clock.pass_time(HASTY.between_probes)
    world.tables.there.clear()
    world.tables.forbidden.clear()
    counts = apply_to(world, 3, ("airports", "planes"))

    assert (counts.dead_letters, counts.rows_written, counts.tables_in_trouble) == ({}, 2, ())


def test_conflicts_are_not_inspected_with_every_message(world: World, attempts: list[str]) -> None:
    world.clock.ticks = AT_ONCE
    world.apply(a_message(a_change(1), header=OTHER_KEY))
    attempts.clear()
    for number in range(20):
        assert world.apply(a_message(a_change(number))).dead_letters == {"schema_conflict": 1}
    assert len(attempts) == 1

    world.clock.pass_time(timedelta(seconds=11))
    world.apply(a_message(a_change(1)))
    assert 2 <= len(attempts) <= 3


def test_a_replay_is_reason_to_look_at_once(world: World) -> None:
    world.clock.ticks = AT_ONCE
    world.apply(a_message(a_change(1), header=OTHER_KEY))
    refused = a_message(a_change(2))
    assert world.apply(refused).dead_letters == {"schema_conflict": 1}
    world.tables.there.clear()
    assert world.apply(a_message(a_change(3))).dead_letters == {"schema_conflict": 1}, "said from memory"

    counts = world.apply(dict(refused) | {"attributes": [("replay_of", "a letter")]}, a_message(a_change(4)))
    assert (counts.dead_letters, counts.rows_written) == ({}, 2)
