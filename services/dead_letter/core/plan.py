"""What a replay would do with each dead letter, and why. Nothing is done here."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from services.dead_letter.core.dead_letters import ReplayId, State, StoredDeadLetter
from services.dead_letter.core.rows import DeadLetterContent, RowOf
from shared.contracts.change_sequence import parse_sequence
from shared.contracts.dead_letter import replayed_attributes
from shared.contracts.safe_age import SAFE_AGE, oldest_safe
from shared.contracts.tables_file import TablesFile
from shared.contracts.timestamps import Nanoseconds, format_timestamp

_ON_ITS_WAY: Final = 3600 * 1_000_000_000
"""An hour, in nanoseconds: the longest that a replay should be on its way to its table."""
_HOURS: Final = f"{SAFE_AGE.total_seconds() / 3600:.0f} hours"

_NOT_UNDERSTOOD: Final = (
    "what is no change batch that this version reads comes back, and is to be discarded, unless the consumer is newer"
)


class Verdict(Enum):
    """What becomes of a dead letter in a replay."""

    SEND = "send"
    """It is published again."""
    SUPERSEDED = "superseded"
    """The mirror holds something newer: it is no longer needed."""
    TOO_OLD = "too_old_to_be_safe"
    """It could bring a deleted row back, and the consumer would refuse it."""
    WAITS = "waits_for_a_person"
    """It has been replayed often enough, in vain."""
    NO_PAYLOAD = "no_payload"
    """Its bytes could not be kept."""
    NO_ROOM = "no_room_for_marks"
    """A foreign message with so many attributes that those of a replay have no place beside them."""
    CLAIMED = "claimed"
    """Another replay is sending it."""
    NOT_OPEN = "not_open"
    """It is replayed, superseded or discarded already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What a replay goes by."""

    replay: ReplayId | None = None
    max_replays: int = 3
    """After so many a dead letter waits for a person."""
    named: bool = False
    """The dead letters were given by their ids, one by one: a person has inspected each."""
    force: bool = False
    tables: TablesFile = field(default_factory=TablesFile)
    """The consumer's tables file: which of them are a history alone."""


@dataclass(frozen=True, slots=True)
class PlannedReplay:
    """A dead letter, what becomes of it, and why; the text names what can be done where it is not sent."""

    dead_letter: StoredDeadLetter
    verdict: Verdict
    why: str = ""
    forced: bool = False
    """It is sent though it is too old to be safe, which an attribute tells the consumer."""


def judge(
    stored: StoredDeadLetter, content: DeadLetterContent, applied: Mapping[RowOf, str], now: Nanoseconds, terms: Terms
) -> PlannedReplay:
    """Return what a replay does with a dead letter; ``applied``: what the mirrors hold of the rows."""
    if stored.state is not State.OPEN:
        return PlannedReplay(
            stored, Verdict.NOT_OPEN, f"it is {stored.state.value}: to send it all the same, restore it"
        )
    if stored.without_payload:
        return PlannedReplay(
            stored,
            Verdict.NO_PAYLOAD,
            f"its {stored.payload_bytes} bytes could not be kept: write the row once more at its source (an "
            "UPDATE that changes nothing does), smaller if it was too large, then discard this dead letter",
        )
    until = stored.claimed_until
    if stored.claimed_by not in (None, terms.replay) and until is not None and until > now:
        detail = (
            f"replay {stored.claimed_by} claims it, or did when it was killed: until {format_timestamp(until)} (one "
            "that was killed on a database in a file loses it to the next replay with --execute)"
        )
        return PlannedReplay(stored, Verdict.CLAIMED, detail)
    newer = applied.get(content.row) if content.row is not None else None
    if newer is not None and is_newer(newer, content.sequence):
        return PlannedReplay(stored, Verdict.SUPERSEDED, f"the mirror holds {newer}")
    too_old = _is_too_old(stored, content, now, terms)
    if too_old and not terms.force:
        return PlannedReplay(
            stored,
            Verdict.TOO_OLD,
            f"an upsert committed more than {_HOURS} ago, and BigQuery forgets deletes: it could bring a deleted row "
            "back. Write the row once more at its source, or --force it if it has not been deleted since",
        )
    if stored.replays >= terms.max_replays and not (terms.named or terms.force):
        times = "once" if stored.replays == 1 else f"{stored.replays} times"
        return PlannedReplay(
            stored,
            Verdict.WAITS,
            f"replayed {times} in vain: inspect it (show), fix its cause or edit it, then replay it by its id",
        )
    # what is nearly too old may be so by the time it is applied, and what is not understood may be as old as it likes
    by_then = Nanoseconds(now + _ON_ITS_WAY)
    forced = terms.force and (not content.understood or _is_too_old(stored, content, by_then, terms))
    try:
        replayed_attributes(stored.dead_letter, forced=forced)
    except ValueError as error:
        detail = (
            f"{error}: publish it again yourself with fewer (export --values has its bytes), then discard this dead "
            "letter"
        )
        return PlannedReplay(stored, Verdict.NO_ROOM, detail)
    return PlannedReplay(stored, Verdict.SEND, "" if content.understood else _NOT_UNDERSTOOD, forced=forced)


def _is_too_old(stored: StoredDeadLetter, content: DeadLetterContent, now: Nanoseconds, terms: Terms) -> bool:
    """Return whether an upsert could bring a deleted row back; in a history alone there is nothing to bring back."""
    if content.oldest_upsert is None or content.oldest_upsert >= oldest_safe(now):
        return False
    return terms.tables.options(stored.table).mode != "history"


def is_newer(applied: str, sequence: str) -> bool:
    """Return whether a sequence is newer for certain than another; never where one of them is none.

    How numbers compare that differ in their length alone is not documented, so neither of such is newer.
    """
    try:
        pairs = zip(parse_sequence(applied).sections, parse_sequence(sequence).sections, strict=False)
    except ValueError:
        return False
    return next((one > other for one, other in pairs if one != other), False)
