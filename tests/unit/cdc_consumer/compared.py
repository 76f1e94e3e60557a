"""A source, its mirror and the time that passes for both, in memory: what comparisons are tested on."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pyarrow as pa

from services.cdc_consumer.adapters.reconcile.disk_row_buckets import DiskRowBuckets
from services.cdc_consumer.app.reconcile.comparison import TableDifferences
from services.cdc_consumer.app.reconcile.recheck import Waits
from services.cdc_consumer.app.reconcile.reconcile import ReconcileOptions, Reconciler
from services.cdc_consumer.core.reconcile.row_keys import key_kinds
from services.cdc_consumer.core.reconcile.source_table import Mirrored, source_rows
from services.cdc_consumer.core.schema.destinations import EVERYTHING, Plan
from services.cdc_consumer.ports import (
    BytesLimitError,
    FoundMirror,
    MirrorProgress,
    MirrorReading,
    QueryEstimate,
    QuerySpend,
)
from shared.contracts.change_batch import Change, encode_batch
from shared.contracts.change_sequence import four_sections
from shared.contracts.errors import TransientError
from shared.contracts.source_rows import Done, Key
from shared.contracts.timestamps import Nanoseconds, format_timestamp, parse_timestamp
from shared.runtime.stop import Stop
from tests.source_values import COLUMNS
from tests.unit.cdc_consumer.wire import header_of

HEADER = header_of({"id": "INT64", **COLUMNS}, table="things", origin="snapshot")
START = parse_timestamp("2026-11-22T09:00:00Z")
SECOND = 1_000_000_000
Rows = dict[int, str]
"""Row objects (JSON) by their key."""
NOTE = '{"s": "planted"}'


@dataclass
class World:
    """A source, its mirror, the clock of both, and what happens to them whenever somebody waits."""

    source: Rows
    mirror: Rows
    applied: dict[int, str] = field(default_factory=dict)
    now: int = START
    batch: int = 3
    """Rows in a batch."""
    events: list[Any] = field(default_factory=list)
    """Called one by one, at each pause."""
    breaks: int = 0
    """Readings that break off."""
    published: list[tuple[int, str | None]] = field(default_factory=list)
    unpublished: Mapping[int, Exception] = field(default_factory=dict)
    """What is raised instead of publishing a row."""
    consuming: bool = True
    nulls: list[str] = field(default_factory=list)
    """Rows of the source whose keys hold NULL."""
    queries: int = 0
    """Of the mirror, until now. Each is billed for a byte."""
    most_queries: int = 1_000_000
    plan: Plan = EVERYTHING
    found: FoundMirror = field(default_factory=lambda: FoundMirror("project.dataset.things"))
    honest: bool = True

    def sequence(self, ahead: int = 0) -> str:
        """Return the sequence of what is read now."""
        return str(four_sections(self.now // 1_000 + ahead))

    # The source

    def tables(self) -> Sequence[str]:
        return [HEADER.table]

    def describe(self, table: str) -> tuple[bytes, Done]:
        assert table == HEADER.table
        return encode_batch(HEADER, []), self._done()

    def read(self, table: str, at: str | None = None) -> Iterator[bytes | Done]:
        yield encode_batch(HEADER, [])
        rows = [self._change(json.dumps({"id": str(key)}), row) for key, row in sorted(self.source.items())]
        rows += [self._change('{"id":null}', row) for row in self.nulls]
        for start in range(0, len(rows), self.batch):
            if self.breaks:
                self.breaks -= 1
                raise TransientError("UNAVAILABLE")
            yield encode_batch(HEADER, rows[start : start + self.batch])
        yield self._done(at, rows=len(rows))

    def read_keys(self, table: str, keys: Sequence[Key]) -> tuple[Sequence[bytes], Done]:
        named = [None if key is None else int(str(key)) for (key,) in keys]
        there = [key for key in named if key in self.source]
        changes = [self._change(json.dumps({"id": str(key)}), self.source[key]) for key in there if key is not None]
        if None in named:
            changes += [self._change('{"id":null}', row) for row in self.nulls]
        if not self.honest:
            return [], self._done(rows=0, absent=0)
        return [encode_batch(HEADER, changes)], self._done(rows=len(changes), absent=len(keys) - len(changes))

    def publish(self, table: str, keys: Sequence[Key], above: str = "") -> Done:
        assert self.sequence() > above
        for (key,) in keys:
            number = int(str(key))
            if number in self.unpublished:
                raise self.unpublished[number]
            self.published.append((number, self.source.get(number)))
            if self.consuming:
                self.apply(number)
        return self._done(rows=len(keys))

    def apply(self, key: int) -> None:
        """Let what is true of a row arrive."""
        if key in self.source:
            self.mirror[key] = self.source[key]
        else:
            self.mirror.pop(key, None)
        self.applied[key] = self.sequence()

    def _done(self, at: str | None = None, rows: int = 0, absent: int = 0) -> Done:
        return Done(at or format_timestamp(Nanoseconds(self.now)), self.sequence(), rows, absent)

    def _change(self, key: str, row: str) -> Change:
        return Change("UPSERT", "SNAPSHOT", self.sequence(), "2026-11-22T09:00:00Z", "{}", key, row)

    # The mirror, which holds what the consumer makes of the very same texts

    def rows_of(self, table: Mirrored, keys: Sequence[int]) -> pa.Table:
        changes = [self._change(json.dumps({"id": str(key)}), self.mirror[key]) for key in keys]
        rows, unfit = source_rows(table, [encode_batch(HEADER, changes)], self.plan)
        assert not unfit
        place = rows.schema.get_field_index("_millrace_sequence")
        applied = [self.applied.get(key, "") for key in keys]
        return rows.set_column(place, "_millrace_sequence", pa.array(applied, pa.string()))

    def query(self) -> None:
        """Count a query of the mirror."""
        if self.queries == self.most_queries:
            raise BytesLimitError("made-up", "--max-bytes allows no more")
        self.queries += 1

    def progress(self, until: str) -> MirrorProgress:
        past = [one for one in self.applied.values() if len(one) == len(until) and one <= until]
        return MirrorProgress(max(past, default=""), repr(sorted(self.applied.items())))


class Mirrors:
    """The mirror's side of a world."""

    def __init__(self, world: World) -> None:
        self.world = world

    def find(self, table: Mirrored) -> FoundMirror:
        return self.world.found

    @contextmanager
    def reading(self, table: Mirrored, mirror: FoundMirror) -> Iterator[MirrorReading]:
        yield WholeMirror(self.world, table)

    def recheck(
        self, table: Mirrored, mirror: FoundMirror, keys: pa.Table, until: str
    ) -> tuple[pa.Table, MirrorProgress]:
        self.world.query()
        there = [key for key in keys.column("id").to_pylist() if key in self.world.mirror]
        return self.world.rows_of(table, there), self.world.progress(until)

    def estimate(self, table: Mirrored, mirror: FoundMirror) -> QueryEstimate:
        return QueryEstimate(len(self.world.mirror), 2 * len(self.world.mirror))

    def spent(self) -> QuerySpend:
        return QuerySpend(self.world.queries, self.world.queries)


