"""A table that is marked is healed, whatever happens meanwhile: by nobody's doing if set so, else when it is asked for.

The loop is the real one, with all of its core; the ports are in memory, the time is virtual.
"""

import asyncio
import io
import json
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from structlog.testing import capture_logs

from services.bigtable_reader.commands.synced import synced
from services.bigtable_reader.core.schema.resync import BigtableResyncKind
from services.bigtable_reader.core.snapshot.snapshot import PartState
from services.bigtable_reader.core.stream.records import KeyRange
from shared.contracts.errors import MisconfiguredError
from tests.fakes.bigtable_resync import FakeResyncStore
from tests.fakes.virtual_time import run_in_virtual_time
from tests.seeds import examples
from tests.unit.bigtable_reader.readings import FAMILIES
from tests.unit.bigtable_reader.snapshot_world import KEYS, a_filled_world, a_read_world
from tests.unit.bigtable_reader.world import happen

STEPS = (
    *("write",) * 6,
    *("moment",) * 3,
    *("wait",) * 4,
    *("long wait",) * 3,
    *("hand over",) * 2,
    *("drop family",) * 4,
    *("family back", "snapshot", "some keys", "cancel", "found"),
    *("pause the stream", "resume the stream"),
    *("pause", "split", "merge", "kill", "go on", "start"),
)


@pytest.mark.usefixtures("quiet")
@settings(max_examples=examples(15), deadline=None)
@given(
    seed=st.integers(0, 1 << 32),
    breaks=st.sampled_from((0.0, 0.0, 0.05)),
    before=st.lists(st.sampled_from(KEYS), unique=True),
)
def test_whatever_is_found_is_healed_without_being_asked(seed: int, breaks: float, before: list[bytes]) -> None:
    chance = Random(seed)
    steps = [chance.choice(STEPS) for _step in range(chance.randint(10, 40))]
    run_in_virtual_time(live(chance, before, steps, breaks=breaks, automatic=True))


async def live(chance: Random, before: Sequence[bytes], steps: Sequence[str], **settings: Any) -> None:
    world = await a_filled_world(before, chance=chance, **settings)
    world.start()
    given_up = False
    for step in steps:
        match step:
            case "drop family" if world.droppable:
                world.drop_family(chance.choice(world.droppable))
            case "family back" if not world.is_missed:
                world.catalog.found = replace(world.catalog.found, families=frozenset(FAMILIES))
            case "found":
                await world.find()
            case "snapshot":
                await world.request()
            case "some keys":
                await world.request([KeyRange(b"b", b"c\0")], whole=False)
            case "cancel" if chance.random() < 0.5:
                await world.cancel()
                given_up = True
            case _:
                await happen(world, step)
    await world.calm_down()
    if given_up:  # what its operator has given up nobody asks for
        await asyncio.sleep(120)
        await world.request()
    await world.wait_until_healed()
    await world.end_equal()


async def test_without_being_asked_nothing_is_read_unless_set_so_and_a_snapshot_by_hand_heals() -> None:
    with capture_logs() as logs:
        world = await a_read_world(KEYS)
        world.drop_family("f")
        await asyncio.sleep(120)
        assert world.run == 1
        assert world.is_pending_resync()
        assert world.metrics.values("reader_tables_pending_resync")["families_dropped"] == 1
        await world.request()
        await world.end_equal()
    assert not world.is_pending_resync()
    events = [line for line in logs if line["event"] in ("resync_requested", "table_healed")]
    assert [line["event"] for line in events] == ["resync_requested", "table_healed"]
    assert (events[0]["log_level"], events[0]["why"], events[0]["families"]) == ("error", ["families_dropped"], ["f"])
    assert "`python -m services.bigtable_reader snapshot`" in events[0]["fix"]


async def test_two_readers_that_are_to_heal_it_by_themselves_ask_once() -> None:
    world = await a_filled_world(KEYS, automatic=True)
    world.start()
    world.start()
    await world.wait_until_snapshots_are_over()
    world.drop_family("f")
    await world.wait_until_healed()
    await asyncio.sleep(300)
    assert world.run == 2
    await world.end_equal()


async def test_nothing_is_asked_for_while_the_stream_is_paused() -> None:
    world = await a_read_world(KEYS, automatic=True)
    await world.by_hand.pause()
    world.drop_family("f")
    await asyncio.sleep(300)
    assert world.is_pending_resync()
    assert world.run == 1
    await world.by_hand.resume()
    await world.wait_until_healed()
    assert world.run == 2
    await world.end()


async def test_what_its_operator_has_given_up_is_not_asked_for_again_until_something_else_is_found() -> None:
    world = await a_read_world(KEYS, automatic=True)
    world.drop_family("f")
    await world.wait_until_asked_for(2)
    await world.cancel()
    await world.request([KeyRange(b"b", b"c")], whole=False)  # which is no answer to what was found
    await asyncio.sleep(300)
    assert world.run == 3
    assert world.is_pending_resync()
    world.drop_family("g")
    await world.wait_until_healed()
    assert world.run == 4
    await world.end_equal()


async def test_what_is_found_while_a_snapshot_runs_is_not_healed_by_that() -> None:
    world = await a_filled_world(KEYS)
    await world.find()
    world.start()
    await world.wait_until_snapshots_are_over()
    await asyncio.sleep(60)
    assert world.is_pending_resync()
    await world.end()


async def test_a_snapshot_whose_end_was_announced_before_the_request_was_stored_heals_as_well() -> None:
    world = await a_read_world(KEYS)
    assert all(part.state is PartState.DONE for part in world.parts)
    await world.find(run=0)
    await asyncio.sleep(60)
    assert not world.is_pending_resync()
    await world.end()


async def test_a_first_start_under_another_name_is_pending_resync_until_its_first_snapshot_is_complete() -> None:
    world = await a_filled_world(KEYS, elsewhere=True)
    assert world.resync_kinds == [BigtableResyncKind.ANOTHER_NAME]
    world.start()
    await world.wait_until_snapshots_are_over()
    assert not world.is_pending_resync()
    await world.end()


async def test_the_command_takes_away_what_is_there_and_refuses_where_nothing_is() -> None:
    world, out = await a_filled_world([]), io.StringIO()
    store = FakeResyncStore(world.partitions)
    await world.find(BigtableResyncKind.STREAM_DISABLED)
    assert await synced(store, out, as_json=False) == 0
    assert not world.is_pending_resync()
    with pytest.raises(
        MisconfiguredError, match=r"not pending resync: `python -m services.bigtable_reader status` says"
    ):
        await synced(store, out, as_json=False)
    assert "taken away: change stream disabled, found at 2023" in out.getvalue()


async def test_as_json_the_command_reports_of_which_table_it_took_what_away() -> None:
    world, out = await a_filled_world([]), io.StringIO()
    await world.find(BigtableResyncKind.STREAM_DISABLED)
    assert await synced(FakeResyncStore(world.partitions), out, as_json=True) == 0
    shown = json.loads(out.getvalue())
    assert (shown["table"], [why["kind"] for why in shown["why"]]) == ("t", ["change_stream_disabled"])
