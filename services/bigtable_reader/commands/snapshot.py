"""The command ``snapshot``: the rows of the table again while everything runs, how far that is, and giving it up.

It asks, and the readers read: nothing depends on the command going on.
"""

from base64 import b64decode
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TextIO

from services.bigtable_reader.app.snapshot.snapshot_status import hindrance, summaries, summary_lines
from services.bigtable_reader.commands.command_line import BigtableSnapshotCommand
from services.bigtable_reader.core.snapshot.snapshot import Snapshot, watched_ranges
from services.bigtable_reader.core.stream.partitions import BigtablePartitionSurvey
from services.bigtable_reader.core.stream.records import ALL_KEYS, KeyRange, Microseconds
from services.bigtable_reader.ports import TableScan, TableSnapshotStore, VersionClock
from shared.contracts.bigtable_options import BigtableOptions
from shared.contracts.errors import MisconfiguredError
from shared.contracts.tables_file import Mode
from shared.reading.answers import answer_cancellation
from shared.reading.snapshot_watch import Hindrance, is_complete, print_snapshots, watch
from shared.runtime.answers import print_answer

Poll = Callable[[], Awaitable[tuple[Snapshot | None, BigtablePartitionSurvey]]]
"""Returns the latest snapshot, and the key ranges of the stream."""


async def snapshot(
    parsed: BigtableSnapshotCommand,
    *,
    table: str,
    mode: Mode,
    options: BigtableOptions,
    end: Microseconds | None,
    store: TableSnapshotStore,
    poll: Poll,
    scan: TableScan,
    clock: VersionClock,
    out: TextIO,
) -> int:
    """Run the command; return 0, or 1 where something that was asked for has not come to pass.

    ``end``: up to where the stream is read.
    """
    if mode == "history":
        raise MisconfiguredError(
            "snapshot-of-a-change-log",
            f"table {table} is a change log alone (mode history): that has changes, and no rows to read. Mirror it too "
            "(mode both) for a snapshot",
        )

    async def shown() -> tuple[Sequence[Mapping[str, Any]], Hindrance | None]:
        found, survey = await poll()
        return summaries(table, found, survey, end), None if found is None else hindrance(found, survey, end)

    if parsed.status:
        found = await watch(shown, out) if parsed.watch else (await shown())[0]
        print_snapshots(found, [table], parsed.json, summary_lines, out)
        return int(any(one["state"] == "READING" or (parsed.watch and not is_complete(one)) for one in found))
    if parsed.cancel:
        return answer_cancellation({table: await store.cancel()}, out, as_json=parsed.json)
    whole = parsed.after is None and parsed.until is None
    among = ALL_KEYS if whole else between(parsed.after, parsed.until, options)
    ranges = watched_ranges((prefix.encode() for prefix in options.key_prefixes), among)
    if not ranges:
        raise MisconfiguredError(
            "keys-not-watched", "no key between these is watched: see key_prefixes in the tables file"
        )
    if parsed.dry_run:
        size = max((sample.bytes_before for sample in await scan.samples()), default=0)
        about = f"; the table has about {size} bytes" if size else ""
        keys = None if whole and not options.key_prefixes else list(map(str, ranges))
        which = "all rows" if keys is None else "rows " + ", ".join(keys)
        line = f"{table}: {which} would be read as they are when the readers come to them{about}"
        document = {"table": table, "keys": keys, "table_bytes": size or None}
        print_answer({"would_read": [document]}, [line], parsed.json, out)
        return 0
    await store.request(ranges, clock.now(), again=True, whole=whole)
    found = await watch(shown, out) if parsed.watch else (await shown())[0]
    print_snapshots(found, [table], parsed.json, summary_lines, out)
    return int(parsed.watch and not all(map(is_complete, found)))


def between(after: str | None, until: str | None, options: BigtableOptions) -> KeyRange:
    """Return the keys behind one up to another, both as the mirror has them."""
    start = b"" if after is None else key_of(after, options) + b"\0"
    end = b"" if until is None else key_of(until, options) + b"\0"
    try:
        return KeyRange(start, end)
    except ValueError as error:
        raise MisconfiguredError(
            "snapshot-keys-reversed",
            f"no key is between them: --after {after} has to be before --until {until}; swap them",
        ) from error


def key_of(text: str, options: BigtableOptions) -> bytes:
    """Return the row key that the mirror has as this text."""
    if options.row_key == "STRING":
        return text.encode()
    try:
        return b64decode(text, validate=True)
    except ValueError as error:  # a text that is not ASCII, too
        raise MisconfiguredError(
            "row-key-not-base64", f"{text!r} is no row key as the mirror has it: base64, of row_key BYTES"
        ) from error
