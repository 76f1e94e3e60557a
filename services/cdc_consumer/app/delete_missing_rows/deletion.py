"""Deletes from a mirror what its source no longer has: the rows that a snapshot of the source did not bring.

Once a snapshot is at its end, each row that the source had when it began is published as of then or later. What is
older in the mirror is gone, or its snapshot row is still on its way. So the source is asked for each key first, where
it can be; and as a delete is given the time just below the snapshot's, a row that was deleted wrongly comes back with
its snapshot row, whenever that arrives.

Where a history is kept beside the mirror, the delete goes there first: what is gone from the mirror is not found again.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, TextIO, TypeAlias

import msgspec
import pyarrow as pa
import structlog

from services.cdc_consumer.core.delete_missing_rows.deletion import (
    check_same_table,
    deletions,
    endings,
    source_keys,
    with_whole_keys,
)
from services.cdc_consumer.core.schema.tables import TableDefinition
from services.cdc_consumer.ports import (
    MAKE_AGAIN,
    CdcWriter,
    MirrorRows,
    MirrorTable,
    OtherRows,
    QueryEstimate,
    QuerySpend,
    RemoteSourceRows,
    RowBuffer,
    RowCount,
    RowError,
    TableTroubleError,
)
from shared.contracts.change_batch import Header, decode_batch
from shared.contracts.durations import format_duration
from shared.contracts.errors import MisconfiguredError, PoisonRecordError, TransientError
from shared.contracts.row_id import canonical_key, key_text
from shared.contracts.sizes import format_size
from shared.contracts.source_rows import Key, keys_of
from shared.contracts.timestamps import Nanoseconds, format_timestamp, microseconds
from shared.runtime.answers import print_answer
from shared.runtime.clock import Clock
from shared.runtime.retries import retrying
from shared.runtime.stop import Stop

RETRY_BUDGET: Final = timedelta(minutes=5)
"""How long a deletion is tried again."""
_KEYS_AT_ONCE: Final = 500
_ROWS_AT_ONCE: Final = 5_000
SHOWN: Final = 10
"""Keys that are spelt out."""
Room: TypeAlias = Callable[[], AbstractContextManager[RowBuffer]]
"""Makes room for rows outside memory."""
_json: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(dict[str, object])


class DeletionRefusedError(MisconfiguredError):
    """Nothing was deleted, for too much would be."""


@dataclass(slots=True)
class Deletion:
    """What a deletion has found and done."""

    before: int
    """In microseconds."""
    older: int = 0
    """Rows of the mirror from before that time."""
    living: int = 0
    """Those of them that the source has: their snapshot rows are on their way, or dead letters."""
    some_living: list[str] = field(default_factory=list)
    """Their keys, the first of them."""
    some_gone: list[str] = field(default_factory=list)
    keyless: int = 0
    """Rows whose key holds a NULL: no row of the source's has such a one, and no change can delete it."""
    deleted: int = 0
    refused: int = 0
    """Those that BigQuery did not take the deletion of."""
    left: int | None = None
    """Rows from before that time when it was over, but for those that live; None: not counted."""
    early: bool = False
    """It was recreated or left out, and rows that it lacks may still be on their way: it stays pending resync."""
    still_pending: bool = False
    """It is complete since another time than this one, so it stays pending resync."""
    unlabelled: bool = False
    """Its labels may not be written: where it is pending resync, it stays so."""
    hidden: bool = False
    """Queries of the mirror may not show yet what was written before that time."""

    @property
    def gone(self) -> int:
        """Return how many rows are to be deleted."""
        return self.older - self.living - self.keyless

    @property
    def clean(self) -> bool:
        """Return whether nothing older is left in the mirror."""
        return self.left == 0 and not self.living and not self.hidden


