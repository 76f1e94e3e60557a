"""The life of any reader: which failure ends it, and in which order it winds down."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import pytest

from shared.contracts.errors import MisconfiguredError
from shared.reading.supervisor import Round, Supervisor
from shared.runtime.health import Health
from shared.runtime.stop import Stop
from tests.fakes.virtual_time import run_in_virtual_time
from tests.unit.reading.owned import OPTIONS, Leases, Owned


class World:
    """A source whose partitions are all free, and the store of their leases; a test says how each is read."""

    def __init__(self, reading: Mapping[str, Callable[[], Awaitable[None]]], *, survey_takes: float = 0) -> None:
        self.ended: list[str] = []
        """The partition tasks that are over and the leases that were released, in their order."""
        self.paused = False
        self._reading = reading
        self._survey_takes = survey_takes
        self._leases = Leases(self, self, OPTIONS, lambda: True)
        self._supervisor: Supervisor[str, Owned] = Supervisor(self._leases, self, Health(), OPTIONS)

    async def run(self, stop: Stop) -> None:
        """Read all partitions until asked to stop."""
        await self._supervisor.run(self, stop)

    # Source

    def keepers(self) -> Mapping[str, Coroutine[Any, Any, None]]:
        """Return that nothing runs beside the reading."""
        return {}

    async def begin(self) -> None:
        """Do nothing before the first survey."""

    async def survey(self) -> Round[str]:
        """Return what is not owned yet, after a time."""
        await asyncio.sleep(self._survey_takes)
        return Round(len(self._reading), [key for key in self._reading if key not in self._leases.owned], self.paused)

    async def claim(self, due: Sequence[str]) -> Iterable[Owned]:
        """Take all."""
        return [Owned(key) for key in due]

    async def follow(self, owned: Owned, stop: Stop) -> None:
        """Read as the test says."""
        del stop
        try:
            await self._reading[owned.key]()
        finally:
            self.ended.append(f"the task of {owned.key}")

    async def end_in_error(self, error: MisconfiguredError) -> None:
        """Do nothing more."""

    async def drain(self, until: float) -> None:
        """Do nothing more."""

    async def let_go(self) -> None:
        """Own nothing but partitions."""

    # Store, metrics and publisher

    async def advance(self, progress: Sequence[str], *, release: bool = False) -> Collection[str]:
        """Remember which leases are released; no partition has another owner."""
        if release:
            self.ended += [f"the lease of {key}" for key in progress]
        return ()

    def lease_lost(self) -> None:
        """Count nothing."""

    async def close(self) -> None:
        """Have nothing that waits for Pub/Sub."""


def test_the_first_failure_of_several_ends_the_reader() -> None:
    async def fails(after: float, error: Exception) -> None:
        await asyncio.sleep(after)
        raise error

    # Both fail while the same survey is under way.
    later, first = partial(fails, 2.5, RuntimeError("later")), partial(fails, 1.5, MisconfiguredError("first"))
    with pytest.raises(MisconfiguredError, match="first"):
        run_in_virtual_time(World({"p": later, "q": first}, survey_takes=2).run(Stop()))


async def _ends_late() -> None:
    """Read until cancelled, and then end what is under way, which takes a second."""
    try:
        await asyncio.sleep(3_600)
    finally:
        await asyncio.sleep(1)


def test_a_stop_releases_no_lease_before_the_task_of_its_partition_is_over() -> None:
    async def scenario() -> Sequence[str]:
        stop, world = Stop(), World({"p": _ends_late})
        asyncio.get_running_loop().call_later(5, stop.request)
        await world.run(stop)
        return world.ended

    assert run_in_virtual_time(scenario()) == ["the task of p", "the lease of p"]


def test_a_pause_releases_no_lease_before_the_task_of_its_partition_is_over() -> None:
    async def scenario() -> Sequence[str]:
        stop, world = Stop(), World({"p": _ends_late})
        running = asyncio.create_task(world.run(stop))
        await asyncio.sleep(5)
        world.paused = True
        await asyncio.sleep(5)
        ended = list(world.ended)
        stop.request()
        await running
        return ended

    assert run_in_virtual_time(scenario()) == ["the task of p", "the lease of p"]
