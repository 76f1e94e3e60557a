"""In-memory ports of snapshots: the table of ranges, and tables whose every version is remembered."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import pairwise

from services.spanner_reader.core.snapshot.snapshot import (
    UNFINISHED,
    KeyText,
    RangeState,
    SnapshotRange,
    SnapshotSurvey,
    by_run,
    claimable_ranges,
    is_kept_at_a_start,
    is_untouched,
    merged,
    whole_tables,
)
from services.spanner_reader.ports import NotReadableError, RangeProgress, WatchedTable
from shared.contracts.timestamps import Nanoseconds
from tests.fakes.life import Life
from tests.fakes.spanner_reader import SteppingClock

_A_READING = 0.3  # in seconds


@dataclass
class SnapshotTable:
    """The rows of a table of snapshots."""

    clock: SteppingClock = field(default_factory=SteppingClock)
    rows: dict[tuple[str, int], SnapshotRange] = field(default_factory=dict)


class FakeSnapshotStore:
    """A store of snapshots in memory, as one owner sees it."""

    def __init__(self, table: SnapshotTable, owner: str, lease: timedelta, life: Life | None = None) -> None:
        self.table = table
        self._owner = owner
        self._lease = lease // timedelta(microseconds=1) * 1_000
        self._life = life or Life()

    async def request(self, tables: Sequence[str], at: Nanoseconds, *, again: bool) -> Sequence[str]:
        """Ask for a snapshot of each table; return those tables for which that was new."""
        await self._before()
        new = []
        for name in dict.fromkeys(tables):
            there = [one for one in self.table.rows.values() if one.table == name]
            if not again and is_kept_at_a_start(there, at, self.table.clock.now()):
                continue
            if not again and is_untouched(there):
                self.table.rows[there[0].place] = replace(there[0], read_at=at, first_read_at=at)
                continue
            for one in there:
                del self.table.rows[one.place]
            run = max((one.run for one in there), default=0) + 1
            fencing = max((one.fencing for one in there), default=0) + 1
            no_earlier = max([at, *(one.first_read_at for one in whole_tables(there))])
            asked = SnapshotRange(
                table=name, number=0, run=run, read_at=no_earlier, first_read_at=no_earlier, fencing=fencing
            )
            self.table.rows[asked.place] = asked
            new.append(name)
        self._life.step()
        return new

    async def request_keys(self, table: str, at: Nanoseconds, after: KeyText | None, until: KeyText | None) -> None:
        """Ask for some keys of a table, beside what else is read of it; earlier ones that are read are forgotten."""
        await self._before()
        there = [one for one in self.table.rows.values() if one.table == table]
        number = max((one.number for one in there), default=0) + 1
        run = max((one.run for one in there), default=0) + 1
        whole = {one.place for one in whole_tables(there)}
        for one in there:
            if one.place not in whole and one.state not in UNFINISHED:
                del self.table.rows[one.place]
        asked = SnapshotRange(
            table=table, number=number, run=run, after=after, until=until, read_at=at, first_read_at=at, fencing=1
        )
        self.table.rows[asked.place] = asked
        self._life.step()

    async def request_unless_since(self, table: str, at: Nanoseconds, since: Nanoseconds) -> bool:
        """Ask for a snapshot of a table again, unless one is read just now or was begun after a time."""
        there = [one for one in self.table.rows.values() if one.table == table]
        begun = min((one.first_read_at for one in whole_tables(there)), default=since)
        if begun > since or any(one.state in UNFINISHED for one in there):
            await self._before()
            return False
        return bool(await self.request([table], at, again=True))

    async def cancel(self, tables: Sequence[str]) -> Sequence[str]:
        """Give up what is left of the tables' snapshots; return the tables of which something was left."""
        await self._before()
        left = [one for one in self.table.rows.values() if one.table in tables and one.state in UNFINISHED]
        self._cancel(left)
        self._life.step()
        return list(dict.fromkeys(one.table for one in left))

    async def give_up(self, owned: SnapshotRange) -> bool:
        """Give up what is left of the snapshot that a range is of; return whether the range was still ours."""
        await self._before()
        stored = self.table.rows.get(owned.place)
        if stored is None or not self._is_ours(owned, stored):
            return False
        snapshot = [one for one in self.table.rows.values() if (one.table, one.run) == (owned.table, owned.run)]
        self._cancel([one for one in snapshot if one.state in UNFINISHED])
        self._life.step()
        return True

    def _cancel(self, left: Sequence[SnapshotRange]) -> None:
        for one in left:
            over = replace(one, state=RangeState.CANCELLED, owner=None, lease_until=None, fencing=one.fencing + 1)
            self.table.rows[one.place] = over

    async def now(self) -> Nanoseconds:
        """Return the time, as a survey does."""
        await self._before()
        return self.table.clock.now()

    async def survey(self) -> SnapshotSurvey:
        """Return all ranges, those that are done too."""
        await self._before()
        return SnapshotSurvey(
            self.table.clock.now(), tuple(self.table.rows[place] for place in sorted(self.table.rows))
        )

    async def merge(self, table: str) -> None:
        """Keep one range of each snapshot of a table of which nothing is left to read."""
        await self._before()
        for parts in by_run(one for one in self.table.rows.values() if one.table == table).values():
            whole = merged(parts)
            if whole is not None:
                for one in parts:
                    del self.table.rows[one.place]
                self.table.rows[whole.place] = whole
        self._life.step()

    async def claim(self, places: Collection[tuple[str, int]]) -> Sequence[SnapshotRange]:
        """Take those of the ranges that are still free and not done; return them with our lease."""
        await self._before()
        now = self.table.clock.now()
        claimed = []
        for one in claimable_ranges(self.table.rows.values(), now=now):
            if one.place in places:
                until = Nanoseconds(now + self._lease)
                ours = replace(one, owner=self._owner, lease_until=until, fencing=one.fencing + 1)
                self.table.rows[one.place] = ours
                claimed.append(ours)
        self._life.step()
        return claimed

    async def cut(self, owned: SnapshotRange, keys: Sequence[KeyText]) -> SnapshotRange | None:
        """Cut a range at keys that lie in it; return its first part, which stays ours."""
        await self._before()
        stored = self.table.rows.get(owned.place)
        if stored is None or not self._is_ours(owned, stored):
            return None
        if stored.state is not RangeState.REQUESTED:
            return stored
        places = [None, *keys, None]
        number = max(place for name, place in self.table.rows if name == owned.table)
        for index, (after, until) in enumerate(pairwise(places)):
            if index == 0:
                first = replace(stored, until=until if keys else stored.until, state=RangeState.CUT)
                self.table.rows[owned.place] = first
            else:
                part = SnapshotRange(
                    table=owned.table,
                    number=number + index,
                    run=stored.run,
                    after=after,
                    until=until if index < len(keys) else stored.until,
                    read_at=stored.read_at,
                    first_read_at=stored.first_read_at,
                    state=RangeState.CUT,
                )
                self.table.rows[part.place] = part
        self._life.step()
        return self.table.rows[owned.place]

    async def save(self, progress: Sequence[RangeProgress], *, release: bool = False) -> Collection[tuple[str, int]]:
        """Save how far ranges have come and renew the leases, or give them back; return those not ours any more."""
        await self._before()
        lost = set()
        until = None if release else Nanoseconds(self.table.clock.now() + self._lease)
        for one in progress:
            stored = self.table.rows.get(one.range.place)
            if stored is None or not self._is_ours(one.range, stored):
                lost.add(one.range.place)
            elif stored.state in UNFINISHED:
                saved = replace(stored, last=one.last, rows=one.rows, read_at=one.read_at, lease_until=until)
                if one.done:
                    now = self.table.clock.now()
                    saved = replace(saved, state=RangeState.DONE, lease_until=None, finished_at=now)
                self.table.rows[one.range.place] = saved
        self._life.step()
        return lost

    async def _before(self) -> None:
        await asyncio.sleep(0)
        self._life.step()

    def _is_ours(self, owned: SnapshotRange, stored: SnapshotRange) -> bool:
        return (stored.run, stored.owner, stored.fencing) == (owned.run, self._owner, owned.fencing)


