"""The command that asks for snapshots: of tables, of some keys of one, and how far they are until they are over."""

import asyncio
import io
import json
from dataclasses import replace

import pytest

from services.spanner_reader.commands.command_line import COMMAND_LINE, SpannerSnapshotCommand
from services.spanner_reader.commands.snapshot import snapshot
from services.spanner_reader.core.pauses import Pause
from services.spanner_reader.core.snapshot.snapshot import RangeState
from shared.contracts.errors import MisconfiguredError
from tests.fakes.snapshots import FakeSnapshotStore
from tests.fakes.spanner_schema import FakeShapeStore
from tests.fakes.terminal import Terminal
from tests.worlds.changing_table import LEASE, World, half_read_and_lost, until_over
from tests.worlds.command_lines import parsed


async def command(world: World, *arguments: str, out: io.StringIO | None = None) -> tuple[int, str]:
    """Run the command; return its exit code and what it said."""
    out, store = out or io.StringIO(), FakeSnapshotStore(world.snapshots, "command", LEASE)
    shapes = FakeShapeStore(world.shapes)
    given = parsed(COMMAND_LINE, SpannerSnapshotCommand, "snapshot", *arguments)
    return await snapshot(given, world.catalog, store, shapes, lambda _table: True, out), out.getvalue()


@pytest.mark.parametrize(
    ("arguments", "read", "words"),
    [
        (("--after", "[3]", "--until", '["7"]'), {4, 5, 6, 7}, 'rows behind ["3"] up to ["7"]'),
        (("--until", "[2]"), {0, 1, 2}, 'rows up to ["2"]'),
        (("--after", "[17]"), {18, 19}, 'rows behind ["17"]'),
    ],
)
async def test_some_keys_of_a_table_are_read_and_nothing_is_announced_as_complete(
    arguments: tuple[str, ...], read: set[int], words: str
) -> None:
    world = World.filled(range(20))
    assert words in (await command(world, "Planes", *arguments, "--dry-run"))[1]
    assert world.snapshots.rows == {}
    code, output = await command(world, "Planes", *arguments, "--json")
    (asked,) = json.loads(output)["snapshots"]
    assert (code, asked["state"], asked["complete_since"]) == (0, "READING", None)
    assert set(asked["keys"]) == {"after", "until"}
    await until_over(world, world.reader()[0])
    assert set(world.mirrored()) == read
    assert world.announced == []
    assert words in (await command(world, "--status"))[1]


async def test_as_json_a_dry_run_names_the_keys_of_each_table_and_when_they_would_be_read() -> None:
    world = World.filled(range(20))
    code, output = await command(world, "Planes", "--until", "[2]", "--dry-run", "--json")
    (one,) = json.loads(output)["would_read"]
    assert (code, one.keys()) == (0, {"table", "keys", "read_timestamp"})
    assert (one["table"], one["keys"]) == ("Planes", {"after": None, "until": '["2"]'})
    (one,) = json.loads((await command(world, "--all", "--dry-run", "--json"))[1])["would_read"]
    assert (one["table"], one["keys"]) == ("Planes", None)


async def test_as_json_a_cancellation_reports_of_which_tables_something_was_left_to_read() -> None:
    world = await World.requested(range(20))
    for was_left in (True, False):
        code, output = await command(world, "Planes", "--cancel", "--json")
        assert (code, json.loads(output)) == (0, {"cancelled": [{"table": "Planes", "changed": was_left}]})


@pytest.mark.parametrize("arguments", [("--all",), ("Planes", "--after", "[3]"), ("Planes", "--dry-run")])
async def test_a_paused_table_is_refused_until_it_is_resumed_for_what_it_drops_would_not_be_brought(
    arguments: tuple[str, ...],
) -> None:
    world = World.filled(range(20))
    at = world.clock.now()
    world.shapes.pauses["Planes"] = Pause(at, at)
    with pytest.raises(MisconfiguredError, match=r"dropped: Planes\. .* resume Planes` first"):
        await command(world, *arguments)
    assert world.snapshots.rows == {}
    world.shapes.pauses["Planes"] = Pause(at, at, resumed_at=at)
    assert (await command(world, *arguments))[0] == 0


@pytest.mark.parametrize("other", [("--dry-run",), ("--status",), ("--after", "[3]"), ("--until", "[3]")])
async def test_a_cancellation_takes_no_option_that_promises_to_cancel_less(other: tuple[str, ...]) -> None:
    world = await World.requested(range(20))
    with pytest.raises(MisconfiguredError, match=f"leave out {other[0]}, or --cancel"):
        await command(world, "Planes", "--cancel", *other)
    assert {one.state for one in world.snapshots.rows.values()} == {RangeState.REQUESTED}


