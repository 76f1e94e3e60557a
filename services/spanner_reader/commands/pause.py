"""The commands ``pause`` and ``resume``: of the stream, or of tables. The running readers follow within seconds.

A reader need not run: what is paused is kept beside the partition table, and the next one finds it.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TextIO

from services.spanner_reader.commands.command_line import SpannerPauseCommand, SpannerResumeCommand
from services.spanner_reader.commands.snapshot import COMMAND_RETRY_BUDGET
from services.spanner_reader.core.pauses import Pauses
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
    before = await _read(pauses)
    try:
        for table in dict.fromkeys(command.tables) or (None,):
            changed[table] = await _retried(partial(pauses.pause, table)) or not _is_paused(before, table)
    finally:  # a table that was refused leaves those before it paused
        answer_pause(changed, out, as_json=command.json, retention=inspection.retention)
    return 0


async def resume(command: SpannerResumeCommand, pauses: PauseStore, out: TextIO) -> int:
    """Let the stream, or tables, go on; return 0, or 1 where something was not paused."""
    changed: dict[str | None, bool] = {}
    before = await _read(pauses)
    for table in dict.fromkeys(command.tables) or (None,):
        changed[table] = await _retried(partial(pauses.resume, table)) or _is_paused(before, table)
    still_paused = [] if command.tables else sorted((await _read(pauses)).paused_tables)
    return answer_resume(changed, still_paused, out, as_json=command.json)


async def _read(pauses: PauseStore) -> Pauses:
    return await retried(Stop(), pauses.read, COMMAND_RETRY_BUDGET)


def _is_paused(before: Pauses, table: str | None) -> bool:
    """Return whether it was before the first attempt: a later one finds what an unanswered one has done."""
    if table is None:
        return before.stream is not None and before.stream.lasts
    return table in before.paused_tables


async def _retried(call: Callable[[], Awaitable[bool]]) -> bool:
    """Make a call again that came in the way of another transaction: readers write all the time."""
    return await retried(Stop(), call, COMMAND_RETRY_BUDGET)
