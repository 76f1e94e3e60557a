"""Where a reader goes on, or begins: the first key ranges of the key space, and the time from which they are read."""

from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from typing import Final

import structlog

from services.bigtable_reader.core.snapshot.snapshot import watched_ranges
from services.bigtable_reader.core.stream.partitions import Resume, begins
from services.bigtable_reader.core.stream.records import BigtableStreamQuery, KeyRange, Microseconds, Position
from services.bigtable_reader.ports import (
    KeyRangePartitionStore,
    PositionLostError,
    TableChangeStream,
    TableSnapshotStore,
)
from shared.contracts.bigtable_options import BigtableOptions
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.contracts.timestamps import Nanoseconds, format_timestamp
from shared.runtime.retries import retried
from shared.runtime.stop import Stop

_MICROSECOND: Final = 1_000  # in nanoseconds
_BEFORE_NOW: Final = (60_000_000, 10_000_000, 1_000_000, 0)
"""Microseconds before now at which a first start tries to begin."""
_PROBE_MILLISECONDS: Final = 1_000


async def begin(
    stream: TableChangeStream,
    store: KeyRangePartitionStore,
    stop: Stop,
    *,
    name: str,
    resume: Resume,
    asked: Microseconds | None,
    before: Callable[[], Awaitable[None]],
    after: Callable[[], Awaitable[None]],
    mirrored: bool = True,
) -> None:
    """Remember the first key ranges of a stream by its name unless it is known, as RESUME allows.

    ``asked``: START_TIMESTAMP. ``before`` is done before a first start is remembered: one that is killed in between is
    a first start again. ``after`` is done once the key ranges are known, at each start. ``mirrored``: there is a
    mirror, which a hole in the stream leaves stale. TransientError, MisconfiguredError; a start that is refused is
    counted among the readers no more.
    """
    log = structlog.get_logger()
    try:
        survey = await store.survey()
        if not begins(resume, survey, name):
            log.info("resumed", partitions=len(survey.stream_ranges), start_timestamp_ignored=asked is not None)
        else:
            ranges = await stream.initial_partitions()
            start = await _first_start(stream, ranges[0], survey.now, asked)
            await before()
            # Again by itself, and not with what precedes it: its answer may be lost after it succeeded, and RESUME=new
            # would then refuse the key ranges that it has just remembered. So it is with what follows.
            if await retried(stop, lambda: store.begin(ranges, start, mirrored=mirrored)):
                log.info("first_start", start=_time(start), partitions=len(ranges))
        await retried(stop, after)
    except MisconfiguredError:
        with suppress(TransientError, MisconfiguredError):  # then it is counted as one that died
            await store.leave()
        raise


async def _first_start(
    stream: TableChangeStream, range_: KeyRange, now: Microseconds, asked: Microseconds | None
) -> Microseconds:
    """Return where a first start begins, after an inspection whether the stream can be read from there.

    Bigtable's clock says what now is. A little earlier is as good, and safe if clusters' clocks differ; but a stream
    that was enabled just now has no earlier.
    """
    if asked is not None and asked > now:
        raise MisconfiguredError(
            "bigtable-start-in-future",
            f"START_TIMESTAMP {_time(asked)} is in the future (in Bigtable it is {_time(now)}): leave it out, or name "
            "an earlier one",
        )
    candidates = [asked] if asked is not None else [Microseconds(now - one) for one in _BEFORE_NOW]
    for start in candidates:
        try:
            await _probe(stream, BigtableStreamQuery(range_, Position(start=start), None, _PROBE_MILLISECONDS))
        except PositionLostError as error:
            if start == candidates[-1]:
                raise MisconfiguredError(
                    "bigtable-start-refused",
                    f"the change stream cannot be read from {_time(start)}: {error.message}\nname a START_TIMESTAMP "
                    "that lies within its retention and after it was enabled",
                ) from error
        else:
            return start
    raise AssertionError("the last candidate is an answer or an error")


async def _probe(stream: TableChangeStream, query: BigtableStreamQuery) -> None:
    """Read until something comes: a record, a heartbeat, or an end."""
    async with aclosing(stream.read(query)) as portions:
        async for _records in portions:
            return


def _time(time: Microseconds) -> str:
    return format_timestamp(Nanoseconds(time * _MICROSECOND))


async def request_initial_snapshot(
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
