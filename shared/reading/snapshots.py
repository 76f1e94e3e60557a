"""Reads the rows that precede the stream, beside it: a few key ranges at a time, shared by all readers.

What a source does differently, it does behind `SnapshotSource` and `SnapshotEnds`. Progress moves last: rows are
published, Pub/Sub confirms them, then the last confirmed key of the range is saved with its lease. The next owner of
the range continues behind that key. Rows of snapshots have ordering keys of their own, a part of the outstanding bytes
and a limit of rows per second, so the stream does not wait for them.
"""

import asyncio
import contextlib
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Final, Generic, Protocol, TypeVar

import structlog

from shared.contracts.change_batch import Change, Header
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.reading.confirmed_prefix import ConfirmedPrefix
from shared.reading.publishing import ChangePublisher
from shared.runtime.retries import retrying_async
from shared.runtime.stop import Stop


class Pace:
    """Lets so many rows pass a second, none at a time when more are due than a second's worth."""

    def __init__(self, rows_per_second: int | None) -> None:
        """None: as many as come."""
        self._rate = rows_per_second
        self._free_at = 0.0
        self._turn = asyncio.Lock()

    async def wait_for(self, rows: int) -> None:
        """Return when so many more may pass."""
        if self._rate is None:
            return
        async with self._turn:
            loop = asyncio.get_running_loop()
            await asyncio.sleep(self._free_at - loop.time())
            self._free_at = max(self._free_at, loop.time()) + rows / self._rate


