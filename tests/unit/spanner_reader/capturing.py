"""A table that goes on changing under a change stream of any value capture type, and readers that complete its images.

Partitions split, move and merge, columns are added, dropped and taken out of the stream, and the table is paused.
Beside it another table changes that the tables file leaves out.

The database remembers every version of every row and of its columns, so that what readers publish can be compared with
what was true: at the end, and at each commit.
"""

import asyncio
import json
import random
from collections import defaultdict
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from services.spanner_reader.core.pauses import Pause
from services.spanner_reader.core.snapshot.snapshot import KeyText
from services.spanner_reader.core.stream.changes import WHOLE_ROW
from services.spanner_reader.core.stream.partitions import PartitionState, SpannerPartition
from services.spanner_reader.core.stream.records import (
    ChildPartition,
    ChildPartitionsRecord,
    DataChangeRecord,
    HeartbeatRecord,
    Mod,
    PartitionToken,
    SpannerColumnType,
    SpannerStreamQuery,
    StreamRecord,
)
from services.spanner_reader.ports import CatalogInspection, NotReadableError, WatchedTable
from shared.contracts.change_batch import RECONSTRUCTED, Change, Header
from shared.contracts.change_sequence import four_sections, parse_sequence
from shared.contracts.errors import TransientError
from shared.contracts.tables_file import Mode, TableOptions
from shared.contracts.timestamps import Nanoseconds, microseconds, parse_timestamp
from shared.runtime.stop import Stop
from tests.fakes.life import CrashError, Life
from tests.fakes.pauses import FakePauseStore
from tests.fakes.spanner_reader import FakePublisher, Script, Table
from tests.fakes.spanner_schema import FakeCatalog, FakeShapeStore
from tests.unit.spanner_reader.scripts import START, LiveClock, World

SINGERS = "Singers"
LEFT_OUT = "LeftOut"
"""A table that the stream watches and the tables file leaves out."""
CAPTURE_TYPES = ("OLD_AND_NEW_VALUES", "NEW_VALUES", "NEW_ROW", "NEW_ROW_AND_OLD_VALUES")
TOKENS = (PartitionToken("even"), PartitionToken("odd"))
LEASE = timedelta(seconds=30)
_KEY = SpannerColumnType("Id", '{"code":"INT64"}', is_primary_key=True, ordinal_position=1)
_POLL_EVERY = 0.02
_APART = 0.3
"""How often a record that has come does not wait for the next one."""

Row = Mapping[str, str | None]
Operation = tuple[str, int, Row]
"""insert, replace, update or delete; a key; and values."""


@dataclass(frozen=True)
class Moment:
    """A table as it was from a time on; columns None: it was not there."""

    since: Nanoseconds
    columns: tuple[tuple[str, int], ...] | None
    """Those that the stream watches, by name and place."""
    rows: Mapping[int, Row]
    """With columns that it does not watch."""

    def watched_values(self, row: Row | None) -> Row | None:
        """Return what the stream shows of a row."""
        return None if row is None else {name: row.get(name) for name, _place in self.columns or ()}

    @property
    def watched_rows(self) -> Mapping[int, Row | None]:
        """Return what the stream shows of all rows."""
        return {key: self.watched_values(row) for key, row in sorted(self.rows.items())}


