"""The snapshot that a first start asks for: the rows that are there before the stream begins."""

import structlog

from services.bigtable_reader.core.snapshot.snapshot import watched_ranges
from services.bigtable_reader.core.times import Microseconds
from services.bigtable_reader.ports import TableSnapshotStore
from shared.contracts.bigtable_options import BigtableOptions


async def request_first_snapshot(
    table: str, options: BigtableOptions, store: TableSnapshotStore, now: Microseconds, *, wanted: bool, mirrored: bool
) -> None:
    """Ask for all rows that are watched, and say which those are; or say why not. TransientError."""
    log = structlog.get_logger().bind(table=table)
    if not wanted or not mirrored:
        log.info("snapshot_not_requested", why="SNAPSHOT=never" if mirrored else "a change log has changes only")
        return
    ranges = watched_ranges(prefix.encode() for prefix in options.key_prefixes)
    if await store.request(ranges, now, again=False, whole=True):
        log.info(
            "snapshot_requested",
            keys=[str(keys) for keys in ranges],
            why="a first start: the rows that are there already; SNAPSHOT=never leaves them out",
        )
    else:
        log.info("snapshot_not_requested", why="all rows were asked for before: `snapshot` asks for them again")
