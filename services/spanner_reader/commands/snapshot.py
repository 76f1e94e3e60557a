"""The command ``snapshot``: the rows of tables again while everything runs, how far they are, and giving them up.

It asks, and the readers read: nothing depends on the command going on.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Final, TextIO

from services.spanner_reader.app.snapshot.snapshot_status import between, summaries, summary_lines
from services.spanner_reader.commands.command_line import SpannerSnapshotCommand
from services.spanner_reader.core.schema.shapes import NEVER
from services.spanner_reader.core.snapshot.key_ranges import check_some_between, typed_key
from services.spanner_reader.core.snapshot.snapshot import KeyText, is_read
from services.spanner_reader.core.stream.changes import googlesql_type
from services.spanner_reader.ports import DatabaseCatalog, DatabaseSnapshotStore, ShapeStore, WatchedTable
from shared.contracts.errors import MisconfiguredError
from shared.contracts.timestamps import Nanoseconds, format_timestamp
from shared.reading.answers import answer_cancellation
from shared.reading.snapshot_watch import Hindrance, is_complete, print_snapshots, watch
from shared.runtime.answers import print_answer
from shared.runtime.retries import retried
from shared.runtime.stop import Stop

COMMAND_RETRY_BUDGET: Final = timedelta(seconds=15)
"""With what comes in the way of another transaction: readers write all the time."""
_NO_READER: Final = Hindrance("no reader reads any of it", "start a reader or, where one runs, `resume` what is paused")


async def snapshot(
    command: SpannerSnapshotCommand,
    catalog: DatabaseCatalog,
    store: DatabaseSnapshotStore,
    shapes: ShapeStore,
    included: Callable[[str], bool],
    out: TextIO,
) -> int:
    """Run the command; return 0, or 1 where something that was asked for has not come to pass."""
    if command.status and not command.tables:
        return await _status(store, shapes, command, out)
    inspection = await catalog.inspect()
    names = {table.name for table in inspection.watched if included(table.name)}
    tables = sorted(names) if command.every else command.tables
    if not tables:
        raise MisconfiguredError(
            "no-table-named",
            "no table is named: name some, or give --all. `snapshot --status` shows the snapshots, and --watch "
            "follows them to the end",
        )
    known = set(names)
    if command.status or command.cancel:  # of what is no longer mirrored, too
        known |= {one.table for one in (await store.survey()).ranges}
    if unknown := sorted(set(tables) - known):
        raise MisconfiguredError(
            "table-not-mirrored",
            f"not among the tables that are mirrored: {', '.join(unknown)}. Those are {', '.join(sorted(names))}",
        )
    if command.status:
        return await _status(store, shapes, command, out)
    if command.cancel:
        given_up = await retried(Stop(), lambda: store.cancel(tables), COMMAND_RETRY_BUDGET)
        return answer_cancellation({table: table in given_up for table in tables}, out, as_json=command.json)
    requests = await shapes.resync_requests()
    if paused := sorted({one.table for one in requests if one.sync_after == NEVER} & set(tables)):
        raise MisconfiguredError(
            "snapshot-of-a-paused-table",
            f"paused, and what is committed meanwhile is dropped: {', '.join(paused)}. A snapshot of now would not "
            f"bring that: run `python -m services.spanner_reader resume {' '.join(paused)}` first, or name other "
            "tables",
        )
    keys = _keys(command.after, command.until, [table for table in inspection.watched if table.name in tables])
    read_at = Nanoseconds(inspection.shapes.at // 1_000 * 1_000)
    if command.dry_run:
        _preview(tables, keys, format_timestamp(read_at), command.json, out)
        return 0
    if keys is None:
        await retried(Stop(), lambda: store.request(tables, read_at, again=True), COMMAND_RETRY_BUDGET)
    else:
        await retried(Stop(), partial(store.request_keys, tables[0], read_at, *keys), COMMAND_RETRY_BUDGET)
    if command.watch:
        return await _watch(store, shapes, tables, command.json, out)
    shown = summaries(await store.survey(), await shapes.resync_requests(), tables)
    print_snapshots(shown, tables, command.json, summary_lines, out)
    return 0


def _preview(
    tables: Sequence[str],
    keys: tuple[KeyText | None, KeyText | None] | None,
    read_at: str,
    as_json: bool,
    out: TextIO,
) -> None:
    """Print what a snapshot would read."""
    which = "all rows" if keys is None else f"rows {between(*keys)}"
    named = None if keys is None else dict(zip(("after", "until"), keys, strict=True))
    document = [{"table": table, "keys": named, "read_timestamp": read_at} for table in tables]
    lines = [f"{table}: {which} would be read as they are at {read_at}" for table in tables]
    print_answer({"would_read": document}, lines, as_json, out)


async def _status(store: DatabaseSnapshotStore, shapes: ShapeStore, asked: SpannerSnapshotCommand, out: TextIO) -> int:
    if asked.watch:
        return await _watch(store, shapes, asked.tables, asked.json, out)
    shown = summaries(await store.survey(), await shapes.resync_requests(), asked.tables)
    print_snapshots(shown, asked.tables, asked.json, summary_lines, out)
    return int(any(one["state"] == "READING" for one in shown))


async def _watch(
    store: DatabaseSnapshotStore, shapes: ShapeStore, tables: Sequence[str], as_json: bool, out: TextIO
) -> int:
    async def poll() -> tuple[Sequence[Mapping[str, Any]], Hindrance | None]:
        survey = await store.survey()
        shown = summaries(survey, await shapes.resync_requests(), tables)
        return shown, None if is_read(survey) else _NO_READER

    shown = await watch(poll, out)
    print_snapshots(shown, tables, as_json, summary_lines, out)
    return int(not all(map(is_complete, shown)))


def _keys(
    after: str | None, until: str | None, tables: Sequence[WatchedTable]
) -> tuple[KeyText | None, KeyText | None] | None:
    """Return which keys of a table were asked for; None: all of them."""
    if after is None and until is None:
        return None
    if len(tables) != 1:
        raise MisconfiguredError(
            "keys-of-several-tables", "--after and --until are keys of a table: name that one, and no other"
        )
    (table,) = tables
    types = {column.name: googlesql_type(column.type) for column in table.column_types}
    key = [(name, types[name]) for name in table.primary_key]
    low, high = (None if text is None else typed_key(text, table.name, key) for text in (after, until))
    if low is not None and high is not None:
        check_some_between(low, high, key, table.descending)
    return low, high
