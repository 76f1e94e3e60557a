"""A reader publishes how far it is, so that one that stopped does not look healthy at the consumer."""

import asyncio
from datetime import timedelta

from services.spanner_reader.core.stream.records import ROOT
from shared.contracts.change_batch import FORMAT, Header, decode_batch, encode_batch
from shared.contracts.timestamps import microseconds
from tests.fakes.spanner_reader import Table
from tests.unit.spanner_reader.scripts import START, LiveClock, World, running


def heartbeats(world: World) -> list[tuple[Header, int]]:
    return [
        (header, header.published_until) for header in world.topic.headers if isinstance(header.published_until, int)
    ]


async def a_world() -> World:
    """Return the world of a quiet stream in virtual time."""
    return await World.begun({ROOT: []}, table=Table(LiveClock()), gates={ROOT: asyncio.Event()})


async def test_a_running_reader_publishes_its_low_watermark_each_minute_and_a_stopped_one_nothing() -> None:
    world = await a_world()
    async with running(world.reader(poll=timedelta(seconds=1))):
        await asyncio.sleep(150)
        assert len(heartbeats(world)) == 2
    await asyncio.sleep(600)

    found = heartbeats(world)
    assert len(found) == 2
    assert {header.table for header, _until in found} == {"Singers"}
    assert [until for _header, until in found] == sorted(until for _header, until in found)
    assert found[-1][1] >= microseconds(START)
    assert all(not changes for _header, changes in world.topic.batches)


async def test_a_reader_of_no_table_publishes_none() -> None:
    world = await a_world()
    async with running(world.reader(poll=timedelta(seconds=1), included=lambda _table: False)):
        await asyncio.sleep(150)
    assert world.topic.headers == []


def test_a_heartbeat_is_an_announcement_to_a_consumer_that_does_not_know_it() -> None:
    header = Header(source="s", table="t", primary_key=(), columns=(), published_until=7)

    data = encode_batch(header, ())

    assert b'"format":1' in data
    assert FORMAT > 1, "the format before this one reads it, too"
    unknown = decode_batch(data.replace(b"published_until", b"a_member_to_come"))
    assert unknown.header == Header(source="s", table="t", primary_key=(), columns=())
    assert len(unknown) == 0
    assert b"published_until" not in encode_batch(unknown.header, ())
