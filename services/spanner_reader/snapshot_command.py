"""The command ``snapshot``: the rows of tables again while everything runs, how far they are, and giving them up.

It asks, and the readers read: nothing depends on the command going on.
"""

import argparse
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO

import msgspec

from services.spanner_reader.core.snapshot import UNFINISHED, RangeState, SnapshotRange, SnapshotSurvey
from services.spanner_reader.ports import Catalog, SnapshotStore
from shared.contracts.errors import MisconfiguredError
from shared.contracts.timestamps import Nanoseconds, format_timestamp


async def snapshot(
    arguments: Sequence[str],
    catalog: Catalog,
    store: SnapshotStore,
    included: Callable[[str], bool],
    out: TextIO,
) -> int:
    """Run the command; return 0, or 1 where something that was asked for has not come to pass."""
    parser = argparse.ArgumentParser(
        "python -m services.spanner_reader snapshot",
        description="Read the rows of tables again, as they are now, while everything runs: the running readers do it.",
    )
    parser.add_argument("tables", nargs="*", metavar="TABLE", help="a watched table, as change batches name it")
    parser.add_argument("--all", action="store_true", help="every watched table")
    parser.add_argument("--dry-run", action="store_true", help="say what would be read, and do nothing")
    parser.add_argument("--status", action="store_true", help="say how far the snapshots of the tables (or all) are")
    parser.add_argument("--cancel", action="store_true", help="give up what is left of the tables' snapshots")
    parser.add_argument("--json", action="store_true", help="print one object")
    told = parser.parse_args(arguments)
    if told.status:
        shown = summaries(await store.survey(), told.tables)
        _print(shown, told.json, out)
        return int(any(one["state"] == "READING" for one in shown))
    look = await catalog.look()
    names = {table.name for table in look.watched if included(table.name)}
    tables = sorted(names) if told.all else told.tables
    if not tables:
        raise MisconfiguredError("no table is named: name some, or say --all; --status shows how snapshots are")
    if told.cancel:
        given_up = await store.cancel(tables)
        out.writelines(f"{table}: given up; what was read stays\n" for table in given_up)
        out.writelines(f"{table}: nothing was left to read\n" for table in tables if table not in given_up)
        return 0
    if unknown := sorted(set(tables) - names):
        raise MisconfiguredError(
            f"not among the tables that are mirrored: {', '.join(unknown)}. Those are {', '.join(sorted(names))}"
        )
    read_at = Nanoseconds(look.shapes.at // 1_000 * 1_000)
    if told.dry_run:
        out.writelines(
            f"{table}: all rows would be read as they are at {format_timestamp(read_at)}\n" for table in tables
        )
        return 0
    await store.request(tables, read_at, again=True)
    _print(summaries(await store.survey(), tables), told.json, out)
    return 0


def summaries(survey: SnapshotSurvey, tables: Sequence[str] = ()) -> Sequence[Mapping[str, Any]]:
    """Return how far the latest snapshot of each table is; of all tables if none is named."""
    found: dict[str, list[SnapshotRange]] = defaultdict(list)
    for one in survey.ranges:
        if not tables or one.table in tables:
            found[one.table].append(one)
    return [_summary(table, ranges) for table, ranges in sorted(found.items())]


def _summary(table: str, ranges: Sequence[SnapshotRange]) -> Mapping[str, Any]:
    left = [one for one in ranges if one.state in UNFINISHED]
    cancelled = any(one.state is RangeState.CANCELLED for one in ranges)
    return {
        "table": table,
        "state": "READING" if left else "CANCELLED" if cancelled else "DONE",
        "rows": sum(one.rows for one in ranges),
        "ranges": len(ranges),
        "ranges_left": len(left),
        "read_timestamp": format_timestamp(min(one.first_read_at for one in ranges)),
    }


def summary_line(shown: Mapping[str, Any]) -> str:
    """Return a summary as text."""
    left = f", {shown['ranges_left']} of {shown['ranges']} key ranges left" if shown["ranges_left"] else ""
    return (
        f"snapshot of {shown['table']} as of {shown['read_timestamp']}: {shown['state'].lower()}, "
        f"{shown['rows']} rows{left}"
    )


def _print(shown: Sequence[Mapping[str, Any]], as_json: bool, out: TextIO) -> None:
    if as_json:
        out.write(msgspec.json.format(msgspec.json.encode({"snapshots": shown}), indent=2).decode() + "\n")
    else:
        out.writelines(f"{summary_line(one)}\n" for one in shown)
