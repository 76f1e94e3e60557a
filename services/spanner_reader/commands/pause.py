"""The commands ``pause`` and ``resume``: of the stream, or of tables. The running readers follow within seconds.

A reader need not run: what is paused is kept beside the partition table, and the next one finds it.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TextIO

from services.spanner_reader.commands.snapshot import COMMAND_RETRY_BUDGET
from services.spanner_reader.ports import DatabaseCatalog, PauseStore
from shared.contracts.errors import MisconfiguredError
from shared.runtime.retries import retried
from shared.runtime.stop import Stop


async def pause(
    tables: Sequence[str], catalog: DatabaseCatalog, pauses: PauseStore, included: Callable[[str], bool], out: TextIO
) -> int:
    """Pause the stream, or tables; return 0. Pausing what is paused changes nothing."""
    inspection = await catalog.inspect()
    names = {table.name for table in inspection.watched if included(table.name)}
    if unknown := sorted(set(tables) - names):
        raise MisconfiguredError(
            "table-not-mirrored",
            f"not among the tables that are mirrored: {', '.join(unknown)}. Those are {', '.join(sorted(names))}",
        )
    if not tables:
        new = await _retried(lambda: pauses.pause(None))
        kept = "" if inspection.retention is None else f" (the stream keeps it for {inspection.retention})"
        what = "is paused now" if new else "was paused already"
        out.write(f"the stream {what}: nothing is read until `resume`{kept}\n")
    for table in dict.fromkeys(tables):
        new = await _retried(partial(pauses.pause, table))
        out.write(
            f"{table} {'is paused now' if new else 'was paused already'}: its changes are dropped until `resume "
            f"{table}`, and it is pending resync\n"
        )
    return 0


async def resume(tables: Sequence[str], pauses: PauseStore, out: TextIO) -> int:
    """Let the stream, or tables, go on; return 0, or 1 where something was not paused."""
    done = {table: await _retried(partial(pauses.resume, table)) for table in dict.fromkeys(tables)} if tables else {}
    if not tables:
        done[""] = await _retried(lambda: pauses.resume(None))
        out.write("the stream goes on where it was\n" if done[""] else "the stream was not paused\n")
        if still := sorted((await retried(Stop(), pauses.read, COMMAND_RETRY_BUDGET)).paused_tables):
            out.write(f"still paused: {', '.join(still)}; `resume {' '.join(still)}` lets them go on\n")
    for table in dict.fromkeys(tables):
        what = f"goes on; it is pending resync: `snapshot {table}` brings its rows" if done[table] else "was not paused"
        out.write(f"{table} {what}\n")
    return int(not all(done.values()))


async def _retried(call: Callable[[], Awaitable[bool]]) -> bool:
    """Make a call again that came in the way of another transaction: readers write all the time."""
    return await retried(Stop(), call, COMMAND_RETRY_BUDGET)
