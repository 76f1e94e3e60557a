"""Whether what a replay sends comes back failing: then its cause is not fixed, and the replay ends before it floods.

A consumer stops at a flood of changes that it cannot apply, and that stop holds up every table. So of each cause a few
dead letters go first, as a sample, and the rest when those have had the time to come back and have not. What comes back
later counts too: what fails is set against what was sent of its cause before it, for that has had its time as well.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from services.dead_letter.core.dead_letters import DeadLetterId, GroupId, State, StoredDeadLetter
from services.dead_letter.core.selection import Selection
from services.dead_letter.ports import DeadLetterStore
from shared.contracts.timestamps import Nanoseconds, nanoseconds

SAMPLE: Final = 20
"""Dead letters of one cause that go before it is seen whether they come back."""
TOO_MANY: Final = 10
"""That come back, if they are half of those of their cause or more."""
TIME_TO_COME_BACK: Final = timedelta(seconds=5)
"""A consumer's micro-batch, and a collector's pull: a second or two where both keep up."""
CHECK_EVERY: Final = timedelta(milliseconds=500)
_REMEMBERED: Final = 2_000


@dataclass(slots=True)
class _Sample:
    sent: int = 0
    last_at: int = 0
    """When the last of them went, in nanoseconds since the epoch."""


class ReplayFailures:
    """What one replay has sent of late, and which of it has come back."""

    def __init__(self, store: DeadLetterStore, now: Nanoseconds) -> None:
        self._store = store
        self._since = now
        self._samples: defaultdict[GroupId, _Sample] = defaultdict(_Sample)
        self._sent: deque[tuple[DeadLetterId, GroupId]] = deque(maxlen=_REMEMBERED)
        self._back: dict[DeadLetterId, None] = {}
        self._checked_at: Nanoseconds | None = None
        self.count = 0
        """Dead letters that have come back."""

    def that_may_go(self, chunk: Sequence[StoredDeadLetter], now: Nanoseconds) -> int:
        """Return how many dead letters, from the first on, may go now: of each cause its sample, until that is over."""
        going: Counter[GroupId] = Counter()
        for place, one in enumerate(chunk):
            sample = self._samples[one.group]
            over = sample.sent >= SAMPLE and abs(now - sample.last_at) >= nanoseconds(TIME_TO_COME_BACK)
            if not over and sample.sent + going[one.group] >= SAMPLE:
                return place
            going[one.group] += 1
        return len(chunk)

    def were_sent(self, chunk: Sequence[StoredDeadLetter], now: Nanoseconds) -> None:
        """Remember dead letters that went just now."""
        for one in chunk:
            sample = self._samples[one.group]
            if sample.sent < SAMPLE:
                sample.sent, sample.last_at = sample.sent + 1, now
            self._sent.append((one.id, one.group))

    def check(self, now: Nanoseconds, *, at_once: bool = False) -> Mapping[GroupId, int]:
        """Return the causes whose dead letters come back, with how many have; not oftener than is of use."""
        due = self._checked_at is None or abs(now - self._checked_at) >= nanoseconds(CHECK_EVERY)
        if self._sent and (due or at_once):
            self._checked_at = now
            ids = frozenset(one for one, _cause in self._sent if one not in self._back)
            if ids:
                again = Selection(ids=ids, states=frozenset({State.OPEN}))
                found = self._store.find(again, limit=len(ids)).dead_letters
                back = {line.id for line in found if line.claimed_by is None}  # else another replay's by now
                self._note(sorted(back | {*self._store.brought_back(ids - back, self._since)}))
        return self._failing()

    def _note(self, back: Sequence[DeadLetterId]) -> None:
        self.count += len(back)
        self._back |= dict.fromkeys(back)
        while len(self._back) > 2 * _REMEMBERED:
            del self._back[next(iter(self._back))]

    def _failing(self) -> Mapping[GroupId, int]:
        sent: Counter[GroupId] = Counter()
        before_the_last: dict[GroupId, int] = {}
        back: Counter[GroupId] = Counter()
        for one, cause in self._sent:
            sent[cause] += 1
            if one in self._back:
                back[cause] += 1
                before_the_last[cause] = sent[cause]
        return {
            cause: count for cause, count in back.items() if count >= TOO_MANY and 2 * count >= before_the_last[cause]
        }