class SourceOfMirror:
    """The source's rows, asked by the keys of one mirror."""

    def __init__(self, rows: RemoteSourceRows, header: Header) -> None:
        self._rows = rows
        self.header = header

    def living(self, keys: Sequence[tuple[object, ...]]) -> Sequence[bool]:
        """Return which of the keys the source has now; MisconfiguredError where it answers of others."""
        asked = [self._canonical(dict(zip(self.header.primary_key, key, strict=True))) for key in keys]
        found: set[bytes] = set()
        for start in range(0, len(keys), _KEYS_AT_ONCE):
            batches, _done = self._rows.read_keys(self.header.table, keys_of(keys[start : start + _KEYS_AT_ONCE]))
            for data in batches:
                found |= {self._canonical(_decode.decode(key)) for key in decode_batch(data).keys}
        if not found <= set(asked):
            raise MisconfiguredError(
                "source-answers-other-keys",
                f"the source's command answers with rows of {self.header.table} that it was not asked for: keys "
                "change on the way, so missing rows cannot be found; nothing was deleted",
            )
        return [key in found for key in asked]

    def text(self, key: Sequence[object]) -> str:
        """Return a key as it is shown."""
        values = _json(dict(zip(self.header.primary_key, key, strict=True)))
        return key_text(self.header.table, self.header.key_types(), values)

    def _canonical(self, key: dict[str, object]) -> bytes:
        try:
            return canonical_key(self.header.table, self.header.key_types(), key)
        except PoisonRecordError as error:
            raise MisconfiguredError(
                "key-not-comparable", f"a key of table {self.header.table} cannot be compared: {error}"
            ) from error


def described(rows: RemoteSourceRows, table: str) -> SourceOfMirror:
    """Return a table of the source as it is now."""
    announced, _done = rows.describe(table)
    return SourceOfMirror(rows, decode_batch(announced).header)


def check_time(mirror: MirrorTable, before: int) -> None:
    """Refuse a time of which no snapshot says that everything older is gone."""
    name = mirror.definition.identity
    if not mirror.complete_since:
        raise MisconfiguredError(
            "mirror-not-complete",
            f"table {name} is not complete: no snapshot that began after the table was made has ended (the first one "
            "began before its mirrors were made, and never counts), or the consumer has not applied its end yet. Take "
            "one (python -m services.spanner_reader snapshot TABLE, or python -m services.bigtable_reader snapshot), "
            "and delete missing rows when `status` says that some may wait for it",
        )
    if before > mirror.complete_since:
        raise MisconfiguredError(
            "mirror-complete-later",
            f"table {name} is complete since {shown_time(mirror.complete_since)} and not since {shown_time(before)}: "
            "rows that still exist in the source may be older than that; nothing was deleted; pass the later time with "
            "--before",
        )


def delete_missing_rows(
    mirror: MirrorTable,
    rows: MirrorRows,
    writer: CdcWriter,
    source: SourceOfMirror | None,
    room: Room,
    stop: Stop,
    clock: Clock,
    *,
    before: int,
    after: timedelta,
    execute: bool,
    unasked: Callable[[RowCount], None] | None = None,
) -> Deletion:
    """Find the rows from before a time; if ``execute``, delete those that the source does not have, and count again.

    However many they are, some are in memory at a time: ``room`` makes it for the others. Nothing is deleted before
    the source has been asked for all of them. Without a source none is asked, and ``unasked`` may refuse how many they
    are. ``after``: how long rows of a snapshot may take to arrive once its end has. One query finds the rows, and one
    more counts what is left once some were deleted. MisconfiguredError if the time, or the source, is not one to go by.
    """
    check_time(mirror, before)
    visible_until = microseconds(clock.now()) - mirror.max_staleness // timedelta(microseconds=1)
    found = Deletion(before, hidden=bool(mirror.max_staleness) and visible_until < before)
    with room() as older, room() as doomed:
        others = rows.older(mirror, before, older)
        found.older = older.rows
        if older.rows and source is not None:
            _check_source(mirror, others, source)
        elif unasked is not None:
            unasked(RowCount(older.rows, others.rows))
        key = mirror.definition.primary_key
        for some in older.pages():
            whole = with_whole_keys(some, key)
            found.keyless += len(some) - len(whole)
            doomed.add(whole if source is None else _without_living(whole, key, source, found))
        if execute and doomed.rows:
            _delete(mirror, writer, doomed, stop, clock, found)
    if execute:
        stay = found.keyless + found.refused
        found.left = max(stay, rows.count_older(mirror, before) - found.living) if found.deleted else stay
        if found.clean:
            announced_by = microseconds(clock.now()) - after // timedelta(microseconds=1)
            recorded = rows.record_deletion(mirror, before, announced_by)
            found.early, found.unlabelled = recorded == "early", recorded == "not labelled"
            found.still_pending = recorded == "still pending"
    return found


