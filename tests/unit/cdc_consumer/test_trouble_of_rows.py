"""A row that always fails retryably: found beside rows that are taken, never blamed for its table or the service."""

import random
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import pytest

from shared.contracts.errors import TransientError
from shared.contracts.reasons import Reason
from tests.builders import a_change, a_header, a_message
from tests.unit.cdc_consumer.status_world import World as StatusWorld
from tests.unit.cdc_consumer.world import AIRPORTS, WIDER, World, retrying_world


@pytest.fixture
def world() -> World:
    return retrying_world()


def stuck(world: World) -> None:
    world.writer.stuck = lambda _table, row: row["name"] == "stuck"


def come_back(world: World, *beside: Mapping[str, object], deliveries: int) -> list[tuple[int, Any, int]]:
    """Deliver a row that always fails, alone of its table, until it is a dead letter; return what each task said."""
    reports = []
    for delivery in range(1, deliveries + 1):
        world.leases.deferred_for.clear()
        counts = world.apply(a_message(a_change(1, 2, name="stuck"), delivery_attempt=delivery), *beside)
        reports.append((counts.deferred, counts.tables_in_trouble, sum(counts.dead_letters.values())))
        if counts.deferred:
            assert world.leases.deferred_for == {"a0": world.limits.deferral_at(delivery)}
            world.clock.pass_time(world.limits.deferral_at(delivery))
    return reports


@pytest.mark.parametrize("beside", [(), (a_message(a_change(1), header=AIRPORTS),)], ids=["alone", "another table"])
def test_a_row_that_always_fails_on_a_quiet_table_is_found_by_what_an_earlier_task_wrote(
    world: World, beside: tuple[Mapping[str, object], ...]
) -> None:
    stuck(world)
    assert world.apply(a_message(a_change(3))).acked == 1
    reports = come_back(world, *beside, deliveries=10)

    assert reports == [(1, (), 0)] * 9 + [(0, (), 1)]
    assert world.reasons() == [Reason.RETRIES_EXHAUSTED]
    assert world.names() == {3: "name 1"}
    assert world.apply(a_message(a_change(4))).acked == 1


def test_a_row_that_fails_when_its_tables_trouble_has_ended_is_found_too(world: World) -> None:
    stuck(world)
    world.apply(a_message(a_change(3)))
    world.writer.failing.add("planes")
    for _ in range(3):
        counts = world.apply(a_message(a_change(4)), a_message(a_change(1), header=AIRPORTS))
        assert counts.tables_in_trouble == ("planes",)
    world.writer.failing.clear()
    world.clock.pass_time(timedelta(seconds=11))

    counts = world.apply(a_message(a_change(1, 2, name="stuck"), delivery_attempt=10))
    assert (counts.dead_letters, counts.tables_in_trouble) == ({"retries_exhausted": 1}, ())


def test_a_table_that_fails_as_a_whole_blames_no_row_though_it_took_some_before(world: World) -> None:
    world.apply(a_message(a_change(3)), a_message(a_change(1), header=AIRPORTS))
    world.writer.failing.add("planes")
    for delivery in range(1, 100):
        counts = world.apply(
            a_message(a_change(1), delivery_attempt=delivery), a_message(a_change(1, delivery), header=AIRPORTS)
        )
        assert (counts.deferred, counts.tables_in_trouble) == (1, ("planes",))
        world.clock.pass_time(world.limits.deferral_at(delivery))

    assert world.dead_letters.kept == {}


def test_a_row_of_another_column_list_reports_nothing_of_a_list_that_fails_as_a_whole(world: World) -> None:
    world.apply(a_message(a_change(3)))
    world.writer.stuck = lambda _table, row: "colour" in row
    for delivery in range(1, 20):
        message = a_message(a_change(1, colour="red"), header=WIDER, delivery_attempt=delivery)
        counts = world.apply(message, a_message(a_change(1, delivery), header=AIRPORTS))
        assert (counts.deferred, counts.tables_in_trouble) == (1, ("planes",))
        world.clock.pass_time(world.limits.deferral_at(delivery))

    assert world.dead_letters.kept == {}


def test_a_table_of_which_one_column_list_always_fails_is_deferred_whatever_is_taken_of_others(world: World) -> None:
    status, other_process = StatusWorld(), World()
    status.clock = other_process.clock = world.clock
    status.start()
    world.apply(a_message(a_change(3)))
    world.writer.stuck = lambda _table, row: "colour" in row
    failing = a_message(a_change(1, colour="red"), header=WIDER)
    for delivery in range(1, 5):
        for process, message in (
            (world, {**failing, "delivery_attempt": delivery}),
            (other_process, a_message(a_change(3))),
        ):
            status.take(counts := process.apply(message))
            assert counts.deferred == (process is world)
            assert (list(status.status.failing()), status.states()) == (["planes"], {"planes": "deferred"})
        world.clock.pass_time(timedelta(minutes=4))
    (since,) = status.status.failing().values()
    assert world.clock.now() // 1_000 - since > timedelta(minutes=15) / timedelta(microseconds=1)

    status.take(other_process.apply(failing))
    assert (status.status.failing(), status.states()) == ({}, {"planes": "running"})


def test_a_table_of_another_source_stays_deferred_whatever_is_taken_of_the_first(world: World) -> None:
    status, first, other = StatusWorld(), a_header("air.planes"), a_header("air_planes")
    status.clock = world.clock
    status.start()
    world.apply(a_message(a_change(1), header=first))
    for delivery in range(1, 5):
        of_other = a_message(a_change(1), header=other, delivery_attempt=delivery)
        for message in (of_other, a_message(a_change(1, delivery + 1), header=first)):
            status.take(world.apply(message))
            assert list(status.status.failing()) == ["air_planes"]
        world.clock.pass_time(timedelta(minutes=4))
    (since,) = status.status.failing().values()
    assert world.clock.now() // 1_000 - since > timedelta(minutes=15) / timedelta(microseconds=1)


