"""What a task says of each table: whether its changes wait or are refused, and how late its latest one came."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta

import pyarrow as pa
import pyarrow.compute as pc

from services.cdc_consumer.app.stream.trouble import later
from services.cdc_consumer.app.stream.writing import ListWrites
from services.cdc_consumer.core.schema.destinations import Plan, identity_of
from services.cdc_consumer.core.stream.columns import MESSAGE, Decoded
from services.cdc_consumer.core.stream.counts import Applied, TableNote
from shared.contracts.change_batch import Header
from shared.contracts.timestamps import Nanoseconds


def table_notes(
    lists: Iterable[ListWrites],
    decoded: Decoded,
    messages: pa.Table,
    put_off: Mapping[int, timedelta],
    now: Nanoseconds,
    plan: Plan,
) -> Mapping[str, TableNote]:
    """Return what is to be said of each table that has messages."""
    notes = {name: TableNote(unfit=str(why)) for name, why in decoded.unfit.items()}
    for name, waiting in _newer(decoded, plan).items():
        notes[name] = notes.get(name, TableNote()).plus(_newer_note(decoded, waiting, messages, put_off, now))
    for one in lists:
        notes[one.table] = notes.get(one.table, TableNote()).plus(_note(one, messages, put_off, now))
    return notes


def described(messages: pa.Table, message: int) -> Mapping[str, object]:
    """Return what tells a message from all others of its subscription, for an operator who looks for it."""
    (row,) = messages.select(["message_id", "publish_time", "attributes"]).slice(message, 1).to_pylist()
    published = row["publish_time"]
    return {
        "message_id": row["message_id"],
        "published": None if published is None else published.isoformat(),
        "attributes": dict(row["attributes"] or ()),
    }


def _newer(decoded: Decoded, plan: Plan) -> Mapping[str, Sequence[int]]:
    """Return the messages of a newer wire format by the identity of their table."""
    found: dict[str, list[int]] = {}
    for message, error in decoded.newer.items():
        found.setdefault(identity_of(Header(error.source, error.table, (), ()), plan), []).append(message)
    return found


def _newer_note(
    decoded: Decoded,
    waiting: Sequence[int],
    messages: pa.Table,
    put_off: Mapping[int, timedelta],
    now: Nanoseconds,
) -> TableNote:
    first = waiting[0]
    shown = ", ".join(f"{name} {value}" for name, value in described(messages, first).items())
    why = f"{decoded.newer[first]}; messages that wait: {len(waiting)}, the first: {shown}"
    longest = max((put_off[message] for message in waiting if message in put_off), default=timedelta(0))
    # Its other changes may be applied meanwhile: that they wait is said until they come again.
    return TableNote(put_off=why, stuck=why, again_at=later(now, longest) // 1000)


def _note(one: ListWrites, messages: pa.Table, put_off: Mapping[int, timedelta], now: Nanoseconds) -> TableNote:
    if one.trouble is not None:
        return TableNote(put_off=one.trouble.shown, again_at=_again_at(one, put_off, now))
    if one.conflict is not None:
        return TableNote(unfit=str(one.conflict))
    note = TableNote()
    if one.stuck:
        why = f"rows that fail each time they come ({len(one.stuck)}): {next(iter(one.stuck.values()))}"
        note = TableNote(stuck=why, again_at=_again_at(one, put_off, now))
    committed = one.changes.rows[one.definition.commit_timestamp]
    latest = pc.max(committed)
    if not latest.is_valid:
        return note
    message = one.changes.rows[MESSAGE][pc.index(committed, latest).as_py()].as_py()
    published = messages["publish_time"].cast(pa.int64())[message].as_py()
    return note.plus(TableNote(latest=Applied(latest.as_py(), published, now // 1000)))


def _again_at(one: ListWrites, put_off: Mapping[int, timedelta], now: Nanoseconds) -> int:
    longest = max((put_off[message] for message in one.messages if message in put_off), default=timedelta(0))
    return later(now, longest) // 1000
