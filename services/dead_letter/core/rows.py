"""What the bytes of a dead letter say that a replay has to know: of which row they are, and how old."""

from dataclasses import dataclass
from typing import Final

import msgspec

from shared.contracts.change_batch import ChangeBatch, decode_batch
from shared.contracts.dead_letter import DeadLetter
from shared.contracts.errors import MisconfiguredError, PoisonRecordError
from shared.contracts.mirrors import source_table
from shared.contracts.row_id import canonical_key
from shared.contracts.timestamps import microseconds, parse_timestamp

_key: Final = msgspec.json.Decoder(dict[str, object])


@dataclass(frozen=True, slots=True)
class RowOf:
    """Which row of which source table a dead letter is of."""

    source: str
    """The source table's full name, as `source_table` gives it."""
    key_columns: tuple[str, ...]
    key: str
    """The canonical JSON array of the values of the key columns, in their order."""


@dataclass(frozen=True, slots=True)
class DeadLetterContent:
    """What a dead letter's bytes say."""

    row: RowOf | None = None
    """None where they are not one change of a row, or where it is in no mirror."""
    sequence: str = ""
    """Of that one change; a whole message that Pub/Sub forwarded says it nowhere else."""
    oldest_upsert: int | None = None
    """The commit timestamp of the oldest upsert in them, in microseconds; None where there is none for a mirror."""
    understood: bool = True
    """False where they are no change batch that this version reads: their age is not known."""


def content_of(dead_letter: DeadLetter) -> DeadLetterContent:
    """Return what a dead letter's bytes say; nothing where they are no change batch that this version reads."""
    batch = batch_of(dead_letter)
    if batch is None:
        return DeadLetterContent(understood=False)
    if batch.header.content == "entries":  # lines of a change log never replace each other
        return DeadLetterContent()
    upserts = [at for op, at in zip(batch.op, batch.commit_timestamp, strict=True) if op == "UPSERT"]
    instants = [instant for at in upserts if (instant := _micros(at)) is not None]
    oldest = min(instants, default=None)
    return (
        DeadLetterContent(_row(batch), batch.sequence[0], oldest)
        if len(batch) == 1
        else DeadLetterContent(oldest_upsert=oldest)
    )


def batch_of(dead_letter: DeadLetter) -> ChangeBatch | None:
    """Return the change batch that a dead letter's bytes are; None where they are none that this version reads."""
    if dead_letter.payload_bytes is not None:
        return None
    try:
        return decode_batch(dead_letter.data)
    except (PoisonRecordError, MisconfiguredError):
        return None


def _row(batch: ChangeBatch) -> RowOf | None:
    header = batch.header
    try:
        canonical = canonical_key(header.table, header.key_types(), _key.decode(batch.keys[0]))
    except (PoisonRecordError, msgspec.MsgspecError, RecursionError):
        return None
    if not header.primary_key:
        return None
    return RowOf(source_table(header), header.primary_key, canonical.partition(b"\0")[2].decode())


def _micros(text: str) -> int | None:
    try:
        return microseconds(parse_timestamp(text))
    except ValueError:
        return None