@dataclass
class CapturedDatabase:
    """A database with one table, and all that it ever was."""

    capture: str = "OLD_AND_NEW_VALUES"
    retention: timedelta = timedelta(hours=1)
    clock: LiveClock = field(default_factory=lambda: LiveClock(START))
    records: dict[PartitionToken, list[DataChangeRecord]] = field(default_factory=lambda: {one: [] for one in TOKENS})
    truth: dict[tuple[int, str], Row | None] = field(default_factory=dict)
    """The row at each of its changes, by key and sequence; None after a delete."""
    unwatched: frozenset[str] = frozenset()
    """Columns that the stream does not watch."""
    another_table: bool = False
    """Whether there is a table that the tables file leaves out; it changes in some of the same transactions."""

    def __post_init__(self) -> None:
        self.past = [Moment(Nanoseconds(0), (("a", 2), ("b", 3)), {})]
        self.partition_of: dict[int, PartitionToken] = {}
        """Where changes of a key come now; even and odd ones apart, unless it is said here."""
        self.ends: dict[PartitionToken, ChildPartitionsRecord] = {}
        self._transactions = 0

    def at(self, time: Nanoseconds) -> Moment:
        """Return what the table was at a time."""
        return next(one for one in reversed(self.past) if one.since <= time)

    @property
    def now(self) -> Moment:
        """Return what the table is."""
        return self.past[-1]

    def tick(self) -> Nanoseconds:
        """Return the timestamp of a commit."""
        self.clock.step(timedelta(microseconds=1))
        return self.clock.now()

    def reshape(self, keys: Collection[int], chance: random.Random) -> None:
        """Split a partition, move it elsewhere, or merge it with another one."""
        since, number = self.tick(), len(self.records)
        routes = {key: self.partition_of.get(key, TOKENS[key % 2]) for key in keys}
        living = sorted(set(routes.values()))
        parents = chance.sample(living, min(len(living), chance.choice((1, 1, 2))))
        moving = sorted(key for key, token in routes.items() if token in parents)
        names = [PartitionToken(f"{number}/{place}") for place in range(min(len(moving), chance.choice((1, 2))))]
        chance.shuffle(moving)
        for place, key in enumerate(moving):
            routes[key] = names[place % len(names)]
        children = tuple(ChildPartition(name, frozenset(parents)) for name in names)
        self.ends |= dict.fromkeys(parents, ChildPartitionsRecord(since, "1", children))
        self.records |= {name: [] for name in names}
        self.partition_of = routes

    def unwatch(self, column: str) -> None:
        """Take a column out of the stream; the table keeps it."""
        before, since = self.now, self.tick()
        self.unwatched |= {column}
        self.past.append(Moment(since, tuple(one for one in before.columns or () if one[0] != column), before.rows))

    def alter(self, *columns: str) -> None:
        """Add and drop columns until there are these; None at all drops the table with its rows."""
        before, since = self.now, self.tick()
        if not columns:
            self.past.append(Moment(since, None, {}))
            return
        kept = [name for name, _place in before.columns or () if name in columns]
        names = [*kept, *(name for name in columns if name not in kept)]
        rows = {key: {name: row.get(name) for name in (*names, *self.unwatched)} for key, row in before.rows.items()}
        self.past.append(Moment(since, tuple((name, place + 2) for place, name in enumerate(names)), rows))

    def commit(self, *operations: Operation, chance: random.Random | None = None) -> Nanoseconds:
        """Commit a transaction; what cannot be done to a row as it is then is left out of it.

        With ``chance``, its records come in any order, and it may be two transactions of different rows at one time.
        """
        before, commit = self.now, self.tick()
        rows, made = dict(before.rows), []
        for kind, key, values in operations:
            old = rows.get(key)
            wanted = {
                name: value for name, value in values.items() if name in {*dict(before.columns or ()), *self.unwatched}
            }
            blank: Row = dict.fromkeys([*dict(before.columns or ()), *self.unwatched])
            match kind:
                case "insert" if old is None:
                    rows[key] = {**blank, **wanted}
                case "replace":
                    rows[key] = {**blank, **wanted}
                case "update" if old is not None and wanted:
                    rows[key] = {**old, **wanted}
                case "delete" if old is not None:
                    del rows[key]
                case _:
                    continue
            wanted = {name: value for name, value in wanted.items() if name not in self.unwatched}
            if wanted or kind != "update":
                made.append((kind, key, old, wanted, rows.get(key)))
        self._transactions += 1
        together = chance is not None and chance.random() < 0.3
        records: defaultdict[PartitionToken, list[DataChangeRecord]] = defaultdict(list)
        for place, (kind, key, old, wanted, new) in enumerate(made):
            part = f"/{key // 2 % 2}" if together else ""
            record = self._record(before, commit, place, kind, key, old, wanted, new)
            record = replace(record, server_transaction_id=f"transaction {self._transactions}{part}")
            token = self.partition_of.get(key, TOKENS[key % 2])
            records[token].append(record)
            if self.another_table and chance is not None and chance.random() < 0.3:
                records[token].append(replace(record, table=LEFT_OUT, record_sequence=f"{1_000 + place:08d}"))
            sequence = str(four_sections(microseconds(commit), int(record.record_sequence, 16)))
            self.truth[key, sequence] = before.watched_values(new)
        for token, found in records.items():
            if chance is not None:
                chance.shuffle(found)
            last = {one.server_transaction_id: number for number, one in enumerate(found)}
            self.records[token] += [
                replace(one, is_last_record_in_transaction_in_partition=last[one.server_transaction_id] == number)
                for number, one in enumerate(found)
            ]
        self.past.append(Moment(commit, before.columns, rows))
        return commit

    def _record(
        self,
        moment: Moment,
        commit: Nanoseconds,
        place: int,
        kind: str,
        key: int,
        old: Row | None,
        wanted: Row,
        new: Row | None,
    ) -> DataChangeRecord:
        partial = kind == "update" and self.capture not in WHOLE_ROW
        names = set(wanted) if partial else {name for name, _place in moment.columns or ()}
        new_values = {} if new is None else {name: new[name] for name in names}
        old_values: Row = {}
        if old is not None and "OLD" in self.capture and kind != "replace":
            old_values = old if kind == "delete" else {name: old[name] for name in wanted}
        mod = Mod(f'{{"Id":"{key}"}}', json.dumps(new_values), json.dumps(old_values))
        return DataChangeRecord(
            commit_timestamp=commit,
            record_sequence=f"{place:08d}",
            server_transaction_id=f"transaction {self._transactions}",
            is_last_record_in_transaction_in_partition=True,
            table=SINGERS,
            column_types=column_types([one for one in moment.columns or () if one[0] in names]),
            mods=(mod,),
            mod_type={"insert": "INSERT", "replace": "INSERT", "update": "UPDATE", "delete": "DELETE"}[kind],
            value_capture_type=self.capture,
            number_of_records_in_transaction=1,
            number_of_partitions_in_transaction=1,
        )

    def forgotten(self, time: Nanoseconds) -> bool:
        """Return whether the database does not remember a time any more."""
        return self.clock.now() - time > self.retention // timedelta(microseconds=1) * 1_000

    def watched(self, moment: Moment) -> Sequence[WatchedTable]:
        """Return the tables that the stream watched."""
        if moment.columns is None:
            return []
        names = [SINGERS, *([LEFT_OUT] if self.another_table else [])]
        return [WatchedTable(name, ("Id",), column_types(moment.columns), self.capture) for name in names]


