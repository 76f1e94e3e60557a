"""Three replicas of the Bigtable reader that come and go, while partitions split and merge.

Beside rows that every kind of call changes, each transaction writes a row that nothing changes again: a later image
hides no change of it that was lost.
"""

import asyncio
import itertools
import random
from collections.abc import Iterator

import grpc
import pytest

from deploy.local.platform import emulators
from deploy.local.platform.processes import Processes
from shared.pubsub.channels import open_channel
from tests.integration.bigtable_front import Front, set_cell
from tests.integration.bigtable_workload import FAMILIES, SUMS, Writer
from tests.integration.log_lines import events
from tests.integration.pubsub_topics import a_topology
from tests.worlds.bigtable_pipeline import BigtablePipeline
from tests.worlds.churn import Churn

_KEYS = [b"r%02d" % number for number in range(1, 40)]
_RESHAPED = 0.03
"""How likely a change is to split or to merge a partition, too."""


@pytest.fixture
def pipeline(bigtable_front: str, new_processes: Processes) -> Iterator[BigtablePipeline]:
    """Return a pipeline whose Pub/Sub is its own, so that it can stand still."""
    with (
        Front(bigtable_front) as front,
        emulators.pubsub_emulator(new_processes) as pubsub,
        open_channel(pubsub) as channel,
    ):
        table = front.table(*FAMILIES, aggregates=[SUMS], splits=_KEYS[9::10])
        yield BigtablePipeline(table, pubsub, channel, a_topology(channel), new_processes)
        new_processes.end_all()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [0, 1])
def test_replicas_that_come_and_go_publish_every_change_and_the_newest_row_wins(
    pipeline: BigtablePipeline, seed: int
) -> None:
    table, numbers = pipeline.table, itertools.count()

    async def calls(seed: int) -> None:
        async with grpc.aio.insecure_channel(table.front.address) as channel:
            await Writer(channel, table.name, seed).run(5)

    def change(chance: random.Random) -> None:
        asyncio.run(calls(chance.randrange(1 << 30)))
        table.write(b"once %06d" % next(numbers), set_cell("f", b"q", b"v"))
        if chance.random() < _RESHAPED:
            reshape = chance.choice((table.front.control.split, table.front.control.merge))
            reshape(table.name, chance.choice(_KEYS))

    churn = Churn(pipeline, seed, change, pipeline.pull)
    churn.run()
    pipeline.wait_until_equal(*FAMILIES, SUMS)
    written = {b"once %06d" % number for number in range(next(numbers))}
    assert not written - {row_key for row_key, _sequence, _row in pipeline.arrived}, "these never arrived"
    assert sum(bool(events(one, "partition_claimed")) for one in churn.replicas) > 1, "they share the partitions"
