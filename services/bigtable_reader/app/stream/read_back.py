"""Rows read back after a change: one image for all records of a row that have come until the reading begins.

The rule that makes mirrors converge: an image's sequence is the newest version of those records, each of which was
received and given a version before the reading begins. So the image with a row's highest version holds every change,
and none that was read earlier can beat it, in whatever order they are published. A row that is read long after that
gets a newer version, which is made before the reading, too: a mirror refuses images whose versions are old.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby, islice
from operator import attrgetter
from typing import Final

import msgspec

from services.bigtable_reader.app.dead_lettering import DeadLettering
from services.bigtable_reader.app.status.metrics import BigtableReaderMetrics
from services.bigtable_reader.app.stream.owned_partition import BigtableOwnedPartition
from services.bigtable_reader.core.changes.images import ImageMaker, Row
from services.bigtable_reader.core.changes.refused import RefusedChange
from services.bigtable_reader.core.stream.records import DataChange, Microseconds
from services.bigtable_reader.ports import CurrentRows, ReadRefusedError
from shared.contracts.change_batch import Change, Header
from shared.contracts.errors import TransientError
from shared.reading.confirmed_prefix import Place
from shared.reading.publishing import ConfirmedPublishing
from shared.runtime.metrics import retry_code
from shared.runtime.retries import retried, retrying_async
from shared.runtime.stop import Stop

_NO_SUCH_ROW: Final = b"\0millrace"
_BYTES: Final = 4_000_000
"""Of one reading, about: fewer rows are read at once where they are large."""
_WEIGHT: Final = 0.1
"""Of one row in the average of their bytes."""
_REST: Final = 0.01
"""Seconds from one reading of fewer rows than may be read at once to the next such: what comes meanwhile is one."""
_MANY: Final = 32
_LONGER: Final = 10
"""Times that is rested where so many rows wait already: a reading costs as much as a hundred rows in it."""
_OLD: Final = 3_600_000_000
"""A version is old if it is so far behind the last one of its partition, in microseconds: an hour.

