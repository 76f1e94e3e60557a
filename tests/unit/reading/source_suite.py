"""What every source of `shared.reading` has to pass: its partitions are read, shared, handed over and never lost.

A source is a parameter: it passes the suite by a `SourceWorld`, and a test class that makes one for each test.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Collection, Coroutine, Mapping, Sequence
from typing import Any, Final, Protocol

import pytest

from shared.contracts.errors import MisconfiguredError, TransientError
from shared.runtime.stop import Stop
from tests.fakes.life import Life
from tests.fakes.virtual_time import run_in_virtual_time
from tests.unit.reading.owned import OPTIONS
from tests.unit.reading.toy_topic import ToyTopic

_LEASE: Final = OPTIONS.lease.total_seconds()
_TICK: Final = 6.0
"""Seconds in which every lease is renewed."""
_SOON: Final = 5.0
"""Seconds in which what is free is claimed; far less than a lease."""


class SourceWorld(Protocol):
    """A stream with partitions, a table of their leases and a topic; all of it outlives the readers."""

    renewal_takes: float
    """Seconds until a renewal is written."""
    topic: ToyTopic
    """To which each record is published by itself."""

    def add(self, partitions: Mapping[str, Sequence[str]]) -> None:
        """Add partitions with their first records; none of them ends before `split`."""

    def write(self, partition: str, *records: str) -> None:
        """Add records to a partition."""

    def split(self, partition: str, children: Mapping[str, Sequence[str]]) -> None:
        """Let a partition end; children with their records carry on, and have no children themselves."""

    def break_partition(self, partition: str, error: Exception) -> None:
        """Let the reading of a partition fail."""

    async def pause(self) -> None:
        """Pause the whole stream."""

    async def resume(self) -> None:
        """Let the stream go on."""

    def reader(self, owner: str, life: Life, stop: Stop) -> Coroutine[Any, Any, None]:
        """Return the run of a new reader; its life is over at the step at which it is killed."""

    def owned_by(self, owner: str) -> Collection[str]:
        """Return the partitions whose lease is an owner's and lasts."""

    def saved(self, partition: str) -> int:
        """Return how many records the saved progress of a partition covers."""

    def finished(self) -> Collection[str]:
        """Return the partitions that are recorded as over."""


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
        assert sorted(world.topic.published) == ["1", "2", "3"]
        await reader.end()

    async def test_readers_share_the_partitions_fairly_and_the_share_of_one_that_leaves_is_taken_at_once(
        self, world: SourceWorld
    ) -> None:
        world.add({name: [] for name in ("p", "q", "r", "s")})
        first = RunningReader(world, "a")
        await asyncio.sleep(_SOON)
        second = RunningReader(world, "b")
        await asyncio.sleep(_LEASE)
        assert [len(world.owned_by(owner)) for owner in ("a", "b")] == [2, 2]
        await first.end()
        await asyncio.sleep(_SOON)
        assert len(world.owned_by("b")) == 4
        await second.end()

    async def test_a_handover_waits_for_what_is_under_way_and_goes_on_behind_it(self, world: SourceWorld) -> None:
        world.topic.confirms = False
        world.add({"p": ["1"], "q": ["2"]})
        first = RunningReader(world, "a")
        await asyncio.sleep(_SOON)
        second = RunningReader(world, "b")
        await asyncio.sleep(4)
        assert len(world.owned_by("a")) == 2
        world.topic.confirm("1", "2")
        await asyncio.sleep(2)
        assert [len(world.owned_by(owner)) for owner in ("a", "b")] == [1, 1]
        await asyncio.sleep(_SOON)
        assert len(world.topic.published) == 2
        await asyncio.gather(first.end(), second.end())

    async def test_a_busy_partition_weighs_as_much_as_several_quiet_ones(self, world: SourceWorld) -> None:
        world.add({name: [] for name in ("busy", "p", "q", "r")})
        first = RunningReader(world, "a")
        for second in range(0, 300 * 40, 40):
            world.write("busy", *map(str, range(second, second + 40)))
            await asyncio.sleep(1)
        other = RunningReader(world, "b")
        await asyncio.sleep(_LEASE)
        assert {"busy"} in [set(world.owned_by(owner)) for owner in ("a", "b")]
        assert len([*world.owned_by("a"), *world.owned_by("b")]) == 4
        await asyncio.gather(first.end(), other.end())

    async def test_while_the_stream_is_paused_readers_own_and_publish_nothing_and_then_go_on(
        self, world: SourceWorld
    ) -> None:
        world.add({"p": ["1"], "q": []})
        readers = [RunningReader(world, owner) for owner in ("a", "b")]
        await asyncio.sleep(_SOON)
        await world.pause()
        await asyncio.sleep(_SOON)
        world.write("p", "2")
        await asyncio.sleep(40 * _LEASE)
        assert (world.owned_by("a"), world.owned_by("b"), world.topic.published) == (set(), set(), ["1"])
        await world.resume()
        await asyncio.sleep(_SOON)
        assert world.topic.published == ["1", "2"]
        await asyncio.gather(*(reader.end() for reader in readers))

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
        assert world.topic.published == ["1", "2"]
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
        world.topic.confirms = False
        world.add({"p": ["1", "2", "3"]})
        reader, saved = RunningReader(world, "a"), []
        for record in ("2", "1", "3"):
            await asyncio.sleep(2 * _TICK)
            saved.append(world.saved("p"))
            world.topic.confirm(record)
        await asyncio.sleep(2 * _TICK)
        saved.append(world.saved("p"))
        await reader.end()
        assert saved == [0, 0, 2, 3]

    async def test_a_partition_is_not_finished_before_all_of_it_is_confirmed(self, world: SourceWorld) -> None:
        world.topic.confirms = False
        world.add({"p": ["1"]})
        world.split("p", {"q": []})
        reader = RunningReader(world, "a")
        await asyncio.sleep(2 * _TICK)
        assert "p" not in world.finished()
        world.topic.confirm("1")
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
            assert set(world.topic.published) == {"1", "2", "3", "4"}, killed_at
            assert set(world.finished()) == {"p", "q", "r"}, killed_at
            await after.end()
            return was_killed

        killed_at = 1
        while run_in_virtual_time(scenario(self.make_world(), killed_at)):
            killed_at += 1
            assert killed_at < 500, "the reader has no end of steps"
        assert killed_at > 10, "nearly nothing is a step at which a reader can be killed"

    @pytest.mark.parametrize("error", [MisconfiguredError("made-up", "no topic"), TransientError("read it again")])
    async def test_a_publication_that_fails_ends_the_reader_and_what_is_confirmed_is_saved(
        self, world: SourceWorld, error: Exception
    ) -> None:
        world.topic.confirms = False
        world.add({"p": ["1", "2"]})
        reader = RunningReader(world, "a")
        await asyncio.sleep(_SOON)
        world.topic.confirm("1")
        world.topic.waiting["2"].set_exception(error)
        with pytest.raises(type(error)):
            await asyncio.wait_for(reader.task, _LEASE)
        assert (world.saved("p"), world.owned_by("a")) == (1, set())

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
