"""What the front knows of each table that the emulator does not: its change stream, its garbage-collection rules."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from emulators.bigtable_streams.change_log import ChangeLog
from emulators.bigtable_streams.emulator import Emulator
from emulators.bigtable_streams.protocol import TABLES, GetTableRequest
from emulators.bigtable_streams.protocol import Table as TableMessage
from emulators.bigtable_streams.refusals import invalid
from emulators.bigtable_streams.row_locks import RowLocks

_DAY_MICROS: Final = 86_400_000_000


@dataclass(eq=False)
class Table:
    """One table, from its creation until it is dropped; one made again under its name is another."""

    name: str
    now: Callable[[], int]
    families: dict[str, Any] = field(default_factory=dict)
    """ColumnFamily messages by name, with the rules that the emulator does not get."""
    splits: Sequence[bytes] = ()
    retention_micros: int = 0
    log: ChangeLog | None = None
    locks: RowLocks = field(default_factory=RowLocks)

    @property
    def instance(self) -> str:
        """Return the name of the instance that holds the table."""
        return instance_of(self.name)

    def set_retention(self, micros: int) -> None:
        """Keep changes for so long from now on; 0 disables the stream, which forgets everything for good."""
        if micros and self.log is None:
            self.log = ChangeLog(self.now, self.splits)
        elif not micros and self.log is not None:
            self.splits = [partition.range.start for partition in self.log.partitions]
            self.log.end()
            self.log = None
        self.retention_micros = micros

    def record(self, row_key: bytes, entries: Sequence[Any], cluster: str, tiebreaker: int = 0) -> None:
        """Put what has just been applied to a row into the stream, if there is one."""
        if self.log is not None and entries:
            self.log.append(row_key, entries, cluster, tiebreaker=tiebreaker)

    def complete(self, message: Any) -> None:
        """Put into a Table message what the emulator leaves out of it."""
        for name, family in message.column_families.items():
            if name in self.families:
                family.CopyFrom(self.families[name])
        if self.retention_micros:
            message.change_stream_config.retention_period.FromMicroseconds(self.retention_micros)


class Tables:
    """The tables that calls have named so far."""

    def __init__(self, emulator: Emulator, now: Callable[[], int]) -> None:
        self._emulator = emulator
        self._now = now
        self._tables: dict[str, Table] = {}

    async def get(self, name: str) -> Table:
        """Return a table; the emulator's error if there is none. One made behind the front's back has no stream."""
        table = self._tables.get(name)
        if table is None:
            request = GetTableRequest(name=name)
            answer = TableMessage.FromString(
                await self._emulator.unary(f"{TABLES}GetTable", request.SerializeToString())
            )
            families = {name: _copied(family) for name, family in answer.column_families.items()}
            table = self._tables.setdefault(name, Table(name, self._now, families))
        return table

    def add(self, name: str, families: dict[str, Any], splits: Iterable[bytes], retention_micros: int) -> Table:
        """Know a table that was just made."""
        self.remove(name)
        table = self._tables[name] = Table(name, self._now, families, sorted(splits))
        table.set_retention(retention_micros)
        return table

    def remove(self, name: str) -> None:
        """Forget a table that was dropped; its stream ends."""
        table = self._tables.pop(name, None)
        if table is not None:
            table.set_retention(0)

    def known(self, name: str) -> Table | None:
        """Return a table that a call has named before."""
        return self._tables.get(name)

    def all(self) -> Sequence[Table]:
        """Return the tables that calls have named."""
        return list(self._tables.values())


def retention_of(config: Any) -> int:
    """Return a ChangeStreamConfig's retention in microseconds; RefusedError outside one to seven days."""
    micros: int = config.retention_period.ToMicroseconds()
    if not _DAY_MICROS <= micros <= 7 * _DAY_MICROS:
        raise invalid("change_stream_config.retention_period must be at least 1 day and at most 7 days")
    return micros


def instance_of(resource: str) -> str:
    """Return ``projects/P/instances/I`` of the name of something in it."""
    return "/".join(resource.split("/")[:4])


def _copied(message: Any) -> Any:
    copy = type(message)()
    copy.CopyFrom(message)
    return copy
