"""A world whose readers read snapshots, too, and a consumer that deletes what a complete one has not brought."""

import io
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random
from typing import Any

from msgspec.structs import replace

from services.bigtable_reader.app.dead_lettering import DeadLettering
from services.bigtable_reader.app.mirrored_rows import MirroredRows
from services.bigtable_reader.app.schema.resync_requests import ResyncRequests
from services.bigtable_reader.app.snapshot.snapshot_ends import BigtableSnapshotEnds
from services.bigtable_reader.app.snapshot.snapshot_source import BigtableSnapshots, BigtableSnapshotSource
from services.bigtable_reader.commands.command_line import COMMAND_LINE, BigtableSnapshotCommand
from services.bigtable_reader.commands.snapshot import snapshot
from services.bigtable_reader.core.changes.outputs import Outputs
from services.bigtable_reader.core.schema.resync import BigtableResyncKind, BigtableResyncRequest, resync_request_of
from services.bigtable_reader.core.schema.watching import Watching, watching_of
from services.bigtable_reader.core.snapshot.snapshot import Snapshot, SnapshotPart, watched_ranges
from services.bigtable_reader.core.stream.partitions import BigtablePartitionSurvey
from services.bigtable_reader.core.stream.records import Entry, KeyRange
from shared.contracts.bigtable_options import BigtableOptions
from shared.contracts.tables_file import Mode
from shared.reading.snapshots import SnapshotOptions
from shared.runtime.stop import Stop
from tests.fakes.bigtable_partitions import FakePartitionStore
from tests.fakes.bigtable_reader import FakePublisher
from tests.fakes.bigtable_resync import FakeResyncStore
from tests.fakes.bigtable_snapshots import FakeScan, FakeSnapshotStore, SnapshotTable
from tests.fakes.bigtable_table import EPOCH, VirtualClock
from tests.fakes.life import Way
from tests.unit.bigtable_reader.readings import folded, image_maker, image_of, outputs
from tests.unit.bigtable_reader.world import LEASE, MakeSnapshots, World, entries
from tests.worlds.command_lines import parsed


