"""A flood of poison: the query stops before anything of it is set aside, in tasks small or large."""

import pytest

from services.cdc_consumer.flood import PoisonFlood
from shared.contracts.errors import MisconfiguredError
from shared.contracts.reasons import Reason
from tests.builders import a_change, a_message
from tests.unit.cdc_consumer.world import World


@pytest.fixture
def world() -> World:
    return World()


def garbage(count: int) -> list[object]:
    return [a_message(data=b"{ %d" % number) for number in range(count)]


def good(count: int) -> list[object]:
    return [a_message(a_change(number)) for number in range(count)]


def test_a_majority_that_cannot_be_decoded_is_a_bad_deploy_and_drains_nothing(world: World) -> None:
    with pytest.raises(MisconfiguredError, match=r"101 of the last 200 messages cannot be applied \(undecodable: 101"):
        world.apply(*garbage(101), *good(99))  # type: ignore[arg-type]

    assert world.letters.kept == {}
    assert world.leases.acked == []
    assert len(world.leases.put_off_for) == 200
    assert world.names() == {}


@pytest.mark.parametrize(("bad", "well"), [(150, 150), (100, 0)])
def test_half_of_the_messages_or_few_of_them_are_bad_records(world: World, bad: int, well: int) -> None:
    counts = world.apply(*garbage(bad), *good(well))  # type: ignore[arg-type]

    assert counts.letters == {"undecodable": bad}
    assert counts.acked == bad + well


def test_small_tasks_are_counted_together(world: World) -> None:
    for message in garbage(100):
        world.apply(message)  # type: ignore[arg-type]
    with pytest.raises(MisconfiguredError, match="101 of the last 101 messages"):
        world.apply(a_message(data=b"one too many"))

    assert len(world.letters.kept) == 100


def test_what_was_long_ago_counts_no_more(world: World) -> None:
    world.memory.flood = PoisonFlood(5)
    for _ in range(10):
        world.apply(*good(49), *garbage(1))  # type: ignore[arg-type]
    world.apply(*garbage(5))  # type: ignore[arg-type]
    for number in range(20):
        world.apply(a_message(data=b"%d" % number))
    with pytest.raises(MisconfiguredError, match="51 of the last 100 messages"):
        world.apply(*garbage(25))  # type: ignore[arg-type]

    assert len(world.letters.kept) < 40


@pytest.mark.parametrize("messages", [3, 30])
def test_a_flood_of_changes_that_cannot_be_applied_is_stopped_too_and_no_value_is_named(
    world: World, messages: int
) -> None:
    bad = [a_message(*[a_change(n, seats="secret") for n in range(1_200 // messages)]) for _ in range(messages)]
    with pytest.raises(MisconfiguredError, match=r"1200 of the last 1201 changes .*value_does_not_fit") as raised:
        world.apply(a_message(a_change(1)), *bad)

    assert "secret" not in str(raised.value)
    assert "POISON_LIMIT" in str(raised.value)
    assert (world.letters.kept, world.leases.acked) == ({}, [])


def test_rows_that_bigquery_refuses_count_and_its_words_are_not_told(world: World) -> None:
    world.memory.flood = PoisonFlood(2)
    world.writer.refuses = lambda _table, row: row["name"] == "name 7"
    with pytest.raises(MisconfiguredError, match=r"refused_by_bigquery: 25; the first: refused_by_bigquery\)"):
        world.apply(a_message(*[a_change(n, 7) for n in range(25)], a_change(99)))

    assert (world.letters.kept, world.leases.acked) == ({}, [])


def test_an_operator_lets_so_many_pass(world: World) -> None:
    world.memory.flood = PoisonFlood(500)
    counts = world.apply(*garbage(500))  # type: ignore[arg-type]

    assert counts.letters == {Reason.UNDECODABLE.value: 500}
