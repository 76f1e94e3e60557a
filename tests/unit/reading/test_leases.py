"""The leases of any reader: when progress is saved with them, and when they are lost."""

import asyncio
from collections.abc import Collection, Sequence

from shared.reading.leases import PartlySavedError
from tests.fakes.reader_metrics import AnyMetrics
from tests.unit.reading.owned import OPTIONS, Leases, Owned


class World:
    """A store that remembers what was saved, and a topic that is trusted or not."""

    def __init__(self) -> None:
        self.saved: list[str] = []
        self.released: list[str] = []
        self.metrics = AnyMetrics()
        self.trusted = True
        self.renewal_takes = 0.0
        self.unwritable: Collection[str] = ()
        self.leases = Leases(self, self.metrics, OPTIONS, lambda: self.trusted)

    async def advance(self, progress: Sequence[str], *, release: bool = False) -> Collection[str]:
        """Remember progress; no partition has another owner."""
        await asyncio.sleep(0 if release else self.renewal_takes)
        if self.unwritable:
            raise PartlySavedError("UNAVAILABLE", (), self.unwritable)
        (self.released if release else self.saved).extend(progress)
        return ()

    def own(self, key: str) -> Owned:
        """Return a partition with a new lease, which is read."""
        owned = Owned(key)
        owned.task = asyncio.create_task(asyncio.sleep(3_600))
        self.leases.take(owned, asyncio.get_running_loop().time())
        return owned


async def test_while_the_topic_may_lose_messages_no_progress_is_saved_and_a_release_keeps_what_was_claimed() -> None:
    world = World()
    world.own("p")
    keeper = asyncio.create_task(world.leases.keep())
    await asyncio.sleep(6)
    assert world.saved == ["p"]
    world.trusted = False
    await asyncio.sleep(20)
    keeper.cancel()
    await world.leases.release_all()
    assert world.saved == ["p"]
    assert world.released == ["p as it was claimed"]


async def test_a_partition_whose_progress_cannot_be_saved_ends_no_other_lease() -> None:
    world = World()
    good, bad = world.own("good"), world.own("bad")
    world.unwritable = ["bad"]
    keeper = asyncio.create_task(world.leases.keep())
    await asyncio.sleep(60)
    keeper.cancel()
    assert (good.over, bad.over) == (False, True)


async def test_a_released_partition_is_not_saved_again_while_its_task_ends() -> None:
    world = World()
    owned = world.own("p")
    await world.leases.release([owned])
    keeper = asyncio.create_task(world.leases.keep())
    await asyncio.sleep(20)
    keeper.cancel()
    assert world.released == ["p"]
    assert world.saved == []


async def test_a_release_comes_after_the_renewal_that_is_on_its_way() -> None:
    world = World()
    owned, world.renewal_takes = world.own("p"), 3.0
    keeper = asyncio.create_task(world.leases.keep())
    await asyncio.sleep(6)
    assert world.saved == [], "the renewal is on its way"
    await world.leases.release([owned])
    assert (world.saved, world.released) == (["p"], ["p"])
    keeper.cancel()


async def test_a_renewal_that_arrives_after_the_lease_has_expired_here_does_not_extend_it() -> None:
    world = World()
    owned, world.renewal_takes = world.own("p"), 3.0
    keeper = asyncio.create_task(world.leases.keep())
    await asyncio.sleep(6)
    owned.is_expired = True
    await asyncio.sleep(3)
    keeper.cancel()
    assert world.saved == ["p"]
    assert owned.over
    assert world.metrics.value("reader_leases_lost_total") == 1


async def test_a_lease_that_has_expired_here_is_not_renewed() -> None:
    """After the process stood still, a command may have found that no reader runs: nothing may be saved then."""
    world = World()
    owned = world.own("p")
    owned.is_expired = True
    keeper = asyncio.create_task(world.leases.keep())
    await asyncio.sleep(6)
    keeper.cancel()
    assert (world.saved, owned.over) == ([], True)
    assert world.metrics.value("reader_leases_lost_total") == 1


async def test_a_lease_that_is_not_renewed_ends_the_reading_at_its_end_and_not_before() -> None:
    world = World()
    owned = world.own("p")
    over = []
    for wait in (29, 2):
        await asyncio.sleep(wait)
        over.append(owned.over)
    assert over == [False, True]
    assert owned.task is not None
    assert owned.task.cancelled()
