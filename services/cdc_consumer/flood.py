"""A flood of poison is no bad record but a bad deploy: it must not drain the topic into the dead-letter topic.

What a process has seen last is counted, in tasks small or large: whole messages that cannot be read, and changes that
cannot be applied. When most are poison, and more than an operator lets pass, nothing more is set aside and the query
stops.
"""

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from services.cdc_consumer.core.poison import Poison
from shared.contracts.errors import MisconfiguredError
from shared.contracts.reasons import Reason

POISON_LIMIT: Final = 100
_CHANGES_PER_MESSAGE: Final = 10
"""A change batch holds many changes of one table, and one bad table alone is no flood."""
_WINDOW: Final = 10  # times the limit


@dataclass(frozen=True, slots=True)
class Seen:
    """What a task has seen: so many messages with so many changes, and the poison among them."""

    messages: int
    changes: int
    poison: Sequence[Poison]


class PoisonFlood:
    """The last messages and changes of one process. ``limit`` is how many poison messages pass although most are."""

    def __init__(self, limit: int = POISON_LIMIT) -> None:
        self._messages = _Window("messages", limit, f"{limit}")
        factor = _CHANGES_PER_MESSAGE
        self._changes = _Window("changes", limit * factor, f"{limit} (that times {factor} for changes)")

    def judge(self, seen: Seen) -> None:
        """Raise MisconfiguredError if this, with what was seen last, is a flood. Call it before any letter is kept."""
        self._messages.judge(seen.messages, [one for one in seen.poison if one.change is None])
        self._changes.judge(seen.changes, [one for one in seen.poison if one.change is not None])

    def remember(self, seen: Seen) -> None:
        """Count it from now on."""
        whole = sum(one.change is None for one in seen.poison)
        self._messages.add(seen.messages, whole)
        self._changes.add(seen.changes, len(seen.poison) - whole)


class _Window:
    def __init__(self, what: str, limit: int, told: str) -> None:
        self._what = what
        self._limit = limit
        self._told = told
        self._seen: deque[tuple[int, int]] = deque()
        self._total = self._poison = 0

    def judge(self, total: int, poison: Sequence[Poison]) -> None:
        total, count = self._total + total, self._poison + len(poison)
        if not poison or count <= self._limit or 2 * count <= total:
            return
        reasons = ", ".join(f"{reason.value}: {n}" for reason, n in Counter(one.reason for one in poison).most_common())
        raise MisconfiguredError(
            f"{count} of the last {total} {self._what} cannot be applied ({reasons}; the first: {_shown(poison[0])}): "
            "the query stops before these are acked or set aside; check that the subscription carries change batches "
            "of this version. If they are to become dead letters all the same, let more of them pass with POISON_LIMIT "
            f"(option poisonLimit), which is {self._told}"
        )

    def add(self, total: int, poison: int) -> None:
        self._seen.append((total, poison))
        self._total += total
        self._poison += poison
        while self._total - self._seen[0][0] >= _WINDOW * self._limit:
            oldest = self._seen.popleft()
            self._total -= oldest[0]
            self._poison -= oldest[1]


def _shown(poison: Poison) -> str:
    """Return what may be logged of a poison record: BigQuery quotes values."""
    return poison.reason.value if poison.reason is Reason.REFUSED_BY_BIGQUERY else poison.detail