def _check_source(mirror: MirrorTable, others: OtherRows, source: SourceOfMirror) -> None:
    """Refuse a source that has not proved to be the right one: it has none of the rows that its snapshot brought."""
    check_same_table(source.header, mirror.definition, mirror.label)
    some = with_whole_keys(others.some, mirror.definition.primary_key)
    newer = source_keys(some, source.header)
    if newer and not any(_living(newer, source)):
        raise DeletionRefusedError(
            "source-lacks-every-row",
            f"the source has none of {len(newer)} rows that table {mirror.definition.identity} has newer changes of: "
            "check that --source names the right database. If it writes keys in another way since these rows were "
            "published, take a snapshot first. Nothing was deleted",
        )


def _living(keys: Sequence[Key | None], source: SourceOfMirror) -> Sequence[bool]:
    """Return which keys the source has. It is not asked for None, a key that none of its rows can have."""
    answers = iter(source.living([key for key in keys if key is not None]))
    return [key is not None and next(answers) for key in keys]


def _without_living(older: pa.Table, key_columns: Sequence[str], source: SourceOfMirror, found: Deletion) -> pa.Table:
    """Return those rows that the source does not have."""
    keys = source_keys(older, source.header)
    living = _living(keys, source)
    found.living += sum(living)
    for place, (key, lives) in enumerate(zip(keys, living, strict=True)):
        shown = found.some_living if lives else found.some_gone
        if len(shown) < SHOWN:
            shown.append(source.text(key or [older.column(name)[place].as_py() for name in key_columns]))
    return older.filter(pa.array([not lives for lives in living], pa.bool_()))


def _delete(mirror: MirrorTable, writer: CdcWriter, rows: RowBuffer, stop: Stop, clock: Clock, found: Deletion) -> None:
    reasons = Counter[str]()

    def append(definition: TableDefinition, doomed: pa.Table) -> frozenset[int]:
        errors = _appended(definition, doomed, writer, stop, found)
        reasons.update(error.reason.value for error in errors)
        found.refused += len(errors)
        return frozenset(error.index for error in errors)

    for chunk in _chunks(rows):
        if stop.requested:
            raise TransientError(f"asked to stop when {found.deleted} of {rows.rows} rows were deleted: run it again")
        ended = chunk
        if mirror.history is not None:
            stay = append(mirror.history, endings(mirror.history, chunk, found.before, clock.now()))
            ended = chunk.filter(pa.array([index not in stay for index in range(len(chunk))], pa.bool_()))
        if len(ended):
            doomed = deletions(mirror.definition, ended, found.before, soft_delete=mirror.soft_delete)
            found.deleted += len(ended) - len(append(mirror.definition, doomed))
    structlog.get_logger().info(
        "missing_rows_deleted",
        table=mirror.definition.identity,
        before=shown_time(found.before),
        deleted=found.deleted,
        refused=dict(reasons),
        history=None if mirror.history is None else mirror.history.identity,
    )


def _chunks(rows: RowBuffer) -> Iterator[pa.Table]:
    for page in rows.pages():
        for start in range(0, len(page), _ROWS_AT_ONCE):
            yield page.slice(start, _ROWS_AT_ONCE)


def _appended(
    definition: TableDefinition, rows: pa.Table, writer: CdcWriter, stop: Stop, found: Deletion
) -> Sequence[RowError]:
    """Append rows, and wait until all are durable but those that are refused."""
    appending = writer.append(definition, rows)
    try:
        return retrying(stop, RETRY_BUDGET)(appending.refused)
    except TableTroubleError as error:
        raise MisconfiguredError(
            "delete-missing-rows-cannot-write",
            f"table {definition.identity} could not be written for {format_duration(RETRY_BUDGET)} "
            f"({error.shown}): may this identity write it (roles/bigquery.dataEditor)? {found.deleted} rows were "
            "deleted before; run it again",
        ) from error


def shown_time(micros: int) -> str:
    """Return a time in microseconds as text."""
    return format_timestamp(Nanoseconds(micros * 1_000))


