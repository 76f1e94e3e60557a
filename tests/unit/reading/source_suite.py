"""What every source of `shared.reading` has to pass: its partitions are read, shared, handed over and never lost.

A source is a parameter: it passes the suite by a `SourceWorld`, and a test class that makes one for each test.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Collection, Coroutine, Mapping, Sequence
from typing import Any, Final, Protocol

import pytest

from shared.contracts.errors import MisconfiguredError
from shared.runtime.stop import Stop
from tests.fakes.life import Life
from tests.fakes.virtual_time import run_in_virtual_time
from tests.unit.reading.owned import OPTIONS

_LEASE: Final = OPTIONS.lease.total_seconds()
_TICK: Final = 6.0
"""Seconds in which every lease is renewed."""
_SOON: Final = 5.0
"""Seconds in which what is free is claimed; far less than a lease."""


class SourceWorld(Protocol):
    """A stream with partitions, a table of their leases and a topic; all of it outlives the readers."""

    renewal_takes: float
    """Seconds until a renewal is written."""
    confirms: bool
    """Whether the topic confirms what it takes; if not, `confirm` does."""

    def add(self, partitions: Mapping[str, Sequence[str]]) -> None:
        """Add partitions with their first records; none of them ends before `split`."""

    def write(self, partition: str, *records: str) -> None:
        """Add records to a partition."""

    def split(self, partition: str, children: Mapping[str, Sequence[str]]) -> None:
        """Let a partition end; children with their records carry on, and have no children themselves."""

    def break_partition(self, partition: str, error: Exception) -> None:
        """Let the reading of a partition fail."""

    def reader(self, owner: str, life: Life, stop: Stop) -> Coroutine[Any, Any, None]:
        """Return the run of a new reader; its life is over at the step at which it is killed."""

    def owned_by(self, owner: str) -> Collection[str]:
        """Return the partitions whose lease is an owner's and lasts."""

    def saved(self, partition: str) -> int:
        """Return how many records the saved progress of a partition covers."""

    def finished(self) -> Collection[str]:
        """Return the partitions that are recorded as over."""

    def published(self) -> Sequence[str]:
        """Return the records that were published, in their order; some of them several times."""

    def confirm(self, record: str) -> None:
        """Confirm what was published of a record."""


class RunningReader:
    """A reader of the world that a test stops or kills."""

    def __init__(self, world: SourceWorld, owner: str, killed_at: int | None = None) -> None:
        self.life, self.stop = Life(killed_at), Stop()
        self.task = asyncio.create_task(world.reader(owner, self.life, self.stop))

    async def end(self) -> None:
        """Stop it, and return when it is over."""
        self.stop.request()
        await self.task

    async def kill(self) -> None:
        """Kill it: nothing that it does any more has an effect."""
        self.life.over = True
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


