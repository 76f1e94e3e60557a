"""Reads the rows that were there before the stream, beside it: a few parts of the key space at a time, by all readers.

Bigtable has no reading at a time, so a row's place among the images of the stream is not a time but a number between
stamps (`core/stamps.py`): the *floor* of its keys, the smallest of those pieces that cover what is left of the part, as
the partition table had it before the reading began. Why that is right, of any one row:

- Let F be the floor. A change that the reading does not show was applied after the row was read, so its record comes
  to its reader after the look at the table. Floors are saved before any stamp above them is made, are never lowered,
  and whoever takes a piece over, or a child of it, begins above its ceiling, which is above its floor. So the record's
  stamp is above F, and so is that of the image that holds the change: it wins, whenever it is published. (One who has
  lost the piece may stamp below F, but saves no position any more: the record comes to the next owner as well.)
- If the row of the snapshot wins over all images, no change has such a record: all of them were there to be read.
- If an image wins, it does so by the highest stamp, and holds all that ever had a record (`read_back.py`), and what
  there was before the stream as well, for it is the whole row.
- It wins over what was published before it was asked for, which is what heals: a part of a snapshot that was asked for
  while the stream ran is *above* all ceilings as they were after that, and no older stamp of any key is above these: so
  what has a lower number than all parts was not there. Its reading waits until floors have come so far, and the holders
  of pieces are asked to raise them (`Leases.raise_floors`): stamps need only rise. A first snapshot need not wait: the
  first pieces begin above all former lives of the stream.
- Of two readings under one floor the later snapshot wins, and of one snapshot the later claim (`SnapshotPlace`): no
  order of arrival decides, neither here nor between a row and an image stamped with F itself, which is older.

What a reader that has lost its part still publishes is as true as before. The floor is taken anew for each page, and so
is the time that its rows have as their commit timestamp: what was read nearly a day ago is read again instead, for
BigQuery forgets what was deleted. All of it needs that a change can be read once its record has come: so rows are read
by the very profile of the stream, which routes to one cluster.

The stream is not starved: rows of a snapshot have ordering keys of their own, a part of the room for what waits for
Pub/Sub, and a limit of rows per second by setting. A part goes on behind its last confirmed key, whoever reads it.
"""

import asyncio
import contextlib
from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from functools import partial
from typing import Final

import structlog

from services.bigtable_reader.app.set_aside import SettingAside
from services.bigtable_reader.app.snapshot.held_part import HeldPart, SnapshotOptions
from services.bigtable_reader.app.snapshot.snapshot_ends import SnapshotEnds
from services.bigtable_reader.app.snapshot.snapshot_status import WAITS
from services.bigtable_reader.core.changes.images import ImageMaker, Row
from services.bigtable_reader.core.changes.refused import Made, Refused
from services.bigtable_reader.core.snapshot.confirmed_keys import ConfirmedKeys, TakenRows
from services.bigtable_reader.core.snapshot.snapshot import (
    PartState,
    Snapshot,
    SnapshotPlace,
    behind,
    ceiling_over,
    cuts_of,
    floor_under,
    floors_wanted,
    parts_of,
    too_old,
    within,
)
from services.bigtable_reader.core.stream.partitions import Survey
from services.bigtable_reader.core.stream.records import ALL_KEYS, KeyRange
from services.bigtable_reader.ports import Metrics, Publisher, ReadRefusedError, SnapshotStore, TableScan
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.reading.pace import Pace
from shared.runtime.retries import retrying_async
from shared.runtime.stop import Stop

_TRY_AGAIN: Final = timedelta(minutes=1)
"""After what only a person can mend: a right that is missing, say. The stream goes on meanwhile."""
_SAY: Final = timedelta(minutes=1)
"""How often is said that a part waits."""


