"""What is paused: a table beside the partition table, in which every time is the commit timestamp of who wrote it.

``<partition table>_pauses`` has one row for each table that is paused, or was and whose rows have not come again; the
row without a name stands for the stream as a whole. ``since`` is the first pause since rows came last, ``paused_at``
the last one, ``resumed_at`` its end. No time here was read from any clock, so what a change's own commit timestamp says
of it is the same for every reader.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from google.cloud.spanner_v1 import Mutation

from services.spanner_reader.adapters.schema.shape_table import pause_of
from services.spanner_reader.adapters.spanner.connection import (
    COMMIT_TIMESTAMP,
    Row,
    SpannerDatabaseClient,
    Statement,
    strings,
)
from services.spanner_reader.adapters.spanner.dialects import partition_sql
from services.spanner_reader.adapters.spanner.mutations import deletions, writes
from services.spanner_reader.core.pauses import Pause, Pauses
from shared.contracts.errors import MisconfiguredError

_STREAM: Final = ""


class SpannerPauseStore:
    """The table of pauses that belongs to a partition table, which makes it."""

    def __init__(self, database: SpannerDatabaseClient, partition_table: str) -> None:
        self._database = database
        self._partition_table = partition_table
        self._table = f"{partition_table}_pauses"

    @property
    def _sql(self) -> Mapping[str, str]:
        return partition_sql(self._database.dialect, self._partition_table)

    async def read(self) -> Pauses:
        """Return what is paused, with every change of that which was committed up to the time it says."""
        at, (rows,) = await self._database.snapshot(Statement(self._sql["pauses"]))
        pauses = _pauses(rows)
        return Pauses(at, pauses.pop(_STREAM, None), pauses)

    async def pause(self, table: str | None) -> bool:
        """Pause the stream or a table from now on; return whether it was not paused."""

        def decide(rows: list[Row]) -> tuple[bool, list[Mutation]]:
            if table is not None and (table == _STREAM or not rows):
                raise MisconfiguredError(
                    "table-never-seen",
                    f"no reader has seen a table {table!r} in the stream: its name is as change batches have it",
                )
            pause = _pause(table, rows)
            if pause is not None and pause.lasts:
                return False, []
            begun = {"paused_at": COMMIT_TIMESTAMP, "resumed_at": None}
            return True, self._write(table, begun if pause else {"since": COMMIT_TIMESTAMP, **begun}, new=not pause)

        return await self._database.read_then_write(self._about(table), decide)

    async def resume(self, table: str | None) -> bool:
        """Let the stream or a table go on from now on; return whether it was paused."""

        def decide(rows: list[Row]) -> tuple[bool, list[Mutation]]:
            pause = _pause(table, rows)
            if pause is None or not pause.lasts:
                return False, []
            if table is None:  # nothing of it was dropped: nothing is to be remembered
                return True, deletions(self._table, [[_STREAM]])
            return True, self._write(table, {"resumed_at": COMMIT_TIMESTAMP})

        return await self._database.read_then_write(self._about(table), decide)

    def _about(self, table: str | None) -> Statement:
        """Return what reads the stream's pause, or the row of a table, which has its pause beside it."""
        if table is None:
            return Statement(self._sql["pauses"])
        return Statement(self._sql["shapes_of"], {"p1": strings([table])})

    def _write(self, table: str | None, values: Mapping[str, str | None], *, new: bool = False) -> list[Mutation]:
        rows = [[table or _STREAM, *values.values()]]
        return writes("insert" if new else "update", self._table, ["source_table", *values], rows)


def _pauses(rows: Sequence[Row]) -> dict[str, Pause]:
    found = {str(name): pause_of(*times) for name, *times in rows}
    return {name: pause for name, pause in found.items() if pause is not None}


def _pause(table: str | None, rows: Sequence[Row]) -> Pause | None:
    if table is None:
        return _pauses(rows).get(_STREAM)
    return pause_of(*rows[0][-3:]) if rows else None