class SourceSuite(ABC):
    """The behaviour of any source; a subclass says of which."""

    @abstractmethod
    def make_world(self) -> SourceWorld:
        """Return a world without partitions and readers."""

    @pytest.fixture
    def world(self) -> SourceWorld:
        """Return such a world for a test."""
        return self.make_world()

    async def test_a_reader_claims_and_publishes_every_partition(self, world: SourceWorld) -> None:
        world.add({"p": ["1", "2"], "q": ["3"]})
        reader = RunningReader(world, "a")
        await asyncio.sleep(_SOON)
        assert set(world.owned_by("a")) == {"p", "q"}
        assert sorted(world.published()) == ["1", "2", "3"]
        await reader.end()

    async def test_two_readers_share_the_partitions_fairly(self, world: SourceWorld) -> None:
        world.add({name: [] for name in ("p", "q", "r", "s")})
        first = RunningReader(world, "a")
        await asyncio.sleep(_SOON)
        second = RunningReader(world, "b")
        await asyncio.sleep(_LEASE)
        assert [len(world.owned_by(owner)) for owner in ("a", "b")] == [2, 2]
        await asyncio.gather(first.end(), second.end())

    async def test_a_lease_is_renewed_for_as_long_as_its_owner_reads(self, world: SourceWorld) -> None:
        world.add({"p": []})
        first = RunningReader(world, "a")
        await asyncio.sleep(_SOON)
        second = RunningReader(world, "b")
        for _moment in range(50):
            await asyncio.sleep(_LEASE / 10)
            assert world.owned_by("a") == {"p"}
        await asyncio.gather(first.end(), second.end())

    async def test_a_stopped_reader_releases_its_leases_with_their_progress(self, world: SourceWorld) -> None:
        world.add({"p": ["1", "2"]})
        first = RunningReader(world, "a")
        await asyncio.sleep(_SOON)
        await first.end()
        assert not world.owned_by("a")
        assert world.saved("p") == 2
        second = RunningReader(world, "b")
        await asyncio.sleep(_SOON)
        assert world.owned_by("b") == {"p"}
        assert world.published() == ["1", "2"]
        await second.end()

    async def test_the_lease_of_a_dead_owner_is_taken_over_after_it_has_lapsed_and_not_before(
        self, world: SourceWorld
    ) -> None:
        world.add({"p": ["1"]})
        dead = RunningReader(world, "a")
        await asyncio.sleep(_SOON)
        await dead.kill()
        second = RunningReader(world, "b")
        await asyncio.sleep(_LEASE - _SOON - _TICK)
        assert not world.owned_by("b")
        await asyncio.sleep(_SOON + 2 * _TICK)
        assert world.owned_by("b") == {"p"}
        await second.end()

    @pytest.mark.parametrize("stopped_after", [7.0, 11.0, 13.5, 16.0])
    async def test_a_renewal_that_is_written_late_does_not_revive_a_released_lease(
        self, world: SourceWorld, stopped_after: float
    ) -> None:
        world.add({"p": []})
        world.renewal_takes = 3.0
        first = RunningReader(world, "a")
        await asyncio.sleep(stopped_after)
        await first.end()
        await asyncio.sleep(world.renewal_takes + 1)
        assert not world.owned_by("a")

    async def test_progress_is_saved_only_up_to_the_first_record_that_is_not_confirmed(
        self, world: SourceWorld
    ) -> None:
        world.confirms = False
        world.add({"p": ["1", "2", "3"]})
        reader, saved = RunningReader(world, "a"), []
        for record in ("2", "1", "3"):
            await asyncio.sleep(2 * _TICK)
            saved.append(world.saved("p"))
            world.confirm(record)
        await asyncio.sleep(2 * _TICK)
        saved.append(world.saved("p"))
        await reader.end()
        assert saved == [0, 0, 2, 3]

    async def test_a_partition_is_not_finished_before_all_of_it_is_confirmed(self, world: SourceWorld) -> None:
        world.confirms = False
        world.add({"p": ["1"]})
        world.split("p", {"q": []})
        reader = RunningReader(world, "a")
        await asyncio.sleep(2 * _TICK)
        assert "p" not in world.finished()
        world.confirm("1")
        await asyncio.sleep(_SOON)
        assert "p" in world.finished()
        await reader.end()

    def test_no_record_and_no_child_is_lost_wherever_a_reader_is_killed(self) -> None:
        async def scenario(world: SourceWorld, killed_at: int) -> bool:
            world.add({"p": ["1", "2"]})
            world.split("p", {"q": ["3"], "r": ["4"]})
            killed = RunningReader(world, "a", killed_at)
            await asyncio.wait([killed.task], timeout=3 * _TICK)
            was_killed = killed.life.over
            await killed.kill()
            after = RunningReader(world, "b")
            await asyncio.sleep(2 * _LEASE)
            assert set(world.published()) == {"1", "2", "3", "4"}, killed_at
            assert set(world.finished()) == {"p", "q", "r"}, killed_at
            await after.end()
            return was_killed

        killed_at = 1
        while run_in_virtual_time(scenario(self.make_world(), killed_at)):
            killed_at += 1
            assert killed_at < 500, "the reader has no end of steps"
        assert killed_at > 10, "nearly nothing is a step at which a reader can be killed"

    async def test_the_first_error_decides_how_a_reader_ends_and_what_is_confirmed_is_saved(
        self, world: SourceWorld
    ) -> None:
        world.add({"p": ["1"], "q": ["2"]})
        reader = RunningReader(world, "a")
        await asyncio.sleep(_SOON)
        world.write("p", "3")
        await asyncio.sleep(1)
        world.break_partition("p", MisconfiguredError("made-up", "first"))
        await asyncio.sleep(0.2)
        world.break_partition("q", RuntimeError("second"))
        with pytest.raises(MisconfiguredError, match="first"):
            await reader.task
        assert [world.saved(name) for name in ("p", "q")] == [2, 1]
        assert not world.owned_by("a")
