"""What the reader publishes, played back, is what the emulator holds, cell by cell, through churn of every kind.

The reader is the service's own, in this process: its loop and its adapters, on sockets. Only Pub/Sub is in memory.
"""

import asyncio
import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta

import grpc
import pytest
from structlog.testing import capture_logs

from deploy.local.platform import emulators
from deploy.local.platform.processes import Processes
from services.bigtable_reader.adapters.bigtable.connection import BigtableChannels, Table
from services.bigtable_reader.adapters.schema.catalog import BigtableCatalog
from services.bigtable_reader.adapters.stream.change_stream import BigtableChangeStream
from services.bigtable_reader.adapters.stream.partition_rows import PartitionRows
from services.bigtable_reader.adapters.stream.partition_schema import create_partition_table
from services.bigtable_reader.adapters.stream.partition_table import BigtablePartitionStore, PartitionTimes
from services.bigtable_reader.adapters.stream.rows import BigtableRows
from services.bigtable_reader.app.stream.first_start import begin
from services.bigtable_reader.app.stream.owned_partition import BigtableReaderOptions
from services.bigtable_reader.app.stream.reader import BigtableOutput, BigtableReader, BigtableStores, SourceTable
from services.bigtable_reader.core.changes.entries import EntryMaker
from services.bigtable_reader.core.changes.filters import Watched
from services.bigtable_reader.core.changes.images import ImageMaker
from services.bigtable_reader.core.changes.outputs import Outputs
from services.bigtable_reader.core.stream.records import Microseconds
from services.bigtable_reader.core.stream.topology import MergeTimeouts
from services.bigtable_reader.wiring.stores import MicrosecondClock
from shared.reading.supervisor import Monitoring
from shared.runtime.health import Health
from shared.runtime.stop import Stop
from tests.fakes.bigtable_reader import FakeDeadLetterSink, FakePublisher, Topic
from tests.fakes.reader_metrics import BigtableMetrics
from tests.fakes.subscriptions import FakeSubscriptions
from tests.integration.bigtable_front import INSTANCE, Front, FrontTable, set_cell
from tests.integration.bigtable_workload import FAMILIES, SUMS, Writers, settle
from tests.seeds import SEEDS
from tests.unit.bigtable_reader.published import LOSSLESS, Cells, rows_of_entries, rows_of_images

pytestmark = pytest.mark.integration

AT_ONCE = 10
WRITERS = 16
CALLS = 25
"""Calls of each writer."""
CHURN = 25
"""Splits and merges while they write."""
LEASE = timedelta(seconds=10)
"""Also what a claim that a stop cut short is waited for."""
TIMEOUTS = MergeTimeouts(merge=timedelta(milliseconds=300))
"""What waits for the rest of a merge is soon read as it is, so that this is tried; not so what has no token."""


class Pipeline:
    """One table, its readers, and what they have published."""

    def __init__(self, channels: BigtableChannels, table: FrontTable, seed: int) -> None:
        self.table = table
        self.topic = Topic()
        self.metrics = BigtableMetrics()
        self.dead_letters = FakeDeadLetterSink()
        self.watched = Table(INSTANCE, table.name.rpartition("/")[2])
        self.rows = PartitionRows(channels, Table(INSTANCE, "replay-partitions"), f"seed-{seed}")
        watched = Watched(LOSSLESS)
        self.entries = EntryMaker(source="s", table="t", instance="i", options=LOSSLESS, buckets=16, watched=watched)
        self.images = ImageMaker(
            source="s", table="t", options=LOSSLESS, families=[*FAMILIES, SUMS], buckets=16, watched=watched
        )
        self.outputs = Outputs(watched, self.images if seed % 4 == 0 else None, self.entries)
        self._channels = channels

    async def begin(self) -> None:
        """Remember where to begin: when the change stream was enabled."""

        async def nothing() -> None:
            """Ask for no snapshot, for every row is written after that; keep no topic."""

        await create_partition_table(self._channels, self.rows)
        stream = BigtableChangeStream(self._channels, self.watched)
        since = Microseconds(await asyncio.to_thread(lambda: self.table.since))
        await begin(
            stream,
            self._store("setup"),
            Stop(),
            name="replay",
            resume="new",
            asked=since,
            before=nothing,
            after=nothing,
        )

    async def read(self, owner: str, stop: Stop, end: Microseconds | None = None) -> None:
        """Read until asked to stop, or to the end."""
        reader = BigtableReader(
            SourceTable(
                stream=BigtableChangeStream(self._channels, self.watched),
                rows=BigtableRows(self._channels, self.watched, Watched(LOSSLESS)),
                catalog=BigtableCatalog(self._channels, self.watched),
                clock=MicrosecondClock(),
            ),
            BigtableStores(partitions=self._store(owner)),
            BigtableOutput(
                publisher=FakePublisher(self.topic),
                dead_letters=self.dead_letters,
                subscriptions=FakeSubscriptions(),
                outputs=self.outputs,
            ),
            Monitoring(self.metrics, Health()),
            BigtableReaderOptions(
                owner=owner,
                lease=LEASE,
                heartbeat=timedelta(seconds=1),
                end=end,
                poll=timedelta(milliseconds=50),
            ),
        )
        await reader.run(stop)

    def _store(self, owner: str) -> BigtablePartitionStore:
        return BigtablePartitionStore(
            self.rows,
            source=self.watched.name,
            owner=owner,
            times=PartitionTimes(lease=LEASE, retention=timedelta(days=1), merge=TIMEOUTS),
        )


