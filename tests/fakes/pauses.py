"""The pauses of a Spanner reader in memory, as one reader or one command sees them."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta

from services.spanner_reader.core.pauses import Pause, Pauses
from shared.contracts.errors import MisconfiguredError
from shared.contracts.timestamps import Nanoseconds
from tests.fakes.life import Life
from tests.fakes.spanner_reader import SteppingClock
from tests.fakes.spanner_schema import Shapes

_MICROSECOND = timedelta(microseconds=1)


@dataclass
class PauseTable:
    """The rows of a table of pauses. Commits are at times that nothing else has."""

    clock: SteppingClock = field(default_factory=SteppingClock)
    shapes: Shapes = field(default_factory=Shapes)

    @property
    def rows(self) -> Mapping[str, Pause]:
        """Return all pauses, by table; that of the stream has no name."""
        return self.shapes.pauses

    def commit(self) -> Nanoseconds:
        """Return the timestamp of a commit."""
        self.clock.step(_MICROSECOND)
        return self.clock.now()


class FakePauseStore:
    """A store of pauses in memory."""

    def __init__(self, table: PauseTable, life: Life | None = None, delay: Callable[[], float] = lambda: 0.0) -> None:
        """``delay`` tells how many seconds an answer takes to arrive."""
        self._table = table
        self._life = life or Life()
        self._delay = delay

    async def read(self) -> Pauses:
        """Return what is paused."""
        await asyncio.sleep(0)
        self._life.step()
        rows = dict(self._table.rows)
        read = Pauses(self._table.clock.now(), rows.pop("", None), rows)
        await asyncio.sleep(self._delay())
        self._life.step()
        return read

    async def pause(self, table: str | None) -> bool:
        """Pause the stream or a table from now on; return whether it was not paused."""
        self._life.step()
        inspection = self._table.shapes.inspection
        if table is not None and (table == "" or inspection is None or table not in inspection.tables):
            raise MisconfiguredError("made-up", f"no reader has seen {table}")
        before = self._table.rows.get(table or "")
        if before is not None and before.lasts:
            return False
        at = self._table.commit()
        now = Pause(at, at) if before is None else replace(before, paused_at=at, resumed_at=None)
        self._table.shapes.pauses[table or ""] = now
        self._life.step()
        return True

    async def resume(self, table: str | None) -> bool:
        """Let the stream or a table go on from now on; return whether it was paused."""
        self._life.step()
        before = self._table.rows.get(table or "")
        if before is None or not before.lasts:
            return False
        at = self._table.commit()
        if table is None:
            del self._table.shapes.pauses[""]
        else:
            self._table.shapes.pauses[table] = replace(before, resumed_at=at)
        self._life.step()
        return True
