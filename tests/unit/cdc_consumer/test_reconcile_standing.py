"""Rows that change while they are compared: what is called different, what is waited for, what nobody can say."""

import json
from itertools import islice
from pathlib import Path

import pytest

from services.cdc_consumer.app.reconcile.reconcile_report import exit_code, lines
from shared.contracts.change_sequence import four_sections
from tests.unit.cdc_consumer.compared import NOTE, START, World, kinds, reconciled


def test_what_arrives_meanwhile_is_no_difference(tmp_path: Path) -> None:
    world = World({1: NOTE, 2: NOTE}, {3: NOTE})

    def arrive(w: World) -> None:
        for key in (1, 3, 2):
            w.apply(key)

    world.events = [arrive]

    result = reconciled(world, tmp_path)

    assert result.equal
    assert exit_code([result]) == 0


def test_a_mirror_row_that_goes_on_moving_is_neither_equal_nor_different(tmp_path: Path) -> None:
    world = World({1: NOTE, 2: NOTE}, {1: "{}", 2: NOTE})

    def move(w: World) -> None:
        w.applied[1] = w.sequence()

    world.events = [move] * 1_000

    result = reconciled(world, tmp_path)

    assert not result.differences
    assert [one.key for one in result.changing] == ["[1]"]
    assert exit_code([result]) == 3
    assert "undecided" in "\n".join(lines(result, 20))


def test_a_source_row_that_goes_on_changing_differs_from_a_mirror_row_that_stands_still(tmp_path: Path) -> None:
    world = World({1: NOTE}, {1: "{}"})

    def change(w: World) -> None:
        w.source[1] = json.dumps({"s": str(w.now)})

    world.events = [change] * 1_000

    assert kinds(reconciled(world, tmp_path)) == {1: "different"}


def test_how_long_ago_a_row_was_applied_makes_no_difference(tmp_path: Path) -> None:
    """Nor whether anybody knows: the values are compared."""
    world = World(dict.fromkeys(range(4), NOTE), {0: NOTE, 1: NOTE, 2: NOTE, 3: "{}"})
    world.applied = {0: world.sequence(), 1: str(four_sections(1)), 3: str(four_sections(1))}

    result = reconciled(world, tmp_path)

    assert kinds(result) == {3: "different"}
    assert (result.matched, result.undecided) == (4, 0)


def test_what_has_been_applied_is_told_up_to_the_present(tmp_path: Path) -> None:
    world = World({1: NOTE, 2: NOTE}, {1: NOTE, 2: NOTE})
    world.applied = {1: world.sequence(ahead=-5), 2: world.sequence(ahead=10**12)}

    assert reconciled(world, tmp_path).newest_applied == world.sequence(ahead=-5)


def test_a_row_with_an_applied_sequence_of_a_time_to_come_is_compared_like_any_other(tmp_path: Path) -> None:
    world = World({1: NOTE, 2: NOTE}, {1: "{}", 2: NOTE})
    world.applied = dict.fromkeys([1, 2], world.sequence(ahead=10**12))

    result = reconciled(world, tmp_path, repair=True)

    assert kinds(result) == {1: "different"}
    assert "a time in the future" in result.not_repaired[0]
    assert not world.published


@pytest.mark.parametrize(
    "stray",
    [
        None,
        pytest.param(str(four_sections(10**18)), id="of a time to come"),
        pytest.param("FF", id="short"),
        pytest.param(str(four_sections(START // 1_000 - 1)), id="of a repair, or a snapshot"),
    ],
)
def test_while_the_mirror_is_on_its_way_to_the_source_nothing_is_called_different(
    tmp_path: Path, stray: str | None
) -> None:
    """A consumer that is two minutes behind applies everything in the end, one row every five seconds.

    A row that looks newer than all others does not make it look as if it were there.
    """
    world = World(dict.fromkeys(range(25), NOTE), dict.fromkeys(range(25), "{}"))
    if stray is not None:
        world.source[99] = world.mirror[99] = NOTE
        world.applied[99] = stray
    base = world.now // 1_000 - 10**9
    late = iter(range(25))

    def apply(w: World) -> None:
        for key in islice(late, 6):  # half a minute has passed
            w.apply(key)
            w.applied[key] = str(four_sections(base + key))

    world.events = [apply] * 1_000

    assert reconciled(world, tmp_path).equal
