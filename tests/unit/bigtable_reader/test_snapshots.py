"""Snapshots and the stream at once, whatever happens to partitions and readers: all is equal, and what is told is true.

The loop is the real one, with all of its core; the ports are in memory, the time is virtual.
"""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.bigtable_reader.core.stream.records import KeyRange
from shared.contracts.reasons import Reason
from shared.reading.snapshots import SnapshotOptions
from tests.fakes.bigtable_table import VirtualClock
from tests.fakes.virtual_time import run_in_virtual_time
from tests.seeds import examples
from tests.unit.bigtable_reader.readings import FAMILIES
from tests.unit.bigtable_reader.snapshot_world import KEYS, a_filled_world
from tests.unit.bigtable_reader.world import happen

pytestmark = pytest.mark.usefixtures("quiet")

A_WHILE = 60_000_000
MANY_KEYS = [b"a%02d" % number for number in range(60)]
STEPS = (
    *("write",) * 6,
    *("elsewhere",) * 3,
    *("replicate",) * 3,
    *("moment",) * 4,
    *("wait",) * 4,
    *("hand over",) * 2,
    *("snapshot", "snapshot", "some keys", "cancel", "drop family", "drop family"),
    *("pause the stream", "resume the stream"),
    *("pause", "garbage", "split", "merge", "kill", "long wait", "go on", "start"),
)


@settings(max_examples=examples(25), deadline=None)
@given(
    seed=st.integers(0, 1 << 32),
    breaks=st.sampled_from((0.0, 0.0, 0.05)),
    before=st.lists(st.sampled_from(KEYS), unique=True),
    cuts=st.lists(st.sampled_from(KEYS), unique=True, max_size=2),
)
def test_whatever_happens_before_during_and_after_rows_end_up_equal(
    seed: int, breaks: float, before: list[bytes], cuts: list[bytes]
) -> None:
    chance = Random(seed)
    steps = [chance.choice(STEPS) for _step in range(chance.randint(10, 50))]
    run_in_virtual_time(live(chance, before, steps, breaks=breaks, cuts=cuts))


async def live(chance: Random, before: Sequence[bytes], steps: Sequence[str], **settings: Any) -> None:
    world = await a_filled_world(before, chance=chance, **settings)
    world.start()
    healed = True
    for step in steps:
        match step:
            case "snapshot":
                await world.request()
                healed = True
            case "some keys":
                await world.request([KeyRange(chance.choice((b"", b"a\0", b"b")), b"c\0")], whole=False)
            case "cancel" if world.snapshots.snapshot is not None and chance.random() < 0.5:
                await world.cancel()
                healed = False
            case "drop family":
                world.table.drop_family(chance.choice(FAMILIES))
                healed = False
            case _:
                await happen(world, step)
    await world.calm_down()
    if not healed:
        await world.request()
    await world.end_equal()
    assert world.complete_since is not None


async def test_while_the_stream_is_paused_no_row_is_read_and_after_it_all_come() -> None:
    world = await a_filled_world(KEYS, cuts=[b"b", b"d"])
    await world.by_hand.pause()
    world.start()
    await asyncio.sleep(120)
    assert all(not changes for _header, changes in world.topic.batches)
    assert world.complete_since is None
    await world.by_hand.resume()
    await world.end_equal()


@pytest.mark.parametrize("again", [False, True])
async def test_however_far_versions_are_ahead_of_the_clocks_the_end_reports_a_time_before_its_rows_were_read(
    again: bool,
) -> None:
    world = await a_filled_world(KEYS, cuts=[b"b", b"d"])
    world.start(slowest=0.02, wrong_by=timedelta(hours=1))
    if again:
        await world.wait_until_snapshots_are_over()
        world.start_steady()
        await asyncio.sleep(60)
        await world.request()
    asked_at, before = VirtualClock().now(), len(world.topic.batches)
    await world.wait_until_snapshots_are_over()
    await world.end()
    (end,) = (header for header, _changes in world.topic.batches[before:] if header.complete_since)
    assert isinstance(end.read_since, int)
    assert asked_at - A_WHILE <= end.read_since < VirtualClock().now()
    assert isinstance(end.complete_since, str)
    assert not again or int(end.complete_since[:16], 16) > VirtualClock().now() + 3_000_000_000


