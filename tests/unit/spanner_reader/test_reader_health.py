"""A loop that hangs is not alive; one that asks again and again for what is away lives, and is not ready."""

import asyncio
from datetime import timedelta

from services.spanner_reader.core.stream.partitions import SpannerPartitionSurvey
from services.spanner_reader.core.stream.records import ROOT, HeartbeatRecord
from shared.contracts.errors import TransientError
from shared.runtime.health import Health
from shared.runtime.stop import Stop
from tests.fakes.spanner_reader import FakePartitionStore, Script
from tests.fakes.virtual_time import run_in_virtual_time
from tests.unit.spanner_reader.scripts import LEASE, World, at

START = at("09:00:00")
TIMEOUT = timedelta(minutes=2)


class Moody(FakePartitionStore):
    """A store that is away, or never answers, when told to."""

    away = hangs = False

    async def survey(self) -> SpannerPartitionSurvey:
        """Look at all partitions, in the right mood."""
        if self.hangs:
            await asyncio.sleep(1e9)
        if self.away:
            raise TransientError("UNAVAILABLE")
        return await super().survey()


def seen(health: Health) -> tuple[bool, bool]:
    return health.alive, health.ready


def test_a_loop_that_hangs_is_not_alive_and_one_that_waits_for_spanner_is_but_not_ready() -> None:
    async def scenario() -> None:
        world = World(Script({ROOT: [HeartbeatRecord(START)]}))
        await world.add_root(START)
        store = Moody(world.table, "reader", LEASE)
        health = Health(TIMEOUT, now=asyncio.get_running_loop().time)
        stop = Stop()
        reading = asyncio.create_task(world.reader(store=store, health=health, poll=timedelta(seconds=1)).run(stop))
        await asyncio.sleep(600)
        assert seen(health) == (True, True)
        store.away = True
        await asyncio.sleep(600)
        assert seen(health) == (True, False), "a restart would not help"
        store.away = False
        await asyncio.sleep(60)
        assert seen(health) == (True, True)
        store.hangs = True
        await asyncio.sleep(100)
        assert seen(health)[0]
        await asyncio.sleep(100)
        assert not seen(health)[0]
        stop.request()
        await reading

    run_in_virtual_time(scenario())