def test_a_row_of_a_history_is_never_sent_again_by_a_later_task() -> None:
    world = World(tables_file='[tables.planes]\nmode = "history"')
    world.clock.ticks = timedelta(seconds=1)
    stuck(world)
    world.apply(a_message(a_change(3)), a_message(a_change(1), header=AIRPORTS))
    for delivery in range(1, 20):
        message = a_message(a_change(1, 2, name="stuck"), delivery_attempt=delivery)
        assert world.apply(message, a_message(a_change(1, delivery), header=AIRPORTS)).deferred == 1
        world.clock.pass_time(timedelta(seconds=600))

    assert [len(rows) for rows in world.writer.appended.values()] == [1]
    assert world.dead_letters.kept == {}


def in_a_new_process(tables_file: str = "") -> World:
    """Return a world in which nothing was ever written, and that is asked to stop after an hour of waiting."""
    world = retrying_world(tables_file)
    stuck(world)

    def stop_after_an_hour() -> None:
        if world.waits > 3_600:
            world.stop.request()

    world.meanwhile = stop_after_an_hour
    return world


@pytest.mark.parametrize("mode", ["mirror", "history", "both"])
@pytest.mark.parametrize("place", [0, 25, 49])
def test_one_bad_row_in_the_first_micro_batch_of_a_process_holds_up_nothing_but_its_message(
    mode: str, place: int
) -> None:
    world = in_a_new_process(f'[tables.planes]\nmode = "{mode}"')
    good = [a_change(n) for n in range(10, 59)]
    messages = [a_message(one) for one in (*good[:place], a_change(1, 2, name="stuck"), *good[place:])]
    began = world.clock.time
    counts = world.apply(*messages)

    assert (counts.acked, counts.deferred, counts.tables_in_trouble, world.dead_letters.kept) == (49, 1, (), {})
    assert world.leases.deferred_for == {f"a{place}": timedelta(seconds=30)}
    assert world.clock.time - began < 600e9
    for rows in world.writer.appended.values():
        assert {row["id"] for row in rows} == set(range(10, 59))


def test_a_bad_row_alone_in_its_task_is_no_trouble_of_two_tables_because_it_has_a_history() -> None:
    world = in_a_new_process('[tables.planes]\nmode = "both"')
    counts = world.apply(a_message(a_change(1, 2, name="stuck")))

    assert (counts.deferred, world.dead_letters.kept) == (1, {})
    assert world.leases.deferred_for == {"a0": timedelta(seconds=600)}


def test_bad_rows_of_several_tables_in_the_first_micro_batch_of_a_process_hold_up_nothing_else() -> None:
    world = in_a_new_process()
    bad, good = a_change(1, 2, name="stuck"), [a_change(n) for n in range(10, 60)]
    counts = world.apply(
        a_message(bad), a_message(*good), a_message(bad, header=AIRPORTS), a_message(bad, a_change(3), header=AIRPORTS)
    )

    assert (counts.acked, counts.deferred, counts.tables_in_trouble) == (1, 3, ())
    assert (len(world.names()), set(world.names("airports")), world.dead_letters.kept) == (50, {3}, {})


def test_a_service_that_is_unavailable_is_asked_for_few_rows_more_and_waited_for_as_before() -> None:
    world = in_a_new_process()
    world.writer.unavailable, asked = 1_000_000, []
    append = world.writer.append

    def count_append(definition: Any, rows: Any) -> Any:
        asked.append(len(rows))
        return append(definition, rows)

    world.writer.append = count_append  # type: ignore[method-assign]
    headers = [a_header(f"table{number}") for number in range(40)]
    with pytest.raises(TransientError):
        world.apply(*[a_message(*[a_change(n) for n in range(50)], header=one) for one in headers])
    rounds = world.waits / 40

    assert not any(effect.startswith(("defer", "ack")) for effect in world.effects.done)
    assert asked[:40] == [50] * 40
    assert set(asked[40:]) == {1}
    assert 0 < len(asked[40:]) <= 3 * rounds


BLIPS = [[True] * refusals for refusals in range(1, 40)]
"""What ends while rows are looked at one by one."""


def now_and_then(probability: float) -> list[list[bool]]:
    """Return which appends fail of a table that takes them only now and then, for each of some seeds."""
    chances = [random.Random(seed) for seed in range(20)]
    return [[chance.random() < probability for _ in range(500)] for chance in chances]


@pytest.mark.parametrize(
    ("rows", "refusals"),
    [
        *(pytest.param(rows, BLIPS, id=f"a blip over {rows} rows") for rows in (2, 9, 100)),
        *(pytest.param(30, now_and_then(each), id=f"{each} of the appends fail") for each in (0.3, 0.5, 0.8)),
    ],
)
def test_a_table_that_fails_for_a_while_or_now_and_then_has_no_bad_rows(
    rows: int, refusals: Sequence[Sequence[bool]]
) -> None:
    for refused in refusals:
        world, left = retrying_world(), iter(refused)
        world.writer.interrupted = lambda table, left=left: table == "planes" and next(left, False)  # type: ignore[misc]
        counts = world.apply(
            a_message(*[a_change(n) for n in range(rows)], delivery_attempt=10),
            a_message(a_change(1), header=AIRPORTS),
        )
        assert (counts.dead_letters, world.dead_letters.kept) == ({}, {}), refused
