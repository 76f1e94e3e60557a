"""Which letters are meant: by what they are and when they failed. Everything that is given has to hold."""

from dataclasses import dataclass
from typing import Final

from services.dead_letter.core.letters import GroupId, LetterId, State
from shared.contracts.change_sequence import four_sections, parse_sequence
from shared.contracts.reasons import Reason
from shared.contracts.timestamps import Nanoseconds

MOST_VALUES: Final = 10_000
"""Values of one kind in a selection. SQLite takes 32,766 in a statement, PostgreSQL 65,535."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Letters for which everything given holds; of several ids, groups, tables, reasons, keys or states, any one.

    Nothing given means every letter. Times and sequences are from (inclusive) and until (exclusive). ``sequence_*``
    are texts in the one form of `ChangeSequenceNumber`, which sort as the numbers do; letters of whole messages have
    none, and are left out where one is given.
    """

    ids: frozenset[LetterId] = frozenset()
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
        """Tell whether nothing is given, so that every letter is meant."""
        return self == Selection()


def sequence_order(sequence: str) -> str:
    """Return a letter's sequence in the one form whose texts sort as the numbers do; empty where it is none."""
    try:
        return str(four_sections(*parse_sequence(sequence).sections))
    except ValueError:
        return ""
