"""Which letters are meant: by what they are and when they failed. Everything that is given has to hold."""

from dataclasses import dataclass, fields

from services.dead_letter.core.letters import GroupId, LetterId, State
from shared.contracts.change_sequence import four_sections, parse_sequence
from shared.contracts.reasons import Reason
from shared.contracts.timestamps import Nanoseconds


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

    @property
    def everything(self) -> bool:
        """Tell whether nothing is given, so that every letter is meant."""
        return all(not getattr(self, field.name) for field in fields(self))


def sequence_order(sequence: str) -> str:
    """Return a letter's sequence in the one form whose texts sort as the numbers do; empty where it is none."""
    try:
        return str(four_sections(*parse_sequence(sequence).sections))
    except ValueError:
        return ""
