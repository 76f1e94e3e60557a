"""A message that needs more memory than there is: the rest is applied at once, and it becomes a letter in the end."""

from typing import Any

import pyarrow as pa
import pytest

from services.cdc_consumer.app.stream import micro_batch
from services.cdc_consumer.core.stream.columns import decode_messages
from shared.contracts.reasons import Reason
from tests.builders import a_change, a_message
from tests.unit.cdc_consumer.deliveries import MINUTE, Deliveries
from tests.unit.cdc_consumer.world import World

MOST = 8
"""So many messages fit into the memory at once."""


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """Return a world with little memory: some messages have no room in it, whatever else is there."""

    def decode(table: Any, now: Any, plan: Any, **how: Any) -> Any:
        if len(table) > MOST or any(b"huge" in data for data in table["data"].to_pylist()):
            raise pa.ArrowMemoryError("malloc of size 1000000000000 failed")
        return decode_messages(table, now, plan, **how)

    monkeypatch.setattr(micro_batch, "decode_messages", decode)
    return World()


def test_messages_that_fit_one_after_the_other_are_applied_so(world: World) -> None:
    counts = world.apply(*[a_message(a_change(number)) for number in range(100)])

    assert (counts.acked, counts.rows_written, counts.dead_letters) == (100, 100, {})
    assert world.crash_counts.over == {}


@pytest.mark.parametrize("places", [{0}, {57}, {99}, {3, 4, 80}])
def test_one_that_never_fits_ends_three_processes_the_rest_is_applied_in_the_first(
    world: World, places: set[int]
) -> None:
    messages = {f"m{n}": a_message(a_change(n)) for n in range(100)}
    huge = {f"m{n}": a_message(a_change(n, name="huge")) for n in places}
    deliveries = Deliveries(world, messages | huge)
    for _death in range(3):
        with pytest.raises(MemoryError):
            deliveries.deliver(MINUTE)
        assert set(deliveries.pending) == set(huge)
        assert set(world.names()) == set(range(100)) - places
        assert world.dead_letters.kept == {}

    assert deliveries.deliver(MINUTE)
    assert world.reasons() == [Reason.RETRIES_EXHAUSTED] * len(places)
    assert {dead_letter.data for dead_letter in world.dead_letters.kept.values()} == {
        one["data"] for one in huge.values()
    }
    assert (deliveries.pending, world.crash_counts.over) == ({}, {})


def test_one_that_fits_once_more_memory_is_there_is_applied(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    deliveries = Deliveries(world, {"m1": a_message(a_change(1, name="huge")), "m2": a_message(a_change(2))})
    for _death in range(2):
        with pytest.raises(MemoryError):
            deliveries.deliver(MINUTE)
    monkeypatch.setattr(micro_batch, "decode_messages", decode_messages)

    assert deliveries.deliver(MINUTE)
    assert world.names() == {1: "huge", 2: "name 1"}
    assert world.dead_letters.kept == {}


def test_one_that_fits_once_the_others_are_done_is_applied_by_the_same_process(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    applied_before: list[int] = []

    def with_little_room(table: Any, now: Any, plan: Any, **how: Any) -> Any:
        if any(b"large" in data for data in table["data"].to_pylist()):
            if len(world.names()) < 20:
                raise MemoryError
            applied_before.append(len(world.leases.acked))
        return decode_messages(table, now, plan, **how)

    monkeypatch.setattr(micro_batch, "decode_messages", with_little_room)
    counts = world.apply(a_message(a_change(99, name="large")), *[a_message(a_change(number)) for number in range(20)])

    assert (counts.acked, counts.dead_letters, applied_before) == (21, {}, [20])
    assert world.names()[99] == "large"
    assert world.crash_counts.over == {}