@dataclass
class SnapshotWorld(World):
    """The world, and what there is to read of snapshots."""

    snapshots: SnapshotTable = field(default_factory=SnapshotTable)
    cuts: Sequence[bytes] = ()
    scans: list[FakeScan] = field(default_factory=list)
    unreadable: set[bytes] = field(default_factory=set)
    too_large: set[bytes] = field(default_factory=set)
    watches: BigtableOptions = field(default_factory=BigtableOptions)
    """What the tables file says of readers that are started from now on, and of who asks."""
    mode: Mode = "mirror"
    automatic: bool = False
    """RESYNC=automatic."""
    options: SnapshotOptions = field(default_factory=lambda: SnapshotOptions(page_rows=2, save=timedelta(seconds=1)))

    async def request(
        self, ranges: Sequence[KeyRange] | None = None, *, again: bool = True, whole: bool = True
    ) -> None:
        """Ask for a snapshot, as the command does and a first start: of all rows that are watched, if of no others."""
        store = FakeSnapshotStore(self.snapshots, "asks", LEASE, watching=self.watching.digest)
        await store.request(self.keys if ranges is None else ranges, VirtualClock().now(), again=again, whole=whole)

    async def cancel(self) -> None:
        """Give up what is left to read, as the command does."""
        await FakeSnapshotStore(self.snapshots, "asks", LEASE).cancel()

    def reading_snapshots(
        self, owner: str, way: Way, publisher: FakePublisher, step: Callable[[], Awaitable[None]], stop: Stop
    ) -> MakeSnapshots:
        """Return what makes a reader's part that reads snapshots."""
        scan = FakeScan(self.table, way, cuts=self.cuts)
        scan.unreadable = self.unreadable
        scan.too_large = self.too_large
        self.scans.append(scan)
        watching = self.watching.digest
        rows = MirroredRows(image_maker(self.watches), self.keys, watching)

        def make(
            dead_lettering: DeadLettering,
            raise_min_versions: Callable[[KeyRange, int], None],
            trusted: Callable[[], bool],
        ) -> BigtableSnapshots:
            store = FakeSnapshotStore(self.snapshots, owner, LEASE, step=step, watching=watching)
            resync = FakeResyncStore(self.partitions, step=step)
            return BigtableSnapshots(
                BigtableSnapshotSource(store, scan, rows, dead_lettering, raise_min_versions, self.metrics),
                BigtableSnapshotEnds(store, resync, rows, publisher, automatic=self.automatic),
                publisher,
                trusted=trusted,
                stop=stop,
                options=self.options,
            )

        return make

    def marking(self, step: Callable[[], Awaitable[None]]) -> ResyncRequests:
        """Return what marks the table."""
        snapshots = FakeSnapshotStore(self.snapshots, "", LEASE, step=step)
        found = FakeResyncStore(self.partitions, step=step)
        return ResyncRequests(found, snapshots, self._outputs().watched.family, VirtualClock(), self.watching)

    @property
    def keys(self) -> Sequence[KeyRange]:
        """Return the keys that are watched."""
        return watched_ranges(prefix.encode() for prefix in self.watches.key_prefixes)

    @property
    def watching(self) -> Watching:
        """Return what is watched."""
        return watching_of(self.mode, self.watches)

    def _outputs(self) -> Outputs:
        return outputs(options=self.watches)

    def drop_family(self, family: str) -> None:
        """Drop a family and its cells; whoever looks misses it."""
        self.table.drop_family(family)
        self.catalog.found = replace(self.catalog.found, families=self.catalog.found.families - {family})

    @property
    def resync_request(self) -> BigtableResyncRequest | None:
        """Return what was found, and is not mended."""
        return resync_request_of("weather", self.partitions.resync)

    @property
    def resync_kinds(self) -> Sequence[str]:
        """Return the kinds of what was found, and is not mended."""
        return [] if self.resync_request is None else [one.kind for one in self.resync_request.findings]

    def is_pending_resync(self) -> bool:
        """Return whether anything was found that is not mended."""
        return self.resync_request is not None

    async def find(
        self, kind: BigtableResyncKind = BigtableResyncKind.ROUTED_ELSEWHERE, run: int | None = None
    ) -> None:
        """Mark the table, after the latest snapshot unless it is said after which."""
        await FakeResyncStore(self.partitions).request(kind, EPOCH, self.run if run is None else run)

    async def wait_until_healed(self) -> None:
        """Wait until no family is missing of which nobody knows, and no mark is left."""
        await self.wait_until(lambda: self.resync_request is None and not self.is_missed)

    @property
    def run(self) -> int:
        """Return the latest snapshot."""
        return 0 if self.snapshots.snapshot is None else self.snapshots.snapshot.run

    @property
    def parts(self) -> Sequence[SnapshotPart]:
        """Return its parts."""
        return () if self.snapshots.snapshot is None else self.snapshots.snapshot.parts

    @property
    def is_missed(self) -> bool:
        """Return whether a family is gone, or back, and nobody has noticed."""
        kept = self.partitions.resync
        return kept is None or frozenset(kept.families or ()) != self.catalog.found.families

    @property
    def droppable(self) -> Sequence[str]:
        """Return the families that are there and known to be: one that comes and goes between two looks is not seen."""
        kept, found = self.partitions.resync, self.catalog.found.families
        return sorted(found if kept is None or kept.families is None else found & set(kept.families))

    async def wait_until_asked_for(self, run: int) -> None:
        """Wait until a snapshot is asked for, and hardly longer."""
        await self.wait_until(lambda: self.run >= run, every=0.1)

    def are_snapshots_over(self) -> bool:
        """Return whether nothing is left to read of a snapshot, nor to say of it."""
        found = self.snapshots.snapshot
        return found is None or not (found.unfinished or (found.complete_since is not None and not found.announced))

    @property
    def is_announced(self) -> bool:
        """Return whether the end of the latest snapshot was published."""
        return self.snapshots.snapshot is not None and self.snapshots.snapshot.announced

    async def wait_until_snapshots_are_over(self) -> None:
        """Wait for it."""
        await self.wait_until(self.are_snapshots_over)

    async def end_equal(self) -> None:
        """Wait until all is read, and end: the mirror has the rows of the table."""
        await self.wait_until_snapshots_are_over()
        await self.wait_until_all_is_read()
        await self.end()
        assert self.mirrored(without_missing=True) == self.source()

    @property
    def complete_since(self) -> str | None:
        """Return the highest sequence since which a snapshot says that it is complete; None where none does."""
        announced = [header.complete_since for header, _changes in self.topic.batches if header.complete_since]
        return max((one for one in announced if isinstance(one, str)), default=None)

    def mirrored(self, *, without_missing: bool) -> Mapping[bytes, str]:
        """Return the rows of the mirror, delivered twice and in any order; without those of before a snapshot."""
        changes = [(header, [change]) for header, batch in self.topic.batches for change in batch]
        delivered = changes * 2
        self.chance.shuffle(delivered)
        since = self.complete_since if without_missing else None
        return {
            key: change.row
            for key, change in folded(delivered).items()
            if change.row is not None and (since is None or change.sequence >= since)
        }

    def source(self) -> Mapping[bytes, str]:
        """Return the rows that the mirror should have."""
        rows = {key: image_of(self.table.row(key)) for key in self.table.row_keys}
        return {key: row for key, row in rows.items() if row is not None}