def column_types(columns: Collection[tuple[str, int]]) -> tuple[SpannerColumnType, ...]:
    """Return the key column and others, by name and place."""
    others = [SpannerColumnType(name, '{"code":"STRING"}', False, place) for name, place in columns]
    return (_KEY, *others)


class CapturedCatalog(FakeCatalog):
    """What that database says of its table."""

    def __init__(self, database: CapturedDatabase) -> None:
        super().__init__(*database.watched(database.now), everything=True)
        self.database = database
        self.inspected = 0

    async def inspect(self) -> CatalogInspection:
        """Return the table as it is now."""
        await asyncio.sleep(0.01)
        self.time = self.database.clock.now() - 1_000
        self.tables = list(self.database.watched(self.database.now))
        return await super().inspect()

    async def inspect_at(self, at: Nanoseconds) -> CatalogInspection | None:
        """Return the table as it was."""
        if self.database.forgotten(at):
            return None
        found = await self.inspect()
        return CatalogInspection(replace(found.shapes, at=at), tuple(self.database.watched(self.database.at(at))))

    async def inspect_tables(
        self, names: Collection[str], at: Nanoseconds | None = None
    ) -> tuple[Nanoseconds, Sequence[WatchedTable]]:
        """Return the table as it is now, or was at a time."""
        self.inspected += 1
        seen_at = self.database.clock.now() if at is None else at
        if self.database.forgotten(seen_at):
            raise NotReadableError("made-up", "the time is not remembered")
        watched = self.database.watched(self.database.at(seen_at))
        await asyncio.sleep(0.01)
        return seen_at, [one for one in watched if one.name in names]


