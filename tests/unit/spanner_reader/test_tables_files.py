"""Readers of one stream with different tables files: what one drops is under a mark that no early snapshot heals."""

import asyncio
import random
from collections.abc import Callable
from datetime import timedelta

import pytest

from services.spanner_reader.core.schema.shapes import DROPPED_UNSEEN, SpannerResyncKind
from services.spanner_reader.ports import CatalogInspection
from shared.contracts.timestamps import Nanoseconds
from shared.runtime.stop import Stop
from tests.fakes.spanner_schema import FakeCatalog
from tests.unit.spanner_reader.pausing import SINGERS, PausingWorld

MINUTE = timedelta(minutes=1)
UNSEEN = DROPPED_UNSEEN / 1e9
"""In seconds."""


class SlowCatalog(FakeCatalog):
    """A catalog whose looks take a time, and which may be away for one reader alone."""

    async def inspect(self) -> CatalogInspection:
        await asyncio.sleep(0.01)
        return await super().inspect()


class Rollout:
    """A new tables file, which lets Singers in, comes to one reader while the other still has the old one."""

    def __init__(self) -> None:
        self.pausing = PausingWorld(random.Random(1))
        self.database = self.pausing.database
        self.catalogs: dict[str, SlowCatalog] = {}

    def start(self, owner: str, included: Callable[[str], bool], look: timedelta = MINUTE) -> Stop:
        """Start a reader with a tables file, and return what stops it."""
        world = self.pausing.world
        catalog = SlowCatalog(*world.catalog.tables, everything=True, clock=self.database.clock)
        world.catalog = self.catalogs[owner] = catalog
        return self.pausing.start(0, 0.1, owner=owner, included=included, look=look)

    async def end(self, stop: Stop) -> None:
        """Stop one reader, and wait until it has."""
        (which,) = [one for one in self.pausing.readers if one[1] is stop]
        stop.request()
        await which[2]
        self.pausing.readers.remove(which)

    async def old_and_new(self, look_of_old: timedelta = MINUTE) -> Stop:
        """Return what stops the reader that leaves Singers out, which shares the partitions with one that does not."""
        old = self.start("old file", lambda table: table != SINGERS, look_of_old)
        await asyncio.sleep(5)
        self.start("new file", lambda _table: True)
        await asyncio.sleep(20)
        kinds = [found.kind for request in self.pausing.world.shapes.all_requests for found in request.findings]
        assert kinds == [SpannerResyncKind.TABLE_WATCHED]
        return old

    def write(self, what: str) -> None:
        """Commit changes to all partitions."""
        for key in range(4):
            self.database.write(SINGERS, key, what)

    def equal(self) -> bool:
        """Return whether the mirror has what the database has."""
        return self.pausing.mirrored(SINGERS) == self.database.rows(SINGERS)

    def marked(self) -> bool:
        """Return whether Singers is pending resync."""
        return self.pausing.marked


async def test_a_snapshot_that_began_while_the_old_file_was_in_use_heals_nothing_and_a_later_one_does() -> None:
    world = Rollout()
    old = await world.old_and_new()
    world.pausing.begin_snapshot()
    await asyncio.sleep(1)
    world.write("after the snapshot began")
    await asyncio.sleep(10)
    await world.end(old)
    await world.pausing.end_snapshot()
    await asyncio.sleep(2 * UNSEEN)
    assert not world.equal(), "the old reader has dropped some"
    assert world.marked()
    world.pausing.begin_snapshot()
    await world.pausing.end_snapshot()
    assert world.equal()
    assert not world.marked()
    await world.pausing.end()


@pytest.mark.parametrize("seconds", [10, 45, 100, 200, 400])
async def test_while_files_differ_the_resync_request_moves_on_and_is_never_healed_over_what_was_dropped(
    seconds: int,
) -> None:
    world = Rollout()
    old = await world.old_and_new(look_of_old=timedelta(hours=1))  # dropping makes it look in time
    for number in range(seconds // 5):
        world.write(f"{number}")
        await asyncio.sleep(4)
        world.pausing.begin_snapshot()
        await asyncio.sleep(1)
        await world.pausing.end_snapshot()
    world.write("last")
    await asyncio.sleep(1)
    await world.end(old)
    await asyncio.sleep(90)  # a look of the other
    assert world.marked() or world.equal()
    await asyncio.sleep(UNSEEN)
    world.pausing.begin_snapshot()
    await world.pausing.end_snapshot()
    assert world.equal()
    assert not world.marked()
    await world.pausing.end()


async def test_a_reader_whose_inspection_cannot_be_stored_drops_nothing_that_a_resync_request_would_not_cover() -> None:
    world = Rollout()
    old = await world.old_and_new()
    world.catalogs["old file"].away = True
    await asyncio.sleep(2 * UNSEEN)
    world.write("too late to be dropped")
    await asyncio.sleep(10)
    await world.end(old)
    await asyncio.sleep(60)
    assert world.equal()
    await world.pausing.end()


async def test_a_resync_request_is_of_no_earlier_time_than_what_an_inspection_before_it_lets_others_drop() -> None:
    world = Rollout()
    old = await world.old_and_new()
    (request,) = world.pausing.world.shapes.all_requests
    (found,) = request.findings
    assert request.sync_after == found.dropped_until == Nanoseconds(found.before + DROPPED_UNSEEN)
    await asyncio.sleep(120)
    (later,) = world.pausing.world.shapes.all_requests
    assert later.sync_after >= request.sync_after + 60e9
    assert later.since == request.since
    await world.end(old)
    await world.pausing.end()
