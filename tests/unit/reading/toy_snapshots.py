"""Snapshots of a source in memory: key ranges whose rows are numbers, and the readers that share them."""

import asyncio
from collections import Counter
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from shared.contracts.change_batch import Change
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.reading.snapshots import OwnedRange, SnapshotOptions, SnapshotPublisher, Snapshots, wait_for_operator
from shared.runtime.stop import Stop
from tests.fakes.life import Life
from tests.unit.reading.toy_topic import HEADER, ToyPublisher, ToyTopic

OPTIONS = SnapshotOptions(page_rows=1, save=timedelta(seconds=1))
ROW_BYTES = 10


@dataclass
class ToyRange:
    """A key range, and what its readers have saved of it."""

    keys: Sequence[int]
    last: int | None = None
    rows: int = 0
    done: bool = False
    owner: str = ""
    free_at: float = 0.0


class ToySnapshots:
    """What outlives a reader: the key ranges and the topic."""

    def __init__(self, ranges: int = 1, rows: int = 4, **options: Any) -> None:
        self.ranges = {str(n): ToyRange(range(n * rows, (n + 1) * rows)) for n in range(ranges)}
        self.options = replace(OPTIONS, **options)
        self.topic = ToyTopic()
        self.is_durable = True
        self.paused: set[Hashable] = set()
        self.announced = False
        self.surveys: list[float] = []
        """When surveys began."""
        self.survey_takes, self.announcing_takes = 0.0, 0.0
        self.save_error: Exception | None = None
        self.release_error: Exception | None = None
        self.read_errors: list[Exception] = []
        self.failing: set[Hashable] = set()
        """Ranges of which no reading gets on."""
        self.claims: list[Hashable] = []
        self.announce_errors: list[Exception] = []

    def reader(self, owner: str = "a", life: Life | None = None) -> Snapshots[OwnedRange[int], Mapping[str, ToyRange]]:
        """Return a new reader."""
        life = life or Life()
        source, publisher = ToySnapshotSource(self, owner, life), ToyPublisher(self.topic, life)
        return Snapshots(source, ToyEnds(self), publisher, lambda: self.is_durable, Stop(), self.options)

    def owners(self) -> Mapping[str, int]:
        """Return how many leases each owner has."""
        return Counter(one.owner for one in self.ranges.values() if one.free_at > _now() and not one.done)


@dataclass
class ToySnapshotSource:
    """One reader's way to the key ranges."""

    world: ToySnapshots
    owner: str
    life: Life

    async def survey(self) -> Mapping[str, ToyRange]:
        """Return all key ranges."""
        self.world.surveys.append(_now())
        await asyncio.sleep(self.world.survey_takes)
        self.life.step()
        return self.world.ranges

    def is_left(self, survey: Mapping[str, ToyRange]) -> bool:
        """Return whether a range is not done."""
        return not all(one.done for one in survey.values())

    def learn(self, survey: Mapping[str, ToyRange]) -> bool:
        """Return whether a range is not done, and not paused."""
        return any(not one.done and place not in self.world.paused for place, one in survey.items())

    async def claim(self, owned: Collection[Hashable], most: int) -> Sequence[OwnedRange[int]]:
        """Claim what is free now."""
        self.life.step()
        free = [
            (place, one)
            for place, one in self.world.ranges.items()
            if not one.done and one.free_at <= _now() and place not in {*owned, *self.world.paused}
        ]
        for place, one in free[:most]:
            self.world.claims.append(place)
            one.owner, one.free_at = self.owner, _now() + self.world.options.lease.total_seconds()
        self.life.step()
        return [OwnedRange(place, one.last, one.rows, range=place) for place, one in free[:most]]

    async def tidy(self, survey: Mapping[str, ToyRange]) -> None:
        """Keep all."""

    def paused(self, owned: Sequence[OwnedRange[int]]) -> Sequence[OwnedRange[int]]:
        """Return what a test has paused."""
        return [one for one in owned if one.place in self.world.paused]

    async def save(self, owned: Sequence[OwnedRange[int]], *, release: bool = False) -> Collection[Hashable]:
        """Save the last confirmed keys with the leases."""
        self.life.step()
        if error := self.world.release_error if release else self.world.save_error:
            raise error
        ours = [one for one in owned if self._range(one).owner == self.owner]
        for one in ours:
            saved = self._range(one)
            saved.last, saved.rows, saved.done = one.last, one.rows, one.complete
            saved.free_at = _now() + (0 if release else self.world.options.lease.total_seconds())
        self.life.step()
        return {one.place for one in owned if one not in ours}

    async def read(self, owned: OwnedRange[int], publisher: SnapshotPublisher) -> bool:
        """Publish what is left, a page at a time."""
        keys = [key for key in self._range(owned).keys if owned.read_to is None or key > owned.read_to]
        for first in range(0, len(keys), publisher.page_rows):
            page = keys[first : first + publisher.page_rows]
            await publisher.wait_for_room(len(page))
            self.life.step()
            if owned.place in self.world.failing:
                raise TransientError("DEADLINE_EXCEEDED")
            if self.world.read_errors:
                raise self.world.read_errors.pop()
            confirm = owned.take(page[-1], len(page), ROW_BYTES * len(page))
            changes = [("", Change("UPSERT", "SNAPSHOT", "", "", "", str(key), "{}")) for key in page]
            await publisher.publish(HEADER, changes, confirm)
        return True

    async def recover(self, owned: OwnedRange[int], error: MisconfiguredError) -> None:
        """Wait for an operator."""
        await wait_for_operator(owned, error)

    def _range(self, owned: OwnedRange[int]) -> ToyRange:
        return self.world.ranges[str(owned.place)]


class ToyEnds:
    """Announces once that all ranges are done."""

    def __init__(self, world: ToySnapshots) -> None:
        self.news = asyncio.Event()
        self._world = world
        self._is_complete = False

    def learn(self, survey: Mapping[str, ToyRange]) -> None:
        """Remember whether all are done."""
        self._is_complete = all(one.done for one in survey.values())
        if self._is_complete and not self._world.announced:
            self.news.set()

    def all_announced(self, survey: Mapping[str, ToyRange]) -> bool:
        """Return whether the end was announced."""
        return self._world.announced

    async def announce(self, *, trusted: bool) -> None:
        """Announce the end, after the errors that a test has set."""
        await asyncio.sleep(self._world.announcing_takes)
        if self._world.announce_errors:
            raise self._world.announce_errors.pop()
        self._world.announced |= trusted and self._is_complete


def _now() -> float:
    return asyncio.get_running_loop().time()