class CapturedRows:
    """The rows of that table at any time that is remembered."""

    def __init__(self, database: CapturedDatabase, chance: random.Random, life: Life, breaks: float = 0.0) -> None:
        self.in_key_order = True
        self.reads: list[tuple[Nanoseconds, int]] = []
        """The times of reads, and of how many keys."""
        self.shifted = False
        """Whether it returns the rows of other keys."""
        self.unavailable = False
        self.refused: int | None = None
        """A key that no read may ask for."""
        self.refusals: list[int] = []
        """Of how many keys the reads were that asked for it."""
        self.hung = frozenset[int]()
        """Keys that a read asks for in vain: it never ends."""
        self.keys: list[KeyText] = []
        self._database = database
        self._chance = chance
        self._life = life
        self.breaks = breaks

    def read(
        self,
        table: WatchedTable,
        at: Nanoseconds,
        *,
        after: KeyText | None,
        until: KeyText | None,
        in_key_order: bool = False,
    ) -> AsyncGenerator[Sequence[Sequence[object]], None]:
        """Nobody reads ranges here."""
        raise NotImplementedError

    async def read_keys(
        self, table: WatchedTable, at: Nanoseconds, keys: Sequence[KeyText]
    ) -> AsyncGenerator[Sequence[Sequence[object]], None]:
        """Yield the rows of some keys, two at a time."""
        self._life.step()
        if self.unavailable:
            raise TransientError("UNAVAILABLE")
        self.reads.append((at, len(keys)))
        self.keys += keys
        if f'["{self.refused}"]' in keys:
            self.refusals.append(len(keys))
            raise NotReadableError("made-up", "no such key")
        if not self.hung.isdisjoint(int(json.loads(text)[0]) for text in keys):
            await asyncio.Event().wait()
        await asyncio.sleep(self._chance.uniform(0, 0.2))
        moment = self._database.at(at)
        names = [one.name for one in table.column_types]
        if self._database.forgotten(at) or not {*names} <= {
            "Id",
            *dict(moment.columns or ()),
            *self._database.unwatched,
        }:
            raise NotReadableError("made-up", "too long ago, or other columns")
        shift = 2 if self.shifted else 0
        found = [key for text in keys if (key := int(json.loads(text)[0]) + shift) in moment.rows]
        for start in range(0, len(found), 2):
            if self._chance.random() < self.breaks:
                raise TransientError("UNAVAILABLE")
            yield [
                [str(key) if name == "Id" else moment.rows[key][name] for name in names]
                for key in found[start : start + 2]
            ]
            self._life.step()

    async def cuts(self, table: WatchedTable, at: Nanoseconds) -> Sequence[KeyText]:
        """Return that the table is not worth cutting."""
        return []


class CapturedStream:
    """The stream: what is committed comes a moment later; a query goes on, or breaks off, and says how far it is.

    Where a partition has ended, so does its query, with the record of its children.
    """

    def __init__(
        self, database: CapturedDatabase, chance: random.Random, life: Life, breaks: float, slowness: float
    ) -> None:
        self._database = database
        self._chance = chance
        self._life = life
        self._breaks = breaks
        self._slowness = slowness
        self._apart = random.Random(0)

    async def read(self, query: SpannerStreamQuery) -> AsyncGenerator[Sequence[StreamRecord], None]:
        """Yield the records of a partition from the start asked for."""
        records = self._database.records[query.token]
        place, quiet = 0, 0
        together: list[StreamRecord] = []
        while True:
            if place < len(records):
                self._life.step()
                record = records[place]
                place, quiet = place + 1, 0
                if record.commit_timestamp < query.start:
                    continue
                breaks = self._chance.random() < self._breaks
                waits = self._chance.random() < self._slowness
                if together and (breaks or waits or self._apart.random() < _APART):
                    yield together
                    together = []
                if breaks:
                    raise TransientError("UNAVAILABLE")
                if waits:
                    await asyncio.sleep(self._chance.uniform(0, 0.3))
                together.append(record)
            elif query.token in self._database.ends:
                yield [*together, self._database.ends[query.token]]
                return
            else:
                quiet += 1
                now = self._database.clock.now()
                if together:
                    yield together
                    together = []
                await asyncio.sleep(_POLL_EVERY)
                if quiet % 50 == 0 and place == len(records) and query.token not in self._database.ends:
                    yield [HeartbeatRecord(now)]