def exit_code(found: Deletion) -> int:
    """Return 0 if nothing older stays in the mirror, or would after the deletion, and all is there; else 1."""
    stays = found.living or found.keyless or found.refused or found.left
    return int(bool(stays or found.hidden or found.early or found.still_pending or found.unlabelled))


def print_deletion(document: Mapping[str, Any], as_json: bool, out: TextIO) -> None:
    """Write a document, of a deletion or of what one would read, as one JSON object, or as text."""
    print_answer(document, (lines if "older" in document else estimate_lines)(document), as_json, out)


def estimate_lines(document: Mapping[str, Any]) -> Sequence[str]:
    """Return what a deletion would read as text."""
    read, count = document["read_bytes"], document["count_bytes"]
    return [
        f"{document['mirror']}: one query finds the rows: {read} bytes ({format_size(read)})",
        f"  where rows are deleted, another one counts what is left: {count} bytes ({format_size(count)})",
    ]


def estimate_document(table: str, mirror: MirrorTable, estimate: QueryEstimate) -> Mapping[str, Any]:
    """Return what a deletion would read, ready for JSON."""
    name = mirror.definition.identity
    return {"table": table, "mirror": name, "read_bytes": estimate.read, "count_bytes": estimate.again}


def deletion_document(
    table: str, mirror: MirrorTable, found: Deletion, spent: QuerySpend, *, execute: bool
) -> Mapping[str, Any]:
    """Return what a deletion came to, and what it cost, ready for JSON."""
    return {
        "table": table,
        "mirror": mirror.definition.identity,
        "before": shown_time(found.before),
        "executed": execute,
        "older": found.older,
        "gone": found.gone,
        "some_gone": found.some_gone,
        "in_source": found.living,
        "some_in_source": found.some_living,
        "without_key": found.keyless,
        "deleted": found.deleted,
        "refused": found.refused,
        "left": found.left,
        "early": found.early,
        "still_pending": found.still_pending,
        "unlabelled": found.unlabelled,
        "hidden": found.hidden,
        "max_staleness_seconds": mirror.max_staleness.total_seconds(),
        "queries": spent.queries,
        "bytes_billed": spent.bytes_billed,
    }


def lines(document: Mapping[str, Any]) -> Sequence[str]:
    """Return a document as text."""
    mirror, some = document["mirror"], "  of these keys, among others: "
    shown = [f"{mirror}: {document['older']} rows from before {document['before']}"]
    if document["in_source"]:
        shown.append(
            f"{document['in_source']} of them are in the source and stay: their snapshot rows are on their way, or are "
            "dead letters"
        )
        shown.append(some + ", ".join(document["some_in_source"]))
    if not document["executed"]:
        shown.append(f"{document['gone']} are not in the source and would be deleted; --execute deletes them")
    else:
        shown.append(f"{document['deleted']} are not in the source and were deleted")
    if document["gone"]:
        shown.append(some + ", ".join(document["some_gone"]))
    if document["without_key"]:
        shown.append(
            f"{document['without_key']} hold a NULL in their key: they are no rows of the source's, and no change can "
            f"delete them: {MAKE_AGAIN}"
        )
    if document["refused"]:
        shown.append(f"BigQuery has refused the deletion of {document['refused']}")
    if document["left"]:
        shown.append(f"{document['left']} are still there")
    if document["early"]:
        shown.append(
            "it was made again, or left out for a while, and rows of the snapshot may still be on their way: it goes "
            "on being pending resync until it has been complete for DELETE_MISSING_ROWS_AFTER; delete missing rows "
            "again then"
        )
    if document["still_pending"]:
        shown.append("it stays pending resync: delete missing rows again, with the time of `status` as --before")
    if document["unlabelled"]:
        shown.append(
            "its labels could not be written, so it does not say that nothing older is left, and stays pending resync "
            "if it is: grant this identity roles/bigquery.dataEditor on it (bigquery.tables.update), and run it again"
        )
    if document["left"] or document["hidden"]:
        stale = document["max_staleness_seconds"]
        shown += [f"queries of it may be {stale:.0f} s behind (max_staleness): run it again then"] if stale else []
    if document["queries"]:
        shown.append(f"BigQuery billed {document['bytes_billed']} bytes for {document['queries']} queries")
    return shown
