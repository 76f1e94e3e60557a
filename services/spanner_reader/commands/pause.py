"""The commands ``pause`` and ``resume``: of the stream, or of tables. The running readers follow within seconds.

A reader need not run: what is paused is kept beside the partition table, and the next one finds it.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TextIO

from services.spanner_reader.commands.command_line import SpannerPauseCommand, SpannerResumeCommand
from services.spanner_reader.commands.snapshot import COMMAND_RETRY_BUDGET
from services.spanner_reader.ports import DatabaseCatalog, PauseStore
from shared.contracts.errors import MisconfiguredError
from shared.reading.answers import answer_pause, answer_resume
from shared.runtime.retries import retried
from shared.runtime.stop import Stop


async def pause(
    command: SpannerPauseCommand,
    catalog: DatabaseCatalog,
    pauses: PauseStore,
    included: Callable[[str], bool],
    out: TextIO,
) -> int:
    """Pause the stream, or tables; return 0. Pausing what is paused changes nothing."""
    inspection = await catalog.inspect()
    names = {table.name for table in inspection.watched if included(table.name)}
    if unknown := sorted(set(command.tables) - names):
        raise MisconfiguredError(
            "table-not-mirrored",
            f"not among the tables that are mirrored: {', '.join(unknown)}. Those are {', '.join(sorted(names))}",
        )
    changed: dict[str | None, bool] = {}
    try:
        for table in dict.fromkeys(command.tables) or (None,):
            changed[table] = await _retried(partial(pauses.pause, table))
    finally:  # a table that was refused leaves those before it paused
        answer_pause(changed, out, as_json=command.json, retention=inspection.retention)
    return 0


async def resume(command: SpannerResumeCommand, pauses: PauseStore, out: TextIO) -> int:
    """Let the stream, or tables, go on; return 0, or 1 where something was not paused."""
    changed: dict[str | None, bool] = {}
    for table in dict.fromkeys(command.tables) or (None,):
        changed[table] = await _retried(partial(pauses.resume, table))
    still_paused: list[str] = []
    if not command.tables:
        still_paused = sorted((await retried(Stop(), pauses.read, COMMAND_RETRY_BUDGET)).paused_tables)
    return answer_resume(changed, still_paused, out, as_json=command.json)


async def _retried(call: Callable[[], Awaitable[bool]]) -> bool:
    """Make a call again that came in the way of another transaction: readers write all the time."""
    return await retried(Stop(), call, COMMAND_RETRY_BUDGET)