async def test_a_snapshot_of_an_empty_table_is_shown_as_one_that_had_nothing_to_read() -> None:
    world = World()
    asked = (await command(world, "Planes"))[1]
    assert ": reading, 0 rows, 1 of 1 key ranges left" in asked
    await until_over(world, world.reader()[0])
    shown = (await command(world, "--status"))[1]
    assert ": done, 0 rows: there was none to read, complete since " in shown


@pytest.mark.parametrize(
    "arguments",
    [
        ("--all", "--after", "[1]", "--until"),
        ("Planes", "--after", "x", "--until"),
        ("--after", "[1]", "--until"),
        ("Planes", "--after", "[3]", "--until"),
    ],
)
async def test_keys_are_those_of_one_table(arguments: tuple[str, ...]) -> None:
    world = World.filled(range(20))
    world.catalog.tables.append(replace(world.catalog.tables[0], name="Other"))
    with pytest.raises(MisconfiguredError):
        await command(world, *arguments, "[2]")
    assert world.snapshots.rows == {}


async def test_a_command_without_a_table_reports_how_all_of_them_are_watched() -> None:
    with pytest.raises(MisconfiguredError, match=r"no table is named: .* --all\. `snapshot --status` .* --watch"):
        await command(World.filled(), "--watch")


async def test_watched_it_ends_with_one_where_a_snapshot_was_given_up() -> None:
    world = await World.requested(range(20))
    watching = asyncio.create_task(command(world, "--status", "--watch"))
    await asyncio.sleep(5)
    assert not watching.done()
    await FakeSnapshotStore(world.snapshots, "another", LEASE).cancel(["Planes"])
    code, output = await watching
    assert (code, "cancelled" in output) == (1, True)
    assert {one.state for one in world.snapshots.rows.values()} == {RangeState.CANCELLED}


@pytest.mark.parametrize(
    "arguments", [("--status",), ("--status", "--watch"), ("--status", "--json"), ("--cancel",), ("--dry-run",)]
)
async def test_a_name_that_is_no_tables_is_refused_by_whatever_takes_names(arguments: tuple[str, ...]) -> None:
    with pytest.raises(MisconfiguredError, match=r"mirrored: Plane\. Those are Planes"):
        await command(World.filled(), "Planes", "Plane", *arguments)


async def test_what_is_not_mirrored_any_more_is_shown_and_cancelled_and_what_was_never_requested_is_reported() -> None:
    world = World.filled(range(20))
    assert await command(world, "Planes", "--status") == (0, "Planes: no snapshot was asked for\n")
    await world.request()
    world.catalog.tables = []
    assert (await command(world, "Planes", "--status"))[0] == 1
    assert await command(world, "Planes", "--cancel") == (0, "Planes: given up; what was read stays\n")


async def test_watched_it_shows_that_no_reader_reads_and_goes_on_watching() -> None:
    world, out = World.filled(range(20)), Terminal()
    watching = asyncio.create_task(command(world, "Planes", "--watch", "--json", out=out))
    await asyncio.sleep(60)
    assert out.getvalue().endswith("`resume` what is paused\n")
    await until_over(world, world.reader()[0])
    code, output = await watching
    ended = output.rpartition("\x1b[J")[2]
    assert (code, json.loads(ended)["snapshots"][0]["state"]) == (0, "DONE")


async def test_one_whose_rows_the_topic_may_have_lost_is_shown_as_never_announced_and_never_complete() -> None:
    world = await half_read_and_lost()
    for left, state in ((1, "READING"), (0, "DONE")):
        code, output = await command(world, "Planes", "--status", "--json")
        (shown,) = json.loads(output)["snapshots"]
        assert (code, shown["state"], shown["ranges_left"], shown["complete_since"]) == (left, state, left, None)
        assert "the topic lost messages until" in shown["never_announced"]["why"]
        assert "`snapshot Planes`" in shown["never_announced"]["fix"]
        await until_over(world, world.reader()[0])
    assert "never announced as complete: the topic lost" in (await command(world, "--status"))[1]
    assert (await command(world, "--status", "--watch"))[0] == 1
    await world.request(again=True)
    await until_over(world, world.reader()[0])
    code, output = await command(world, "--status", "--watch")
    assert (code, "complete since" in output, "never told" in output) == (0, True, False)
