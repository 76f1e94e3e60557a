"""A reader joins a thousand partitions: how long each is read by nobody, and which leases are lost; in virtual time.

Each reader runs one transaction after the other, as `SpannerDatabaseClient` does.
"""

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import timedelta

import pytest

from services.spanner_reader.core.stream.partitions import PartitionState
from services.spanner_reader.core.stream.records import ROOT, PartitionToken, SpannerStreamQuery, StreamRecord
from shared.contracts.timestamps import Nanoseconds
from shared.runtime.stop import Stop
from tests.fakes.pauses import FakePauseStore
from tests.fakes.spanner_reader import FakeChangeStream, FakePartitionStore, Script, Table
from tests.unit.spanner_reader.scripts import LEASE, START, LiveClock, World, a_record, at, children

PARTITIONS = 1_000
TOKENS = [PartitionToken(f"p{number:04}") for number in range(PARTITIONS)]


class DistantStore(FakePartitionStore):
    """A partition table whose transactions take a time, one after the other; so does each query."""

    def __init__(self, table: Table, owner: str, seconds: float) -> None:
        super().__init__(table, owner, LEASE)
        self._seconds = seconds
        self._writing = asyncio.Lock()

    async def _before(self, call: str) -> None:
        if call == "survey":
            await asyncio.sleep(2 * self._seconds)
        else:
            async with self._writing:
                await asyncio.sleep(self._seconds)
        await super()._before(call)


@dataclass
class Readings:
    """When partitions are read by nobody."""

    closed_at: dict[PartitionToken, float] = field(default_factory=dict)
    longest: float = 0.0

    def opened(self, token: PartitionToken) -> None:
        if (closed_at := self.closed_at.pop(token, None)) is not None:
            self.longest = max(self.longest, asyncio.get_running_loop().time() - closed_at)

    def closed(self, token: PartitionToken) -> None:
        self.closed_at[token] = asyncio.get_running_loop().time()


class WatchedStream(FakeChangeStream):
    """A change stream that notes when each partition is read; some have twenty records in each second."""

    def __init__(self, script: Script, readings: Readings, busy: Collection[PartitionToken]) -> None:
        super().__init__(script)
        self._readings = readings
        self._busy = busy

    async def read(self, query: SpannerStreamQuery) -> AsyncGenerator[Sequence[StreamRecord], None]:
        self._readings.opened(query.token)
        portions = _busy_for_ever(query.start) if query.token in self._busy else super().read(query)
        try:
            async with aclosing(portions) as records:
                async for record in records:
                    yield record
        finally:
            self._readings.closed(query.token)


async def _busy_for_ever(time: Nanoseconds) -> AsyncGenerator[Sequence[StreamRecord], None]:
    for number in itertools.count(step=20):
        await asyncio.sleep(1)
        yield [a_record(Nanoseconds(time + (number + place) * 1_000), number + place) for place in range(1, 21)]


class Fleet:
    """Readers of many partitions."""

    def __init__(self, world: World, seconds: float, busy: Collection[PartitionToken]) -> None:
        self.world = world
        self.readings = Readings()
        self._seconds = seconds
        self._busy = busy
        self._running: list[tuple[Stop, asyncio.Task[None]]] = []

    @classmethod
    async def begun(
        cls, seconds: float, tokens: Sequence[PartitionToken] = TOKENS, busy: Collection[PartitionToken] = ()
    ) -> "Fleet":
        records: dict[PartitionToken, list[StreamRecord]] = {token: [] for token in tokens}
        records[ROOT] = [a_record(START, 10), children(at("09:00:01"), *tokens)]
        return cls(await World.begun(records, table=Table(LiveClock())), seconds, busy)

    def start(self, owner: str) -> None:
        store, stop = DistantStore(self.world.table, owner, self._seconds), Stop()
        stream = WatchedStream(self.world.script, self.readings, self._busy)
        reader = self.world.reader(owner=owner, store=store, stream=stream, poll=timedelta(seconds=1))
        self._running.append((stop, asyncio.create_task(reader.run(stop))))

    def owned(self) -> dict[str | None, int]:
        rows = [row for row in self.world.table.rows.values() if row.state is not PartitionState.FINISHED]
        owners = [row.owner for row in rows if row.lease_until is not None]
        return {owner: owners.count(owner) for owner in sorted(set(owners), key=str)}

    async def until_all_are_read(self) -> None:
        while len(self.world.script.open_queries) < PARTITIONS:  # noqa: ASYNC110  virtual time
            await asyncio.sleep(0.1)

    async def end(self) -> None:
        for stop, _task in self._running:
            stop.request()
        await asyncio.gather(*(task for _stop, task in self._running))


@pytest.mark.parametrize("seconds", [0.03, 0.1])
async def test_a_reader_that_joins_leaves_no_partition_unread_for_five_seconds_and_no_lease_is_lost(
    seconds: float,
) -> None:
    fleet = await Fleet.begun(seconds)
    fleet.start("one")
    await fleet.until_all_are_read()
    await asyncio.sleep(20)
    fleet.readings.longest = 0
    fleet.start("two")
    await asyncio.sleep(20)
    await fleet.until_all_are_read()
    assert fleet.owned() == {"one": 500, "two": 500}
    await asyncio.sleep(60)
    assert fleet.owned() == {"one": 500, "two": 500}
    assert not fleet.readings.closed_at.keys() - {ROOT}
    await fleet.end()
    assert fleet.readings.longest <= 5
    assert fleet.world.metrics.leases_lost == 0
    assert len(fleet.world.script.queries) == 1 + PARTITIONS + PARTITIONS // 2


@pytest.mark.parametrize("seconds", [0.03, 0.1])
async def test_a_pause_of_the_stream_releases_all_without_losing_a_lease_and_its_end_brings_all_back(
    seconds: float,
) -> None:
    fleet = await Fleet.begun(seconds)
    fleet.start("one")
    await fleet.until_all_are_read()
    pauses = FakePauseStore(fleet.world.pauses)
    await pauses.pause(None)
    await asyncio.sleep(5)
    assert fleet.owned() == {}
    assert not fleet.world.script.open_queries
    await pauses.resume(None)
    await asyncio.sleep(5)
    assert fleet.owned() == {"one": PARTITIONS}
    await fleet.until_all_are_read()
    await fleet.end()
    assert fleet.world.metrics.leases_lost == 0


async def test_a_reader_that_joins_gets_half_of_the_load_and_not_half_of_the_partitions() -> None:
    busy = TOKENS[:4]
    fleet = await Fleet.begun(0.01, TOKENS[:10], busy)
    for owner in ("one", "two"):
        fleet.start(owner)
        await asyncio.sleep(300)
    rows = {token: row for token, row in fleet.world.table.rows.items() if token != ROOT}
    loads: Counter[str | None] = Counter()
    for row in rows.values():
        loads[row.owner] += 10 + row.load
    owners = [str(rows[token].owner) for token in busy]
    assert sorted(owners) == ["one", "two", "two", "two"]  # the six quiet ones weigh as much as two busy ones
    assert abs(loads["one"] - loads["two"]) <= 20
    await fleet.end()
