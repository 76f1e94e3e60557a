"""A loop that hangs is not alive; one that asks again and again for what is away lives, and is not ready."""

import asyncio
from datetime import timedelta

from services.spanner_reader.core.stream.records import ROOT, HeartbeatRecord
from shared.runtime.health import Health
from tests.unit.spanner_reader.scripts import START, World, running


def seen(health: Health) -> tuple[bool, bool]:
    return health.alive, health.ready


async def test_a_loop_that_hangs_is_not_alive_and_one_that_waits_for_spanner_is_but_not_ready() -> None:
    world = await World.begun({ROOT: [HeartbeatRecord(START)]})
    health = Health(timedelta(minutes=2), now=asyncio.get_running_loop().time)
    async with running(world.reader(health=health, poll=timedelta(seconds=1))):
        await asyncio.sleep(600)
        assert seen(health) == (True, True)
        world.table.away = True
        await asyncio.sleep(600)
        assert seen(health) == (True, False), "a restart would not help"
        world.table.away = False
        await asyncio.sleep(60)
        assert seen(health) == (True, True)
        world.table.silent = True
        await asyncio.sleep(100)
        assert seen(health)[0]
        await asyncio.sleep(100)
        assert not seen(health)[0]
