"""What it means that the topic lost messages: every watched table is pending resync, and a restart has to find that.

What a deleted subscription still held is lost, too, which may have been committed as long ago as it kept messages; and
other readers go on until they check the subscriptions themselves.
"""

from datetime import timedelta

import structlog

from services.spanner_reader.core.stream.partitions import low_watermark
from services.spanner_reader.ports import ShapeStore, TokenPartitionStore
from shared.contracts.timestamps import Nanoseconds, format_timestamp, nanoseconds


async def request_resyncs(
    store: TokenPartitionStore, shapes: ShapeStore, *, kept: timedelta, recheck: timedelta
) -> None:
    """Request a resync of every watched table. TransientError: the requests may be stored or not.

    ``kept``: how long a subscription keeps messages; ``recheck``: how often readers check the subscriptions.
    """
    survey = await store.survey()
    low = low_watermark((one.watermark for one in survey.unfinished), survey.now)
    after = Nanoseconds(max(0, low - nanoseconds(kept)))
    before = Nanoseconds(survey.now + nanoseconds(recheck))
    requests = await shapes.topic_lost(after, before)
    structlog.get_logger().error(
        "resyncs_requested",
        tables=[request.table for request in requests],
        why="the topic lost messages",
        after=format_timestamp(after),
        before=format_timestamp(before),
        fix="make the topic's subscription, start the reader, and do what `status` says of each table",
    )
