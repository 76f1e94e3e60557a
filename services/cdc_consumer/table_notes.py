"""What a task says of each table: whether its changes wait or are refused, and how late its latest one came."""

from collections.abc import Iterable, Mapping
from datetime import timedelta

import pyarrow as pa
import pyarrow.compute as pc

from services.cdc_consumer.core.columns import MESSAGE
from services.cdc_consumer.core.counts import Applied, TableNote
from services.cdc_consumer.trouble import later
from services.cdc_consumer.writing import ListWrites
from shared.contracts.timestamps import Nanoseconds


def table_notes(
    lists: Iterable[ListWrites],
    refused: Mapping[str, str],
    messages: pa.Table,
    put_off: Mapping[int, timedelta],
    now: Nanoseconds,
) -> Mapping[str, TableNote]:
    """Return what is to be said of each table: of those that are ``refused`` as a whole, and of all others' lists."""
    notes = {name: TableNote(refused=why) for name, why in refused.items()}
    for one in lists:
        notes[one.table] = notes.get(one.table, TableNote()).plus(_note(one, messages, put_off, now))
    return notes


def _note(one: ListWrites, messages: pa.Table, put_off: Mapping[int, timedelta], now: Nanoseconds) -> TableNote:
    if one.trouble is not None:
        return TableNote(put_off=one.trouble.shown, again_at=_again_at(one, put_off, now))
    if one.conflict is not None:
        return TableNote(refused=str(one.conflict))
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
