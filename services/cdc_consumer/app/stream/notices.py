"""What a task says in the log of what it was given, most of it once for a table and process."""

from typing import Final, Protocol

import numpy as np
import pyarrow as pa
import structlog

from services.cdc_consumer.app.stream.table_notes import described
from services.cdc_consumer.core.stream.columns import Decoded
from shared.contracts.safe_age import SAFE_AGE, oldest_safe
from shared.contracts.timestamps import Nanoseconds

_UPGRADE: Final = (
    "upgrade the consumer: messages of this table and format wait in the subscription until then, and Pub/Sub forwards "
    "each to the dead-letter topic after 100 deliveries, 16 hours at least (docs/reference/dead-letters.md)"
)


class FirstTime(Protocol):
    """What has been said already."""

    def __call__(self, *what: str) -> bool:
        """Tell whether something has not been said yet; from now on it has."""


def say_what_is_noticed(messages: pa.Table, decoded: Decoded, first_time: FirstTime, now: Nanoseconds) -> None:
    """Say what is left out, what the tables file misspells, and what comes too late to be relied on."""
    log = structlog.get_logger()
    for table, content in decoded.left_out:
        if first_time(table, content):
            log.info("table_left_out", source_table=table, content=content)
    _say_what_snapshots_are_lost(decoded, first_time)
    for table, column in decoded.unknown:
        if first_time(table, column):
            fix = "the tables file names a column that the table does not have: misspelt, or dropped"
            log.warning("column_unknown", source_table=table, column=column, fix=fix)
    for table, since in decoded.late_ends:
        fix = "rows of it may have been refused as too old: take a snapshot again before you sweep it"
        log.warning("snapshot_end_too_late", source_table=table, since=since, fix=fix)
    for message, newer in decoded.newer.items():
        if first_time(newer.source, newer.table, "format", str(newer.format)):
            which = described(messages, message)
            log.error("newer_format_waits", source_table=newer.table, format=newer.format, fix=_UPGRADE, **which)
    _say_who_was_away(messages, decoded, first_time, now)


def _say_what_snapshots_are_lost(decoded: Decoded, first_time: FirstTime) -> None:
    """Warn of tables whose snapshot has ended while the tables file leaves them out: the readers' file does not."""
    for batch in decoded.batches.values() if decoded.left_out else ():
        table, content, since = batch.header.table, batch.header.content, batch.header.complete_since
        if isinstance(since, str) and (table, content) in decoded.left_out and first_time(table, content, since):
            structlog.get_logger().warning(
                "snapshot_left_out",
                source_table=table,
                fix="the readers let the table in, and the consumer leaves it out, with all of its snapshot that came: "
                "give the consumer the readers' tables file, and then take a snapshot of the table again",
            )


def _say_who_was_away(messages: pa.Table, decoded: Decoded, first_time: FirstTime, now: Nanoseconds) -> None:
    """Warn of mirrors for which changes come again that were given out long ago.

    A later delete of the row may have been applied meanwhile, and acked before them: BigQuery has forgotten it by now.
    What comes for the first time, however late, has its delete behind it.
    """
    published = messages["publish_time"].cast(pa.int64()).fill_null(now // 1000).to_numpy()
    again = messages["delivery_attempt"].fill_null(0).to_numpy() > 1
    old = frozenset(np.flatnonzero(again & (published < oldest_safe(now))).tolist())
    for one in decoded.tables if old else ():
        table = one.definition.identity
        if not one.definition.append_only and not old.isdisjoint(one.messages) and first_time(table, "come again"):
            structlog.get_logger().warning(
                "changes_came_again_late",
                table=table,
                hours=SAFE_AGE.total_seconds() / 3600,
                fix="the subscription was not read for days: a row that was deleted before that may have come back; "
                "take a snapshot of the table, and sweep it",
            )
