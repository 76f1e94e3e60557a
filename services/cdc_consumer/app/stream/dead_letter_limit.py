"""The dead-letter limit: many poison records are a bad deploy, which must not drain the topic into dead letters.

What a process has seen last is counted, in tasks small or large: whole messages that cannot be read, and changes that
cannot be applied. When most are poison, and more than an operator lets pass, the query stops and dead-letters no
more. The process that is started after it goes on counting there: else restarts would drain the topic by and by.

One bad table alone does not trip it: the others are unaffected, and its dead letters say what to do. So changes that
its BigQuery table has no room for are not counted at all, and of other changes most have to be poison without the
table that has most of it, too; unless no other is known.
"""

from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from services.cdc_consumer.core.stream.columns import Decoded
from services.cdc_consumer.core.stream.poison import Poison
from services.cdc_consumer.ports import DurableBytes
from shared.contracts.errors import MisconfiguredError
from shared.contracts.reasons import Reason

POISON_LIMIT: Final = 100
_CHANGES_PER_MESSAGE: Final = 10
"""A change batch holds many changes of one table."""
_WINDOW: Final = 10  # times the limit
_FEW: Final = 100
"""This part of the limit is how many poison changes of other tables say nothing yet."""
_BY_ITS_TABLE: Final = frozenset({Reason.SCHEMA_CONFLICT, Reason.TOO_MANY_COLUMNS})


@dataclass(frozen=True, slots=True)
class TaskTotals:
    """What a task has seen: so many messages, with so many changes of each source table, and the poison among them."""

    messages: int = 0
    changes: Mapping[str, int] = field(default_factory=dict)
    poison: Sequence[Poison] = ()

    @classmethod
    def of(cls, messages: Collection[int], decoded: Decoded, poison: Sequence[Poison]) -> "TaskTotals":
        """Return some of the messages of what was decoded, and which of it is poison."""
        changes: Counter[str] = Counter()
        for message in decoded.batches.keys() & messages:
            batch = decoded.batches[message]
            changes[batch.header.table] += len(batch) - decoded.outdated.get(message, 0)
        return cls(len(set(messages) - decoded.newer.keys()), changes, poison)

    def __add__(self, other: "TaskTotals") -> "TaskTotals":
        """Return both together."""
        changes = Counter(self.changes) + Counter(other.changes)
        return TaskTotals(self.messages + other.messages, changes, [*self.poison, *other.poison])

    def of_messages(self) -> tuple[Counter[str], Sequence[Poison]]:
        """Return how many messages there were, of no table in particular, and which of them could not be read."""
        return Counter({"": self.messages}), [one for one in self.poison if one.change is None and not one.table]

    def of_changes(self) -> tuple[Counter[str], Sequence[Poison]]:
        """Return how many changes of each table count, and which of them could not be applied."""
        changes = [one for one in self.poison if one.change is not None]
        by_its_table = Counter(one.table for one in changes if one.reason in _BY_ITS_TABLE)
        return Counter(self.changes) - by_its_table, [one for one in changes if one.reason not in _BY_ITS_TABLE]


class DeadLetterLimit:
    """The last messages and changes of one process, and of those before it that have ``kept`` theirs.

    ``limit`` is how many poison messages pass although most are.
    """

    def __init__(self, limit: int = POISON_LIMIT, kept: DurableBytes | None = None) -> None:
        self._kept = kept
        self._messages = _Window("messages", limit, f"{limit}")
        factor = _CHANGES_PER_MESSAGE
        self._changes = _Window("changes", limit * factor, f"{limit} (that times {factor} for changes)")
        for window, (seen, poison) in zip((self._messages, self._changes), _restored(kept), strict=False):
            window.add(Counter(seen), Counter(poison))

    def judge(self, seen: TaskTotals) -> None:
        """Raise MisconfiguredError if this, with what was seen last, trips the limit. Call it first."""
        self._messages.judge(*seen.of_messages())
        self._changes.judge(*seen.of_changes())

    def remember(self, seen: TaskTotals) -> None:
        """Count it from now on."""
        for window, (everything, poison) in ((self._messages, seen.of_messages()), (self._changes, seen.of_changes())):
            window.add(everything, _by_table(poison))
        if seen.poison and self._kept is not None:
            self._kept.write(msgspec.json.encode([self._messages.totals, self._changes.totals]))


class _Window:
    def __init__(self, what: str, limit: int, told: str) -> None:
        self._what = what
        self._limit = limit
        self._told = told
        self._seen: deque[tuple[Counter[str], Counter[str]]] = deque()
        self._all: Counter[str] = Counter()  # by table
        self._poison: Counter[str] = Counter()
        self._tables: set[str] = set()

    def judge(self, seen: Counter[str], poison: Sequence[Poison]) -> None:
        if not poison:
            return
        everything, bad = self._all + seen, self._poison + _by_table(poison)
        total, count = everything.total(), bad.total()
        if count <= self._limit or 2 * count <= total or self._is_one_table(everything, bad):
            return
        reasons = ", ".join(f"{reason.value}: {n}" for reason, n in Counter(one.reason for one in poison).most_common())
        raise MisconfiguredError(
            "dead-letter-limit",
            f"{count} of the last {total} {self._what} cannot be applied ({reasons}; the first: {_shown(poison[0])}): "
            "the query stops before these are acked or dead-lettered; check that the subscription carries change "
            "batches of this version. If they are to become dead letters all the same, let more of them pass with "
            f"POISON_LIMIT, which is {self._told}",
        )

    def _is_one_table(self, everything: Counter[str], bad: Counter[str]) -> bool:
        """Return whether it is one table of several that is bad, and the others are well or not seen of late."""
        ((worst, most),) = bad.most_common(1)
        if not (self._tables | everything.keys()) - {worst}:
            return False
        total, count = everything.total() - everything[worst], bad.total() - most
        return count <= self._limit // _FEW or 2 * count <= total

    @property
    def totals(self) -> tuple[Mapping[str, int], Mapping[str, int]]:
        """Return how many were seen of each table, and how many of them were poison."""
        return self._all, self._poison

    def add(self, seen: Counter[str], poison: Counter[str]) -> None:
        if not seen:
            return
        self._seen.append((seen, poison))
        self._tables |= seen.keys()
        self._all += seen
        self._poison += poison
        while self._all.total() - self._seen[0][0].total() >= _WINDOW * self._limit:
            oldest = self._seen.popleft()
            self._all -= oldest[0]
            self._poison -= oldest[1]


def _restored(kept: DurableBytes | None) -> Sequence[tuple[Mapping[str, int], Mapping[str, int]]]:
    data = None if kept is None else kept.read()
    try:
        return () if data is None else _totals.decode(data)
    except msgspec.MsgspecError:
        return ()


_totals: Final = msgspec.json.Decoder(tuple[tuple[dict[str, int], dict[str, int]], ...])


def _by_table(poison: Sequence[Poison]) -> Counter[str]:
    return Counter(one.table for one in poison)


def _shown(poison: Poison) -> str:
    """Return what may be logged of a poison record: BigQuery quotes values."""
    return poison.reason.value if poison.reason is Reason.REFUSED_BY_BIGQUERY else poison.detail
