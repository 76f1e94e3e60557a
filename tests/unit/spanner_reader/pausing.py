"""A world in which two tables go on changing while the stream and one of them are paused, resumed and snapshot."""

import asyncio
import random
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from services.spanner_reader.core.stream.changes import spanner_sequence
from services.spanner_reader.core.stream.partitions import SpannerPartition
from services.spanner_reader.core.stream.records import (
    DataChangeRecord,
    PartitionToken,
)
from services.spanner_reader.ports import WatchedTable
from shared.contracts.change_sequence import parse_sequence
from shared.contracts.timestamps import Nanoseconds, microseconds, parse_timestamp
from shared.runtime.stop import Stop
from tests.fakes.life import CrashError, Life
from tests.fakes.pauses import FakePauseStore
from tests.fakes.spanner_reader import FakePublisher, Script, Table
from tests.fakes.spanner_schema import FakeCatalog, FakeShapeStore
from tests.unit.spanner_reader.scripts import COLUMNS, START, LiveClock, LiveStream, World, a_write

LEASE = timedelta(seconds=30)
POLL = timedelta(seconds=1)
SINGERS, ALBUMS = "Singers", "Albums"
TOKENS = (PartitionToken("even"), PartitionToken("odd"))


@dataclass
class Database:
    """What was committed to two tables, and when."""

    clock: LiveClock = field(default_factory=lambda: LiveClock(START))
    records: dict[PartitionToken, list[DataChangeRecord]] = field(default_factory=lambda: {one: [] for one in TOKENS})

    def write(self, table: str, key: int, value: str | None) -> None:
        """Commit a row, or its deletion, now."""
        self.clock.step(timedelta(microseconds=1))
        self.records[TOKENS[key % 2]].append(a_write(self.clock.now(), table, key, value))

    def rows(self, table: str) -> dict[str, str]:
        """Return a table's rows as they are now, by key."""
        found: dict[str, str] = {}
        for record in self.all_of(table):
            (mod,) = record.mods
            if record.mod_type == "DELETE":
                found.pop(mod.keys, None)
            else:
                found[mod.keys] = str(mod.new_values)
        return found

    def all_of(self, table: str) -> list[DataChangeRecord]:
        """Return all that was committed to a table, in its order."""
        found = [one for records in self.records.values() for one in records if one.table == table]
        return sorted(found, key=lambda one: one.commit_timestamp)


@dataclass
class PausingWorld:
    """Readers of that stream, whose knowledge of pauses is as old as is set; and a mirror made of what they publish."""

    chance: random.Random
    database: Database = field(default_factory=Database)
    readers: list[tuple[Life, Stop, "asyncio.Task[None]"]] = field(default_factory=list)
    mirror: dict[tuple[str, str], tuple[object, str | None]] = field(default_factory=dict)
    applied: int = 0
    snapshot: Nanoseconds | None = None
    """The time of the snapshot that is under way."""
    images: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        tables = [WatchedTable(name, ("Id",), COLUMNS, "NEW_ROW") for name in (SINGERS, ALBUMS)]
        self.world = World(Script({}), Table(self.database.clock), catalog=FakeCatalog(*tables))
        for token in TOKENS:
            self.world.table.rows[token] = SpannerPartition(token=token, start=START, watermark=START)
        self.pauses = FakePauseStore(self.world.pauses)
        self.shapes = FakeShapeStore(self.world.shapes)

    def start(self, slowest_look: float = 0, lag: float = 0, **options: Any) -> Stop:
        """Start one more reader, whose looks at pauses take up to so many seconds; return what stops it."""
        life, stop, number = Life(), Stop(), len(self.readers)
        reader = self.world.reader(
            **{"owner": f"reader {number}"} | options,
            life=life,
            lease=LEASE,
            poll=POLL,
            publisher=FakePublisher(self.world.topic, life, seed=number, room=1_000),
            stream=LiveStream(self.database.records, life, lag),
            pauses=FakePauseStore(self.world.pauses, life, lambda: self.chance.uniform(0, slowest_look)),
        )
        self.readers.append((life, stop, asyncio.create_task(reader.run(stop))))
        return stop

    async def kill(self, number: int) -> None:
        """Kill a reader: it leaves its leases behind."""
        life, stop, task = self.readers.pop(number % len(self.readers))
        life.over = True
        stop.request()
        results = await asyncio.gather(task, return_exceptions=True)
        assert all(one is None or isinstance(one, CrashError) for one in results), results

    async def end(self) -> None:
        """Let all readers stop as they should."""
        for _life, stop, _task in self.readers:
            stop.request()
        for _life, _stop, task in self.readers:
            await task

    def begin_snapshot(self) -> None:
        """Read the rows of Singers as they are now; they arrive later."""
        self.snapshot = self.database.clock.now()
        self.images = self.database.rows(SINGERS)

    async def end_snapshot(self) -> None:
        """Let the rows arrive, delete what is not among them, and heal the mark that is older."""
        if self.snapshot is None:
            return
        self.apply()
        sequence = parse_sequence(str(spanner_sequence(microseconds(self.snapshot), "0", 0)))
        for key, image in self.images.items():
            self._newest(SINGERS, key, sequence, image)
        for (table, key), (applied, row) in list(self.mirror.items()):
            if table == SINGERS and row is not None and applied < sequence:  # type: ignore[operator]
                self.mirror[table, key] = sequence, None
        await self.shapes.healed(SINGERS, self.snapshot)
        self.snapshot = None

    def apply(self) -> None:
        """Let what is published arrive in the mirror."""
        batches = self.world.topic.batches
        for header, changes in batches[self.applied :]:
            for change in changes:
                self._newest(header.table, change.key, parse_sequence(change.sequence), change.row)
        self.applied = len(batches)

    def _newest(self, table: str, key: str, sequence: object, row: str | None) -> None:
        before = self.mirror.get((table, key))
        if before is None or before[0] < sequence:  # type: ignore[operator]
            self.mirror[table, key] = sequence, row

    def mirrored(self, table: str) -> dict[str, str]:
        """Return a table's mirror, by key."""
        self.apply()
        return {key: row for (name, key), (_at, row) in self.mirror.items() if name == table and row is not None}

    def published(self, table: str) -> set[Nanoseconds]:
        """Return the commit timestamps of what was published of a table."""
        return {
            parse_timestamp(change.commit_timestamp)
            for header, changes in self.world.topic.batches
            for change in changes
            if header.table == table
        }

    @property
    def marked(self) -> bool:
        """Return whether Singers is pending resync."""
        return any(one.table == SINGERS for one in self.world.shapes.all_requests)
