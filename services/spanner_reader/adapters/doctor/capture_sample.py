"""Reads the last minute of a change stream, to say what it costs to complete its updates; all of it is bounded.

Partitions are read one after the other: a query that ends in the past is answered at once.
"""

import asyncio
from collections import deque
from contextlib import aclosing
from datetime import timedelta
from typing import Final

from services.spanner_reader.core.stream.completion_cost import CompletionSample
from services.spanner_reader.core.stream.records import (
    ROOT,
    ChildPartitionsRecord,
    DataChangeRecord,
    HeartbeatRecord,
    SpannerStreamQuery,
)
from services.spanner_reader.ports import DatabaseChangeStream, StartTooOldError
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.contracts.timestamps import Nanoseconds

_SPANS: Final = (60, 15, 4, 1)
"""How many seconds are read: fewer of a stream that is younger, which refuses the rest."""
MOST_RECORDS: Final = 10_000
_LONGEST: Final = timedelta(seconds=15)
_SECOND: Final = 1_000_000_000
_HEARTBEAT: Final = 10_000


async def cost_of_completing(stream: DatabaseChangeStream, now: Nanoseconds) -> str:
    """Return what completing the updates of the last minute costs, or why that is not known; never raises."""
    for seconds in _SPANS:
        sample = CompletionSample()
        try:
            all_of_it = await _read(stream, Nanoseconds(now - seconds * _SECOND), now, sample)
        except StartTooOldError:
            continue
        except (MisconfiguredError, TransientError) as error:
            return f"what that costs is not known: {error}"
        if not sample.changes:
            return f"what that costs is not known: nothing changed in the last {seconds} s"
        return f"sample of {'' if all_of_it else 'a part of '}the last {seconds} s: {sample}"
    return "what that costs is not known: the stream is too young"


async def _read(stream: DatabaseChangeStream, start: Nanoseconds, end: Nanoseconds, sample: CompletionSample) -> bool:
    """Count the records of a time; return whether these are all."""
    queries = deque([SpannerStreamQuery(ROOT, start, end, _HEARTBEAT)])
    known = {ROOT}
    records = 0
    try:
        async with asyncio.timeout(_LONGEST.total_seconds()):
            while queries:
                query = queries.popleft()
                async with aclosing(stream.read(query)) as found:
                    async for record in (record async for some in found for record in some):
                        match record:
                            case DataChangeRecord():
                                sample.add(query.token, record)
                                records += 1
                                if records == MOST_RECORDS:
                                    return False
                            case ChildPartitionsRecord(start_timestamp=since, children=children):
                                new = {child.token for child in children if since <= end} - known
                                known |= new
                                queries.extend(SpannerStreamQuery(each, since, end, _HEARTBEAT) for each in sorted(new))
                            case HeartbeatRecord():
                                pass
    except TimeoutError:
        return False
    return True
