"""A source in memory whose partitions have no records, and never end."""

import asyncio
from collections.abc import Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from shared.contracts.errors import MisconfiguredError
from shared.reading.leases import PartitionLeases, ReaderOptions
from shared.reading.owned_partition import OwnedPartition
from shared.reading.publishing import ChangePublisher
from shared.reading.shares import Shares
from shared.reading.supervisor import Round, Supervisor
from shared.runtime.health import Health
from shared.runtime.stop import Stop
from tests.fakes.reader_metrics import AnyMetrics


@dataclass
class ToyRow:
    """A partition, and what its readers have saved of it."""

    saved: int = 0
    owner: str | None = None
    fence: int = 0
    free_at: float = 0.0
    load: float = 0.0


@dataclass
class ToyStream:
    """What outlives a reader: the partitions, and who is present."""

    rows: dict[str, ToyRow]
    readers: dict[str, float] = field(default_factory=dict)
    paused: bool = False


class ToyPartition(OwnedPartition[int]):
    """A partition that this reader owns."""

    def __init__(self, name: str, row: ToyRow) -> None:
        super().__init__(row.saved, row.load)
        self.name, self.fence, self.claimed_at = name, row.fence, row.saved

    key = property(lambda self: self.name)
    position = property(lambda self: self.claimed_at)
    log_fields = property(lambda self: {"partition": self.name})


ToyProgress = tuple[str, int, int, float]  # name, fence, position and load


class ToyLeases(PartitionLeases[ToyPartition, ToyProgress]):
    """Saves positions with the leases."""

    not_saved: ClassVar[str] = "positions_not_saved"

    def _to_save(self, owned: Sequence[ToyPartition]) -> Sequence[ToyProgress]:
        return [(one.name, one.fence, one.prefix.watermark, one.load) for one in owned]

    def _to_release(self, owned: ToyPartition, *, durable: bool) -> ToyProgress:
        return owned.name, owned.fence, owned.prefix.watermark if durable else owned.claimed_at, owned.load


class ToyReader:
    """One reader: a source and its store in one."""

    def __init__(self, stream: ToyStream, publisher: ChangePublisher, options: ReaderOptions) -> None:
        self._stream, self._options = stream, options
        self._leases = ToyLeases(self, AnyMetrics(), options, lambda: True)
        self._supervisor: Supervisor[str, ToyPartition] = Supervisor(self._leases, publisher, Health(), options)

    async def run(self, stop: Stop) -> None:
        """Read until asked to stop."""
        await self._supervisor.run(self, stop)

    def keepers(self) -> Mapping[str, Coroutine[Any, Any, None]]:
        """Return that nothing runs beside the reading."""
        return {}

    async def begin(self) -> None:
        """Do nothing before the first survey."""

    async def survey(self) -> Round[str]:
        """Return the partitions that are free, and a fair share of all."""
        now, rows = self._now(), self._stream.rows
        self._stream.readers[self._options.owner] = now + self._options.lease.total_seconds()
        shares = Shares(
            loads={name: round(row.load) for name, row in rows.items()},
            owners={name: row.owner for name, row in rows.items() if row.owner and row.free_at > now},
            readers={owner for owner, until in self._stream.readers.items() if until >= now},
        )
        due = [name for name, row in rows.items() if row.free_at <= now and name not in self._leases.owned]
        return Round(shares, dict(zip(due, due, strict=True)), self._stream.paused)

    async def claim(self, due: Sequence[str]) -> Iterable[ToyPartition]:
        """Take those that are still free; each claim has a fence of its own."""
        claimed = []
        for name, row in ((name, self._stream.rows[name]) for name in due):
            if row.free_at <= self._now():
                row.owner, row.fence = self._options.owner, row.fence + 1
                row.free_at = self._now() + self._options.lease.total_seconds()
                claimed.append(ToyPartition(name, row))
        return claimed

    async def read(self, owned: ToyPartition, stop: Stop) -> None:
        """Read until the partition is released: nothing comes."""
        await asyncio.Event().wait()

    async def end_in_error(self, error: MisconfiguredError) -> None:
        """Do nothing more."""

    async def drain(self, until: float) -> None:
        """Do nothing more: what was read is with the publisher."""

    async def release(self) -> None:
        """Be no reader any more."""
        self._stream.readers.pop(self._options.owner, None)

    async def advance(self, progress: Sequence[ToyProgress], *, release: bool = False) -> Collection[str]:
        """Save positions with the leases; a call that is given up is over before its caller goes on."""
        writing = asyncio.create_task(self._write(progress, release=release))
        try:
            return await asyncio.shield(writing)
        finally:
            await asyncio.gather(writing, return_exceptions=True)

    async def _write(self, progress: Sequence[ToyProgress], *, release: bool) -> Collection[str]:
        now, lost = self._now(), set()
        for name, fence, position, load in progress:
            row = self._stream.rows[name]
            if row.fence != fence:
                lost.add(name)
            else:
                row.saved, row.load = max(row.saved, position), load
                row.free_at = now if release else now + self._options.lease.total_seconds()
        return lost

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
