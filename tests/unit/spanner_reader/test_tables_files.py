"""Readers of one stream with different tables files: what one drops is under a mark that no early snapshot heals."""

import asyncio
import random
from collections.abc import Callable
from datetime import timedelta

import pytest

from services.spanner_reader.core.schema.shapes import DROPPED_UNSEEN, SpannerResyncKind
from shared.contracts.timestamps import Nanoseconds
from tests.unit.spanner_reader.capturing import SINGERS, CapturedCatalog, CapturedDatabase, CapturingWorld

MINUTE = timedelta(minutes=1)
UNSEEN = DROPPED_UNSEEN / 1e9
"""In seconds."""


class Rollout(CapturingWorld):
    """A new tables file, which lets Singers in, comes to one reader while the other still has the old one."""

    def __init__(self) -> None:
        super().__init__(random.Random(1), CapturedDatabase("NEW_ROW", timedelta(days=1)), orderly=True)
        self.catalogs: dict[str, CapturedCatalog] = {}

    def start_with(self, owner: str, included: Callable[[str], bool], inspect_every: timedelta = MINUTE) -> None:
        """Start a reader with a tables file, and a catalog that may be unavailable for it alone."""
        self.world.catalog = self.catalogs[owner] = CapturedCatalog(self.database)
        self.start(owner=owner, included=included, inspect_every=inspect_every)

    async def end(self) -> None:
        """Stop the reader that was started first, and wait until it has."""
        await self.stop(0, killed=False)

    async def old_and_new(self, inspect_old_every: timedelta = MINUTE) -> None:
        """Start a reader that leaves Singers out, which shares the partitions with one that does not."""
        self.start_with("old file", lambda table: table != SINGERS, inspect_old_every)
        await asyncio.sleep(5)
        self.start_with("new file", lambda _table: True)
        await asyncio.sleep(20)
        kinds = [found.kind for request in self.world.shapes.all_requests for found in request.findings]
        assert kinds == [SpannerResyncKind.TABLE_WATCHED]

    def write(self, what: str) -> None:
        """Commit changes to all partitions."""
        self.database.commit(*[("replace", key, {"a": what}) for key in range(4)])

    def equal(self) -> bool:
        """Return whether the mirror has what the database has."""
        return self.mirror() == self.database.now.watched_rows


async def test_a_snapshot_that_began_while_the_old_file_was_in_use_heals_nothing_and_a_later_one_does() -> None:
    world = Rollout()
    await world.old_and_new()
    world.begin_snapshot()
    await asyncio.sleep(1)
    world.write("after the snapshot began")
    await asyncio.sleep(10)
    await world.end()
    await world.end_snapshot()
    await asyncio.sleep(2 * UNSEEN)
    assert not world.equal(), "the old reader has dropped some"
    assert world.pending_resync()
    world.begin_snapshot()
    await world.end_snapshot()
    assert world.equal()
    assert not world.pending_resync()
    await world.end()


@pytest.mark.parametrize("seconds", [10, 45, 100, 200, 400])
async def test_while_files_differ_the_resync_request_moves_on_and_is_never_healed_over_what_was_dropped(
    seconds: int,
) -> None:
    world = Rollout()
    await world.old_and_new(inspect_old_every=timedelta(hours=1))  # dropping makes it look in time
    for number in range(seconds // 5):
        world.write(f"{number}")
        await asyncio.sleep(4)
        world.begin_snapshot()
        await asyncio.sleep(1)
        await world.end_snapshot()
    world.write("last")
    await asyncio.sleep(1)
    await world.end()
    await asyncio.sleep(90)  # a look of the other
    assert world.pending_resync() or world.equal()
    await asyncio.sleep(UNSEEN)
    world.begin_snapshot()
    await world.end_snapshot()
    assert world.equal()
    assert not world.pending_resync()
    await world.end()


async def test_a_reader_whose_inspection_cannot_be_stored_drops_nothing_that_a_resync_request_would_not_cover() -> None:
    world = Rollout()
    await world.old_and_new()
    world.catalogs["old file"].unavailable = True
    await asyncio.sleep(2 * UNSEEN)
    world.write("too late to be dropped")
    await asyncio.sleep(10)
    await world.end()
    await asyncio.sleep(60)
    assert world.equal()
    await world.end()


async def test_a_resync_request_is_of_no_earlier_time_than_what_an_inspection_before_it_lets_others_drop() -> None:
    world = Rollout()
    await world.old_and_new()
    (request,) = world.world.shapes.all_requests
    (found,) = request.findings
    assert request.sync_after == found.dropped_until == Nanoseconds(found.before + DROPPED_UNSEEN)
    await asyncio.sleep(120)
    (later,) = world.world.shapes.all_requests
    assert later.sync_after >= request.sync_after + 60e9
    assert later.since == request.since
    await world.end()
    await world.end()
