"""How long a table in trouble delays others, by the limits that the service has, in virtual time.

Without trouble, no time goes by in this world: a row's delay is the time from the start of the backlog to its ack.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from types import SimpleNamespace

import pytest

from services.cdc_consumer.adapters.bigquery.unanswered import ANSWERS_WITHIN
from services.cdc_consumer.app.stream.trouble import RetryLimits
from services.cdc_consumer.core.schema.tables import TableDefinition
from services.cdc_consumer.core.stream.counts import Counts
from services.cdc_consumer.ports import Heard
from tests.builders import PLANE_COLUMNS, a_change, a_header, a_message
from tests.fakes.cdc_writer import NEVER, FakeAppending
from tests.unit.cdc_consumer.world import AIRPORTS, PassingStop, World

OTHERS = ("airports", "pilots", "seats")
LIMITS = RetryLimits()
MARGIN = timedelta(seconds=1)
"""The longest wait between two attempts with a table that is refused; each turn of waiting for answers is shorter."""


def fails(world: World) -> None:
    world.writer.failing.add("planes")


def gives_no_answer(world: World) -> None:
    world.writer.answers_after["planes"] = NEVER


def may_not_be_made(world: World) -> None:
    world.tables.forbidden.add("planes")


def may_not_be_written(world: World) -> None:
    world.tables.unwritable.add("planes")


def is_not_found(world: World) -> None:
    world.writer.missing.add("planes")


def has_no_known_definition(world: World) -> None:
    asked: list[str] = []

    def is_waited_for_once(table: str) -> bool:
        if table == "planes" and not asked:
            asked.append(table)
            world.clock.pass_time(ANSWERS_WITHIN)
        return table == "planes"

    world.tables.interrupted = is_waited_for_once
    world.tables.unanswered = True


KINDS = (fails, gives_no_answer, may_not_be_made, may_not_be_written, is_not_found, has_no_known_definition)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    world = World(limits=LIMITS)
    world.stop = PassingStop(world.clock)
    monkeypatch.setattr("tenacity.time", SimpleNamespace(monotonic=lambda: world.clock.passed / 1e9))
    return world


@pytest.fixture
def delays(world: World) -> list[timedelta]:
    """Return after how long each message was acked."""
    began, ack, found = world.clock.passed, world.leases.ack, []

    def note(ack_ids: Sequence[str]) -> None:
        ack(ack_ids)
        found.extend([passed(world, began)] * len(ack_ids))

    world.leases.ack = note  # type: ignore[method-assign]
    return found


def passed(world: World, since: int) -> timedelta:
    return timedelta(microseconds=(world.clock.passed - since) // 1_000)


def apply_to(world: World, number: int, *tables: str) -> Counts:
    return world.apply(*[a_message(a_change(1, number), header=a_header(table)) for table in tables])


@pytest.mark.parametrize("tables", [("planes", *OTHERS), (*OTHERS, "planes")], ids=["first", "last"])
@pytest.mark.parametrize("begins", KINDS)
def test_a_table_in_trouble_delays_a_backlog_of_others_by_its_retry_time_once(
    world: World, delays: list[timedelta], begins: Callable[[World], None], tables: Sequence[str]
) -> None:
    begins(world)
    for number in range(1, 11):
        counts = apply_to(world, number, *tables)
        assert (counts.acked, counts.deferred, counts.tables_in_trouble) == (len(OTHERS), 1, ("planes",))

    assert len(delays) == 10 * len(OTHERS)
    assert max(delays) <= LIMITS.table + MARGIN
    assert all(world.names(table) == {1: "name 10"} for table in OTHERS)


@pytest.mark.parametrize("begins", KINDS)
def test_a_table_that_stays_in_trouble_delays_no_micro_batch_for_longer(
    world: World, begins: Callable[[World], None]
) -> None:
    begins(world)
    lasted, start = [], world.clock.passed
    for number in range(1, 61):
        began = world.clock.passed
        apply_to(world, number, "planes", *OTHERS)
        lasted.append(passed(world, began))
        world.clock.pass_time(timedelta(seconds=9))

    assert max(lasted) <= LIMITS.table + MARGIN
    assert sum(lasted, timedelta(0)) <= passed(world, start) / 10


def set_clock_once(world: World, by: timedelta) -> None:
    """Set the clock of the day as soon as the world waits for something."""
    set_once = iter([by])
    world.meanwhile = lambda: world.clock.set(next(set_once, timedelta(0)))


@pytest.mark.parametrize("by", [-timedelta(hours=1), timedelta(hours=1)], ids=["back", "forward"])
@pytest.mark.parametrize("begins", KINDS)
def test_a_clock_that_is_set_meanwhile_delays_no_micro_batch_for_longer(
    world: World, begins: Callable[[World], None], by: timedelta
) -> None:
    begins(world)
    set_clock_once(world, by)
    began = world.clock.passed
    counts = apply_to(world, 1, "planes", *OTHERS)

    assert (counts.acked, counts.deferred, counts.tables_in_trouble) == (len(OTHERS), 1, ("planes",))
    assert passed(world, began) <= LIMITS.table + MARGIN


@pytest.mark.parametrize("by", [-timedelta(hours=1), timedelta(hours=1)], ids=["back", "forward"])
@pytest.mark.parametrize("begins", [fails, gives_no_answer])
def test_a_clock_that_is_set_meanwhile_does_not_change_how_long_a_table_is_waited_for_alone(
    world: World, begins: Callable[[World], None], by: timedelta
) -> None:
    begins(world)
    set_clock_once(world, by)
    began = world.clock.passed
    assert apply_to(world, 1, "planes").deferred == 1

    assert LIMITS.alone <= passed(world, began) <= LIMITS.alone + LIMITS.table + LIMITS.between_calls


def test_a_definition_is_waited_for_as_long_as_a_table_is_retried() -> None:
    assert LIMITS.table == ANSWERS_WITHIN


@pytest.mark.parametrize("begins", [fails, gives_no_answer])
def test_a_table_alone_in_its_micro_batch_is_waited_for_five_minutes(
    world: World, begins: Callable[[World], None]
) -> None:
    begins(world)
    began = world.clock.passed
    counts = apply_to(world, 1, "planes")

    assert counts.deferred == 1
    assert world.leases.deferred_for == {"a0": LIMITS.longest_deferral}
    assert LIMITS.alone <= passed(world, began) <= LIMITS.alone + LIMITS.table + LIMITS.between_calls
    world.clock.pass_time(LIMITS.longest_deferral)
    again = world.clock.passed
    apply_to(world, 1, "planes")  # still nothing tells, so it may still be the service
    assert passed(world, again) >= LIMITS.alone


@pytest.mark.parametrize("before", [(), OTHERS], ids=["new process", "rows of earlier tasks"])
def test_where_all_tables_are_slow_none_is_in_trouble(
    world: World, delays: list[timedelta], before: Sequence[str]
) -> None:
    apply_to(world, 1, *before)
    delays.clear()
    world.writer.answers_after = dict.fromkeys(("planes", *OTHERS), timedelta(seconds=8))
    counts = apply_to(world, 2, "planes", *OTHERS[:2])

    assert (counts.acked, counts.deferred, counts.tables_in_trouble) == (3, 0, ())
    assert max(delays) <= timedelta(seconds=8) + MARGIN


def test_a_table_that_takes_long_and_answers_all_the_time_is_in_no_trouble_and_others_are_acked_before(
    world: World, delays: list[timedelta]
) -> None:
    world.writer.answers_after["planes"] = timedelta(seconds=90)
    world.writer.answers_in_parts.add("planes")
    counts = apply_to(world, 1, "planes", *OTHERS)

    assert (counts.acked, counts.tables_in_trouble) == (4, ())
    assert sorted(delays)[2] <= LIMITS.table + MARGIN
    assert delays[3] <= timedelta(seconds=90) + MARGIN


def test_rows_that_were_accepted_before_the_service_fell_silent_prove_nothing(
    world: World, delays: list[timedelta]
) -> None:
    world.writer.answers_after["planes"] = timedelta(seconds=40)

    def fall_silent() -> None:
        world.writer.answers_after = dict.fromkeys(OTHERS, NEVER)

    world.meanwhile = fall_silent
    counts = apply_to(world, 1, "planes", *OTHERS)

    assert (counts.acked, counts.deferred, counts.tables_in_trouble) == (4, 0, ())
    assert sorted(delays)[2] <= LIMITS.table + MARGIN


@pytest.mark.parametrize("silent", [False, True], ids=["refusing", "silent"])
def test_a_table_that_could_not_be_had_while_the_service_was_away_is_in_no_trouble(
    world: World, delays: list[timedelta], silent: bool
) -> None:
    outage = timedelta(seconds=40)
    until = world.clock.passed + outage // timedelta(microseconds=1) * 1_000
    world.tables.unanswered = silent

    def is_unavailable(table: str) -> bool:
        if world.clock.passed < until and silent:
            world.clock.pass_time(ANSWERS_WITHIN)
        return table == "planes" and world.clock.passed < until

    world.tables.interrupted = is_unavailable
    world.writer.answers_after["airports"] = outage
    counts = apply_to(world, 1, "planes", "airports")

    assert (counts.acked, counts.deferred, counts.tables_in_trouble) == (2, 0, ())
    assert outage <= max(delays) <= outage + 2 * ANSWERS_WITHIN + MARGIN


@pytest.mark.parametrize("tables", [("planes",), tuple(f"planes_{number}" for number in range(10))], ids=["one", "ten"])
@pytest.mark.parametrize("in_parts", [False, True], ids=["at once", "in parts"])
def test_a_service_that_answers_again_may_answer_another_table_first(
    world: World, monkeypatch: pytest.MonkeyPatch, tables: Sequence[str], in_parts: bool
) -> None:
    apply_to(world, 1, *OTHERS)
    began, hear = world.clock.passed, FakeAppending.hear

    def hear_others_first(appending: FakeAppending, within: timedelta) -> Heard:
        is_other = appending.table in OTHERS
        left = max(timedelta(seconds=40 if is_other else 40.3) - passed(world, began), timedelta(0))
        world.clock.pass_time(min(left, max(within, timedelta(milliseconds=1))))
        if left > within:
            return Heard.NOTHING
        if in_parts and not is_other and passed(world, began) < timedelta(seconds=42):
            world.clock.pass_time(min(within, timedelta(milliseconds=10)))
            return Heard.SOME
        return hear(appending, within)

    monkeypatch.setattr(FakeAppending, "hear", hear_others_first)
    counts = apply_to(world, 2, *tables)

    assert (counts.acked, counts.deferred, counts.tables_in_trouble) == (len(tables), 0, ())


def test_a_table_of_many_column_lists_without_a_known_definition_delays_no_micro_batch_for_longer(world: World) -> None:
    has_no_known_definition(world)
    lists = [a_header(columns=(*PLANE_COLUMNS, (f"column_{number}", "STRING"))) for number in range(20)]
    began = world.clock.passed
    counts = world.apply(
        *[a_message(a_change(1, number), header=header) for number, header in enumerate(lists, 1)],
        a_message(a_change(1), header=AIRPORTS),
    )

    assert (counts.acked, counts.tables_in_trouble) == (1, ("planes",))
    assert passed(world, began) <= LIMITS.table + MARGIN


def test_several_tables_without_a_known_definition_delay_no_micro_batch_for_longer(world: World) -> None:
    began, asked_at, waited_for = world.clock.passed, dict[str, int](), set[str]()

    @contextmanager
    def asked_ahead(definitions: Iterable[TableDefinition]) -> Iterator[None]:
        asked_at.update(dict.fromkeys([each.identity for each in definitions], world.clock.passed))
        yield
        asked_at.clear()

    def is_silent(table: str) -> bool:
        if table in OTHERS and table not in waited_for:
            waited_for.add(table)
            so_far = passed(world, asked_at.get(table, world.clock.passed))
            world.clock.pass_time(max(timedelta(0), ANSWERS_WITHIN - so_far))
        return table in OTHERS

    world.tables.asked_ahead = asked_ahead  # type: ignore[method-assign]
    world.tables.interrupted, world.tables.unanswered = is_silent, True
    counts = apply_to(world, 1, *OTHERS, "planes")

    assert (counts.acked, set(counts.tables_in_trouble)) == (1, set(OTHERS))
    assert passed(world, began) <= LIMITS.table + MARGIN


def test_a_table_of_several_column_lists_that_is_answered_a_moment_late_is_in_no_trouble(world: World) -> None:
    began, asked = world.clock.passed, list[str]()

    def is_silent(table: str) -> bool:
        if table == "planes" and not asked:
            asked.append(table)
            world.clock.pass_time(ANSWERS_WITHIN)
        return table == "planes" and passed(world, began) < ANSWERS_WITHIN + timedelta(seconds=0.4)

    world.tables.interrupted, world.tables.unanswered = is_silent, True
    lists = [a_header(columns=(*PLANE_COLUMNS, (f"column_{number}", "STRING"))) for number in range(3)]
    counts = world.apply(
        *[a_message(a_change(1, number), header=header) for number, header in enumerate(lists, 1)],
        a_message(a_change(1), header=AIRPORTS),
    )

    assert (counts.acked, counts.tables_in_trouble) == (4, ())


def test_a_table_whose_answers_are_slow_is_in_trouble_once_and_then_waited_for(world: World) -> None:
    apply_to(world, 1, *OTHERS)
    world.writer.answers_after = dict.fromkeys(("planes", *OTHERS[:2]), timedelta(seconds=8))
    found = []
    for number in range(2, 6):
        counts = apply_to(world, number, "planes", *OTHERS)
        found.append((counts.acked, counts.deferred))
        world.clock.pass_time(LIMITS.between_waits)

    assert found == [(1, 3), (4, 0), (4, 0), (4, 0)]
    assert world.names("planes") == {1: "name 5"}


def test_a_silence_that_has_ended_does_not_count_for_a_later_one(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    began, hear = world.clock.passed, FakeAppending.hear

    def answer_in_parts(appending: FakeAppending, within: timedelta) -> Heard:
        at = (world.clock.passed - began) / 1e9
        if at > 330:
            return hear(appending, within)
        world.clock.pass_time(max(within, timedelta(milliseconds=1)))
        return Heard.NOTHING if any(each <= at < each + 5.5 for each in (0, 302)) else Heard.SOME

    monkeypatch.setattr(FakeAppending, "hear", answer_in_parts)
    counts = world.apply(a_message(*[a_change(number) for number in range(10)]))
    assert (counts.acked, counts.deferred) == (1, 0)


def test_a_late_answer_counts_for_nobody_and_the_next_attempt_writes_the_rows(world: World) -> None:
    world.writer.answers_after["planes"] = timedelta(seconds=8)
    assert apply_to(world, 1, "planes", "airports").tables_in_trouble == ("planes",)
    world.writer.answers_after.clear()
    world.clock.pass_time(LIMITS.between_waits)
    counts = apply_to(world, 2, "planes")
    assert (counts.acked, counts.tables_in_trouble) == (1, ())
    world.writer.answer_late()  # of the older row

    assert world.names() == {1: "name 2"}


def test_what_fails_and_is_then_answered_slowly_is_in_no_trouble(world: World) -> None:
    failing_until = world.clock.passed + 4_000_000_000

    def fails_at_first(table: str) -> bool:
        fails = table == "planes" and world.clock.passed < failing_until
        if fails:
            world.clock.pass_time(timedelta(seconds=4))  # a while goes by until it is sent again
            world.writer.answers_after["planes"] = LIMITS.table * 0.9
        return fails

    world.writer.interrupted = fails_at_first
    counts = apply_to(world, 1, "planes", *OTHERS)

    assert (counts.acked, counts.tables_in_trouble) == (4, ())


def test_what_fails_and_then_gives_no_answer_while_it_is_halved_is_waited_for_once(world: World) -> None:
    world.writer.failing.add("planes")
    world.meanwhile = lambda: gives_no_answer(world) if world.clock.passed - began >= 5e9 else None
    began = world.clock.passed
    rows = [a_change(number) for number in range(100)]
    counts = world.apply(a_message(*rows), a_message(a_change(1), header=AIRPORTS))

    assert counts.tables_in_trouble == ("planes",)
    assert passed(world, began) <= 2 * LIMITS.table + MARGIN