@dataclass
class World:
    """A front of this module's own, whose streams cut values at 64 bytes, and the one event loop for all."""

    front: Front
    runner: asyncio.Runner


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with (
        Processes(tmp_path_factory.mktemp("replay"), os.environ) as processes,
        emulators.bigtable_front(processes) as address,
        Front(address) as front,
        asyncio.Runner() as runner,  # gRPC's completion queue complains about the loops it knew before
    ):
        front.control.serve_streams(value_bytes=64, message_bytes=100)
        yield World(front, runner)


@pytest.mark.parametrize("first", range(0, SEEDS, AT_ONCE))
def test_what_is_published_under_churn_is_what_the_table_holds(world: World, first: int) -> None:
    seeds = range(first, first + AT_ONCE)
    with capture_logs() as logs:
        found = world.runner.run(all_of(world.front, seeds))

    assert {seed: one.wrong for seed, one in zip(seeds, found, strict=True) if one.wrong} == {}
    assert all(one.reshaped for one in found), "there was churn"
    if not any(line["event"] in ("lease_lost", "positions_not_saved", "leases_not_released") for line in logs):
        assert [one.repeated for one in found] == [0] * AT_ONCE, "every position was handed on exactly"


@dataclass
class Found:
    """How a seed ended: the rows that are not as they should be, in the change log or among the images."""

    wrong: dict[bytes, tuple[object, object]]
    repeated: int
    reshaped: int


async def all_of(front: Front, seeds: Sequence[int]) -> Sequence[Found]:
    """Play several seeds at once."""
    channels = BigtableChannels(front.address)
    try:
        return await asyncio.gather(*(replay(front, channels, seed) for seed in seeds))
    finally:
        await channels.close()


async def replay(front: Front, channels: BigtableChannels, seed: int) -> Found:
    """Write, churn and read at once, read to the end, and play back what was published."""
    rules = {"g": {"max_num_versions": 2}}
    splits = [b"r10", b"r20"] if seed % 2 else []
    table = await asyncio.to_thread(lambda: front.table(*FAMILIES, aggregates=[SUMS], rules=rules, splits=splits))
    pipeline = Pipeline(channels, table, seed)
    await pipeline.begin()
    stored = await live(pipeline, seed)

    logged, repeated = rows_of_entries(pipeline.topic.batches)
    wrong = differing(logged, stored)
    if pipeline.outputs.images is not None:
        wrong |= differing(rows_of_images(pipeline.topic.batches, pipeline.images), stored)
    await asyncio.to_thread(front.tables.delete_table, name=table.name)
    reshaped = sum(pipeline.metrics.value(f"partitions_{how}_total") for how in ("split", "merged"))
    return Found(wrong, repeated, int(reshaped))


async def live(pipeline: Pipeline, seed: int) -> dict[bytes, Cells]:
    """Let readers share the table while it is written, and one read on to the end; return what the table holds then."""
    table, stop = pipeline.table, Stop()
    async with grpc.aio.insecure_channel(table.front.address) as channel, asyncio.TaskGroup() as tasks:
        for number in range(1 + seed % 3):
            tasks.create_task(pipeline.read(f"reader {number}", stop))
        writing = Writers(channel, table.name, seed, WRITERS, CALLS)
        await asyncio.gather(writing.run(), churn(table, seed, writing))
        await asyncio.to_thread(table.front.control.collect_garbage, table.name)
        stop.request()
    async with grpc.aio.insecure_channel(table.front.address) as channel:
        records, stored = -1, {}
        while records != (records := await settled(channel, table)):  # calls given up may still be on their way
            end = await asyncio.to_thread(table.front.control.describe, table.name)
            await pipeline.read("the last reader", Stop(), Microseconds(end.now))
            stored = await asyncio.to_thread(table.rows)
    return stored


def differing(logged: dict[bytes, Cells], stored: dict[bytes, Cells]) -> dict[bytes, tuple[object, object]]:
    """Return the rows that are not the same."""
    return {
        row_key: (logged.get(row_key), stored.get(row_key))
        for row_key in logged.keys() | stored.keys()
        if logged.get(row_key) != stored.get(row_key)
    }


async def settled(channel: grpc.aio.Channel, table: FrontTable) -> int:
    """Return how many records there are when no call is being applied."""
    await settle(channel, table.name)
    return (await asyncio.to_thread(table.front.control.describe, table.name)).records


async def churn(table: FrontTable, seed: int, writing: Writers) -> None:
    """Split and merge all the while, collect garbage, and let late writes of another cluster arrive."""
    pick = random.Random(seed)
    rows = pick.sample([b"r%02d" % number for number in range(40)], CHURN)
    for step in range(CHURN):
        while writing.share_done < step / CHURN:  # noqa: ASYNC110 - what the writers do is no event
            await asyncio.sleep(0.002)
        await asyncio.to_thread(disturb, table, pick, rows.pop())


def disturb(table: FrontTable, pick: random.Random, row_key: bytes) -> None:
    """Split or merge, or both at many places, and maybe do something else that a reader has to live with."""
    control, any_key = table.front.control, b"r%02d" % pick.randrange(1, 40)
    starts = [start for start, _ in control.describe(table.name).partitions if start]
    match pick.choices(["split", "merge", "anew"], [45, 45, 10])[0]:
        case "merge" if starts:
            control.merge(table.name, pick.choice(starts))
        case "anew":
            control.repartition(table.name, [b"r%02d" % pick.randrange(1, 40) for _ in range(pick.randrange(6))])
        case _:
            control.split(table.name, any_key)
    match pick.randrange(6):
        case 0:
            control.collect_garbage(table.name)
        case 1 | 2:
            late = control.describe(table.name).now - pick.randrange(200_000)
            value = set_cell("f", b"a", b"from far away", pick.choice([1_000, 2_000]))
            control.replicate(table.name, row_key, [value], commit=late, cluster="far-c2")
        case 3:
            control.cut_streams(table.name, after_messages=pick.randrange(8))
        case _:
            pass
