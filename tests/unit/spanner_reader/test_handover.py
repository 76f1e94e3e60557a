"""A reader joins a thousand partitions: how long each is read by nobody, and which leases are lost; in virtual time.

Each reader runs one transaction after the other, as `SpannerDatabaseClient` does.
"""

import asyncio
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import timedelta

import pytest

from services.spanner_reader.core.stream.partitions import (
    NewPartition,
    PartitionState,
    SpannerPartition,
    SpannerPartitionSurvey,
)
from services.spanner_reader.core.stream.records import ROOT, PartitionToken, SpannerStreamQuery, StreamRecord
from services.spanner_reader.ports import SpannerProgress
from shared.contracts.timestamps import Nanoseconds
from shared.runtime.stop import Stop
from tests.fakes.pauses import FakePauseStore
from tests.fakes.spanner_reader import FakeChangeStream, FakePartitionStore, Script, Table
from tests.fakes.virtual_time import run_in_virtual_time
from tests.unit.spanner_reader.scripts import LEASE, World, a_record, at, children
from tests.unit.spanner_reader.virtual_clock import VirtualSpannerClock

START = at("09:00:00")
PARTITIONS = 1_000
TOKENS = [PartitionToken(f"p{number:04}") for number in range(PARTITIONS)]


class DistantStore(FakePartitionStore):
    """A partition table whose transactions take a time, one after the other; so does each query."""

    def __init__(self, table: Table, owner: str, seconds: float) -> None:
        super().__init__(table, owner, LEASE)
        self._seconds = seconds
        self._writing = asyncio.Lock()
        self.transactions = 0

    async def survey(self) -> SpannerPartitionSurvey:
        await asyncio.sleep(2 * self._seconds)
        return await super().survey()

    async def claim(self, tokens: Collection[PartitionToken], end: Nanoseconds | None) -> Sequence[SpannerPartition]:
        async with self._writing:
            await self._transaction()
            return await super().claim(tokens, end)

    async def advance(
        self, progress: Sequence[SpannerProgress], *, release: bool = False
    ) -> Collection[PartitionToken]:
        async with self._writing:
            await self._transaction()
            return await super().advance(progress, release=release)

    async def finish(
        self, progress: SpannerProgress, children: Sequence[NewPartition]
    ) -> Collection[PartitionToken] | None:
        async with self._writing:
            await self._transaction()
            return await super().finish(progress, children)

    async def attend(self, *, leave: bool = False) -> None:
        async with self._writing:
            await self._transaction()
            await super().attend(leave=leave)

    async def _transaction(self) -> None:
        self.transactions += 1
        await asyncio.sleep(self._seconds)


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
    """A change stream that notes when each partition is read."""

    def __init__(self, script: Script, readings: Readings) -> None:
        super().__init__(script)
        self._readings = readings

    async def read(self, query: SpannerStreamQuery) -> AsyncGenerator[Sequence[StreamRecord], None]:
        self._readings.opened(query.token)
        try:
            async with aclosing(super().read(query)) as records:
                async for record in records:
                    yield record
        finally:
            self._readings.closed(query.token)


class Fleet:
    """Readers of a thousand partitions."""

    def __init__(self, seconds: float) -> None:
        records: dict[PartitionToken, list[StreamRecord]] = {token: [] for token in TOKENS}
        records[ROOT] = [a_record(START, 10), children(at("09:00:01"), *TOKENS)]
        self.world = World(Script(records), table=Table(VirtualSpannerClock()))
        self.readings = Readings()
        self.lost: list[str] = []
        self._seconds = seconds
        self._running: list[tuple[Stop, asyncio.Task[None]]] = []

    def start(self, owner: str) -> DistantStore:
        store, stop = DistantStore(self.world.table, owner, self._seconds), Stop()
        stream = WatchedStream(self.world.script, self.readings)
        reader = self.world.reader(owner=owner, store=store, stream=stream, poll=timedelta(seconds=1))
        self._running.append((stop, asyncio.create_task(reader.run(stop))))
        return store

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
def test_a_reader_that_joins_leaves_no_partition_unread_for_five_seconds_and_no_lease_is_lost(seconds: float) -> None:
    async def scenario() -> Fleet:
        fleet = Fleet(seconds)
        await fleet.world.add_root(START)
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
        return fleet

    fleet = run_in_virtual_time(scenario())
    assert fleet.readings.longest <= 5
    assert fleet.world.metrics.leases_lost == 0
    assert len(fleet.world.script.queries) == 1 + PARTITIONS + PARTITIONS // 2


@pytest.mark.parametrize("seconds", [0.03, 0.1])
def test_a_pause_of_the_stream_releases_all_without_losing_a_lease_and_its_end_brings_all_back(seconds: float) -> None:
    async def scenario() -> Fleet:
        fleet = Fleet(seconds)
        await fleet.world.add_root(START)
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
        return fleet

    assert run_in_virtual_time(scenario()).world.metrics.leases_lost == 0


class BusyStream(WatchedStream):
    """A change stream some of whose partitions have twenty records in each second."""

    def __init__(self, script: Script, readings: Readings, busy: Collection[PartitionToken]) -> None:
        super().__init__(script, readings)
        self._busy = busy

    async def read(self, query: SpannerStreamQuery) -> AsyncGenerator[Sequence[StreamRecord], None]:
        if query.token not in self._busy:
            async with aclosing(super().read(query)) as records:
                async for record in records:
                    yield record
            return
        time, number = query.start, 0
        while True:
            await asyncio.sleep(1)
            yield [a_record(Nanoseconds(time + place * 1_000), number + place) for place in range(1, 21)]
            number, time = number + 20, Nanoseconds(time + 20_000)


def test_a_reader_that_joins_gets_half_of_the_load_and_not_half_of_the_partitions() -> None:
    async def scenario() -> tuple[dict[str, int], list[str]]:
        busy, quiet = TOKENS[:4], TOKENS[4:10]
        world = World(
            Script({ROOT: [a_record(START, 10), children(at("09:00:01"), *busy, *quiet)], **dict.fromkeys(quiet, ())}),
            table=Table(VirtualSpannerClock()),
        )
        await world.add_root(START)
        stops, tasks = [Stop(), Stop()], []
        for stop, owner in zip(stops, ("one", "two"), strict=True):
            stream = BusyStream(world.script, Readings(), busy)
            reader = world.reader(
                owner=owner,
                store=DistantStore(world.table, owner, 0.01),
                stream=stream,
                poll=timedelta(seconds=1),
            )
            tasks.append(asyncio.create_task(reader.run(stop)))
            await asyncio.sleep(300)
        rows = {token: world.table.rows[token] for token in [*busy, *quiet]}
        loads = dict.fromkeys(("one", "two"), 0)
        for row in rows.values():
            assert row.owner is not None
            loads[row.owner] += 10 + row.load
        for stop in stops:
            stop.request()
        await asyncio.gather(*tasks)
        return loads, [str(rows[token].owner) for token in busy]

    loads, owners = run_in_virtual_time(scenario())
    assert sorted(owners) == ["one", "two", "two", "two"]  # the six quiet ones weigh as much as two busy ones
    assert abs(loads["one"] - loads["two"]) <= 20