_SURVEY_PAUSE: Final = 10
"""The next survey begins so many times later than the last one took: surveys take a tenth of the time at most."""
_OPERATOR: Final = timedelta(minutes=1)
"""How long a range waits after an error that only an operator can remove, such as a missing right."""
_ATTEMPTS: Final = 10
"""To read a range on from one place, before others come first."""
_MOST_OWNED: Final = 100
"""Key ranges that a reader owns at most. Some only wait for their confirmation, but each save writes all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotOptions:
    """How snapshots are read."""

    ranges: int = 2
    """Key ranges that one reader reads at the same time, beside those that only wait for their confirmation."""
    page_rows: int = 2_000
    """Rows that one call reads, where a source reads by pages.

    Smaller pages cost more calls than rows; much larger ones delay the stream's records, because one page is made into
    changes at once.
    """
    rows_per_second: int | None = None
    unconfirmed_bytes: int = 16 << 20
    """Bytes of all key ranges together that may wait for Pub/Sub."""
    save: timedelta = timedelta(seconds=5)
    """How often progress is saved, and key ranges are claimed, while anything is left to read."""
    idle: timedelta = timedelta(seconds=10)
    """How often a reader checks for a new snapshot while nothing is left to read."""
    lease: timedelta = timedelta(seconds=30)
    """How long a key range stays ours without being saved."""
    announce: timedelta = timedelta(seconds=5)
    """How often complete snapshots and tables that are pending resync are checked, and after each survey with news."""


KeyT = TypeVar("KeyT")


class OwnedRange(Generic[KeyT]):
    """A key range that this reader has the lease of, and how far it is read."""

    def __init__(self, place: Hashable, last: KeyT | None, rows: int, **names: object) -> None:
        """Continue behind the ``last`` confirmed key; ``names`` are the fields that name the range in logs."""
        self.place = place
        self.names = names
        self.begin(last, rows)
        self.outstanding_bytes = 0
        self.task: asyncio.Task[None] | None = None
        self.all_read = False
        """Whether all of it is read, so that it only waits for its confirmation."""
        self.complete = False
        """Whether all of it is read and confirmed."""
        self.over = False
        """Whether this reader no longer saves progress of it: it is done, lost, released or given up."""

    def begin(self, last: KeyT | None, rows: int) -> None:
        """Read on behind a key up to which so many rows are confirmed; nothing may wait for its confirmation."""
        self._prefix: ConfirmedPrefix[int, KeyT] = ConfirmedPrefix(0, last)
        self._rows_before = rows

    @property
    def last(self) -> KeyT | None:
        """Return the last key up to which all rows are confirmed."""
        return self._prefix.token

    @property
    def read_to(self) -> KeyT | None:
        """Return the key of the last row that was read, confirmed or not: reading continues behind it."""
        return self._prefix.read_token

    @property
    def rows(self) -> int:
        """Return how many rows are confirmed, and all before them."""
        return self._rows_before + self._prefix.confirmed

    @property
    def all_confirmed(self) -> bool:
        """Return whether Pub/Sub has confirmed everything that was read."""
        return not self._prefix.outstanding

    def take(self, last: KeyT | None, rows: int, size: int, publications: int = 1) -> Callable[[], None]:
        """Take the next rows, up to a key, which so many publications contain; return what confirms one of these."""
        prefix, place = self._prefix, self._prefix.add(0, publications, records=rows, token=last)
        self.outstanding_bytes += size

        def confirm() -> None:
            prefix.confirm((place,))
            if not place.waiting:
                self.outstanding_bytes -= size

        return confirm


RangeT = TypeVar("RangeT", bound=OwnedRange[Any])
SurveyT = TypeVar("SurveyT")
_SurveyT_contra = TypeVar("_SurveyT_contra", contravariant=True)


class SnapshotPublisher:
    """Publishes rows of key ranges, within the rate and the bytes that snapshots may use."""

    def __init__(
        self,
        publisher: ChangePublisher,
        options: SnapshotOptions,
        owned: Mapping[Hashable, OwnedRange[Any]],
        fail: Callable[[BaseException | None], None],
    ) -> None:
        """Limit the bytes of all ``owned`` ranges; ``fail`` ends the reader when nothing can be published."""
        self._publisher = publisher
        self._options = options
        self._owned = owned
        self._fail = fail
        self._pace = Pace(options.rows_per_second)
        self._changed = asyncio.Event()

    @property
    def page_rows(self) -> int:
        """Return how many rows one call reads: where rows are limited, no more than a second's."""
        return min(self._options.page_rows, self._options.rows_per_second or self._options.page_rows)

    async def wait_for_room(self, rows: int) -> None:
        """Return when so many more rows may be published."""
        await self._pace.wait_for(rows)
        while sum(one.outstanding_bytes for one in self._owned.values()) >= self._options.unconfirmed_bytes:
            await self._change()

    async def publish(
        self, header: Header, changes: Sequence[tuple[str, Change]], confirmed: Callable[[], None]
    ) -> None:
        """Publish changes; ``confirmed`` is called when Pub/Sub has all of them."""
        try:
            future = await self._publisher.publish(header, changes)
        except MisconfiguredError as error:  # the stream fails for the same reason: it is not this range's error
            self._fail(error)
            await asyncio.Future()  # until the reader cancels this task
            raise
        self.call_when_done(future, confirmed)

    def call_when_done(self, future: asyncio.Future[None], confirmed: Callable[[], None]) -> None:
        """Call ``confirmed`` when the future is done; its error ends the reader."""
        future.add_done_callback(partial(self._on_done, confirmed))

    async def wait_until_confirmed(self, owned: OwnedRange[Any]) -> None:
        """Return when Pub/Sub has confirmed everything of a range."""
        while not owned.all_confirmed:
            await self._change()

    def wake(self) -> None:
        """Let everything that waits here check again."""
        self._changed.set()

    def _on_done(self, confirmed: Callable[[], None], done: "asyncio.Future[None]") -> None:
        if done.cancelled():
            return
        if done.exception() is not None:
            self._fail(done.exception())
            return
        confirmed()
        self.wake()

    async def _change(self) -> None:
        self._publisher.hurry()
        self._changed.clear()
        await self._changed.wait()


class SnapshotSource(Protocol[RangeT, SurveyT]):
    """What rows are read from, and where it is stored which key ranges are read. TransientError: call it again."""

    async def survey(self) -> SurveyT:
        """Return all key ranges of all snapshots, those of other readers too."""

    def is_left(self, survey: SurveyT) -> bool:
        """Return whether anything is left to read of what this reader watches, whichever reader reads it."""

    def learn(self, survey: SurveyT) -> bool:
        """Remember which ranges are free, show how far all are; return whether anything is to be read here now."""

    async def claim(self, owned: Collection[Hashable], most: int) -> Sequence[RangeT]:
        """Claim so many ranges at most of those that the last survey found free, and that are not paused."""

    async def tidy(self, survey: SurveyT) -> None:
        """Delete what is no longer needed of finished snapshots."""

    def paused(self, owned: Sequence[RangeT]) -> Sequence[RangeT]:
        """Return those of the ranges that are not to be read for now."""

    async def save(self, owned: Sequence[RangeT], *, release: bool = False) -> Collection[Hashable]:
        """Save how far ranges are, and renew or release their leases; return those that are no longer ours."""

    async def read(self, owned: RangeT, publisher: SnapshotPublisher) -> bool:
        """Publish what is left of a range; return whether it is still ours."""

    async def recover(self, owned: RangeT, error: MisconfiguredError) -> None:
        """Do what lets the reading continue after an error, as `wait_for_operator` does."""