@dataclass
class WholeMirror:
    """A reading of a world's mirror."""

    world: World
    table: Mirrored
    begun: bool = False

    def pages(self) -> Iterator[pa.Table]:
        if not self.begun:
            self.world.query()
            self.begun = True
        keys = sorted(self.world.mirror, reverse=True)  # in another order than the source
        for start in range(0, len(keys), 2):
            yield self.world.rows_of(self.table, keys[start : start + 2])


def reconciled(world: World, directory: Path, **options: Any) -> TableDifferences:
    """Compare a world's table, in time that passes only where somebody waits."""
    return reconciler(world, directory, **options).reconcile(HEADER.table)


def reconciler(
    world: World, directory: Path, *, settle: int = 30, repair: bool = False, buckets: int | None = None
) -> Reconciler:
    """Return what compares a world's table."""

    class Clock:
        def now(self) -> Nanoseconds:
            return Nanoseconds(world.now)

    def pause(duration: timedelta) -> None:
        world.now += duration // timedelta(microseconds=1) * 1_000
        if world.events:
            world.events.pop(0)(world)

    @contextmanager
    def row_buckets(table: Mirrored, wanted: int) -> Iterator[DiskRowBuckets]:
        place = Path(mkdtemp(dir=directory)) / "rows"
        with DiskRowBuckets(
            place, table.schema, key_kinds(table.definition), buckets or wanted, buffer_bytes=200
        ) as rows:
            if buckets:
                rows.buckets = buckets
            yield rows

    options = ReconcileOptions(settle=timedelta(seconds=settle), repair=repair)
    waits = Waits(Clock(), Stop(), pause)
    return Reconciler(
        source=world, mirrors=Mirrors(world), plan=world.plan, row_buckets=row_buckets, waits=waits, options=options
    )


def kinds(result: TableDifferences) -> dict[int, str]:
    """Return how which rows differ."""
    return {json.loads(one.key)[0]: one.kind.value for one in result.differences}