@dataclass
class CapturingWorld:
    """Readers of that stream, and what they publish."""

    chance: random.Random
    database: CapturedDatabase
    mode: Mode = "mirror"
    breaks: float = 0.0
    included: bool = True
    orderly: bool = False
    """Whether records come at once, and what is published is there in its order."""
    unread: Sequence[str] = ()
    """What happens beside commits while nobody reads."""
    readers: list[tuple[Life, Stop, "asyncio.Task[None]"]] = field(default_factory=list)
    pauses: list[Pause] = field(default_factory=list)
    slowest_poll: float = 0.0
    """How many seconds a reader's look at the pauses takes at most."""
    begun: Nanoseconds | None = None
    """The time of a snapshot whose rows have not arrived."""
    arrived: Nanoseconds | None = None
    """That of the last one whose rows have."""
    rows: list[CapturedRows] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.catalog = CapturedCatalog(self.database)
        self.world = World(Script({}), Table(self.database.clock), catalog=self.catalog)
        for token in TOKENS:
            self.world.table.rows[token] = SpannerPartition(token=token, start=START, watermark=START)
        self._started = 0

    def start(self, killed_at: int | None = None, **options: Any) -> Life:
        """Start one more reader, which is killed at a step of its own."""
        life, stop = Life(killed_at), Stop()
        self._started += 1
        rows, polls = CapturedRows(self.database, self.chance, life, self.breaks), random.Random(self._started)
        self.rows.append(rows)
        usual: dict[str, Any] = {
            "owner": f"reader {self._started}",
            "included": lambda table: self.included and table != LEFT_OUT,
        }
        reader = self.world.reader(
            life=life,
            lease=LEASE,
            poll=timedelta(seconds=1),
            publisher=FakePublisher(self.world.topic, life, seed=self._started, room=1_000, in_order=self.orderly),
            shapes=FakeShapeStore(self.world.shapes, life),
            pauses=FakePauseStore(self.world.pauses, life, lambda: polls.uniform(0, self.slowest_poll)),
            stream=CapturedStream(self.database, self.chance, life, self.breaks, 0.0 if self.orderly else 0.3),
            rows=rows,
            table_options=lambda name: TableOptions(name=name, mode=self.mode),
            **usual | options,
        )
        self.readers.append((life, stop, asyncio.create_task(reader.run(stop))))
        return life

    async def stop(self, number: int | None = None, *, killed: bool) -> None:
        """Let a reader end as it should, or kill it: it leaves its leases behind."""
        number = self.chance.randrange(len(self.readers)) if number is None else number
        life, stop, task = self.readers.pop(number)
        life.over |= killed
        stop.request()
        (result,) = await asyncio.gather(task, return_exceptions=True)
        if result is not None and not isinstance(result, CrashError | TransientError):
            raise result
        if killed:
            self.database.clock.step(LEASE * 2)

    async def pause_or_resume(self) -> None:
        """Pause the table, or let it go on."""
        store, rows = FakePauseStore(self.world.pauses), self.world.shapes.pauses
        if self.world.shapes.inspection is None:  # no reader has seen the table yet
            return
        if await store.pause(SINGERS):
            self.pauses.append(rows[SINGERS])
        elif await store.resume(SINGERS):
            self.pauses[-1] = rows[SINGERS]

    async def pause_or_resume_all(self) -> None:
        """Pause the whole stream, or let it go on."""
        store = FakePauseStore(self.world.pauses)
        if not await store.pause(None):
            await store.resume(None)

    def begin_snapshot(self) -> None:
        """Read the rows as they are now; they arrive later."""
        self.begun = self.database.tick()

    async def end_snapshot(self) -> None:
        """Let the rows of a snapshot arrive, and heal the mark that is older."""
        if self.begun is not None:
            self.arrived, self.begun = self.begun, None
            await FakeShapeStore(self.world.shapes).healed(SINGERS, self.arrived)

    def pending_resync(self) -> bool:
        """Return whether the table is pending resync."""
        return any(one.table == SINGERS for one in self.world.shapes.all_requests)

    def may_be_dropped(self, sequence: str) -> bool:
        """Return whether a change was committed during a pause."""
        commit = Nanoseconds(parse_sequence(sequence).sections[0] * 1_000)
        return any(one.covers(commit) for one in self.pauses)

    async def until_all_is_read(self) -> None:
        """Let everything go well until all that was committed is confirmed."""
        await FakePauseStore(self.world.pauses).resume(None)
        if not self.readers:
            self.start()
        self.breaks = 0.0
        last = self.database.clock.now()
        async with asyncio.timeout(600):
            while any(
                one.watermark <= last and one.state is not PartitionState.FINISHED
                for one in self.world.table.rows.values()
            ):
                for _life, _stop, task in self.readers:
                    if task.done():
                        task.result()
                await asyncio.sleep(1)
        while self.readers:
            await self.stop(killed=False)

    @property
    def published(self) -> Sequence[tuple[Header, Change]]:
        """Return all changes that were published."""
        return [(header, change) for header, changes in self.world.topic.batches for change in changes]

    def mirror(self) -> Mapping[int, Row]:
        """Return what the mirror is when the newest of each row has won, changes and the last snapshot's rows."""
        newest: dict[int, tuple[str, Row | None]] = {}
        for header, change in self.published:
            key, row = key_of(change), row_of(header, change)
            before = newest.get(key, ("", None))
            if change.sequence >= before[0]:
                newest[key] = change.sequence, row
        if self.arrived is not None:
            sequence = str(four_sections(microseconds(self.arrived)))
            moment = self.database.at(self.arrived)
            for key in {*newest, *moment.rows}:
                if newest.get(key, ("", None))[0] < sequence:
                    newest[key] = sequence, moment.watched_values(moment.rows.get(key))
        names = dict(self.database.now.columns or ())
        return {
            key: {name: row.get(name) for name in names}
            for key, (_sequence, row) in sorted(newest.items())
            if row is not None
        }

    def check_versions(self) -> None:
        """Check that each published version is the true one, but for those that say they are reconstructed."""
        for header, change in self.published:
            assert header.value_capture_type in WHOLE_ROW
            key, row = key_of(change), row_of(header, change)
            if not is_reconstructed(change):
                assert set_values(row) == set_values(self.database.truth[key, change.sequence]), change
            elif self.mode == "mirror":  # true at its own time
                moment = self.database.at(parse_timestamp(change.commit_timestamp))
                assert set_values(row) == set_values(moment.watched_values(moment.rows.get(key))), change


def key_of(change: Change) -> int:
    """Return the key of a change."""
    return int(json.loads(change.key)["Id"])


def row_of(header: Header, change: Change) -> Row | None:
    """Return the row of a change, with all columns that its header names."""
    if change.row is None:
        return None
    row = json.loads(change.row)
    return {column.name: row.get(column.name) for column in header.columns if column.name not in header.primary_key}


def set_values(row: Row | None) -> Row | None:
    """Return the values of a row that are not NULL: a column that is not there yet reads as NULL."""
    return None if row is None else {name: value for name, value in row.items() if value is not None}


def is_reconstructed(change: Change) -> bool:
    """Return whether a change says that its row may be of another time."""
    return json.loads(change.place).get(RECONSTRUCTED) is True
