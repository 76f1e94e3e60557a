"""What the stream tells, played back, is what the emulator holds, cell by cell, through churn of every kind."""

import asyncio
import os
import random
from collections import Counter
from collections.abc import Iterator

import grpc
import pytest

from deploy.local import emulators
from deploy.local.bigtable_change_streams.tokens import decode_token
from deploy.local.processes import Processes
from tests.integration.bigtable_front import Cells, Front, FrontTable, set_cell
from tests.integration.bigtable_model import table_after
from tests.integration.bigtable_replay_reader import ReplayReader, ended
from tests.integration.bigtable_workload import FAMILIES, SUMS, Writers, settle

pytestmark = pytest.mark.integration

SEEDS = range(100)
WRITERS = 16
CALLS = 25
"""Calls of each writer."""
CHURN = 25
"""Splits and merges while they write."""


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    """Return a front of this module's own, whose streams cut values at 64 bytes."""
    with (
        Processes(tmp_path_factory.mktemp("replay"), os.environ) as processes,
        emulators.bigtable_front(processes) as address,
        Front(address) as front,
    ):
        front.control.serve_streams(value_bytes=64, message_bytes=100)
        yield front


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    """Return one event loop for all: gRPC's completion queue complains about the loops it knew before."""
    with asyncio.Runner() as runner:
        yield runner


@pytest.mark.parametrize("seed", SEEDS)
def test_a_stream_under_churn_tells_what_the_table_holds(front: Front, runner: asyncio.Runner, seed: int) -> None:
    rules = {"g": {"max_num_versions": 2}}
    table = front.table(*FAMILIES, aggregates=[SUMS], rules=rules, splits=[b"r10", b"r20"] if seed % 2 else [])

    reader, held = runner.run(replay(table, seed))

    told = table_after(reader.records)
    assert {key: told.get(key) for key in told.keys() | held.keys() if told.get(key) != held.get(key)} == {}
    assert reader.counts["closed"] > 0, "there was churn"
    repeated = [one for one, times in Counter(each.identity for each in reader.records).items() if times > 1]
    assert repeated == [], "every position was handed on exactly"
    front.tables.delete_table(name=table.name)


async def replay(
    table: FrontTable, seed: int, writers: int = WRITERS, calls: int = CALLS
) -> tuple[ReplayReader, dict[bytes, Cells]]:
    """Write, churn and read at once; return the reader when it has read everything, and what the table holds."""
    async with grpc.aio.insecure_channel(table.front.address) as channel:
        reader = ReplayReader(channel, table.name, table.since)
        reading = asyncio.create_task(reader.run())
        while not reader.tokens() and not reading.done():  # noqa: ASYNC110 - it has no event for having begun
            await asyncio.sleep(0.002)
        writing = Writers(channel, table.name, seed, writers, calls)
        await asyncio.gather(writing.run(), churn(table, seed, writing))
        table.front.control.collect_garbage(table.name)
        records, held = -1, table.rows()
        while records != (records := await settled(channel, table)):  # calls given up may still be on their way
            while not has_read(reader, records):
                if reading.done():
                    await reading
                await asyncio.sleep(0.01)
            held = table.rows()
        await ended(reading)
    return reader, held


async def settled(channel: grpc.aio.Channel, table: FrontTable) -> int:
    """Return how many records there are when no call is being applied."""
    await settle(channel, table.name)
    return table.front.control.describe(table.name).records


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


def has_read(reader: ReplayReader, records: int) -> bool:
    """Tell whether the tokens of a reader are behind the last record in every range."""
    tokens = reader.tokens()
    return bool(tokens) and all(
        position.index >= records for token in tokens.values() for position in decode_token(token).positions
    )
