"""A snapshot of which the topic may have lost rows: it goes on, its end is never announced, and another one heals."""

import asyncio
from dataclasses import dataclass

import pytest
from structlog.testing import capture_logs

from services.bigtable_reader.app.snapshot.snapshot_status import summaries
from services.bigtable_reader.app.stream.owned_partition import BigtableReaderOptions
from services.bigtable_reader.core.schema.resync import BigtableResyncKind
from services.bigtable_reader.core.snapshot.snapshot import PartProgress
from services.bigtable_reader.core.stream.records import ALL_KEYS, Microseconds
from tests.fakes.bigtable_snapshots import FakeSnapshotStore
from tests.fakes.bigtable_table import EPOCH, VirtualClock
from tests.unit.bigtable_reader.snapshot_world import Command, SnapshotWorld, a_filled_world
from tests.unit.bigtable_reader.world import LEASE

KEYS = [b"a", b"b", b"c", b"d"]


async def half_read_and_lost(automatic: bool) -> SnapshotWorld:
    """Return a world with a snapshot that was confirmed up to a key by a topic that then lost it, and with a mark."""
    world = await a_filled_world(KEYS, automatic=automatic)
    store = FakeSnapshotStore(world.snapshots, "stopped half way", LEASE)
    run, (claimed,) = await store.claim([0], 1)
    part = await store.cut(run, claimed, [(ALL_KEYS, 0)])
    assert part is not None
    now = VirtualClock().now()
    await store.save([PartProgress(part, run, b"b", now, 2, read_since=now)], release=True)
    await world.find(BigtableResyncKind.TOPIC_LOST, run)
    return world


async def shown(world: SnapshotWorld) -> dict[str, object]:
    """Return what is shown of the snapshot."""
    found, survey = await Command(world).poll()
    (one,) = summaries("weather", found, survey)
    return dict(one)


@pytest.mark.parametrize("automatic", [False, True])
async def test_one_whose_first_half_the_topic_has_lost_is_never_announced_and_another_one_heals(
    automatic: bool,
) -> None:
    with capture_logs() as logs:
        world = await half_read_and_lost(automatic)
        for _reader in ("one", "started later"):
            reader = world.start()
            await asyncio.sleep(120)
            assert not reader.task.done()
            await world.end()
            world.readers.clear()
        assert (world.complete_since is not None, world.resync_request is None) == (automatic, automatic)
        assert world.run == 1 + automatic
        assert (world.mirrored(without_missing=False) == world.source()) is automatic
    assert ("snapshot_end_withheld" in [line["event"] for line in logs]) is not automatic


AT_THE_END = Microseconds(EPOCH + 120_000_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToAnEnd(BigtableReaderOptions):
    """Of a reader that reads for two minutes."""

    end: Microseconds | None = AT_THE_END


async def test_a_reader_with_an_end_timestamp_does_not_wait_until_it_is_announced() -> None:
    world = await half_read_and_lost(automatic=False)
    reader = world.start(kind=ToAnEnd)
    async with asyncio.timeout(600):
        await reader.task
    assert world.snapshots.snapshot is not None
    assert world.snapshots.snapshot.unannounced


async def test_its_status_reports_why_it_is_never_announced_and_complete_since_nothing() -> None:
    world = await half_read_and_lost(automatic=False)
    for state in ("READING", "DONE"):
        one = await shown(world)
        assert (one["state"], one["complete_since"], one["announced"]) == (state, None, False)
        assert "the topic lost messages" in str(one["never_announced"])
        code, output = await Command(world)("--status")
        assert code == (state == "READING")
        assert "it is never announced as complete: the topic lost" in output
        world.start()
        await asyncio.sleep(120)
    assert (await Command(world)("--status", "--watch"))[0] == 1
    assert (await Command(world)("--watch"))[0] == 0  # another one
    await asyncio.sleep(60)
    one = await shown(world)
    assert (one["announced"], one["never_announced"], world.resync_request) == (True, None, None)
    assert one["complete_since"] is not None
    await world.end()
