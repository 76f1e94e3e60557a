"""The first start: where the stream begins, what was there by then, and which rows have to be read for that.

No table may come to be unseen. One that was there where the stream begins has a snapshot, one that came later has all
of its changes in the stream, and for one that the stream took up later the next inspection requests a resync.
The stream begins where the tables are inspected, and what takes time (making the partition table, say) is done before.
"""

from collections.abc import Awaitable, Callable, Sequence

import structlog

from services.spanner_reader.app.schema.schema_watch import remember_start
from services.spanner_reader.ports import (
    DatabaseCatalog,
    DatabaseSnapshotStore,
    ShapeStore,
    TokenPartitionStore,
    WatchedTable,
)
from shared.contracts.tables_file import TableOptions
from shared.contracts.timestamps import Nanoseconds, format_timestamp


async def first_start(
    *,
    catalog: DatabaseCatalog,
    shapes: ShapeStore,
    partitions: TokenPartitionStore,
    snapshots: DatabaseSnapshotStore | None,
    included: Callable[[str], bool],
    table_options: Callable[[str], TableOptions],
    wanted: Nanoseconds | None,
    end: Nanoseconds | None,
    check: Callable[[Nanoseconds, Nanoseconds], Awaitable[None]],
) -> None:
    """Remember where the stream begins, last of all: a start that ends before that begins again.

    ``wanted`` is where it is to begin, None for now. ``snapshots`` is None where no rows are to be read. ``check``
    refuses a beginning, given Spanner's time, before anything of it is remembered.
    """
    inspection = await catalog.inspect()
    start = inspection.shapes.at if wanted is None else wanted
    await check(start, inspection.shapes.at)
    await remember_start(catalog, shapes, included, table_options, start, inspection)
    if snapshots is not None:  # of a table that came after the start nothing is found then: the stream has its rows
        await _request(snapshots, [table for table in inspection.watched if included(table.name)], start)
    if await partitions.add_root(start, end):
        structlog.get_logger().info("first_start", start=format_timestamp(start))


async def _request(store: DatabaseSnapshotStore, tables: Sequence[WatchedTable], at: Nanoseconds) -> None:
    """Ask for the rows of all tables as they were where the stream begins, and say which those are."""
    read_at = Nanoseconds(at // 1_000 * 1_000)  # Spanner commits at whole microseconds
    if tables:
        new = await store.request([table.name for table in tables], read_at, again=False)
        structlog.get_logger().info(
            "snapshot_requested",
            tables=list(new),
            read_timestamp=format_timestamp(read_at),
            why="a first start: the rows that are there already; SNAPSHOT=never leaves them out",
        )
