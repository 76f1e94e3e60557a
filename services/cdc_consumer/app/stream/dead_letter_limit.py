"""The dead-letter limit: many poison records are a bad deploy, which must not drain the topic into dead letters.

What all tasks have seen last is counted together, on the driver: whole messages that cannot be read, and changes that
cannot be applied. When most are poison, and more than an operator lets pass, the query stops and dead-letters no
more. The process that is started after it goes on counting there: else restarts would drain the topic by and by.

A task asks before it dead-letters. Until it says what became of that, its poison counts for all others that ask, so
that tasks which ask at the same time do not each get the whole limit. A process that ends meanwhile may have
dead-lettered it, so then it is counted.

One bad table alone does not trip it: the others are unaffected, and its dead letters say what to do. So changes that
its BigQuery table has no room for are not counted at all, and of other changes most have to be poison without the
table that has most of it, too; unless no other is known.
"""

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from services.cdc_consumer.core.stream.task_totals import Seen, TaskTotals
from services.cdc_consumer.ports import DurableBytes
from shared.contracts.errors import MisconfiguredError

POISON_LIMIT: Final = 100
DEAD_LETTERS_FILE: Final = "flood"
"""What the file is called in which the next process finds how far this one has counted."""
_CHANGES_PER_MESSAGE: Final = 10
"""A change batch holds many changes of one table."""
_WINDOW: Final = 10  # times the limit
_FEW: Final = 100
"""This part of the limit is how many poison changes of other tables say nothing yet."""


class DeadLetterLimit:
    """The last messages and changes of all processes, and of those before them that have ``kept`` theirs.

    ``limit`` is how many poison messages pass although most are.
    """

    def __init__(self, limit: int = POISON_LIMIT, kept: DurableBytes | None = None) -> None:
        self._kept = kept
        self._admitted: dict[int, TaskTotals] = {}  # by process; it has not said yet what became of it
        self._messages = _Window("messages", limit, f"{limit}")
        factor = _CHANGES_PER_MESSAGE
        self._changes = _Window("changes", limit * factor, f"{limit} (that times {factor} for changes)")
        for window, (every, poison) in zip((self._messages, self._changes), _restored(kept), strict=False):
            window.add(Seen(every, poison))

    def judge(self, seen: TaskTotals, process: int = 0) -> None:
        """Raise MisconfiguredError if this, with what was seen last, trips the limit. Call it first."""
        self._admitted.pop(process, None)
        if not seen.has_poison:
            return
        others = sum(self._admitted.values(), TaskTotals())
        self._messages.judge(seen.messages, others.messages)
        self._changes.judge(seen.changes, others.changes)
        self._admitted[process] = seen

    def remember(self, seen: TaskTotals, process: int = 0) -> None:
        """Count it from now on; it is what became of what was judged last."""
        self._admitted.pop(process, None)
        self._messages.add(seen.messages)
        self._changes.add(seen.changes)
        if seen.has_poison and self._kept is not None:
            self._kept.write(msgspec.json.encode([self._messages.totals, self._changes.totals]))

    def ended(self, process: int) -> None:
        """Count what a process was admitted that has ended before it said what became of it."""
        if process in self._admitted:
            self.remember(self._admitted[process], process)


class _Window:
    def __init__(self, what: str, limit: int, shown: str) -> None:
        self._what = what
        self._limit = limit
        self._shown = shown
        self._seen: deque[tuple[Counter[str], Counter[str]]] = deque()
        self._all: Counter[str] = Counter()  # by table
        self._poison: Counter[str] = Counter()
        self._tables: set[str] = set()

    def judge(self, seen: Seen, others: Seen) -> None:
        if not seen.poison:
            return
        together = seen + others
        everything, bad = self._all + Counter(together.every), self._poison + Counter(together.poison)
        total, count = everything.total(), bad.total()
        if count <= self._limit or 2 * count <= total or self._is_one_table(everything, bad):
            return
        reasons = ", ".join(f"{reason}: {n}" for reason, n in Counter(seen.reasons).most_common())
        raise MisconfiguredError(
            "dead-letter-limit",
            f"{count} of the last {total} {self._what} cannot be applied ({reasons}; the first: {seen.first}): "
            "the query stops before these are acked or dead-lettered; check that the subscription carries change "
            "batches of this version. If they are to become dead letters all the same, let more of them pass with "
            f"POISON_LIMIT, which is {self._shown}",
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

    def add(self, seen: Seen) -> None:
        every, poison = Counter(seen.every), Counter(seen.poison)
        if not every:
            return
        self._seen.append((every, poison))
        self._tables |= every.keys()
        self._all += every
        self._poison += poison
        window = _WINDOW * max(self._limit, 1)
        while self._all.total() - self._seen[0][0].total() >= window:
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
