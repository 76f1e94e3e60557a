"""A stop is over in time, whatever answers; what was confirmed until then is saved, and the leases are given back."""

import asyncio
import math
from collections.abc import Collection, Sequence
from datetime import timedelta

import pytest
from structlog.testing import capture_logs

from services.spanner_reader.core.stream.partitions import PartitionState
from services.spanner_reader.core.stream.records import ROOT, HeartbeatRecord, PartitionToken, StreamRecord
from services.spanner_reader.ports import SpannerProgress
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.contracts.timestamps import Nanoseconds
from shared.runtime.stop import Stop
from tests.fakes.spanner_reader import FakePartitionStore, FakePublisher
from tests.unit.spanner_reader.scripts import LEASE, World, a_record, at, children

FIRST, READ = at("09:00:01"), at("09:10:00")
TOKENS = [PartitionToken(f"p{number}") for number in range(4)]
IN_TIME = 9
"""Seconds within which a stop is over; what is left of ten is for the end of the process."""


class Unanswered(FakePublisher):
    """A publisher whose topic confirms nothing: the last chance that it takes at its end is all for nothing."""

    async def close(self) -> None:
        """Wait for what does not come."""
        await asyncio.sleep(5)
        await super().close()


class Refusing(FakePartitionStore):
    """A store that gives nothing back before its time."""

    until = 0.0
    error: Exception = TransientError("ABORTED")

    async def advance(
        self, progress: Sequence[SpannerProgress], *, release: bool = False
    ) -> Collection[PartitionToken]:
        """Save watermarks and renew the leases (or give them back)."""
        if release and asyncio.get_running_loop().time() < self.until:
            raise self.error
        return await super().advance(progress, release=release)


class Reading:
    """A reader that reads four partitions that live on, and what it reads."""

    def __init__(self, world: World, publisher: FakePublisher | None = None) -> None:
        self.world, self.stop = world, Stop()
        self.store = Refusing(world.table, "reader", LEASE)
        reader = world.reader(store=self.store, publisher=publisher, poll=timedelta(seconds=1))
        self.task = asyncio.create_task(reader.run(self.stop))

    def has_to_share(self, refusing_for: float) -> None:
        """Let another reader come, and for a time no lease be given back."""
        self.store.until = asyncio.get_running_loop().time() + refusing_for
        self.world.table.readers["another"] = Nanoseconds(self.world.table.clock.now() * 2)

    async def seconds_to_stop(self) -> float:
        """Ask the reader to stop; return how long that takes."""
        stopped_at = asyncio.get_running_loop().time()
        self.stop.request()
        async with asyncio.timeout(600):
            await self.task
        return asyncio.get_running_loop().time() - stopped_at


async def a_world() -> World:
    """Return a world of four partitions that live on."""
    records: dict[PartitionToken, list[StreamRecord]] = {ROOT: [children(FIRST, *TOKENS)]}
    records |= {token: [a_record(READ, number), HeartbeatRecord(READ)] for number, token in enumerate(TOKENS)}
    return await World.begun(records)


@pytest.mark.parametrize("waits_for", [0.0, 3.0, 40.0])
@pytest.mark.parametrize("silent", ["all", "spanner", "the topic"])
async def test_when_nothing_answers_any_more_a_stop_is_over_in_less_than_ten_seconds(
    silent: str, waits_for: float
) -> None:
    world = await a_world()
    reading = Reading(world, None if silent == "spanner" else Unanswered(world.topic, by_hand=True))
    await asyncio.sleep(10)
    world.table.silent = world.script.silent = silent != "the topic"
    await asyncio.sleep(waits_for)
    assert await reading.seconds_to_stop() < IN_TIME


async def test_a_stop_while_partitions_are_being_released_to_a_table_that_does_not_answer_is_over_in_time() -> None:
    world = await a_world()
    reading = Reading(world)
    await asyncio.sleep(10)
    reading.has_to_share(refusing_for=20)
    await asyncio.sleep(10)
    assert len(world.script.open_queries) == 2  # the others are on their way to the other reader
    world.table.silent = True
    await asyncio.sleep(2)
    assert await reading.seconds_to_stop() < IN_TIME


async def test_a_stop_before_the_first_inspection_of_the_schema_is_answered_ends_the_inspection() -> None:
    world = await a_world()
    world.catalog.silent = True
    reading = Reading(world)
    await asyncio.sleep(3)
    assert await reading.seconds_to_stop() < IN_TIME


async def test_the_leases_are_renewed_while_giving_a_partition_back_fails_again_and_again() -> None:
    world = await a_world()
    reading = Reading(world)
    await asyncio.sleep(10)
    reading.has_to_share(refusing_for=100)
    await asyncio.sleep(80)
    still = [token for token in TOKENS if world.table.rows[token].lease_until is not None]
    assert still == TOKENS
    open_queries = set(world.script.open_queries)
    assert len(open_queries) == 2  # the others are on their way to the other reader
    await asyncio.sleep(40)
    rows = {token: world.table.rows[token] for token in TOKENS}
    assert {token for token, row in rows.items() if row.lease_until is not None} == open_queries
    assert {row.fencing for row in rows.values()} == {1}  # never lost and taken again
    await reading.seconds_to_stop()


async def test_what_was_confirmed_is_saved_at_a_stop_though_the_first_attempts_are_aborted() -> None:
    world = await a_world()
    reading = Reading(world)
    await asyncio.sleep(10)
    reading.store.until = asyncio.get_running_loop().time() + 1
    await reading.seconds_to_stop()
    for token in TOKENS:
        row = world.table.rows[token]
        assert (row.state, row.watermark, row.lease_until) == (PartitionState.RUNNING, READ, None)
    assert world.table.readers == {}


async def test_an_error_at_the_release_of_the_leases_does_not_replace_the_error_that_ended_the_reader() -> None:
    world = await a_world()
    publisher = FakePublisher(world.topic, by_hand=True)
    reading = Reading(world, publisher)
    reading.store.error, reading.store.until = MisconfiguredError("made-up", "permission denied on the table"), math.inf
    await asyncio.sleep(10)
    publisher.waiting[0].set_exception(MisconfiguredError("made-up", "topic not found: create it"))
    with capture_logs() as logs, pytest.raises(MisconfiguredError, match="topic not found"):
        await reading.task
    assert [line["error"] for line in logs if line["event"] == "watermarks_not_saved"] == [
        "permission denied on the table [made-up]"
    ]
    assert [line["partitions"] for line in logs if line["event"] == "reader_stopped"] == [4]
