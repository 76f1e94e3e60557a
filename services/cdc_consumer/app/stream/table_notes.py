"""What a task reports of its tables: in its counts, in the log, and on mirrors that lack dead-lettered changes."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import structlog

from services.cdc_consumer.app.stream.writing import ListWrites
from services.cdc_consumer.core.schema.destinations import Plan, identity_of, mirror_name
from services.cdc_consumer.core.stream.columns import MESSAGE, Decoded
from services.cdc_consumer.core.stream.counts import Applied, TableNote
from services.cdc_consumer.core.stream.poison import Poison
from services.cdc_consumer.ports import DestinationTables, NotLabelledError
from shared.contracts.change_batch import Header, NewerFormatError
from shared.contracts.errors import TransientError
from shared.contracts.row_id import ordered_table
from shared.contracts.safe_age import SAFE_AGE, oldest_safe
from shared.contracts.timestamps import Nanoseconds, microseconds


def table_notes(
    lists: Iterable[ListWrites],
    decoded: Decoded,
    messages: pa.Table,
    deferred: Mapping[int, timedelta],
    now: Nanoseconds,
    plan: Plan,
) -> Mapping[str, TableNote]:
    """Return what is to be said of each table that has messages."""
    notes = {name: TableNote(unfit=str(why)) for name, why in decoded.unfit.items()}
    for name, waiting in _waiting(decoded, plan).items():
        notes[name] = notes.get(name, TableNote()).plus(_waiting_note(decoded, waiting, messages, deferred, now))
    for one in lists:
        notes[one.table] = notes.get(one.table, TableNote()).plus(_note(one, messages, deferred, now))
    return notes


def described(messages: pa.Table, message: int) -> Mapping[str, object]:
    """Return what tells a message from all others of its subscription, for an operator who searches for it."""
    (row,) = messages.select(["message_id", "publish_time", "attributes"]).slice(message, 1).to_pylist()
    published = row["publish_time"]
    return {
        "message_id": row["message_id"],
        "published": None if published is None else published.isoformat(),
        "attributes": dict(row["attributes"] or ()),
    }


def _waiting(decoded: Decoded, plan: Plan) -> Mapping[str, Sequence[int]]:
    """Return the messages that wait for an operator by the identity of their table."""
    found: dict[str, list[int]] = {}
    for message, one in decoded.waiting.items():
        found.setdefault(identity_of(Header(one.source, one.table, (), ()), plan), []).append(message)
    return found


def _waiting_note(
    decoded: Decoded, waiting: Sequence[int], messages: pa.Table, deferred: Mapping[int, timedelta], now: Nanoseconds
) -> TableNote:
    first = waiting[0]
    shown = ", ".join(f"{name} {value}" for name, value in described(messages, first).items())
    why = f"{decoded.waiting[first].why}; messages that wait: {len(waiting)}, the first: {shown}"
    longest = max((deferred[message] for message in waiting if message in deferred), default=timedelta(0))
    # Its other changes may be applied meanwhile: that they wait is said until they come again.
    return TableNote(deferred=why, stuck=why, again_at=microseconds(now) + longest // timedelta(microseconds=1))


def _note(one: ListWrites, messages: pa.Table, deferred: Mapping[int, timedelta], now: Nanoseconds) -> TableNote:
    this = frozenset({one.definition.column_list})
    if one.trouble is not None:
        return TableNote(deferred=one.trouble.shown, again_at=_again_at(one, deferred, now), failing=this)
    if one.conflict is not None:
        return TableNote(unfit=str(one.conflict), taken=this)
    note = TableNote(taken=this)
    if one.stuck:
        why = f"rows that fail each time they come ({len(one.stuck)}): {next(iter(one.stuck.values()))}"
        note = TableNote(stuck=why, again_at=_again_at(one, deferred, now), taken=this)
    committed = one.changes.rows[one.definition.commit_timestamp]
    latest = pc.max(committed)
    if not latest.is_valid:
        return note
    message = one.changes.rows[MESSAGE][pc.index(committed, latest).as_py()].as_py()
    published = messages["publish_time"].cast(pa.int64())[message].as_py()
    return note.plus(TableNote(latest=Applied(latest.as_py(), published, now // 1000)))


def _again_at(one: ListWrites, deferred: Mapping[int, timedelta], now: Nanoseconds) -> int:
    longest = max((deferred[message] for message in one.messages if message in deferred), default=timedelta(0))
    return microseconds(now) + longest // timedelta(microseconds=1)


_WAIT: Final = (
    "wait in the subscription until then, and Pub/Sub forwards each to the dead-letter topic after 100 deliveries, 16 "
    "hours at least (docs/reference/dead-letters.md)"
)


def log_notices(messages: pa.Table, decoded: Decoded, first_time: Callable[..., bool], now: Nanoseconds) -> None:
    """Say what is left out, what the tables file misspells, and what comes too late to be relied on."""
    log = structlog.get_logger()
    for table, content in decoded.left_out:
        if first_time(table, content):
            log.info("table_left_out", source_table=table, content=content)
    _log_lost_snapshots(decoded, first_time)
    for table, column in decoded.unknown:
        if first_time(table, column):
            fix = "the tables file names a column that the table does not have: misspelt, or dropped"
            log.warning("column_unknown", source_table=table, column=column, fix=fix)
    for table, column, kind in decoded.of_unknown_type:
        if first_time(table, column, kind):
            fix = (
                "this version does not know the type, and writes the text of its values into a STRING column: upgrade "
                "the consumer, or leave the column out (ignored_columns in the tables file)"
            )
            log.warning("column_of_unknown_type", source_table=table, column=column, type=kind, fix=fix)
    for table, why in decoded.history_only:
        if first_time(table, "history only"):
            fix = (
                'query its history, and end this warning with mode = "history"; a mirror needs a table with another key'
            )
            log.warning("table_without_mirror", source_table=table, why=why, fix=fix)
    for table, since in decoded.late_ends:
        fix = "rows of it may have been refused as too old: take a snapshot again before you delete missing rows"
        log.warning("snapshot_end_too_late", source_table=table, since=since, fix=fix)
    for message, waits in decoded.waiting.items():
        which = described(messages, message)
        if isinstance(waits.why, NewerFormatError):
            if first_time(waits.source, waits.table, "format", str(waits.why.format)):
                fix = f"upgrade the consumer: messages of this table and format {_WAIT}"
                log.error("newer_format_waits", source_table=waits.table, format=waits.why.format, fix=fix, **which)
        elif first_time(waits.source, waits.table, waits.why.message):
            fix = f"{waits.why}, and restart the consumer: messages of this table {_WAIT}"
            log.error("table_refused_by_tables_file", source_table=waits.table, fix=fix, **which)
    _log_late_redeliveries(messages, decoded, first_time, now)


def _log_lost_snapshots(decoded: Decoded, first_time: Callable[..., bool]) -> None:
    """Warn of tables that the tables file leaves out while a snapshot of them comes: the readers' file does not.

    Of several consumers one may have the end of a snapshot, and another one rows of it that it leaves out.
    """
    for batch in decoded.batches.values() if decoded.left_out else ():
        table, content, since = batch.header.table, batch.header.content, batch.header.complete_since
        lost = isinstance(since, str) or batch.header.origin == "snapshot"
        if lost and (table, content) in decoded.left_out and first_time(table, content, "snapshot", str(since)):
            structlog.get_logger().warning(
                "snapshot_left_out",
                source_table=table,
                fix="the readers let the table in, and the consumer leaves it out, with all of its snapshot that came: "
                "give the consumer the readers' tables file, and then take a snapshot of the table again",
            )


def _log_late_redeliveries(
    messages: pa.Table, decoded: Decoded, first_time: Callable[..., bool], now: Nanoseconds
) -> None:
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
                "take a snapshot of the table, and delete missing rows",
            )


def mirrors_of(
    poison: Iterable[Poison], ordering_key: Callable[[int], str], plan: Plan
) -> Mapping[tuple[str, str], Collection[int]]:
    """Return the mirrors of poison records, by name and dataset, and the messages that these came in.

    ``ordering_key`` is that of a message: one that could not be read is of the table that its ordering key names.
    """
    messages: dict[tuple[str, str], set[int]] = {}
    for one in poison:
        table = one.table or ordered_table(ordering_key(one.message))
        mirror = mirror_name(table, plan) if table else None
        if mirror is not None:
            messages.setdefault(mirror, set()).add(one.message)
    return messages


def note_dead_letters(tables: DestinationTables, mirror: tuple[str, str], now: Nanoseconds) -> str:
    """Let a mirror say that changes of its source table have become dead letters; return why it cannot say so now.

    Empty: it says so, or this identity may not label it, which is logged and holds up no message.
    """
    name, dataset = mirror
    log = structlog.get_logger().bind(table=name)
    try:
        tables.note_dead_letters(name, dataset, microseconds(now))
    except NotLabelledError as error:
        fix = (
            "give this identity the role roles/bigquery.dataEditor on the table; until then a deletion that can ask no "
            "source may delete rows that still exist there: run `delete-missing-rows` without --execute first"
        )
        log.warning("dead_letters_not_noted", error=str(error), fix=fix)
    except TransientError as error:
        fix = (
            "the messages of these dead letters come again until it succeeds; if it lasts, check the table in BigQuery"
        )
        log.warning("dead_letters_not_noted", error=str(error), fix=fix)
        return str(error)
    return ""