class SnapshotEnds(Protocol[_SurveyT_contra]):
    """What announces that a snapshot is complete: only when no key range is missing, and all rows are confirmed."""

    news: asyncio.Event
    """Set when there is something to announce."""

    def learn(self, survey: _SurveyT_contra) -> None:
        """Remember which snapshots are complete."""

    def all_announced(self, survey: _SurveyT_contra) -> bool:
        """Return whether the end of each complete snapshot is announced, or never will be."""

    async def announce(self, *, trusted: bool) -> None:
        """Announce complete snapshots if the topic is ``trusted`` to keep that; request those that are needed.

        TransientError.
        """


async def wait_for_operator(owned: OwnedRange[Any], error: MisconfiguredError) -> None:
    """Log why a range cannot be read, and wait before it is read again. The stream continues meanwhile."""
    structlog.get_logger().error("snapshot_stalled", **owned.names, error=str(error))
    await asyncio.sleep(_OPERATOR.total_seconds())


class Snapshots(Generic[RangeT, SurveyT]):
    """Reads its share of a source's key ranges, again and again, until it is cancelled."""

    def __init__(
        self,
        source: SnapshotSource[RangeT, SurveyT],
        ends: SnapshotEnds[SurveyT],
        publisher: ChangePublisher,
        trusted: Callable[[], bool],
        stop: Stop,
        options: SnapshotOptions,
    ) -> None:
        """``trusted`` returns whether the topic keeps what is published: progress is saved only then."""
        self.source = source
        self._ends = ends
        self._trusted = trusted
        self._stop = stop
        self._options = options
        self._owned: dict[Hashable, RangeT] = {}
        self._later: set[Hashable] = set()
        """Ranges whose reading did not get on: they are claimed again when this reader finds no others."""
        self._publisher = SnapshotPublisher(publisher, options, self._owned, self._fail)
        self._saving = asyncio.Lock()
        self._wake = asyncio.Event()
        self._next_survey = 0.0
        """By the event loop's clock."""
        self._busy = False
        self._failure: BaseException | None = None
        self._log = structlog.get_logger()

    async def keep_reading(self) -> None:
        """Claim key ranges, read them, save how far they are; an error that does not pass is raised."""
        announcing = asyncio.create_task(self._keep_announcing(), name="ends of snapshots")
        announcing.add_done_callback(lambda task: None if task.cancelled() else self._fail(task.exception()))
        try:
            while True:
                self._wake.clear()
                if self._failure is not None:
                    raise self._failure
                try:
                    await self._release_paused()  # first: a pause holds although saves fail
                    await self._save()
                    await self._claim_in_time()
                except TransientError as error:
                    self._log.warning("snapshots_not_saved", error=str(error))
                with contextlib.suppress(TimeoutError):
                    pause = self._options.save if self._owned or self._busy else self._options.idle
                    async with asyncio.timeout(pause.total_seconds()):
                        await self._wake.wait()
        finally:
            await _cancel([announcing, *_tasks(self._owned.values())])

    async def release(self) -> None:
        """Save how far everything is that Pub/Sub has confirmed by now, and release the leases."""
        await self._save(release=True)

    async def over(self) -> bool:
        """Return whether nothing is left to read, here or elsewhere, and every end is announced."""
        survey = await self.source.survey()
        return not self.source.is_left(survey) and self._ends.all_announced(survey)

    async def _keep_announcing(self) -> None:
        """Announce in a task of its own: no lease waits for a publication."""
        while True:
            self._ends.news.clear()
            try:
                await self._ends.announce(trusted=self._trusted())
            except TransientError as error:
                self._log.warning("snapshot_ends_not_announced", error=str(error))
                await asyncio.sleep(1)
                self._ends.news.set()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._options.announce.total_seconds()):
                    await self._ends.news.wait()

    # Sharing

    async def _claim_in_time(self) -> None:
        """Claim ranges, but so that the leases of the owned ones are renewed before they end."""
        seconds = self._options.lease.total_seconds() / 2
        try:
            async with asyncio.timeout(seconds):
                survey = await self._survey()
                await self._claim()
                if survey is not None:
                    await self.source.tidy(survey)
        except TimeoutError as error:
            raise TransientError(f"no ranges could be claimed within {seconds:g} s, which is half a lease") from error

    async def _survey(self) -> SurveyT | None:
        """Survey all ranges; None where that would take too great a part of the time."""
        clock = asyncio.get_running_loop()
        began = clock.time()
        if began < self._next_survey:
            return None
        try:
            survey = await self.source.survey()
        finally:
            took = min(clock.time() - began, self._options.lease.total_seconds() / 2)  # more: the process was suspended
            self._next_survey = began + _SURVEY_PAUSE * took
        self._busy = self.source.learn(survey)
        self._ends.learn(survey)
        return survey

    async def _claim(self) -> None:
        reading = sum(not one.all_read or one.complete for one in self._owned.values())
        room = min(self._options.ranges - reading, _MOST_OWNED - len(self._owned))
        if room <= 0:
            return
        claimed = await self.source.claim(self._owned.keys() | self._later, room)
        if not claimed:
            self._later.clear()
        for owned in claimed:
            self._owned[owned.place] = owned
            owned.task = asyncio.create_task(self._follow(owned), name=f"snapshot, {owned.names}")
            owned.task.add_done_callback(partial(self._on_task_done, owned))

    async def _release_paused(self) -> None:
        """Read no more of what is paused, or does not get on; its progress is kept, and reading continues from there.

        A lease that cannot be released is not renewed either: it expires.
        """
        reading = [one for one in self._owned.values() if not one.over and not one.complete]
        paused = self.source.paused(reading)
        paused = [one for one in reading if one in paused or one.place in self._later]
        for one in paused:
            one.over = True
        await _cancel(_tasks(paused))
        for one in paused:
            self._owned.pop(one.place, None)
            if one.place in self._later:
                self._log.warning("snapshot_range_released", **one.names, attempts=_ATTEMPTS)
        if paused and self._trusted():
            await self.source.save(paused, release=True)

    async def _save(self, *, release: bool = False) -> None:
        async with self._saving:
            owned = [one for one in self._owned.values() if not one.over]
            if not owned or not self._trusted():
                return
            complete = [one for one in owned if one.complete]
            lost = await self.source.save(owned, release=release)
        self._lose(lost)
        for one in owned if release else complete:
            one.over = True
        for one in complete:
            if one.place not in lost:
                self._owned.pop(one.place, None)
                self._log.info("snapshot_range_read", **one.names, rows=one.rows)

    def _lose(self, lost: Collection[Hashable]) -> None:
        for place in lost:
            owned = self._owned.get(place)
            if owned is not None and owned.task is not None and not owned.over:
                owned.over = True
                owned.task.cancel()
                if owned.task.done():
                    self._owned.pop(place)
                self._log.warning("snapshot_range_lost", **owned.names)

    def _on_task_done(self, owned: RangeT, task: "asyncio.Task[None]") -> None:
        if owned.over and self._owned.get(owned.place) is owned:
            self._owned.pop(owned.place)
        if not task.cancelled():
            self._fail(task.exception())
        self._publisher.wake()  # its bytes no longer count
        self._wake.set()

    def _fail(self, error: BaseException | None) -> None:
        if error is not None and not (isinstance(error, TransientError) and self._stop.requested):
            self._failure = self._failure or error
            self._wake.set()

    async def _follow(self, owned: RangeT) -> None:
        """Read a range to its end, until all of it is confirmed."""
        place, attempts = owned.read_to, 0
        while True:
            try:
                async for attempt in retrying_async(self._stop, name=f"read snapshot, {owned.names}"):
                    with attempt:
                        attempts = attempts + 1 if owned.read_to == place else 1
                        place = owned.read_to
                        if attempts > _ATTEMPTS:
                            self._later.add(owned.place)
                            self._wake.set()
                        if not await self.source.read(owned, self._publisher):
                            self._lose([owned.place])
                            return
                break
            except MisconfiguredError as error:
                await self.source.recover(owned, error)
        owned.all_read = True
        await self._publisher.wait_until_confirmed(owned)
        owned.complete = True


def _tasks(owned: Iterable[OwnedRange[Any]]) -> list["asyncio.Task[None]"]:
    return [one.task for one in owned if one.task is not None]


async def _cancel(tasks: Collection["asyncio.Task[None]"]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
