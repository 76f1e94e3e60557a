"""A reader joins a thousand partitions: how long each is read by no reader, and that no lease is lost; in virtual time.

A claim, a renewal and a release take their time, one after the other: as one transaction of a database, or as a call
for each fifty rows.
"""

import asyncio
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import pytest

from shared.contracts.errors import TransientError
from shared.reading.supervisor import Round
from shared.runtime.stop import Stop
from tests.fakes.virtual_time import run_in_virtual_time
from tests.unit.reading.owned import OPTIONS, Owned
from tests.unit.reading.toy_source import ToyPartition, ToyProgress, ToyReader, ToyRow, ToyStream
from tests.unit.reading.toy_topic import ToyPublisher, ToyTopic

PARTITIONS = 1_000


class Fleet(ToyStream):
    """Readers of many partitions without records."""

    def __init__(self, at_once: int, partitions: int = PARTITIONS, call: float = 0.1) -> None:
        super().__init__({f"p{number:04}": ToyRow() for number in range(partitions)})
        self.at_once, self.call, self.releases = at_once, call, True
        self.unread: dict[str, float] = {}
        self.longest = 0.0
        self._running: list[tuple[Stop, asyncio.Task[None]]] = []

    def start(self, owner: str) -> None:
        stop = Stop()
        self._running.append((stop, asyncio.create_task(DistantReader(self, owner).run(stop))))

    def owned(self) -> Mapping[str | None, int]:
        now = asyncio.get_running_loop().time()
        return Counter(row.owner for row in self.rows.values() if row.free_at > now)

    async def end(self) -> None:
        for stop, _task in self._running:
            stop.request()
        await asyncio.gather(*(task for _stop, task in self._running))


class DistantReader(ToyReader):
    """A reader whose store takes its time for a call."""

    def __init__(self, fleet: Fleet, owner: str) -> None:
        super().__init__(fleet, ToyPublisher(ToyTopic()), replace(OPTIONS, owner=owner))
        self._fleet, self._calling = fleet, asyncio.Lock()

    async def survey(self) -> Round[str]:
        await asyncio.sleep(2 * self._fleet.call)
        return await super().survey()

    async def claim(self, due: Sequence[str]) -> Iterable[ToyPartition]:
        await self._call(len(due))
        return await super().claim(due)

    async def _write(self, progress: Sequence[ToyProgress], *, release: bool) -> Collection[str]:
        await self._call(len(progress))
        if release and not self._fleet.releases:
            raise TransientError("ABORTED")
        return await super()._write(progress, release=release)

    async def _call(self, partitions: int) -> None:
        async with self._calling:
            await asyncio.sleep(self._fleet.call * -(-partitions // self._fleet.at_once))

    async def read(self, owned: ToyPartition, stop: Stop) -> None:
        now = asyncio.get_running_loop().time
        self._fleet.longest = max(self._fleet.longest, now() - self._fleet.unread.pop(owned.name, now()))
        try:
            await asyncio.Event().wait()
        finally:
            self._fleet.unread[owned.name] = now()


@pytest.mark.parametrize("call", [0.03, 0.1])
@pytest.mark.parametrize("at_once", [50, PARTITIONS])
async def test_a_reader_that_joins_leaves_no_partition_unread_for_five_seconds_and_no_lease_is_lost(
    at_once: int, call: float
) -> None:
    fleet = Fleet(at_once, call=call)
    fleet.start("a")
    await asyncio.sleep(20)
    assert fleet.owned() == {"a": PARTITIONS}
    fleet.start("b")
    for seconds in (20, 60):
        await asyncio.sleep(seconds)
        assert fleet.owned() == {"a": PARTITIONS // 2, "b": PARTITIONS // 2}
    assert not fleet.unread
    await fleet.end()
    assert fleet.longest <= 5
    assert sum(row.fence for row in fleet.rows.values()) == PARTITIONS + PARTITIONS // 2, "each claim is one"


@pytest.mark.parametrize("at_once", [50, PARTITIONS])
async def test_a_pause_of_the_stream_releases_all_without_losing_a_lease_and_its_end_brings_all_back(
    at_once: int,
) -> None:
    fleet = Fleet(at_once)
    fleet.start("a")
    await asyncio.sleep(20)
    for fleet.paused, owned in ((True, {}), (False, {"a": PARTITIONS})):
        await asyncio.sleep(10)
        assert fleet.owned() == owned
        assert len(fleet.unread) == PARTITIONS - len(owned) * PARTITIONS
    await fleet.end()
    assert sum(row.fence for row in fleet.rows.values()) == 2 * PARTITIONS


async def test_a_partition_whose_release_fails_is_taken_after_its_lease_and_the_others_are_renewed_meanwhile() -> None:
    fleet = Fleet(PARTITIONS, partitions=4)
    fleet.releases = False
    for owner in ("a", "b"):
        fleet.start(owner)
        await asyncio.sleep(80)
    assert fleet.owned() == {"a": 2, "b": 2}
    fleet.releases = True
    await fleet.end()
    assert sum(row.fence for row in fleet.rows.values()) == 4 + 2


def test_who_waits_until_a_partition_is_confirmed_says_so_to_the_publisher() -> None:
    async def scenario() -> None:
        owned, hurried = Owned("p"), 0

        def hurry() -> None:
            nonlocal hurried
            hurried += 1

        owned.hurry = hurry
        await owned.confirmed()
        assert hurried == 0  # nothing to wait for
        place = owned.prefix.add(1, 1)
        waiting = asyncio.create_task(owned.confirmed())
        await asyncio.sleep(0)
        assert hurried == 1
        await asyncio.sleep(3)  # what is late may only come now
        assert hurried > 2
        owned.confirm([place])
        await waiting

    run_in_virtual_time(scenario())
