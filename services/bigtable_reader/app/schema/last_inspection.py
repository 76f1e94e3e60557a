"""Whether the stream still exists and is the one that was read; and the inspection of a reader that an error ends.

Where it does not, rows of the mirror may be wrong, so a resync of the table is requested. Most often no inspection
finds that first, but the refusal of another call. That call would end the reader, or keep it from starting, and the
next reader would not know.
"""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Final

import structlog
from msgspec.structs import replace

from services.bigtable_reader.app.schema.resync_requests import ResyncRequests
from services.bigtable_reader.core.schema.resync import BigtableResyncKind
from services.bigtable_reader.core.schema.seen import InspectedTable, require_the_same_cluster
from services.bigtable_reader.ports import KeyRangePartitionStore, StreamGoneError, TableCatalog
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.runtime.retries import retried
from shared.runtime.stop import Stop

_RETRY_BUDGET: Final = timedelta(seconds=20)
"""For the resync request of a stream that is gone. The next start finds that again, unless it is enabled by then."""


async def still_there(
    catalog: TableCatalog, known: InspectedTable | None, requests: ResyncRequests | None
) -> InspectedTable:
    """Return what the table is like now; ``known``: what it was like. TransientError.

    MisconfiguredError where its stream does not exist, or is read from another cluster: a resync is requested then.
    """
    try:
        found = await catalog.seen()
    except StreamGoneError:  # nothing says that positions are refused when it has one again
        await _request(requests, BigtableResyncKind.STREAM_DISABLED)
        raise
    if known is None:
        return found
    if found.routed_to is None:
        found = replace(found, routed_to=known.routed_to)
    try:
        require_the_same_cluster(known.routed_to, found.routed_to)
    except MisconfiguredError:  # rows may have been read back where their changes had not arrived
        try:
            await _request(requests, BigtableResyncKind.ROUTED_ELSEWHERE)
        except TransientError as error:  # the next start finds it again; no more is to be read meanwhile
            structlog.get_logger().warning("resync_request_not_stored", error=str(error))
        raise
    return found


async def inspect_before_the_end(
    error: MisconfiguredError,
    catalog: TableCatalog,
    store: KeyRangePartitionStore,
    requests: ResyncRequests | None,
    stop: Stop,
) -> None:
    """Inspect the table for the cause of an error that ends a reader; request a resync if there is one.

    MisconfiguredError where the cause explains more than the error does.
    """
    log = structlog.get_logger()
    try:
        if isinstance(error, StreamGoneError):  # whatever an inspection finds: it may have one again by now
            await retried(stop, lambda: _request(requests, BigtableResyncKind.STREAM_DISABLED), _RETRY_BUDGET)
            return
        try:
            known = await store.seen()
        except (
            MisconfiguredError
        ):  # there is no partition table, or it may not be read: this error, or the next, says so
            return
        if known is not None:
            await retried(stop, lambda: still_there(catalog, known, requests), _RETRY_BUDGET)
    except TransientError as failed:
        log.warning("table_inspection_failed", error=str(failed))


async def request_resync_if_resumed(
    store: KeyRangePartitionStore, check_topic: Callable[[], Awaitable[None]], requests: ResyncRequests
) -> None:
    """Request a resync where a start finds that the topic loses messages, if changes were published before.

    ``check_topic`` raises MisconfiguredError of a topic that is not the stream's, which has lost nothing of it.
    TransientError.
    """
    try:
        try:
            survey = await store.survey()
        finally:
            await store.leave()  # this start will be refused: it is no reader
    except MisconfiguredError:  # no partition table, or it may not be read: the error of the topic is enough
        return
    if survey.stream_ranges:
        await check_topic()
        await _request(requests, BigtableResyncKind.TOPIC_LOST)


async def _request(requests: ResyncRequests | None, kind: BigtableResyncKind) -> None:
    """Request a resync; a refusal of the request is logged, and hides no other error."""
    if requests is None:
        return
    try:
        await requests.request(kind)
    except MisconfiguredError as error:
        structlog.get_logger().warning("resync_request_not_stored", error=str(error))
