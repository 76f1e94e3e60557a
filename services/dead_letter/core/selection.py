"""Which dead letters are meant: by what they are and when they failed. Everything that is given has to hold."""

import re
from dataclasses import dataclass
from typing import Final

from services.dead_letter.core.dead_letters import DeadLetterId, GroupId, State
from shared.contracts.change_sequence import four_sections, parse_sequence
from shared.contracts.durations import parse_duration
from shared.contracts.reasons import Reason
from shared.contracts.timestamps import Nanoseconds, parse_timestamp

MOST_VALUES: Final = 10_000
"""Values of one kind in a selection. SQLite takes 32,766 in a statement, PostgreSQL 65,535."""
_DAY: Final = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Dead letters for which everything given holds; of several ids, groups, tables, reasons, keys or states, any one.

    Nothing given means every dead letter. Times and sequences are from (inclusive) and until (exclusive).
    ``sequence_*`` are texts in the one form of `ChangeSequenceNumber`, which sort as the numbers do; dead letters of
    whole messages have none, and are left out where one is given.
    """

    ids: frozenset[DeadLetterId] = frozenset()
    groups: frozenset[GroupId] = frozenset()
    tables: frozenset[str] = frozenset()
    reasons: frozenset[Reason] = frozenset()
    keys: frozenset[str] = frozenset()
    states: frozenset[State] = frozenset()
    failed_from: Nanoseconds | None = None
    failed_until: Nanoseconds | None = None
    sequence_from: str | None = None
    sequence_until: str | None = None

    def __post_init__(self) -> None:
        """ValueError where more is named than a statement of a database takes."""
        for name in ("ids", "groups", "tables", "reasons", "keys", "states"):
            if len(getattr(self, name)) > MOST_VALUES:
                raise ValueError(f"{len(getattr(self, name))} {name} to select by; {MOST_VALUES} are the most")

    @property
    def everything(self) -> bool:
        """Return whether nothing is given, so that every dead letter is meant."""
        return self == Selection()


def sequence_order(sequence: str) -> str:
    """Return a dead letter's sequence in the one form whose texts sort as the numbers do; empty where it is none."""
    try:
        return str(four_sections(*parse_sequence(sequence).sections))
    except ValueError:
        return ""


def sequence_bound(text: str) -> str:
    """Return a sequence that a person gives in the form of `Selection.sequence_from`; ValueError where it is none."""
    return str(four_sections(*parse_sequence(text).sections))


def moment(text: str, now: Nanoseconds) -> Nanoseconds:
    """Return the instant that a text means: an age such as ``2h``, a day (UTC), or an RFC 3339 time."""
    if _DAY.fullmatch(text):
        text += "T00:00:00Z"
    try:
        return parse_timestamp(text)
    except ValueError:
        pass
    try:
        return Nanoseconds(now - round(parse_duration(text).total_seconds() * 1e9))
    except ValueError:
        raise ValueError(
            f"{text!r} is no time: write an age (90s, 15m, 2h, 7d), a day (2026-11-22) or an RFC 3339 time with a zone "
            "(2026-11-22T08:00:00Z)"
        ) from None