async def a_filled_world(
    keys: Sequence[bytes],
    *,
    rows: Mapping[bytes, Sequence[Entry]] | None = None,
    chance: Random | None = None,
    elsewhere: bool = False,
    **settings: Any,
) -> SnapshotWorld:
    """Write rows of which no record tells, ask for the first snapshot, and begin the stream."""
    world = SnapshotWorld(chance or Random(0), **settings)
    world.partitions.elsewhere = elsewhere
    for key in keys:
        world.table.write(key, *entries(world.chance))
    for key, cells in (rows or {}).items():
        world.table.write(key, *cells)
    world.table.log.clear()
    await world.request(again=False)
    await world.begin()
    return world


async def a_read_world(keys: Sequence[bytes], **settings: Any) -> SnapshotWorld:
    """Return such a world with one reader, after the first snapshot was read."""
    world = await a_filled_world(keys, **settings)
    world.start()
    await world.wait_until_snapshots_are_over()
    return world


KEYS = (b"a", b"b", b"bb", b"c", b"d", b"e")


class Command:
    """The command as somebody types it beside the readers of a world."""

    def __init__(self, world: SnapshotWorld) -> None:
        self._world = world
        self._store = FakeSnapshotStore(world.snapshots, "", LEASE, watching=world.watching.digest)
        self._stream_ranges = FakePartitionStore(world.partitions, "looks", LEASE)

    async def poll(self) -> tuple[Snapshot | None, BigtablePartitionSurvey]:
        """Look without being counted among the readers."""
        survey = await self._stream_ranges.survey()
        del self._world.partitions.readers["looks"]
        readers = survey.readers - {"looks"}
        return await self._store.survey(), replace(survey, readers=readers)

    async def __call__(self, *arguments: str, out: io.StringIO | None = None, mode: Any = "mirror") -> tuple[int, str]:
        """Run it; return its exit code and what it said."""
        out = out or io.StringIO()
        code = await snapshot(
            parsed(COMMAND_LINE, BigtableSnapshotCommand, "snapshot", *arguments),
            table="weather",
            mode=mode,
            options=BigtableOptions(),
            end=None,
            store=self._store,
            poll=self.poll,
            scan=FakeScan(self._world.table),
            clock=VirtualClock(),
            out=out,
        )
        return code, out.getvalue()
