"""What the Bigtable reader adds to `shared.reading.snapshots`: rows that are read as they are now.

Bigtable cannot read at a time, so a row's place among the images of the stream is not a time but a number between
versions (`core/stream/versions.py`): the *minimum* of its keys, the smallest of those key ranges that cover what is
left of the part, as the partition table had it before the reading began. Why that is right, for any one row:

- Let F be the minimum. A change that the reading does not show was applied after the row was read, so its record
  arrives after the survey of the partition table. Minimums are saved before any version above them is made, are never
  lowered, and the next owner of a key range, or of a child of it, begins above its upper limit, which is above its
  minimum. So the record's version is above F, and so is that of the image that holds the change: it wins, whenever it
  is published. (A reader that has lost the key range may number below F, but no longer saves a position: the record
  comes to the next owner as well.)
- If the row of the snapshot wins over all images, no change has such a record: all of them were there to be read.
- If an image wins, it does so by the highest version, and holds all that ever had a record (`read_back.py`), and what
  precedes the stream as well, for it is the whole row.
- It wins over what was published before it was requested, which is what heals: a part of a snapshot that was requested
  while the stream ran is *above* all upper limits as they were after that, and no older version of any key is above
  these: so what has a lower number than all parts did not exist. Its reading waits until minimums have come so far, and
  the owners of key ranges are asked to raise them (`BigtablePartitionLeases.raise_min_versions`): versions need only
  rise. An initial snapshot need not wait: the first key ranges begin above all former lives of the stream.
- Of two readings under one minimum the later snapshot wins, and of one snapshot the later claim (`SnapshotPlace`): no
  order of arrival decides, neither here nor between a row and an image with version F itself, which is older.

What a reader that has lost its part still publishes is as true as before. The minimum is taken again for each page, and
so is the time that its rows have as their commit timestamp: what was read nearly a day ago is read again instead,
because BigQuery forgets deletes. All of it needs that a change can be read once its record has come: so rows are read
by the same app profile as the stream, which routes to one cluster.
"""

import asyncio
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Final

import structlog

from services.bigtable_reader.app.dead_lettering import DeadLettering
from services.bigtable_reader.app.mirrored_rows import MirroredRows
from services.bigtable_reader.app.snapshot.snapshot_status import WAITS
from services.bigtable_reader.app.status.metrics import BigtableReaderMetrics
from services.bigtable_reader.core.changes.images import Row
from services.bigtable_reader.core.changes.refused import Made, RefusedChange
from services.bigtable_reader.core.snapshot.snapshot import (
    PartProgress,
    PartState,
    Snapshot,
    SnapshotPart,
    SnapshotPlace,
    behind,
    cuts_of,
    highest_reserved,
    min_version_under,
    min_versions_wanted,
    parts_of,
    too_old,
    within,
)
from services.bigtable_reader.core.stream.partitions import BigtablePartitionSurvey
from services.bigtable_reader.core.stream.records import ALL_KEYS, KeyRange, Microseconds
from services.bigtable_reader.ports import ReadRefusedError, TableScan, TableSnapshotStore
from shared.contracts.errors import MisconfiguredError
from shared.reading.snapshots import (
    OwnedRange,
    SnapshotPublisher,
    Snapshots,
    wait_for_operator,
)

_LOG_EVERY: Final = timedelta(minutes=1)
"""How often a part that waits is logged."""


class OwnedPart(OwnedRange[bytes]):
    """A part of the key space that this reader has the lease of."""

    def __init__(self, run: int, claimed: SnapshotPart, table: str = "") -> None:
        super().__init__(claimed.number, claimed.last, claimed.rows, table=table, range=claimed.number)
        self.run = run
        self.part = claimed
        self.claimed_at = asyncio.get_running_loop().time()
        self.min_version = claimed.min_version
        self.read_since = claimed.read_since

    def reads_under(self, min_version: int, now: Microseconds) -> None:
        """Remember that rows are read from a time on, by Bigtable's clock, to be published under a number."""
        self.min_version = min_version if self.min_version is None else min(self.min_version, min_version)
        self.read_since = now if self.read_since is None else min(self.read_since, now)

    def progress(self) -> PartProgress:
        """Return how far it is."""
        rows, done, since = self.rows, self.complete, self.read_since
        return PartProgress(self.part, self.run, self.last, self.min_version, rows, done, since)


@dataclass(frozen=True, slots=True)
class SurveyedSnapshot:
    """The latest snapshot (None: there never was one), and the key ranges of the stream (None: not surveyed yet)."""

    snapshot: Snapshot | None
    stream_ranges: BigtablePartitionSurvey | None

    @property
    def running(self) -> BigtablePartitionSurvey | None:
        """Return the key ranges if the stream has any and is not paused."""
        found = self.stream_ranges
        return None if found is None or not found.stream_ranges or found.paused_since is not None else found


