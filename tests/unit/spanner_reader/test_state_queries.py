"""How much 1, 10 and 100 replicas ask of the partition table, in calls per second of virtual time.

The calls are those of `SpannerPartitionStore`, by `CALLS`, which `test_spanner_commits.py` counts on a server. The
figures are in `docs/explanation/load-on-the-source.md`.
"""

import asyncio
import re
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Final

import pytest

from services.spanner_reader.core.pauses import Pauses
from services.spanner_reader.core.stream.records import ROOT, PartitionToken, StreamRecord
from shared.runtime.stop import Stop
from tests.fakes.pauses import FakePauseStore
from tests.fakes.spanner_reader import CALLS, FakePartitionStore, Table
from tests.unit.spanner_reader.scripts import LEASE, START, LiveClock, World, a_record, at, children

SECONDS: Final = 60
PAGE: Final = Path(__file__).resolve().parents[3] / "docs/explanation/load-on-the-source.md"


class CountingStore(FakePartitionStore):
    """A partition store that counts the calls of the real one; not what comes once, or each minute."""

    def __init__(self, table: Table, owner: str, calls: Counter[str]) -> None:
        super().__init__(table, owner, LEASE)
        self._calls = calls

    async def _before(self, call: str) -> None:
        self._calls[call] += CALLS.get(call, 0)
        await super()._before(call)


class CountingPauses(FakePauseStore):
    """A store of pauses that counts its queries."""

    def __init__(self, world: World, calls: Counter[str]) -> None:
        super().__init__(world.pauses)
        self._calls = calls

    async def read(self) -> Pauses:
        self._calls["pauses"] += CALLS["pauses"]
        return await super().read()


async def calls_per_second(replicas: int, partitions: int) -> dict[str, float]:
    """Return what so many replicas ask of the partition table once all partitions are shared."""
    tokens = [PartitionToken(f"p{number:04}") for number in range(partitions)]
    records: dict[PartitionToken, list[StreamRecord]] = {token: [] for token in tokens}
    records[ROOT] = [a_record(START, 10), children(at("09:00:01"), *tokens)]
    world = await World.begun(records, table=Table(LiveClock()))
    calls: Counter[str] = Counter()
    stops = [Stop() for _replica in range(replicas)]
    tasks = []
    for number, stop in enumerate(stops):
        owner = f"reader {number:03}"
        reader = world.reader(
            owner=owner,
            store=CountingStore(world.table, owner, calls),
            pauses=CountingPauses(world, calls),
            poll=timedelta(seconds=1),
        )
        tasks.append(asyncio.create_task(reader.run(stop)))
        await asyncio.sleep(0.01)
    await asyncio.sleep(45)
    before = Counter(calls)
    await asyncio.sleep(SECONDS)
    found = {name: (calls[name] - before[name]) / SECONDS for name in sorted(calls)}
    for stop in stops:
        stop.request()
    await asyncio.gather(*tasks)
    return found


def documented() -> dict[int, list[float]]:
    """Return the rows of the document's table: surveys, pauses, leases, presence and all together, by replicas."""
    rows = re.findall(r"^\| (\d+) \|((?: [\d.]+ \|){5})$", PAGE.read_text(), re.MULTILINE)
    return {int(replicas): [float(figure) for figure in re.findall(r"[\d.]+", figures)] for replicas, figures in rows}


@pytest.mark.parametrize("replicas", [1, 10, 100])
async def test_the_calls_of_all_replicas_together_are_those_of_the_document(replicas: int) -> None:
    found = await calls_per_second(replicas, partitions=100)

    assert found["claim"] == 0
    calls = [found[name] for name in ("survey", "pauses", "advance", "attend")]
    assert [*calls, sum(calls)] == pytest.approx(documented()[replicas], rel=0.05)