class Snapshots:
    """Reads its share of the parts that are to be read, again and again, until it is cancelled."""

    def __init__(
        self,
        *,
        table: str,
        keys: Sequence[KeyRange],
        store: SnapshotStore,
        scan: TableScan,
        images: ImageMaker,
        ends: SnapshotEnds,
        publisher: Publisher,
        set_aside: SettingAside,
        raise_floors: Callable[[KeyRange, int], None],
        trusted: Callable[[], bool],
        metrics: Metrics,
        stop: Stop,
        options: SnapshotOptions,
    ) -> None:
        """Take what it needs: ``keys`` that are watched; ``trusted`` says whether the topic keeps what is published."""
        self._keys = keys
        self._store = store
        self._scan = scan
        self._images = images
        self._publisher = publisher
        self._set_aside = set_aside
        self._raise_floors = raise_floors
        self._trusted = trusted
        self._metrics = metrics
        self._stop = stop
        self._options = options
        self._survey: Survey | None = None
        self._asked_at = 0.0
        self._surveyed = asyncio.Event()
        self._ends = ends
        self._held: dict[int, HeldPart] = {}
        self._saving = asyncio.Lock()
        self._pace = Pace(options.rows_per_second)
        self._wake = asyncio.Event()
        self._confirmation = asyncio.Event()
        self._left = 0
        self._failure: BaseException | None = None
        self._log = structlog.get_logger().bind(table=table)

    def surveyed(self, survey: Survey, asked_at: float) -> None:
        """Take a look at the partition table that began then, by the event loop's clock.

        It says under which numbers may be published what is read from now on.
        """
        self._survey, self._asked_at = survey, asked_at
        self._surveyed.set()

    async def keep_reading(self) -> None:
        """Claim parts, have them read, save how far that is; whatever goes wrong for good is raised."""
        try:
            while True:
                self._wake.clear()
                if self._failure is not None:
                    raise self._failure
                try:
                    await self._save()
                    await self._claim()
                except TransientError as error:
                    self._log.warning("snapshot_not_saved", error=str(error))
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._options.save.total_seconds()):
                        await self._wake.wait()
        finally:
            await self._end_readings()

    async def _rest(self) -> None:
        """Read nothing while the stream is paused, for no floor rises then; what was confirmed counts.

        What cannot be given back is held no more either: nobody reads it here, and its lease runs out by itself.
        """
        await self._end_readings()
        try:
            await self._save(release=True)
        except TransientError as error:
            self._log.warning("snapshot_not_saved", error=str(error))
        self._held.clear()

    async def _end_readings(self) -> None:
        tasks = [held.task for held in self._held.values() if held.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def let_go(self) -> None:
        """Save how far everything is that Pub/Sub has confirmed by now, and give the leases back."""
        await self._save(release=True)

    async def over(self) -> bool:
        """Tell whether nothing is left to read, here or elsewhere, and that is told."""
        snapshot = await self._store.survey()
        mark = None if self._survey is None else self._survey.mark
        return snapshot is None or not (snapshot.unfinished or self._ends.is_to_be_told(snapshot, mark))

    # Sharing

    async def _claim(self) -> None:
        snapshot = await self._store.survey()
        self._show(snapshot)
        if self._survey is None or not self._survey.pieces:
            return
        if self._survey.paused_since is not None:
            await self._rest()
            return
        await self._ends.look(snapshot, self._survey)
        if snapshot is None or not self._ends.is_ours(snapshot):  # its rows would lack what our tables file leaves out
            return
        for keys, above in floors_wanted(snapshot, self._survey):
            self._raise_floors(keys, above)
        free = max(0, self._options.at_once - len(self._held))
        # Not what our tables file leaves out: a reader with another one, older or newer, may have asked for it.
        due = [one for one in snapshot.unfinished if one.number not in self._held and within(one.range, self._keys)]
        due.sort(key=lambda part: (part.owner != "", part.number))
        if free and due:  # those of others too, whose leases may be over: the store knows
            run, claimed = await self._store.claim([part.number for part in due], free)
            for part in claimed:
                self._begin(HeldPart(run, part))

    def _begin(self, held: HeldPart) -> None:
        self._held[held.part.number] = held
        held.task = asyncio.create_task(self._follow(held), name=f"snapshot, part {held.part.number}")
        held.task.add_done_callback(partial(self._on_over, held))
        part = held.part
        told = {"range": part.number, "keys": str(part.range), "rows": part.rows, "fence": part.fence}
        self._log.info("snapshot_range_claimed", **told)

    def _show(self, snapshot: Snapshot | None) -> None:
        left = 0 if snapshot is None else len(snapshot.unfinished)
        self._metrics.snapshot_left(left)
        if self._left and not left and snapshot is not None:
            self._log.info("snapshot_finished", rows=sum(part.rows for part in snapshot.parts))
        self._left = left

    async def _save(self, *, release: bool = False) -> None:
        async with self._saving:
            held = [one for one in self._held.values() if not one.over]
            if not held or not self._trusted():
                return
            progress = [one.progress() for one in held]
            lost = await self._store.save(progress, release=release)
        self._lose(lost)
        for one, saved in zip(held, progress, strict=True):
            if saved.done and one.part.number not in lost:
                one.over = True
                self._held.pop(one.part.number, None)
                self._log.info("snapshot_range_read", range=one.part.number, rows=saved.rows)
                self._wake.set()

    def _lose(self, lost: Collection[int]) -> None:
        for number in lost:
            held = self._held.get(number)
            if held is not None and held.task is not None and not held.over:
                held.over = True
                held.task.cancel()
                if held.task.done():
                    self._held.pop(number)
                self._log.warning("snapshot_range_lost", range=number)

    def _on_over(self, held: HeldPart, task: "asyncio.Task[None]") -> None:
        if held.over:
            self._held.pop(held.part.number, None)
        if not task.cancelled():
            self._fail(task.exception())
        self._confirmation.set()  # what it waited for is no more
        self._wake.set()

    def _fail(self, error: BaseException | None) -> None:
        if error is not None and not (isinstance(error, TransientError) and self._stop.requested):
            self._failure = self._failure or error
            self._wake.set()

    # One part

    async def _follow(self, held: HeldPart) -> None:
        """Read a part to its end, until all of it is confirmed."""
        while True:
            try:
                async for attempt in retrying_async(self._stop):
                    with attempt:
                        await self._read(held)
                break
            except MisconfiguredError as error:
                self._log.error("snapshot_stands_still", range=held.part.number, error=str(error))
                await asyncio.sleep(_TRY_AGAIN.total_seconds())
        held.complete = True

    async def _read(self, held: HeldPart) -> None:
        """Read what is left of a part and publish it; return when all of it is confirmed."""
        if held.part.state is PartState.REQUESTED and not await self._cut(held):
            return
        while (left := behind(held.part.range, held.read_to)) is not None:
            place = await self._place(held, left)
            try:
                page = await self._scan.page(left, self._options.page_rows)
            except ReadRefusedError as error:
                await self._refuse(held, left, place, error)
                continue
            if await self._publish(held, place, page.rows, page.read_to) and page.read_to is None:
                break
        await self._confirmed(held)

    async def _place(self, held: HeldPart, keys: KeyRange) -> SnapshotPlace:
        """Return under which number may be published what is read of keys from now on."""
        loop = asyncio.get_running_loop()
        say_at = loop.time() + _SAY.total_seconds()
        while True:
            survey = self._survey
            floor = None if survey is None else floor_under(survey, keys)
            if survey is not None and floor is not None and floor >= held.part.above:
                held.reads_under(floor, survey.now)
                return SnapshotPlace(floor, held.run, held.part.fence, survey.now)
            if loop.time() >= say_at:
                say_at = loop.time() + _SAY.total_seconds()
                self._log.warning("snapshot_range_waits", range=held.part.number, why=WAITS.why, fix=WAITS.fix)
            await self._next_look()

    async def _next_look(self) -> None:
        self._surveyed.clear()
        await self._surveyed.wait()

    async def _cut(self, held: HeldPart) -> bool:
        """Cut a part into smaller ones, so that others can read some of them; tell whether its first is ours."""
        try:
            cuts = set(cuts_of(await self._scan.samples()))
        except MisconfiguredError as error:  # a right that only this needs: one reader reads it all, then
            self._log.warning("snapshot_not_cut", error=str(error))
            cuts = set()
        while (survey := self._survey) is None or self._asked_at <= held.claimed_at:
            await self._next_look()  # ceilings as they were before it was asked for would leave stamps above them
        ranges = parts_of(held.part.range, cuts | {piece.range.start for piece in survey.pieces})
        above = ceiling_over(survey, ALL_KEYS) if held.part.again else 0
        cut = await self._store.cut(held.run, held.part, [(keys, above) for keys in ranges])
        if cut is None:
            self._lose([held.part.number])
            return False
        held.part = cut
        return True

    async def _refuse(self, held: HeldPart, left: KeyRange, place: SnapshotPlace, error: ReadRefusedError) -> None:
        """Set the first row aside if it alone cannot be read; the error itself if no other can be read either."""
        row_key = await self._scan.first_key(left)
        if row_key is None:
            raise error
        try:
            page = await self._scan.page(KeyRange(row_key, row_key + b"\0"), 1)
        except ReadRefusedError as again:
            rest = behind(held.part.range, row_key)
            if rest is not None:
                await self._scan.first_key(rest)
            why = f"Bigtable does not read this row, and reads others: {again}"
            await self._set_aside.keep([self._images.unreadable_row(row_key, place, why)])
            taken = held.keys.add(row_key, 1, 0, 0)
            held.read_to = taken.last
            return
        await self._publish(held, place, page.rows, row_key)

    async def _publish(
        self, held: HeldPart, place: SnapshotPlace, rows: Sequence[tuple[bytes, Row]], read_to: bytes | None
    ) -> bool:
        """Publish rows under one number, behind which there are no others up to a key (None: the part's end).

        False where that took so long that they are to be read again.
        """
        await self._pace.wait_for(len(rows))
        while self._unconfirmed_bytes >= self._options.unconfirmed_bytes:
            await self._moved()
        if self._survey is None or too_old(place.read_at, self._survey.now):
            return False
        refused: list[Refused] = []
        made: dict[int, list[Made]] = {}
        for row_key, cells in rows:
            image = self._images.row(row_key, cells, place)
            if isinstance(image, Refused):
                refused.append(image)
            elif image.change.op == "UPSERT":  # or it has cells only in families that are not watched
                made.setdefault(id(image.header), []).append(image)
        last = rows[-1][0] if read_to is None and rows else read_to
        if last is None:
            return True
        size = sum(one.change.size() for some in made.values() for one in some)
        number = len(refused) + sum(map(len, made.values()))
        taken = held.keys.add(last, number, size, len(made) + bool(refused))
        held.read_to = taken.last
        try:
            for some in made.values():
                changes = [(one.ordering_key, one.change) for one in some]
                future = await self._publisher.publish(some[0].header, changes)
                future.add_done_callback(partial(self._on_published, held.keys, taken, len(some)))
        except MisconfiguredError as error:  # not this part's trouble: the stream has it, too
            self._fail(error)
            await asyncio.Future()  # until everything here is ended
            raise
        if refused:
            kept = await self._set_aside.begin(refused)
            kept.add_done_callback(partial(self._on_published, held.keys, taken, 0))
        return True

    def _on_published(self, keys: ConfirmedKeys, taken: TakenRows, rows: int, done: "asyncio.Future[None]") -> None:
        if done.cancelled():
            return
        if done.exception() is not None:
            self._fail(done.exception())
            return
        keys.confirm(taken)
        self._confirmation.set()
        self._metrics.snapshot_read(rows)

    @property
    def _unconfirmed_bytes(self) -> int:
        return sum(held.keys.outstanding_bytes for held in self._held.values())

    async def _confirmed(self, held: HeldPart) -> None:
        while not held.keys.all_confirmed:
            await self._moved()

    async def _moved(self) -> None:
        self._confirmation.clear()
        await self._confirmation.wait()