class BigtableSnapshotSource:
    """Parts of the watched key space."""

    def __init__(
        self,
        store: TableSnapshotStore,
        scan: TableScan,
        rows: MirroredRows,
        dead_letters: DeadLettering,
        raise_min_versions: Callable[[KeyRange, int], None],
        metrics: BigtableReaderMetrics,
    ) -> None:
        """``raise_min_versions`` raises the minimum version of the key ranges that this reader owns."""
        self._store = store
        self._scan = scan
        self._rows = rows
        self._dead_letters = dead_letters
        self._raise_min_versions = raise_min_versions
        self._metrics = metrics
        self._stream_ranges: BigtablePartitionSurvey | None = None
        self._asked_at = 0.0
        self._surveyed = asyncio.Event()
        self._due: Sequence[SnapshotPart] = ()
        self._left = 0
        self._log = structlog.get_logger().bind(table=rows.table)

    def surveyed(self, stream_ranges: BigtablePartitionSurvey, asked_at: float) -> None:
        """Take a survey of the partition table that began then, by the event loop's clock.

        It shows under which numbers may be published what is read from now on.
        """
        self._stream_ranges, self._asked_at = stream_ranges, asked_at
        self._surveyed.set()

    # Sharing

    async def survey(self) -> SurveyedSnapshot:
        """Return the latest snapshot, which is one row, and the latest survey of the stream's key ranges."""
        return SurveyedSnapshot(await self._store.survey(), self._stream_ranges)

    def is_left(self, survey: SurveyedSnapshot) -> bool:
        """Return whether anything is left to read."""
        return survey.snapshot is not None and bool(survey.snapshot.unfinished)

    def learn(self, survey: SurveyedSnapshot) -> bool:
        """Remember which parts are left, show how many; return whether any is to be read here now."""
        snapshot, stream_ranges = survey.snapshot, survey.running
        self._show(snapshot)
        self._due = ()
        if stream_ranges is not None and snapshot is not None and snapshot.is_of(self._rows.watching):
            for keys, above in min_versions_wanted(snapshot, stream_ranges):
                self._raise_min_versions(keys, above)
            # Not what our tables file leaves out: a reader with another one, older or newer, may have requested it.
            due = [one for one in snapshot.unfinished if within(one.range, self._rows.keys)]
            self._due = sorted(due, key=lambda part: (part.owner != "", part.number))
        return bool(self._due)

    async def claim(self, owned: Collection[Hashable], most: int) -> Sequence[OwnedPart]:
        """Claim parts that are left, those of other readers too, whose leases may be over: the store decides."""
        due = [one.number for one in self._due if one.number not in owned]
        if not due or self._is_paused:
            return ()
        run, claimed = await self._store.claim(due, most)
        for part in claimed:
            self._log.info(
                "snapshot_range_claimed", range=part.number, keys=str(part.range), rows=part.rows, fence=part.fence
            )
        return [OwnedPart(run, part, self._rows.table) for part in claimed]

    async def tidy(self, survey: SurveyedSnapshot) -> None:
        """Delete nothing: only the latest snapshot is stored."""

    def paused(self, owned: Sequence[OwnedPart]) -> Sequence[OwnedPart]:
        """Return all parts while the stream is paused: no minimum rises then."""
        return owned if self._is_paused else ()

    @property
    def _is_paused(self) -> bool:
        return self._stream_ranges is not None and self._stream_ranges.paused_since is not None

    async def save(self, owned: Sequence[OwnedPart], *, release: bool = False) -> Collection[Hashable]:
        """Save how far parts are, and renew or release their leases; return those that are no longer ours."""
        return await self._store.save([one.progress() for one in owned], release=release)

    def _show(self, snapshot: Snapshot | None) -> None:
        left = 0 if snapshot is None else len(snapshot.unfinished)
        self._metrics.snapshots_left({self._rows.table: left})
        if self._left and not left and snapshot is not None:
            self._log.info("snapshot_finished", rows=sum(part.rows for part in snapshot.parts))
        self._left = left

    # One part

    async def read(self, owned: OwnedPart, publisher: SnapshotPublisher) -> bool:
        """Publish what is left of a part; return whether it is still ours."""
        if owned.part.state is PartState.REQUESTED and not await self._cut(owned):
            return False
        while (left := behind(owned.part.range, owned.read_to)) is not None:
            place = await self._place(owned, left)
            try:
                page = await self._scan.page(left, publisher.page_rows)
            except ReadRefusedError as error:
                await self._read_first_row(owned, publisher, left, place, error)
                continue
            if await self._publish(owned, publisher, place, page.rows, page.read_to) and page.read_to is None:
                break
        return True

    async def recover(self, owned: OwnedPart, error: MisconfiguredError) -> None:
        """Wait for an operator."""
        await wait_for_operator(owned, error)

    async def _place(self, owned: OwnedPart, keys: KeyRange) -> SnapshotPlace:
        """Return under which number may be published what is read of keys from now on."""
        loop = asyncio.get_running_loop()
        log_at = loop.time() + _LOG_EVERY.total_seconds()
        while True:
            stream_ranges = self._stream_ranges
            min_version = None if stream_ranges is None else min_version_under(stream_ranges, keys)
            if stream_ranges is not None and min_version is not None and min_version >= owned.part.above:
                owned.reads_under(min_version, stream_ranges.now)
                return SnapshotPlace(min_version, owned.run, owned.part.fence, stream_ranges.now)
            if loop.time() >= log_at:
                log_at = loop.time() + _LOG_EVERY.total_seconds()
                self._log.warning("snapshot_range_waits", range=owned.part.number, why=WAITS.why, fix=WAITS.fix)
            await self._next_survey()

    async def _next_survey(self) -> None:
        self._surveyed.clear()
        await self._surveyed.wait()

    async def _cut(self, owned: OwnedPart) -> bool:
        """Cut a part into smaller ones, so that other readers can read some; return whether its first is ours."""
        try:
            cuts = set(cuts_of(await self._scan.samples()))
        except MisconfiguredError as error:  # a right that only this needs: one reader reads it all, then
            self._log.warning("snapshot_not_cut", error=str(error))
            cuts = set()
        while (stream_ranges := self._stream_ranges) is None or self._asked_at <= owned.claimed_at:
            await self._next_survey()  # limits as they were before it was requested would leave versions above them
        ranges = parts_of(
            owned.part.range, cuts | {stream_range.range.start for stream_range in stream_ranges.stream_ranges}
        )
        # Not the highest itself: an image with just that version would not be older than the end of the snapshot, and
        # of a row that was lost without a record nothing else could tell.
        above = highest_reserved(stream_ranges, ALL_KEYS) + 1 if owned.part.again else 0
        cut = await self._store.cut(owned.run, owned.part, [(keys, above) for keys in ranges])
        if cut is None:
            return False
        owned.part = cut
        return True

    async def _read_first_row(
        self,
        owned: OwnedPart,
        publisher: SnapshotPublisher,
        left: KeyRange,
        place: SnapshotPlace,
        error: ReadRefusedError,
    ) -> None:
        """Dead-letter the first row if it alone cannot be read; raise the error if no other can be read either."""
        row_key = await self._scan.first_key(left)
        if row_key is None:
            raise error
        try:
            page = await self._scan.page(KeyRange(row_key, row_key + b"\0"), 1)
        except ReadRefusedError as again:
            rest = behind(owned.part.range, row_key)
            if rest is not None:
                await self._scan.first_key(rest)
            why = f"Bigtable does not read this row, and reads others: {again}"
            confirm = owned.take(row_key, 1, 0)
            unreadable = self._rows.images.unreadable_row(row_key, place, why)
            publisher.call_when_done(await self._dead_letters.begin([unreadable]), confirm)
            return
        await self._publish(owned, publisher, place, page.rows, row_key)

    async def _publish(
        self,
        owned: OwnedPart,
        publisher: SnapshotPublisher,
        place: SnapshotPlace,
        rows: Sequence[tuple[bytes, Row]],
        read_to: bytes | None,
    ) -> bool:
        """Publish rows under one number, behind which there are no others up to a key (None: the part's end).

        False where that took so long that they are to be read again.
        """
        await publisher.wait_for_room(len(rows))
        if self._stream_ranges is None or too_old(place.read_at, self._stream_ranges.now):
            return False
        refused: list[RefusedChange] = []
        made: dict[int, list[Made]] = {}
        for row_key, cells in rows:
            image = self._rows.images.row(row_key, cells, place)
            if isinstance(image, RefusedChange):
                refused.append(image)
            elif image.change.op == "UPSERT":  # or it has cells only in families that are not watched
                made.setdefault(id(image.header), []).append(image)
        last = rows[-1][0] if read_to is None and rows else read_to
        if last is None:
            return True
        size = sum(one.change.size() for some in made.values() for one in some)
        number = len(refused) + sum(map(len, made.values()))
        # What is refused has a place of its own, before the others': their bytes do not wait for its dead letters.
        kept = owned.take(owned.read_to, 0, 0, bool(refused))
        confirm = owned.take(last, number, size, len(made))
        for some in made.values():
            changes = [(one.ordering_key, one.change) for one in some]
            await publisher.publish(some[0].header, changes, partial(self._on_confirmed, confirm, len(some)))
        if refused:
            publisher.call_when_done(await self._dead_letters.begin(refused), kept)
        return True

    def _on_confirmed(self, confirm: Callable[[], None], rows: int) -> None:
        confirm()
        self._metrics.snapshot_read(self._rows.table, rows)


class BigtableSnapshots(Snapshots[OwnedPart, SurveyedSnapshot]):
    """The loop of `shared.reading.snapshots`, and its source, which needs each survey of the stream's key ranges."""

    source: BigtableSnapshotSource
