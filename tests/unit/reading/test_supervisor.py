"""The life of any reader: which failure ends it, and in which order it winds down."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import pytest

from shared.contracts.errors import MisconfiguredError, TransientError
from shared.reading.shares import Shares
from shared.reading.supervisor import Round, Supervisor
from shared.runtime.health import Health
from shared.runtime.stop import Stop
from tests.unit.reading.owned import OPTIONS, Leases, Owned


class World:
    """A source whose partitions are all free, and the store of their leases; a test says how each is read."""

    def __init__(
        self,
        reading: Mapping[str, Callable[[], Awaitable[None]]],
        *,
        surveys: float = math.inf,
        drain: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """After so many ``surveys`` the store does not answer any more."""
        self.ended: list[str] = []
        """The partition tasks that are over and the leases that were released, in their order."""
        self.paused = False
        self._reading = reading
        self._surveys = surveys
        self._drain = drain
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
        """Return what is not owned yet."""
        self._surveys -= 1
        if self._surveys < 0:
            raise TransientError("UNAVAILABLE")
        shares = Shares(dict.fromkeys(self._reading, 0), dict.fromkeys(self._leases.owned, "reader"), {"reader"})
        return Round(shares, {key: key for key in self._reading if key not in self._leases.owned}, self.paused)

    async def claim(self, due: Sequence[str]) -> Iterable[Owned]:
        """Take all."""
        return [Owned(key) for key in due]

    async def read(self, owned: Owned, stop: Stop) -> None:
        """Read as the test says."""
        del stop
        try:
            await self._reading[owned.key]()
        finally:
            self.ended.append(f"the task of {owned.key}")

    async def end_in_error(self, error: MisconfiguredError) -> None:
        """Do nothing more."""

    async def drain(self, until: float) -> None:
        """Do what the test says."""
        if self._drain is not None:
            await self._drain()

    async def release(self) -> None:
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


async def _fails(after: float, error: Exception) -> None:
    await asyncio.sleep(after)
    raise error


@pytest.mark.parametrize("stopped_at", [10.5, 3_600], ids=["a stop follows", "no stop follows"])
async def test_a_failure_ends_the_reader_while_a_survey_is_retried(stopped_at: float) -> None:
    stop, loop = Stop(), asyncio.get_running_loop()
    loop.call_later(stopped_at, stop.request)
    reading = partial(_fails, 10, MisconfiguredError("made-up", "the stream is gone"))
    with pytest.raises(MisconfiguredError, match="the stream is gone"):
        await World({"p": reading}, surveys=1).run(stop)
    assert loop.time() < 20


async def test_leases_are_released_after_the_tasks_though_draining_fails_and_that_ends_a_reader_that_was_stopped() -> (
    None
):
    stop, world = Stop(), World({"p": _ends_late}, drain=partial(_fails, 0, RuntimeError("drain")))
    asyncio.get_running_loop().call_later(5, stop.request)
    with pytest.raises(RuntimeError, match="drain"):
        await world.run(stop)
    assert world.ended == ["the task of p", "the lease of p"]


async def test_a_failed_drain_does_not_replace_the_error_that_ended_the_reader() -> None:
    first = partial(_fails, 5, MisconfiguredError("made-up", "first"))
    world = World({"p": first}, drain=partial(_fails, 0, RuntimeError("drain")))
    with pytest.raises(MisconfiguredError, match="first"):
        await world.run(Stop())
    assert world.ended == ["the task of p", "the lease of p"]


async def _ends_late() -> None:
    """Read until cancelled, and then end what is under way, which takes a second."""
    try:
        await asyncio.sleep(3_600)
    finally:
        await asyncio.sleep(1)


async def test_a_pause_releases_no_lease_before_the_task_of_its_partition_is_over() -> None:
    stop, world = Stop(), World({"p": _ends_late})
    running = asyncio.create_task(world.run(stop))
    await asyncio.sleep(5)
    world.paused = True
    await asyncio.sleep(5)
    ended = list(world.ended)
    stop.request()
    await running
    assert ended == ["the task of p", "the lease of p"]
