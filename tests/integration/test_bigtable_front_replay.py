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
from tests.integration.bigtable_front import Front, FrontTable, set_cell
from tests.integration.bigtable_model import table_after
from tests.integration.bigtable_replay_reader import ReplayReader, ended
from tests.integration.bigtable_workload import FAMILIES, SUMS, write_all

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

    reader = runner.run(replay(table, seed))

    told, held = table_after(reader.records), table.rows()
    assert {key: told.get(key) for key in told.keys() | held.keys() if told.get(key) != held.get(key)} == {}
    assert reader.counts["closed"] > 0
    repeated = [one for one, times in Counter(each.identity for each in reader.records).items() if times > 1]
    assert repeated == [], "every position was handed on exactly"
    front.tables.delete_table(name=table.name)


async def replay(table: FrontTable, seed: int, writers: int = WRITERS, calls: int = CALLS) -> ReplayReader:
    """Write, churn and read at once; return the reader when it has read everything."""
    control = table.front.control
    async with grpc.aio.insecure_channel(table.front.address) as channel:
        reader = ReplayReader(channel, table.name, table.since)
        reading = asyncio.create_task(reader.run())
        writing = asyncio.create_task(write_all(channel, table.name, seed, writers, calls))
        await asyncio.to_thread(churn, table, seed)
        await writing
        control.collect_garbage(table.name)
        # given-up calls are finished all the same: this one waits for them all, since it takes the whole table
        table.front.tables.drop_row_range({"name": table.name, "row_key_prefix": b"no such row"})
        records = control.describe(table.name).records
        while not has_read(reader, records):
            if reading.done():
                await reading
            await asyncio.sleep(0.01)
        await ended(reading)
    return reader


def churn(table: FrontTable, seed: int) -> None:
    """Split and merge at random, collect garbage, and let late writes of another cluster arrive."""
    control, pick = table.front.control, random.Random(seed)
    rows = pick.sample([b"r%02d" % number for number in range(40)], CHURN)
    for _ in range(CHURN):
        at = b"r%02d" % pick.randrange(1, 40)
        if pick.random() < 0.5 or not control.merge(table.name, at):
            control.split(table.name, at)
        match pick.randrange(4):
            case 0:
                control.collect_garbage(table.name)
            case 1:
                late = control.describe(table.name).now - pick.randrange(200_000)
                value = set_cell("f", b"a", b"from far away", pick.choice([1_000, 2_000]))
                control.replicate(table.name, rows.pop(), [value], commit=late, cluster="far-c2")
            case _:
                pass


def has_read(reader: ReplayReader, records: int) -> bool:
    """Tell whether the tokens of a reader are behind the last record in every range."""
    tokens = reader.tokens()
    return bool(tokens) and all(
        position.index >= records for token in tokens.values() for position in decode_token(token).positions
    )
