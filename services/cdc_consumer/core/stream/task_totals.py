"""What a task has seen, as the dead-letter limit counts it: whole messages, changes by table, and their poison."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from services.cdc_consumer.core.stream.poison import Poison
from shared.contracts.reasons import Reason

if TYPE_CHECKING:  # the process that commits imports nothing of Arrow
    from services.cdc_consumer.core.stream.columns import Decoded

_BY_ITS_TABLE: Final = frozenset({Reason.SCHEMA_CONFLICT, Reason.TOO_MANY_COLUMNS})


@dataclass(frozen=True, slots=True)
class Seen:
    """How many there were of each table, and how many of them were poison."""

    every: Mapping[str, int] = field(default_factory=dict)
    poison: Mapping[str, int] = field(default_factory=dict)
    reasons: Mapping[str, int] = field(default_factory=dict)
    first: str = ""
    """What may be logged of the first poison record: BigQuery quotes values."""

    @classmethod
    def of(cls, every: Mapping[str, int], poison: Sequence[Poison]) -> "Seen":
        """Return so many of each table, among them this poison."""
        first = "" if not poison else poison[0].detail
        if poison and poison[0].reason is Reason.REFUSED_BY_BIGQUERY:
            first = poison[0].reason.value
        by_table = Counter(one.table for one in poison)
        return cls(every, by_table, Counter(one.reason.value for one in poison), first)

    def __add__(self, other: "Seen") -> "Seen":
        """Return both together."""
        pairs = (self.every, other.every), (self.poison, other.poison), (self.reasons, other.reasons)
        every, poison, reasons = (Counter(one) + Counter(another) for one, another in pairs)
        return Seen(every, poison, reasons, self.first or other.first)


@dataclass(frozen=True, slots=True)
class TaskTotals:
    """The messages, which are of no table in particular, and the changes."""

    messages: Seen = Seen()
    changes: Seen = Seen()

    @classmethod
    def of(cls, messages: Collection[int], decoded: "Decoded", poison: Sequence[Poison]) -> "TaskTotals":
        """Return some of the messages of what was decoded, and which of it is poison.

        Changes that their BigQuery table has no room for are not counted at all.
        """
        changes: Counter[str] = Counter()
        for message in decoded.batches.keys() & messages:
            batch = decoded.batches[message]
            changes[batch.header.table] += len(batch) - decoded.outdated.get(message, 0)
        unread = [one for one in poison if one.change is None and not one.table]
        of_changes = [one for one in poison if one.change is not None]
        by_its_table = Counter(one.table for one in of_changes if one.reason in _BY_ITS_TABLE)
        return cls(
            Seen.of({"": len(set(messages) - decoded.waiting.keys())}, unread),
            Seen.of(changes - by_its_table, [one for one in of_changes if one.reason not in _BY_ITS_TABLE]),
        )

    def __add__(self, other: "TaskTotals") -> "TaskTotals":
        """Return both together."""
        return TaskTotals(self.messages + other.messages, self.changes + other.changes)

    @property
    def has_poison(self) -> bool:
        """Return whether any of it counts as poison."""
        return bool(self.messages.poison or self.changes.poison)