That is far less than `SAFE_AGE`, and few rows wait so long.
"""


@dataclass(frozen=True, slots=True)
class ReadBackLimits:
    """How many rows are read at once, in how many readings at a time, while how many are left to read."""

    rows_at_once: int = 500
    readings: int = 8
    waiting: int = 20_000


_LIMITS: Final = ReadBackLimits()


class _Waiting(msgspec.Struct, eq=False):
    """A row to be read back: the newest of the records that ask for it, and the places of all of them."""

    owned: BigtableOwnedPartition
    row_key: bytes
    trigger: DataChange
    version: int
    places: list[Place[Microseconds, str]]


_Row = tuple[int, bytes]
"""An owned partition (the one object, for the same range may be owned again) and a row key."""


class ReadBack:
    """Reads rows back in batches and publishes their images; a row is in one reading at a time."""

    def __init__(
        self,
        rows: CurrentRows,
        images: ImageMaker,
        publishing: ConfirmedPublishing,
        dead_letters: DeadLettering,
        metrics: BigtableReaderMetrics,
        limits: ReadBackLimits = _LIMITS,
    ) -> None:
        self._rows = rows
        self._images = images
        self._publishing = publishing
        self._dead_letters = dead_letters
        self._metrics = metrics
        self._limits = limits
        self._waiting: OrderedDict[_Row, _Waiting] = OrderedDict()
        self._being_read: set[_Row] = set()
        """Until they are over; slow rows, too, and rows whose dead letters are under way."""
        self._readings: set[asyncio.Task[None]] = set()
        self._slow: list[_Waiting] = []
        """Rows that alone took too long: one more reading asks for them, so they take the place of no others."""
        self._slow_reading: asyncio.Task[None] | None = None
        """That of those rows; None, or over, where there are none."""
        self._room = asyncio.Event()
        self._is_due = False
        self._interval = _REST
        self._next_read_at = 0.0
        """By the event loop's clock."""
        self._waiting_for_interval: asyncio.TimerHandle | None = None
        self._row_bytes = 0.0
        """Of a row's image, on average, the latest counting most."""
        self._at_once = max(1, limits.rows_at_once)
        """How many rows are read at once, as large as they are."""

    def ask(
        self,
        owned: BigtableOwnedPartition,
        row_key: bytes,
        trigger: DataChange,
        version: int,
        place: Place[Microseconds, str],
        stop: Stop,
    ) -> None:
        """Have a record's row read and its image published; confirms the place. Ask `room` whether for more."""
        row = (id(owned), row_key)
        waiting = self._waiting.get(row)
        if waiting is None:
            self._waiting[row] = _Waiting(owned, row_key, trigger, version, [place])
        else:
            waiting.trigger, waiting.version = trigger, version
            waiting.places.append(place)
        if self._is_due:  # once a turn of the loop, so that what comes in one turn is read together
            return
        if self._waiting_for_interval is None or len(self._waiting) >= self._at_once:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._begin_readings, stop)

    async def room(self) -> None:
        """Wait while too many are left already."""
        while len(self._waiting) + len(self._being_read) >= self._limits.waiting:
            self._room.clear()
            await self._room.wait()

    async def drain(self, stop: Stop) -> None:
        """Return when every row that was asked for is read, and its image taken by the publisher, or a dead letter."""
        self._interval = self._next_read_at = 0.0
        self._begin_readings(stop)
        while under_way := {*self._readings, *self._dead_letters.under_way}:
            await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.sleep(0)  # for what is called back, which begins the next

    async def end(self) -> None:
        """Forget what waits, and return when nothing is under way."""
        self._waiting.clear()
        for reading in self._readings:
            reading.cancel()
        await asyncio.gather(*self._readings, return_exceptions=True)

    def _begin_readings(self, stop: Stop) -> None:
        self._is_due = False
        loop = asyncio.get_running_loop()
        while self._waiting and len(self._readings - {self._slow_reading}) < self._limits.readings:
            if len(self._waiting) < self._at_once:
                if (now := loop.time()) < self._next_read_at:
                    if self._waiting_for_interval is None:
                        self._waiting_for_interval = loop.call_at(self._next_read_at, self._interval_ended, stop)
                    return
                self._next_read_at = now + self._interval * (_LONGER if len(self._waiting) >= _MANY else 1)
            batch = self._next()
            if batch is None:
                return
            if not batch:
                continue
            self._begin_reading(batch, stop)

    def _begin_reading(self, rows: list[_Waiting], stop: Stop) -> "asyncio.Task[None]":
        reading = asyncio.create_task(self._read(rows, stop), name="read back")
        self._readings.add(reading)
        reading.add_done_callback(partial(self._on_read, stop))
        return reading

    def _interval_ended(self, stop: Stop) -> None:
        self._waiting_for_interval = None
        self._begin_readings(stop)

    def _next(self) -> list[_Waiting] | None:
        """Take the rows of the next reading off the line: those that have waited longest and are not being read.

        None where all are being read; none at all where those were of partitions that are no longer ours, and there
        may be others behind them. From here on their versions stand: what is asked for later waits for another reading.
        """
        batch: list[_Waiting] = []
        free = (row for row in self._waiting if row not in self._being_read)
        rows = list(islice(free, self._at_once))
        if not rows:
            return None
        ours = _ours([self._waiting[row] for row in rows])
        for row in rows:
            waiting = self._waiting.pop(row)
            if waiting.owned in ours:
                self._being_read.add(row)
                batch.append(waiting)
            else:
                self._room.set()
        return batch

    async def _read(self, left: list[_Waiting], stop: Stop) -> None:
        """Read rows, and hand the images of what came to the publisher before more of them is read.

        The versions of what is read later stand all the same: it is read after them. Only slow rows, and those whose
        versions are old by then, take newer ones.
        """
        at_once = self._at_once
        while left:
            try:
                async for attempt in retrying_async(stop):
                    with attempt:
                        asked = left[:at_once]
                        if not asked:
                            return
                        del left[:at_once]
                        at_once = max(1, len(asked) // 2)  # unless it succeeds: what takes too long takes less of fewer
                        of_long_ago = asked if left is self._slow else [one for one in asked if _has_old_version(one)]
                        self._fold_in(of_long_ago)
                        _renew_old_versions(of_long_ago)
                        try:
                            read = await self._rows.read([waiting.row_key for waiting in asked])
                        except TransientError as error:
                            too_long = retry_code(error) == "DEADLINE_EXCEEDED"
                            self._ask_again(asked, self._slow if too_long and len(asked) == 1 else left, stop)
                            raise
            except ReadRefusedError as error:
                if len(asked) > 1:
                    left += asked
                    continue
                await self._refuse(asked[0], error, stop)
                at_once = self._at_once
                continue
            at_once = min(2 * len(asked), self._at_once)
            come = [waiting for waiting in asked if waiting.row_key not in read.left]
            left[:0] = [waiting for waiting in asked if waiting.row_key in read.left]
            self._over(await self._hand_over(come, read.found, stop), stop)

    def _fold_in(self, rows: Sequence[_Waiting]) -> None:
        """Let rows have the version of what was asked for of them meanwhile, before they are asked for again."""
        for waiting in rows:
            if later := self._waiting.pop((id(waiting.owned), waiting.row_key), None):
                waiting.trigger, waiting.version = later.trigger, later.version
                waiting.places += later.places
                self._room.set()

    def _ask_again(self, failed: Sequence[_Waiting], behind: list[_Waiting], stop: Stop) -> None:
        """Put rows that did not come behind others."""
        ours = _ours(failed)
        self._over([waiting for waiting in failed if waiting.owned not in ours], stop)
        behind += [waiting for waiting in failed if waiting.owned in ours]
        if self._slow and (self._slow_reading is None or self._slow_reading.done()):
            self._slow_reading = self._begin_reading(self._slow, stop)

    def _over(self, rows: Sequence[_Waiting], stop: Stop) -> None:
        """Let rows be read again that were asked for meanwhile."""
        if rows:
            self._being_read.difference_update((id(waiting.owned), waiting.row_key) for waiting in rows)
            self._room.set()
            self._begin_readings(stop)

    async def _refuse(self, waiting: _Waiting, error: ReadRefusedError, stop: Stop) -> None:
        """Set a row aside that alone cannot be read; the error itself if no other row can be read either."""
        await retried(stop, lambda: self._rows.read([_NO_SUCH_ROW]))
        if waiting.owned.ours:
            why = f"Bigtable does not read this row, and reads others: {error}"
            refused = self._images.unreadable(waiting.row_key, waiting.trigger, waiting.version, why)
            await self._dead_letter([refused], [waiting], stop)
        else:
            self._over([waiting], stop)

    async def _hand_over(self, batch: Sequence[_Waiting], found: Mapping[bytes, Row], stop: Stop) -> Sequence[_Waiting]:
        """Make the images of rows and hand them to the publisher; return the rows that are over."""
        self._metrics.read_back(len(batch), sum(len(waiting.places) for waiting in batch))
        images: dict[int, tuple[Header, list[tuple[str, Change]], list[_Waiting]]] = {}
        refused: list[RefusedChange] = []
        dead_letters: list[_Waiting] = []
        ours, make = _ours(batch), self._images.image
        for waiting in batch:
            if waiting.owned not in ours:  # the lease is over: its new owner reads the row again
                continue
            image = make(waiting.row_key, found.get(waiting.row_key), waiting.trigger, waiting.version)
            if isinstance(image, RefusedChange):
                refused.append(image)
                dead_letters.append(waiting)
            else:
                self._row_bytes += _WEIGHT * (len(image.change.row or "") - self._row_bytes)
                if (under := images.get(id(image.header))) is None:
                    under = images[id(image.header)] = (image.header, [], [])
                under[1].append((image.ordering_key, image.change))
                under[2].append(waiting)
        self._at_once = max(1, min(self._limits.rows_at_once, int(_BYTES / max(1.0, self._row_bytes))))
        for header, changes, of in images.values():
            await self._publishing.publish(header, changes, partial(self._confirm, of))
        if not refused:
            return batch
        await self._dead_letter(refused, dead_letters, stop)
        under_way = set(dead_letters)
        return [waiting for waiting in batch if waiting not in under_way]

    async def _dead_letter(self, refused: Sequence[RefusedChange], of: Sequence[_Waiting], stop: Stop) -> None:
        """Begin to dead-letter what was refused, once there is room: what cannot be published keeps no reading.

        Its rows are over when that is confirmed: what is asked for of one meanwhile shares the reading after it, so a
        row has one dead letter under way, however often it changes.
        """
        self._publishing.when_done(await self._dead_letters.begin(refused), partial(self._dead_lettered, of, stop))

    def _dead_lettered(self, of: Sequence[_Waiting], stop: Stop) -> None:
        self._confirm(of)
        self._over(of, stop)

    def _on_read(self, stop: Stop, reading: "asyncio.Task[None]") -> None:
        self._readings.discard(reading)
        if not reading.cancelled() and (error := reading.exception()) is not None:
            self._publishing.fail(error)
            return
        self._begin_readings(stop)

    def _confirm(self, of: Sequence[_Waiting]) -> None:
        for owned, some in groupby(of, key=attrgetter("owned")):
            owned.confirm([place for waiting in some for place in waiting.places])


def _ours(batch: Sequence[_Waiting]) -> Collection[BigtableOwnedPartition]:
    """Return the partitions of some rows for which something may still be published: asked of each once."""
    return {owned for owned in {waiting.owned for waiting in batch} if owned.ours}


def _renew_old_versions(rows: Sequence[_Waiting]) -> None:
    """Give rows new versions that have waited long, as slow ones do. The last version follows the clock (`leases.py`).

    None is made for a partition that is released: its next owner begins above the last one.
    """
    for waiting in rows:
        versions = waiting.owned.versions
        if _has_old_version(waiting) and waiting.owned.ours:
            waiting.version = versions.next(Microseconds(versions.last)) or waiting.version


def _has_old_version(waiting: _Waiting) -> bool:
    return waiting.owned.versions.last - waiting.version > _OLD
