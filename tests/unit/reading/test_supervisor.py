"""The life of any reader: which failure ends it, and in which order it winds down."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from structlog.testing import capture_logs

from shared.contracts.errors import MisconfiguredError, TransientError
from shared.reading.shares import Shares
from shared.reading.supervisor import Round, Supervisor
from shared.runtime.health import Health
from shared.runtime.stop import Stop
from tests.fakes.reader_metrics import AnyMetrics
from tests.unit.reading.owned import OPTIONS, Leases, Owned

Effects = Mapping[str, Callable[[], Awaitable[None]]]


class World:
    """A source whose partitions are all free, and the store of their leases; a test says how each is read."""

    def __init__(
        self,
        reading: Mapping[str, Callable[[], Awaitable[None]]],
        *,
        surveys: float = math.inf,
        effects: Effects | None = None,
        health: Health | None = None,
    ) -> None:
        """After so many ``surveys`` there is no other; ``effects``: by the names of what is done."""
        self.ended: list[str] = []
        """The partition tasks that are over and the leases that were released, in their order."""
        self.renewed_at: list[float] = []
        self.hurried = 0
        self.paused = False
        self.surveyed = 0
        self._reading = reading
        self._surveys = surveys
        self.effects: Effects = effects or {}
        self._leases = Leases(self, AnyMetrics(), OPTIONS, lambda: True)
        self._supervisor: Supervisor[str, Owned] = Supervisor(self._leases, self, health or Health(), OPTIONS)

    def owned(self, key: str) -> Owned:
        """Return a partition that is read."""
        return self._leases.owned[key]

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
        await self._do("survey")
        self.surveyed += 1
        self._surveys -= 1
        if self._surveys < 0:
            raise TransientError("UNAVAILABLE")
        shares = Shares(dict.fromkeys(self._reading, 0), dict.fromkeys(self._leases.owned, "reader"), {"reader"})
        return Round(shares, {key: key for key in self._reading if key not in self._leases.owned}, self.paused)

    async def claim(self, due: Sequence[str]) -> Iterable[Owned]:
        """Take all, unless the test says otherwise."""
        await self._do("claim")
        return [Owned(key) for key in due]

    async def read(self, owned: Owned, stop: Stop) -> None:
        """Read as the test says."""
        del stop
        try:
            await self._reading[owned.key]()
        finally:
            self.ended.append(f"the task of {owned.key}")

    async def end_in_error(self, error: MisconfiguredError) -> None:
        """Do what the test says."""
        await self._do("inspect")

    async def drain(self, until: float) -> None:
        """Do what the test says."""
        await self._do("drain")

    async def release(self) -> None:
        """Own nothing but partitions."""

    # Store and publisher

    async def advance(self, progress: Sequence[str], *, release: bool = False) -> Collection[str]:
        """Remember which leases are released; no partition has another owner."""
        await self._do("release" if release else "renew")
        if release:
            self.ended += [f"the lease of {key}" for key in progress]
        else:
            self.renewed_at.append(asyncio.get_running_loop().time())
        return ()

    def hurry(self, seconds: float = 0.0) -> None:
        """Remember that a confirmation is waited for."""
        self.hurried += 1

    async def close(self) -> None:
        """Do what the test says."""
        await self._do("close")

    async def _do(self, what: str) -> None:
        if (effect := self.effects.get(what)) is not None:
            await effect()


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
    stop, world = Stop(), World({"p": _ends_late}, effects={"drain": partial(_fails, 0, RuntimeError("drain"))})
    asyncio.get_running_loop().call_later(5, stop.request)
    with pytest.raises(RuntimeError, match="drain"):
        await world.run(stop)
    assert world.ended == ["the task of p", "the lease of p"]


async def test_a_failed_drain_does_not_replace_the_error_that_ended_the_reader() -> None:
    first = partial(_fails, 5, MisconfiguredError("made-up", "first"))
    world = World({"p": first}, effects={"drain": partial(_fails, 0, RuntimeError("drain"))})
    with pytest.raises(MisconfiguredError, match="first"):
        await world.run(Stop())
    assert world.ended == ["the task of p", "the lease of p"]


async def test_leases_are_renewed_while_the_source_is_inspected_for_the_cause_of_an_error() -> None:
    loop, reading = (
        asyncio.get_running_loop(),
        {
            "p": partial(_fails, 5, MisconfiguredError("made-up", "refused")),
            "q": partial(asyncio.sleep, 3_600),
        },
    )
    world = World(reading, effects={"inspect": partial(asyncio.sleep, 20)})
    with pytest.raises(MisconfiguredError, match="refused"):
        await world.run(Stop())
    assert loop.time() - max(world.renewed_at) < OPTIONS.heartbeat.total_seconds()


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


async def _never_answers() -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize("silent", [("renew", "release"), ("close",), ("renew", "release", "close")])
@pytest.mark.parametrize("waits_for", [0, 3, 40])
@pytest.mark.parametrize("hands_over", [True, False])
async def test_a_stop_is_over_in_less_than_ten_seconds_whatever_does_not_answer(
    silent: Sequence[str], waits_for: float, hands_over: bool
) -> None:
    stop, loop = Stop(), asyncio.get_running_loop()
    world = World({"p": _ends_late}, effects=dict.fromkeys(silent, _never_answers))
    running = asyncio.create_task(world.run(stop))
    await asyncio.sleep(10)
    world.paused = hands_over
    await asyncio.sleep(waits_for)
    stopped_at = loop.time()
    stop.request()
    with capture_logs() as logs:
        async with asyncio.timeout(600):
            await running
    assert loop.time() - stopped_at < 9
    errors = [line["error"] for line in logs if line["event"] == "leases_not_released"]
    assert errors == ["the partition table did not answer in time"] * ("release" in silent)
    assert not any(line["event"] == "not_saved" for line in logs), "which says that it is tried again"


async def test_leases_are_released_at_a_stop_though_the_first_attempts_fail() -> None:
    stop, attempts = Stop(), iter([True, True])

    async def fails_at_first() -> None:
        if next(attempts, False):
            raise TransientError("ABORTED")

    world = World({"p": _ends_late}, effects={"release": fails_at_first})
    asyncio.get_running_loop().call_later(5, stop.request)
    await world.run(stop)
    assert world.ended == ["the task of p", "the lease of p"]


async def test_an_error_at_the_release_of_the_leases_does_not_replace_the_error_that_ended_the_reader() -> None:
    first, release = (MisconfiguredError("made-up", text) for text in ("topic not found", "permission denied"))
    world = World({"p": partial(_fails, 5, first)}, effects={"release": partial(_fails, 0, release)})
    with capture_logs() as logs, pytest.raises(MisconfiguredError, match="topic not found"):
        await world.run(Stop())
    assert [line["error"] for line in logs if line["event"] == "leases_not_released"] == ["permission denied [made-up]"]


async def test_a_loop_that_hangs_is_not_alive_and_one_whose_store_is_unavailable_is_alive_and_not_ready() -> None:
    stop, health = Stop(), Health(timedelta(minutes=2), now=asyncio.get_running_loop().time)
    world = World({"p": _ends_late}, health=health)
    running, shown = asyncio.create_task(world.run(stop)), []
    unavailable: Effects = {"survey": partial(_fails, 0, TransientError("UNAVAILABLE"))}
    for world.effects, world.paused in ((unavailable, False), ({}, False), ({}, True)):
        await asyncio.sleep(600)
        shown.append((health.alive, health.ready))
    assert shown == [(True, False), (True, True), (True, True)], "a restart would not help"
    world.effects, alive = {"survey": _never_answers}, []
    for _moment in range(2):
        await asyncio.sleep(100)
        alive.append(health.alive)
    assert alive == [True, False]
    stop.request()
    await running


async def test_a_claim_that_keeps_failing_delays_no_survey_and_the_reader_is_not_ready() -> None:
    stop, health = Stop(), Health(now=asyncio.get_running_loop().time)
    unavailable: Effects = {"claim": partial(_fails, 0, TransientError("UNAVAILABLE"))}
    world = World({"p": _ends_late}, health=health, effects=unavailable)
    running = asyncio.create_task(world.run(stop))
    await asyncio.sleep(120)
    assert world.surveyed > 10  # so that a pause is obeyed, and what else is free is claimed
    shown = [health.ready]
    assert "UNAVAILABLE" in health.obstacles[0]
    world.effects = {}
    await asyncio.sleep(20)
    shown.append(health.ready)
    assert shown == [False, True]
    stop.request()
    await running


async def test_a_partition_that_waits_for_its_confirmation_says_so_to_what_publishes() -> None:
    stop = Stop()

    async def confirm_after_a_second() -> None:
        owned = world.owned("p")
        place = owned.prefix.add(1, 1)
        asyncio.get_running_loop().call_later(1, owned.confirm, [place])
        await owned.confirmed()
        stop.request()
        await asyncio.sleep(3_600)

    world = World({"p": confirm_after_a_second})
    await world.run(stop)
    assert world.hurried == 1