@dataclass
class Versions:
    """A table with one INT64 key and one value: what each row was, and since when; None where it was deleted."""

    clock: SteppingClock
    written: dict[int, list[tuple[Nanoseconds, str | None]]] = field(default_factory=dict)
    remembers: timedelta = timedelta(hours=1)

    def write(self, key: int, value: str | None) -> None:
        """Commit a row, or its deletion, now."""
        self.written.setdefault(key, []).append((self.clock.now(), value))

    def at(self, time: Nanoseconds) -> dict[int, str]:
        """Return the rows as they were."""
        rows = {}
        for key, versions in sorted(self.written.items()):
            value = next((value for since, value in reversed(versions) if since <= time), None)
            if value is not None:
                rows[key] = value
        return rows


class FakeRows:
    """The rows of one table, in readings of a few rows; the world may go on between them."""

    def __init__(
        self,
        versions: Versions,
        *,
        cuts: Sequence[int] = (),
        life: Life | None = None,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> None:
        self.in_key_order = True
        self.read_from: list[KeyText | None] = []
        self.refusals: list[Exception] = []
        """What the next readings are refused with."""
        self._versions = versions
        self._cuts = cuts
        self._life = life or Life()
        self._meanwhile = meanwhile

    async def read(
        self,
        table: WatchedTable,
        at: Nanoseconds,
        *,
        after: KeyText | None,
        until: KeyText | None,
        in_key_order: bool = False,
    ) -> AsyncGenerator[Sequence[Sequence[object]], None]:
        """Yield rows, two at a time: from the last one backwards where they are to come in no order."""
        assert [column.name for column in table.column_types] == ["Id", "Name"]
        self.read_from.append(after)
        low, high = _number(after, -1), _number(until, 1 << 62)
        self.check(at)
        rows = [[str(key), value] for key, value in self._versions.at(at).items() if low < key <= high]
        if not (in_key_order or self.in_key_order):
            rows.reverse()
        for start in range(0, len(rows), 2):
            await asyncio.sleep(_A_READING)
            self._meanwhile()
            self.check(at)
            self._life.step()
            yield rows[start : start + 2]

    async def read_keys(
        self, table: WatchedTable, at: Nanoseconds, keys: Sequence[KeyText]
    ) -> AsyncGenerator[Sequence[Sequence[object]], None]:
        """Yield the rows that there are under some keys."""
        await asyncio.sleep(0)
        self.check(at)
        rows, wanted = self._versions.at(at), {_number(key, 0) for key in keys}
        if found := [[str(key), rows[key]] for key in sorted(rows.keys() & wanted)]:
            yield found

    async def cuts(self, table: WatchedTable, at: Nanoseconds) -> Sequence[KeyText]:
        """Return keys, in key order, that cut the table."""
        await asyncio.sleep(0)
        self.check(at)
        self._life.step()
        return [KeyText(json.dumps([str(key)])) for key in self._cuts]

    def check(self, at: Nanoseconds) -> None:
        """Refuse a time that is no longer kept, and what a test names."""
        if self.refusals:
            raise self.refusals.pop()
        if self._versions.clock.now() - at > self._versions.remembers // timedelta(microseconds=1) * 1_000:
            raise NotReadableError("made-up", "too long ago")


def _number(key: KeyText | None, end: int) -> int:
    """Return a key's value; as Spanner, refuse one of another type."""
    try:
        return end if key is None else int(json.loads(key)[0])
    except ValueError as error:
        raise NotReadableError("made-up", "Invalid value for column Id: expected INT64") from error
