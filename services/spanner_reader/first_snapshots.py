"""The snapshots of a first start: the rows that are there already, asked for before the stream is known."""

from collections.abc import Sequence

import structlog

from services.spanner_reader.ports import SnapshotStore
from shared.contracts.timestamps import Nanoseconds, format_timestamp


async def request_first_snapshots(store: SnapshotStore, tables: Sequence[str], at: Nanoseconds) -> None:
    """Ask for the rows of all tables as they were where the stream begins, and say which those are."""
    read_at = Nanoseconds(at // 1_000 * 1_000)  # Spanner commits at whole microseconds
    if tables:
        new = await store.request(tables, read_at, again=False)
        structlog.get_logger().info(
            "snapshot_requested",
            tables=list(new),
            read_timestamp=format_timestamp(read_at),
            why="a first start: the rows that are there already; SNAPSHOT=never leaves them out",
        )