async def test_the_next_reader_goes_on_behind_the_last_key_that_was_saved() -> None:
    world = await a_filled_world(MANY_KEYS)
    killed = world.start(slowest=0.5)
    await asyncio.sleep(20)
    await world.kill(killed)
    saved = world.snapshots.snapshot
    assert saved is not None
    (part,) = (part for part in saved.unfinished if part.last is not None)
    world.start(slowest=0.0)
    await world.wait_until_snapshots_are_over()
    await world.end()
    assert part.left is not None
    assert min(key for key in world.scans[1].read_from if key in part.range) == part.left.start


async def test_a_row_that_no_message_can_hold_is_a_dead_letter_and_the_snapshot_goes_on_behind_it() -> None:
    world = await a_filled_world(KEYS)
    there = [key for key in KEYS if world.table.row(key) is not None]
    world.too_large |= {there[1], there[-1]}
    world.start(slowest=0.02)
    await world.wait_until_snapshots_are_over()
    await world.end()
    assert {
        (dead_letter.key, dead_letter.reason, dead_letter.payload_bytes) for dead_letter in world.dead_letters.kept
    } == {(f'["{key.decode()}"]', Reason.TOO_LARGE, 9_000_001) for key in world.too_large}
    published = {change.key for change in world.topic.changes if change.row is not None}
    assert published == {f'{{"row_key":"{key.decode()}"}}' for key in there if key not in world.too_large}
    assert len(published) > 1


async def test_confirmed_rows_and_ranges_that_are_left_are_shown_by_table() -> None:
    world = await a_filled_world(KEYS)
    world.start(slowest=0.02)
    await world.wait_until_snapshots_are_over()
    await world.end()
    there = [key for key in KEYS if world.table.row(key) is not None]
    assert world.metrics.values("reader_snapshot_rows_total") == {"weather": len(there)}
    assert world.metrics.values("reader_snapshot_ranges_left") == {"weather": 0}


@pytest.mark.parametrize("kind", ["too large", "unreadable"])
async def test_no_progress_is_saved_behind_a_row_whose_dead_letter_is_not_confirmed_and_other_rows_are_published(
    kind: str,
) -> None:
    world = await a_filled_world(MANY_KEYS)
    there = [key for key in MANY_KEYS if world.table.row(key) is not None]
    bad = there[1]
    (world.too_large if kind == "too large" else world.unreadable).add(bad)
    world.dead_letters.open.clear()
    world.start(slowest=0.02)
    await asyncio.sleep(60)
    saved = world.snapshots.snapshot
    assert saved is not None
    (part,) = (part for part in saved.unfinished if bad in part.range)
    assert part.last is None or part.last < bad
    assert {change.key for change in world.topic.changes} == {
        f'{{"row_key":"{key.decode()}"}}' for key in there if key != bad
    }
    world.dead_letters.open.set()
    await world.wait_until_snapshots_are_over()
    await world.end()
    assert [dead_letter.key for dead_letter in world.dead_letters.kept] == [f'["{bad.decode()}"]']


@pytest.mark.parametrize("unconfirmed_bytes", [16 << 20, 1])
async def test_however_many_ranges_have_a_row_whose_dead_letter_is_not_confirmed_all_other_rows_are_published(
    unconfirmed_bytes: int,
) -> None:
    options = SnapshotOptions(page_rows=8, save=timedelta(seconds=1), unconfirmed_bytes=unconfirmed_bytes)
    world = await a_filled_world(MANY_KEYS, options=options)
    there = [key for key in MANY_KEYS if world.table.row(key) is not None]
    world.cuts = there[5::5]
    world.too_large |= set(there[4::5])
    world.dead_letters.open.clear()
    world.start(slowest=0.02)
    await asyncio.sleep(120)
    saved = world.snapshots.snapshot
    assert saved is not None
    assert len(saved.unfinished) >= len(world.too_large) > world.options.ranges
    assert {change.key for change in world.topic.changes} == {
        f'{{"row_key":"{key.decode()}"}}' for key in there if key not in world.too_large
    }
    world.dead_letters.open.set()
    await world.wait_until_snapshots_are_over()
    await world.end()
    assert len(world.dead_letters.kept) == len(world.too_large)


async def test_where_rows_are_limited_no_more_are_asked_for_at_once_than_may_pass_in_a_second() -> None:
    world = await a_filled_world(MANY_KEYS, options=SnapshotOptions(rows_per_second=7))
    world.start(slowest=0.0)
    await world.wait_until_snapshots_are_over()
    await world.end()
    assert max(world.scans[0].asked) == 7
    assert world.mirrored(without_missing=True) == world.source() != {}
