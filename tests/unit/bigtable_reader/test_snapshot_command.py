"""The command that asks for a snapshot, and shows how far it is until it is over."""

import asyncio
import json
from random import Random

import pytest

from services.bigtable_reader.commands.snapshot import between
from services.bigtable_reader.core.snapshot.snapshot import PartState
from shared.contracts.bigtable_options import BigtableOptions
from shared.contracts.errors import MisconfiguredError
from tests.fakes.terminal import Terminal
from tests.unit.bigtable_reader.snapshot_world import Command, SnapshotWorld
from tests.unit.bigtable_reader.world import entries

KEYS = [b"%02d" % number for number in range(20)]


async def a_world() -> SnapshotWorld:
    """Return a world with rows of which no record tells, and no reader."""
    world = SnapshotWorld(Random(5), cuts=[b"05", b"12"])
    for key in KEYS:
        world.table.write(key, *entries(world.chance))
    world.table.log.clear()
    await world.begin()
    return world


async def test_watched_it_shows_that_no_reader_is_there_and_goes_on_watching() -> None:
    world, out = await a_world(), Terminal()
    watching = asyncio.create_task(Command(world)("--watch", "--json", out=out))
    await asyncio.sleep(59)
    assert out.getvalue().endswith("no reader is there; start one\n")
    world.start()
    code, output = await watching
    (shown,) = json.loads(output.rpartition("\x1b[J")[2])["snapshots"]
    assert (code, shown["state"], shown["waits"]) == (0, "DONE", None)
    await world.end()


async def test_watched_it_ends_with_one_where_the_snapshot_is_given_up() -> None:
    world = await a_world()
    assert await Command(world)("--status") == (0, "weather: no snapshot was asked for\n")
    watching = asyncio.create_task(Command(world)("--watch"))
    await asyncio.sleep(5)
    code, output = await Command(world)("--status")
    assert (code, "it waits: no reader is there" in output, "-> start one" in output) == (1, True, True)
    assert (await Command(world)("--cancel"))[0] == 0
    code, output = await watching
    assert (code, "cancelled" in output, "waits" in output) == (1, True, False)
    assert (await Command(world)("--status"))[0] == 0
    assert world.snapshots.snapshot is not None
    assert {part.state for part in world.snapshots.snapshot.parts} == {PartState.CANCELLED}
    await world.end()


async def test_as_json_a_dry_run_names_the_keys_and_a_cancellation_reports_whether_something_was_left_to_read() -> None:
    world = await a_world()
    for arguments, keys in (((), None), (("--after", "04"), ["[04\\x00, end)"])):
        code, output = await Command(world)(*arguments, "--dry-run", "--json")
        shown = {"table": "weather", "keys": keys, "table_bytes": 100_000_000}
        assert (code, json.loads(output)) == (0, {"would_read": [shown]})
    await world.request()
    for was_left in (True, False):
        code, output = await Command(world)("--cancel", "--json")
        assert (code, json.loads(output)) == (0, {"cancelled": [{"table": "weather", "changed": was_left}]})
    await world.end()


@pytest.mark.parametrize("other", [("--dry-run",), ("--status",), ("--after", "04"), ("--until", "04")])
async def test_a_cancellation_takes_no_option_that_promises_to_cancel_less(other: tuple[str, ...]) -> None:
    world = await a_world()
    await world.request()
    with pytest.raises(MisconfiguredError, match=f"leave out {other[0]}, or --cancel"):
        await Command(world)("--cancel", *other)
    assert world.snapshots.snapshot is not None
    assert PartState.CANCELLED not in {part.state for part in world.snapshots.snapshot.parts}
    await world.end()


async def test_a_change_log_alone_has_none() -> None:
    world = await a_world()
    with pytest.raises(MisconfiguredError, match="mode both"):
        await Command(world)("--status", mode="history")
    await world.end()


def test_a_range_the_wrong_way_round_is_refused_with_what_to_do() -> None:
    with pytest.raises(MisconfiguredError, match="--after 09 has to be before --until 04; swap them"):
        between("09", "04", BigtableOptions())


@pytest.mark.parametrize("text", ["a", "café", "YQ"])
def test_a_key_that_is_no_base64_of_a_key_of_bytes_is_refused(text: str) -> None:
    with pytest.raises(MisconfiguredError, match="is no row key as the mirror has it: base64"):
        between(text, None, BigtableOptions(row_key="BYTES"))
