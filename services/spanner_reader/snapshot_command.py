"""The command ``snapshot``: the rows of tables again while everything runs, how far they are, and giving them up.

It asks, and the readers read: nothing depends on the command going on.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Final, TextIO

import msgspec

from services.spanner_reader.core.changes import googlesql_type
from services.spanner_reader.core.key_ranges import check_some_between, typed_key
from services.spanner_reader.core.shapes import Mark
from services.spanner_reader.core.snapshot import (
    UNFINISHED,
    KeyText,
    RangeState,
    SnapshotRange,
    SnapshotSurvey,
    by_run,
    complete_snapshots,
    is_read,
    lost_until,
)
from services.spanner_reader.ports import Catalog, ShapeStore, SnapshotStore, WatchedTable
from shared.contracts.errors import MisconfiguredError
from shared.contracts.timestamps import Nanoseconds, format_timestamp
from shared.runtime.retries import retried
from shared.runtime.snapshot_watch import Hindrance, watch
from shared.runtime.stop import Stop

COMMANDS_PATIENCE: Final = timedelta(seconds=15)
"""With what comes in the way of another transaction: readers write all the time."""
_NOBODY: Final = Hindrance("nobody reads any of it", "start a reader or, where one runs, `resume` what is paused")


def snapshot_parser() -> argparse.ArgumentParser:
    """Return what parses the arguments of ``snapshot``."""
    parser = argparse.ArgumentParser(
        "python -m services.spanner_reader snapshot",
        description="Read the rows of tables again, as they are now, while everything runs: the running readers do it.",
    )
    parser.add_argument("tables", nargs="*", metavar="TABLE", help="a watched table, as change batches name it")
    parser.add_argument("--all", action="store_true", help="every watched table")
    parser.add_argument(
        "--after", metavar="KEY", help="of one table: only rows behind a key, a JSON array of its values"
    )
    parser.add_argument("--until", metavar="KEY", help="of one table: only rows up to and with a key")
    parser.add_argument("--dry-run", action="store_true", help="say what would be read, and do nothing")
    parser.add_argument("--status", action="store_true", help="say how far the snapshots of the tables (or all) are")
    parser.add_argument("--watch", action="store_true", help="wait until nothing is left to read; bars on a terminal")
    parser.add_argument("--cancel", action="store_true", help="give up what is left of the tables' snapshots")
    parser.add_argument("--json", action="store_true", help="print one object")
    return parser


async def snapshot(
    arguments: Sequence[str],
    catalog: Catalog,
    store: SnapshotStore,
    shapes: ShapeStore,
    included: Callable[[str], bool],
    out: TextIO,
) -> int:
    """Run the command; return 0, or 1 where something that was asked for has not come to pass."""
    told = snapshot_parser().parse_args(arguments)
    if told.status and not told.tables:
        return await _status(store, shapes, told, out)
    look = await catalog.look()
    names = {table.name for table in look.watched if included(table.name)}
    tables = sorted(names) if told.all else told.tables
    if not tables:
        raise MisconfiguredError(
            "no table is named: name some, or say --all; `snapshot --status` shows how snapshots are, and with --watch "
            "until they are over"
        )
    known = set(names)
    if told.status or told.cancel:  # of what is not mirrored any more, too
        known |= {one.table for one in (await store.survey()).ranges}
    if unknown := sorted(set(tables) - known):
        raise MisconfiguredError(
            f"not among the tables that are mirrored: {', '.join(unknown)}. Those are {', '.join(sorted(names))}"
        )
    if told.status:
        return await _status(store, shapes, told, out)
    if told.cancel:
        given_up = await retried(Stop(), lambda: store.cancel(tables), COMMANDS_PATIENCE)
        out.writelines(f"{table}: given up; what was read stays\n" for table in given_up)
        out.writelines(f"{table}: nothing was left to read\n" for table in tables if table not in given_up)
        return 0
    keys = _keys(told.after, told.until, [table for table in look.watched if table.name in tables])
    read_at = Nanoseconds(look.shapes.at // 1_000 * 1_000)
    if told.dry_run:
        which = "all rows" if keys is None else f"rows {_between(*keys)}"
        out.writelines(
            f"{table}: {which} would be read as they are at {format_timestamp(read_at)}\n" for table in tables
        )
        return 0
    if keys is None:
        await retried(Stop(), lambda: store.request(tables, read_at, again=True), COMMANDS_PATIENCE)
    else:
        await retried(Stop(), partial(store.request_keys, tables[0], read_at, *keys), COMMANDS_PATIENCE)
    if told.watch:
        return await _watch(store, shapes, tables, told.json, out)
    _print(summaries(await store.survey(), (await shapes.read())[1], tables), tables, told.json, out)
    return 0


async def _status(store: SnapshotStore, shapes: ShapeStore, told: argparse.Namespace, out: TextIO) -> int:
    if told.watch:
        return await _watch(store, shapes, told.tables, told.json, out)
    shown = summaries(await store.survey(), (await shapes.read())[1], told.tables)
    _print(shown, told.tables, told.json, out)
    return int(any(one["state"] == "READING" for one in shown))


async def _watch(store: SnapshotStore, shapes: ShapeStore, tables: Sequence[str], as_json: bool, out: TextIO) -> int:
    async def look() -> tuple[Sequence[Mapping[str, Any]], Hindrance | None]:
        survey = await store.survey()
        shown = summaries(survey, (await shapes.read())[1], tables)
        return shown, None if is_read(survey) else _NOBODY

    shown = await watch(look, out)
    _print(shown, tables, as_json, out)
    return int(any(one["state"] != "DONE" or one["never_told"] for one in shown))


def _keys(
    after: str | None, until: str | None, tables: Sequence[WatchedTable]
) -> tuple[KeyText | None, KeyText | None] | None:
    """Return which keys of a table were asked for; None: all of them."""
    if after is None and until is None:
        return None
    if len(tables) != 1:
        raise MisconfiguredError("--after and --until are keys of a table: name that one, and no other")
    (table,) = tables
    types = {column.name: googlesql_type(column.type) for column in table.column_types}
    key = [(name, types[name]) for name in table.primary_key]
    low, high = (None if text is None else typed_key(text, table.name, key) for text in (after, until))
    if low is not None and high is not None:
        check_some_between(low, high, key, table.descending)
    return low, high


def _between(after: str | None, until: str | None) -> str:
    """Return in words between which keys."""
    parts = [f"behind {after}"] if after is not None else []
    return " ".join([*parts, f"up to {until}"] if until is not None else parts)


def summaries(survey: SnapshotSurvey, marks: Sequence[Mark], tables: Sequence[str] = ()) -> Sequence[Mapping[str, Any]]:
    """Return how far the latest snapshot of each table is, and of keys of it; of all tables if none is named.

    ``marks``: those of the tables that need re-sync.
    """
    runs = by_run(one for one in survey.ranges if not tables or one.table in tables)
    return [_summary(table, ranges, marks) for (table, _run), ranges in runs.items()]


def _summary(table: str, ranges: Sequence[SnapshotRange], marks: Sequence[Mark]) -> Mapping[str, Any]:
    left = [one for one in ranges if one.state in UNFINISHED]
    cancelled = any(one.state is RangeState.CANCELLED for one in ranges)
    first, read_at = ranges[0], Nanoseconds(min(one.first_read_at for one in ranges))
    lost = None if first.number or cancelled else lost_until(table, read_at, marks)
    complete = [] if lost is not None else [one.since for one in complete_snapshots(ranges)]
    return {
        "table": table,
        "keys": {"after": first.after, "until": first.until} if first.number else None,
        "state": "READING" if left else "CANCELLED" if cancelled else "DONE",
        "rows": sum(one.rows for one in ranges),
        "ranges": len(ranges),
        "ranges_left": len(left),
        "read_timestamp": format_timestamp(read_at),
        "complete_since": next(map(format_timestamp, complete), None),
        "never_told": None if lost is None else _never_told(table, lost),
    }


def _never_told(table: str, until: Nanoseconds) -> Mapping[str, str]:
    """Return why nobody is told that a snapshot is complete, and what to do."""
    lost = format_timestamp(until)
    return {
        "why": f"the topic lost messages until {lost}, and rows that were read before may be among them",
        "fix": f"take another one after that time: `snapshot {table}`; RESYNC=automatic does",
    }


def summary_line(shown: Mapping[str, Any]) -> str:
    """Return a summary as text."""
    left = f", {shown['ranges_left']} of {shown['ranges']} key ranges left" if shown["ranges_left"] else ""
    complete = f", complete since {shown['complete_since']}" if shown["complete_since"] else ""
    if (never := shown["never_told"]) is not None:
        complete = f", never told to be complete: {never['why']} -> {never['fix']}"
    keys = f", rows {_between(**shown['keys'])}," if shown["keys"] else ""
    return (
        f"snapshot of {shown['table']}{keys} as of {shown['read_timestamp']}: {shown['state'].lower()}, "
        f"{shown['rows']} rows{left}{complete}"
    )


def _print(shown: Sequence[Mapping[str, Any]], tables: Sequence[str], as_json: bool, out: TextIO) -> None:
    if as_json:
        out.write(msgspec.json.format(msgspec.json.encode({"snapshots": shown}), indent=2).decode() + "\n")
    else:
        out.writelines(f"{summary_line(one)}\n" for one in shown)
        there = {one["table"] for one in shown}
        out.writelines(f"{table}: no snapshot was asked for\n" for table in tables if table not in there)
