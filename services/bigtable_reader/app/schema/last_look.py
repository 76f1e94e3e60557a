"""Whether the stream is there, and is the one that was read; and the look that is left to whoever cannot read it.

Where it is not, rows of the mirror may be wrong, so the table is marked. Most often it is no look that shows it first
but the refusal of another call, which would end the reader, or keep it from starting, with nothing told to the next.
"""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Final

import structlog
from msgspec.structs import replace

from services.bigtable_reader.app.schema.marks import Marks
from services.bigtable_reader.core.schema.resync import BigtableResyncKind
from services.bigtable_reader.core.schema.seen import InspectedTable, require_the_same_cluster
from services.bigtable_reader.ports import KeyRangePartitionStore, StreamGoneError, TableCatalog
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.runtime.retries import retried
from shared.runtime.stop import Stop

_RETRY_BUDGET: Final = timedelta(seconds=20)
"""For the mark of a stream that is gone: whoever starts next finds it again, unless it is enabled by then."""


async def still_there(catalog: TableCatalog, known: InspectedTable | None, marks: Marks | None) -> InspectedTable:
    """Return what the table is like now; ``known``: what it was like. TransientError.

    MisconfiguredError where its stream is not there any more, or is read from another cluster: it is marked then.
    """
    try:
        found = await catalog.seen()
    except StreamGoneError:  # nothing says that positions are refused when it has one again
        await _mark(marks, BigtableResyncKind.STREAM_DISABLED)
        raise
    if known is None:
        return found
    if found.routed_to is None:
        found = replace(found, routed_to=known.routed_to)
    try:
        require_the_same_cluster(known.routed_to, found.routed_to)
    except MisconfiguredError:  # rows may have been read back where their changes had not arrived
        try:
            await _mark(marks, BigtableResyncKind.ROUTED_ELSEWHERE)
        except TransientError as error:  # the next start finds it again; no more is to be read meanwhile
            structlog.get_logger().warning("mark_not_written", error=str(error))
        raise
    return found


async def look_before_the_end(
    error: MisconfiguredError, catalog: TableCatalog, store: KeyRangePartitionStore, marks: Marks | None, stop: Stop
) -> None:
    """Mark the table if what ends a reader, or keeps it from starting, follows from what a look would find.

    MisconfiguredError where that says more than the error does.
    """
    log = structlog.get_logger()
    try:
        if isinstance(error, StreamGoneError):  # whatever a look says: it may have one again by now
            await retried(stop, lambda: _mark(marks, BigtableResyncKind.STREAM_DISABLED), _RETRY_BUDGET)
            return
        try:
            known = await store.seen()
        except MisconfiguredError:  # there is no partition table, or nobody may read it: the error says so, or the next
            return
        if known is not None:
            await retried(stop, lambda: still_there(catalog, known, marks), _RETRY_BUDGET)
    except TransientError as failed:
        log.warning("table_not_looked_at", error=str(failed))


async def mark_if_resumed(
    store: KeyRangePartitionStore, check_topic: Callable[[], Awaitable[None]], marks: Marks
) -> None:
    """Mark the table whose topic a start finds to lose messages, if changes were read into it before. TransientError.

    ``check_topic`` raises MisconfiguredError of a topic that is not the stream's, which has lost nothing of it.
    """
    try:
        survey = await store.survey()
    except MisconfiguredError:  # there is no partition table, or nobody may read it: of the topic is said enough
        return
    if survey.pieces:
        await check_topic()
        await _mark(marks, BigtableResyncKind.TOPIC_LOST)


async def _mark(marks: Marks | None, kind: BigtableResyncKind) -> None:
    """Mark the table. What refuses that is no cause to say less of why nothing is read."""
    if marks is None:
        return
    try:
        await marks.mark(kind)
    except MisconfiguredError as error:
        structlog.get_logger().warning("mark_not_written", error=str(error))
