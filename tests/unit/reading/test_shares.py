"""How readers share partitions: by their load, at rest, and so that every free partition finds a reader."""

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.reading.shares import Shares


def shares(loads: Mapping[str, int], *owned: Sequence[str]) -> Shares:
    """Return the shares of readers "0", "1", ... who own some of the partitions each."""
    owners = {key: str(reader) for reader, keys in enumerate(owned) for key in keys}
    return Shares(loads, owners, [str(reader) for reader in range(len(owned))])


def settled(loads: Mapping[str, int], owned: list[list[str]]) -> int:
    """Let readers release and claim until none does; return how often a partition moved."""
    moves = 0
    while (found := shares(loads, *owned)).are_uneven and any(map(found.to_release, owned)):
        for keys in owned:
            free = [key for key in loads if key not in [one for some in owned for one in some]]
            keys.extend(found.to_claim(keys, free))
        for keys in owned:
            released = found.to_release(keys)
            keys[:] = [key for key in keys if key not in released]
            moves += len(released)
            for others in owned:
                claimed = found.to_claim(others, released)
                others.extend(claimed)
                released = [key for key in released if key not in claimed]
            assert not released, "a free partition finds no reader"
        assert moves < 1_000
    return moves


@pytest.mark.parametrize(
    ("partitions", "readers", "most"), [(0, 1, 0), (1, 1, 1), (1, 3, 1), (4, 2, 2), (5, 2, 3), (6, 4, 2), (7, 1, 7)]
)
def test_quiet_partitions_are_shared_by_their_number(partitions: int, readers: int, most: int) -> None:
    loads = {f"p{number}": 0 for number in range(partitions)}
    found = Shares(loads, {}, [f"r{number}" for number in range(readers)])
    assert len(found.to_claim([], loads)) == most
    assert len(loads) - len(found.to_release(list(loads))) == most


def test_a_busy_partition_counts_as_many_quiet_ones() -> None:
    loads = {"busy": 980} | {f"p{number}": 0 for number in range(99)}
    owned: list[list[str]] = [list(loads), []]
    assert settled(loads, owned) == 1
    assert owned[1] == ["busy"]


def test_small_differences_of_load_move_nothing() -> None:
    loads = {f"p{number}": 100 + number % 7 for number in range(100)}
    keys = sorted(loads)
    found = shares(loads, keys[:52], keys[52:])
    assert found.to_release(keys[:52])
    assert not found.are_uneven


def test_a_reader_that_comes_into_many_is_short_of_its_share() -> None:
    loads = {f"p{number}": 0 for number in range(120)}
    keys = sorted(loads)
    found = shares(loads, *(keys[first : first + 12] for first in range(0, 120, 12)), [])
    assert found.are_uneven
    assert found.is_short([])
    assert not found.is_short(keys[:12])


@given(st.lists(st.integers(0, 2_000), max_size=25), st.integers(1, 6), st.randoms(use_true_random=False))
def test_whatever_the_loads_every_partition_is_owned_and_moving_comes_to_an_end(
    loads: list[int], readers: int, chance: object
) -> None:
    named = {f"p{number}": load for number, load in enumerate(loads)}
    owned: list[list[str]] = [[] for _reader in range(readers)]
    for key in named:
        owned[chance.randrange(readers)].append(key)  # type: ignore[attr-defined]
    settled(named, owned)
    assert sorted(key for keys in owned for key in keys) == sorted(named)
    fair = sum(10 + load for load in loads) / readers
    for keys in owned:
        weights = [10 + named[key] for key in keys]
        assert not weights or sum(weights) - min(weights) < fair or not shares(named, *owned).are_uneven
