"""A stop is over in time, whatever answers; what was confirmed until then is saved, and the leases are given back."""

import asyncio
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
from tests.fakes.spanner_reader import FakePartitionStore, FakePublisher, Script
from tests.fakes.virtual_time import run_in_virtual_time
from tests.unit.spanner_reader.scripts import LEASE, World, a_record, at, children

START, FIRST, READ = at("09:00:00"), at("09:00:01"), at("09:10:00")
TOKENS = [PartitionToken(f"p{number}") for number in range(4)]
POLL = timedelta(seconds=1)


class Unanswered(FakePublisher):
    """A publisher whose topic confirms nothing: the last chance that it takes at its end is all for nothing."""

    async def close(self) -> None:
        """Wait for what does not come."""
        await asyncio.sleep(5)
        await super().close()


class Refusing(FakePartitionStore):
    """A store that gives nothing back before its time."""

    until = 0.0

    async def advance(
        self, progress: Sequence[SpannerProgress], *, release: bool = False
    ) -> Collection[PartitionToken]:
        """Save watermarks and renew the leases (or give them back)."""
        if release and asyncio.get_running_loop().time() < self.until:
            raise TransientError("ABORTED")
        return await super().advance(progress, release=release)


class Unwritable(FakePartitionStore):
    """A store that refuses to release any lease."""

    async def advance(
        self, progress: Sequence[SpannerProgress], *, release: bool = False
    ) -> Collection[PartitionToken]:
        """Save watermarks and renew the leases; MisconfiguredError where they are released."""
        if release:
            raise MisconfiguredError("made-up", "permission denied on the partition table")
        return await super().advance(progress, release=release)


def a_world() -> World:
    """Return a world of four partitions that live on."""
    records: dict[PartitionToken, list[StreamRecord]] = {ROOT: [children(FIRST, *TOKENS)]}
    records |= {token: [a_record(READ, number), HeartbeatRecord(READ)] for number, token in enumerate(TOKENS)}
    return World(Script(records))


@pytest.mark.parametrize("waits_for", [0.0, 3.0, 40.0])
@pytest.mark.parametrize("silent", ["all", "spanner", "the topic"])
def test_when_nothing_answers_any_more_a_stop_is_over_in_less_than_ten_seconds(silent: str, waits_for: float) -> None:
    async def scenario() -> None:
        world = a_world()
        await world.add_root(START)
        stop, loop = Stop(), asyncio.get_running_loop()
        publisher = FakePublisher(world.topic) if silent == "spanner" else Unanswered(world.topic, by_hand=True)
        task = asyncio.create_task(world.reader(publisher=publisher, poll=POLL).run(stop))
        await asyncio.sleep(10)
        if silent != "the topic":
            world.table.silent = world.script.silent = True
        await asyncio.sleep(waits_for)
        stopped_at = loop.time()
        stop.request()
        async with asyncio.timeout(600):
            await task
        assert loop.time() - stopped_at < 9  # what is left is for the end of the process

    run_in_virtual_time(scenario())


def test_a_stop_while_partitions_are_being_given_back_to_a_table_that_does_not_answer_is_over_in_time() -> None:
    async def scenario() -> None:
        world = a_world()
        await world.add_root(START)
        stop, loop = Stop(), asyncio.get_running_loop()
        store = Refusing(world.table, "reader", LEASE)
        task = asyncio.create_task(world.reader(store=store, poll=POLL).run(stop))
        await asyncio.sleep(10)
        store.until = loop.time() + 20
        world.table.readers["another"] = Nanoseconds(world.table.clock.now() * 2)
        await asyncio.sleep(10)
        assert len(world.script.open_queries) == 2  # the others are on their way to the other reader
        world.table.silent = True
        await asyncio.sleep(2)
        stopped_at = loop.time()
        stop.request()
        async with asyncio.timeout(600):
            await task
        assert loop.time() - stopped_at < 9

    run_in_virtual_time(scenario())


def test_a_stop_before_the_first_look_at_the_schema_is_answered_ends_the_look() -> None:
    async def scenario() -> None:
        world = a_world()
        await world.add_root(START)
        stop, loop = Stop(), asyncio.get_running_loop()
        world.catalog.silent = True
        task = asyncio.create_task(world.reader(poll=POLL).run(stop))
        await asyncio.sleep(3)
        stopped_at = loop.time()
        stop.request()
        async with asyncio.timeout(600):
            await task
        assert loop.time() - stopped_at < 9

    run_in_virtual_time(scenario())


def test_the_leases_are_renewed_while_giving_a_partition_back_fails_again_and_again() -> None:
    async def scenario() -> None:
        world = a_world()
        await world.add_root(START)
        stop, loop = Stop(), asyncio.get_running_loop()
        store = Refusing(world.table, "reader", LEASE)
        task = asyncio.create_task(world.reader(store=store, poll=POLL).run(stop))
        await asyncio.sleep(10)
        store.until = loop.time() + 100
        world.table.readers["another"] = Nanoseconds(world.table.clock.now() * 2)
        await asyncio.sleep(80)
        still = [token for token in TOKENS if world.table.rows[token].lease_until is not None]
        assert still == TOKENS
        reading = set(world.script.open_queries)
        assert len(reading) == 2  # the others are on their way to the other reader
        await asyncio.sleep(40)
        rows = {token: world.table.rows[token] for token in TOKENS}
        assert {token for token, row in rows.items() if row.lease_until is not None} == reading
        assert {row.fencing for row in rows.values()} == {1}  # never lost and taken again
        stop.request()
        await task

    run_in_virtual_time(scenario())


def test_what_was_confirmed_is_saved_at_a_stop_though_the_first_attempts_are_aborted() -> None:
    async def scenario() -> None:
        world = a_world()
        await world.add_root(START)
        stop, loop = Stop(), asyncio.get_running_loop()
        store = Refusing(world.table, "reader", LEASE)
        task = asyncio.create_task(world.reader(store=store, poll=POLL).run(stop))
        await asyncio.sleep(10)
        store.until = loop.time() + 1
        stop.request()
        await task
        for token in TOKENS:
            row = world.table.rows[token]
            assert (row.state, row.watermark, row.lease_until) == (PartitionState.RUNNING, READ, None)
        assert world.table.readers == {}

    run_in_virtual_time(scenario())


def test_an_error_at_the_release_of_the_leases_does_not_replace_the_error_that_ended_the_reader() -> None:
    async def scenario() -> None:
        world = a_world()
        await world.add_root(START)
        publisher = FakePublisher(world.topic, by_hand=True)
        store = Unwritable(world.table, "reader", LEASE)
        task = asyncio.create_task(world.reader(publisher=publisher, store=store, poll=POLL).run(Stop()))
        await asyncio.sleep(10)
        publisher.waiting[0].set_exception(MisconfiguredError("made-up", "topic not found: create it"))
        with capture_logs() as logs, pytest.raises(MisconfiguredError, match="topic not found"):
            await task
        assert [line["error"] for line in logs if line["event"] == "watermarks_not_saved"] == [
            "permission denied on the partition table [made-up]"
        ]
        assert [line["partitions"] for line in logs if line["event"] == "reader_stopped"] == [4]

    run_in_virtual_time(scenario())
