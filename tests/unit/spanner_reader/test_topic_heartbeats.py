"""A reader publishes how far it is, so that one that stopped does not look healthy at the consumer."""

import asyncio
from datetime import timedelta

from services.spanner_reader.core.stream.records import ROOT
from shared.contracts.change_batch import FORMAT, Header, decode_batch, encode_batch
from shared.contracts.timestamps import microseconds
from shared.runtime.stop import Stop
from tests.fakes.spanner_reader import Script, Table
from tests.fakes.virtual_time import run_in_virtual_time
from tests.unit.spanner_reader.scripts import World, at
from tests.unit.spanner_reader.virtual_clock import VirtualSpannerClock

START = at("09:00:00")
SECOND = timedelta(seconds=1)


def heartbeats(world: World) -> list[tuple[Header, int]]:
    return [
        (header, header.published_until) for header in world.topic.headers if isinstance(header.published_until, int)
    ]


def test_a_running_reader_publishes_its_low_watermark_each_minute_and_a_stopped_one_nothing() -> None:
    world = World(Script({ROOT: []}, gates={ROOT: asyncio.Event()}), Table(VirtualSpannerClock()))

    async def scenario() -> None:
        await world.add_root(START)
        stop = Stop()
        reading = asyncio.create_task(world.reader(poll=SECOND).run(stop))
        await asyncio.sleep(150)
        assert len(heartbeats(world)) == 2
        stop.request()
        await reading
        await asyncio.sleep(600)

    run_in_virtual_time(scenario())
    found = heartbeats(world)
    assert len(found) == 2
    assert {header.table for header, _until in found} == {"Singers"}
    assert [until for _header, until in found] == sorted(until for _header, until in found)
    assert found[-1][1] >= microseconds(START)
    assert all(not changes for _header, changes in world.topic.batches)


def test_a_reader_of_no_table_publishes_none() -> None:
    world = World(Script({ROOT: []}, gates={ROOT: asyncio.Event()}), Table(VirtualSpannerClock()))

    async def scenario() -> None:
        await world.add_root(START)
        stop = Stop()
        reading = asyncio.create_task(world.reader(poll=SECOND, included=lambda _table: False).run(stop))
        await asyncio.sleep(150)
        stop.request()
        await reading

    run_in_virtual_time(scenario())
    assert world.topic.headers == []


def test_a_heartbeat_is_an_announcement_to_whoever_does_not_know_it() -> None:
    header = Header(source="s", table="t", primary_key=(), columns=(), published_until=7)

    data = encode_batch(header, ())

    assert b'"format":1' in data
    assert FORMAT > 1, "the format before this one reads it, too"
    unknown = decode_batch(data.replace(b"published_until", b"a_member_to_come"))
    assert unknown.header == Header(source="s", table="t", primary_key=(), columns=())
    assert len(unknown) == 0
    assert b"published_until" not in encode_batch(unknown.header, ())
