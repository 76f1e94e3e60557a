"""A table that the changes do not fit: when it is looked at again."""

from datetime import timedelta

from tests.builders import PLANE_COLUMNS, a_change, a_header, a_message
from tests.unit.cdc_consumer.world import AT_ONCE, WIDER, World

OTHER_KEY = a_header(columns=(("id", "STRING"), *PLANE_COLUMNS[1:]))
"""A key of another type, beside which there can be no other column."""


def test_a_schema_conflict_is_looked_at_anew_so_that_a_mended_table_flows_again(world: World) -> None:
    world.apply(a_message(a_change(1), header=OTHER_KEY))
    assert world.apply(a_message(a_change(2))).dead_letters == {"schema_conflict": 1}

    (wrong,) = world.tables.there.values()
    world.apply(a_message(a_change(1), header=WIDER))
    world.tables.there.clear()  # an operator drops the table, so that it is made again
    world.clock.pass_time(timedelta(seconds=11))
    counts = world.apply(a_message(a_change(2)))

    assert (counts.dead_letters, counts.rows_written) == ({}, 1)
    assert world.tables.there["planes"] != wrong
    assert world.memory.tables.knows_conflicts, "of the wider list"
    world.apply(a_message(a_change(3), header=WIDER))
    assert not world.memory.tables.knows_conflicts


def test_conflicts_are_not_looked_at_with_every_message(world: World, attempts: list[str]) -> None:
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
