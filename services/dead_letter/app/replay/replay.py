"""A replay: it judges the dead letters of a selection, and publishes those that may go, in the order of their keys.

The order of effects is the promise: a dead letter is claimed, published, confirmed, and only then said to be replayed.
What is killed in between leaves dead letters open, and the next run sends them again, at once where it knows that
their holder is dead, else when their claims have run out; that is harmless, for a change carries its own sequence. No
two replays hold one dead letter. A replay whose dead letters come back failing ends: their cause is not fixed, and more
of them would be a flood to the consumer.
"""

import math
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Final, TypeVar

from services.dead_letter.app.replay.replay_failures import CHECK_EVERY, ReplayFailures
from services.dead_letter.core.dead_letters import DeadLetterId, GroupId, ReplayId, State, StoredDeadLetter
from services.dead_letter.core.documents import Document, planned_document
from services.dead_letter.core.pipeline import Pipeline
from services.dead_letter.core.plan import PlannedReplay, Terms, Verdict, judge
from services.dead_letter.core.rows import RowOf, content_of
from services.dead_letter.core.selection import Selection
from services.dead_letter.ports import DeadLetterStore, Mirrors, ReplayPublisher
from shared.contracts.errors import TransientError
from shared.contracts.timestamps import Nanoseconds, nanoseconds
from shared.runtime.clock import Clock
from shared.runtime.portions import cut
from shared.runtime.retries import retrying
from shared.runtime.stop import Stop

T = TypeVar("T")

DEFAULT_RATE: Final = 500.0
"""Dead letters a second: a replay in bulk leaves room for new changes."""
_SENT: Final = "sent"
REPLAY_RESULTS: Final = (_SENT, *(verdict.value for verdict in Verdict if verdict is not Verdict.SEND))
"""What a replay that is executed makes of a dead letter: Pub/Sub has confirmed it, or why it was not sent."""
LEASE: Final = timedelta(minutes=10)
"""How long a killed replay keeps its claims: much longer than a batch takes with all its retries."""
_RENEWED_AFTER: Final = timedelta(minutes=2)
_RETRY_BUDGET: Final = timedelta(seconds=60)
"""How long the store or BigQuery may be unavailable before the replay ends."""
_CHUNK: Final = 250
_CHUNK_BYTES: Final = 16 << 20
_CHUNKS_A_SECOND: Final = 4
_SECOND: Final = 1_000_000_000  # in nanoseconds
_LISTED: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOrder:
    """What is to be replayed, and how."""

    selection: Selection
    who: str
    execute: bool = False
    """Otherwise everything is only judged, and nothing is changed."""
    force: bool = False
    rate: float | None = None
    """Dead letters a second, at most."""
    limit: int | None = None
    """Dead letters that are sent, at most; what comes behind them is not inspected."""


@dataclass(slots=True)
class Outcome:
    """What a replay has come to so far."""

    replay: ReplayId
    executed: bool
    mirrors_asked: bool
    """Whether it finds out what is superseded."""
    verdicts: Counter[Verdict] = field(default_factory=Counter)
    """How each dead letter was judged. With ``execute``, `Verdict.SEND` are those that were to be sent."""
    dead_letters: list[Document] = field(default_factory=list)
    """The first of them, each with what becomes of it, without their bytes."""
    sent: int = 0
    """Confirmed by Pub/Sub."""
    failed_again: int = 0
    """Of those, how many had come back by the end: their cause is not fixed."""
    failing: Mapping[GroupId, int] = field(default_factory=dict)
    """The causes that ended the replay early, each with how many of its dead letters came back: half or more."""
    stopped: bool = False
    """Asked to stop before the end: run it again, and it goes on."""

    @property
    def left_open(self) -> int:
        """Return how many dead letters that were asked for stay open, by what is known now."""
        passed_over = (Verdict.TOO_OLD, Verdict.WAITS, Verdict.NO_PAYLOAD, Verdict.NO_ROOM, Verdict.CLAIMED)
        unsent = self.verdicts[Verdict.SEND] - self.sent
        return unsent + self.failed_again + sum(self.verdicts[each] for each in passed_over)

    def add(self, judged: PlannedReplay) -> None:
        """Count a dead letter, and list it while there is room."""
        self.verdicts[judged.verdict] += 1
        if len(self.dead_letters) < _LISTED:
            self.dead_letters.append(planned_document(judged))


ReportProgress = Callable[[Outcome], object]
"""Is called as dead letters are judged, and as they are sent."""


def results_of(outcome: Outcome) -> Counter[str]:
    """Return how many dead letters have come to each result so far; no number falls later."""
    results = {verdict.value: count for verdict, count in outcome.verdicts.items() if verdict is not Verdict.SEND}
    return Counter({_SENT: outcome.sent, **results})


def replay_document(outcome: Outcome, seconds: float) -> Document:
    """Return how a replay went that took so long."""
    return {
        "replay": outcome.replay,
        "executed": outcome.executed,
        "verdicts": {verdict.value: outcome.verdicts[verdict] for verdict in Verdict},
        "sent": outcome.sent,
        "failed_again": outcome.failed_again,
        "failing": dict(outcome.failing),
        "left_open": outcome.left_open,
        "stopped": outcome.stopped,
        "seconds": round(seconds, 3),
        "mirrors_asked": outcome.mirrors_asked,
        "dead_letters": outcome.dead_letters,
        "dead_letters_left_out": outcome.verdicts.total() - len(outcome.dead_letters),
    }


@dataclass(frozen=True, slots=True)
class _Run:
    """One run of a replay: what it was asked for, and what it has come to."""

    order: ReplayOrder
    outcome: Outcome
    report: ReportProgress
    failures: ReplayFailures
    pace: "_Pace"


class Replay:
    """Replays by one store, topic and BigQuery.

    ``publisher`` None: nothing can be executed. ``mirrors`` None: what is superseded is not known.
    """

    def __init__(
        self,
        store: DeadLetterStore,
        publisher: ReplayPublisher | None,
        mirrors: Mirrors | None,
        clock: Clock,
        stop: Stop,
        terms: Terms | None = None,
    ) -> None:
        self._store = store
        self._publisher = publisher
        self._mirrors = mirrors
        self._clock = clock
        self._stop = stop
        self._terms = terms or Terms()

    def run(self, order: ReplayOrder, report: ReportProgress = lambda _so_far: None) -> Outcome:
        """Judge the dead letters of an order and, if it is to be executed, send those that may go.

        TransientError where the store, Pub/Sub or BigQuery fails for too long, MisconfiguredError where one refuses:
        what was sent until then is said to be, and the rest is let go. MisconfiguredError, and nothing is sent, where
        the dead letters are of a pipeline with another topic.
        """
        outcome = Outcome(ReplayId(uuid.uuid4().hex[:12]), order.execute, mirrors_asked=self._mirrors is not None)
        run = _Run(order, outcome, report, ReplayFailures(self._store, self._clock.now()), _Pace(order.rate))
        if not order.execute:
            self._go_through(run)
            return outcome
        self._join()
        with self._store.living(outcome.replay):
            try:
                self._retried(self._store.release_dead)
                self._go_through(run)
            finally:
                with suppress(TransientError):  # the claims run out by themselves
                    self._store.release(outcome.replay)
        return outcome

    def _go_through(self, run: _Run) -> None:
        order, outcome = run.order, run.outcome
        dead_letters = self._store.in_replay_order(order.selection)
        for chunk in cut(dead_letters, lambda one: one.size, _CHUNK_BYTES, _CHUNK):
            if self._stop.requested:
                outcome.stopped = True
                break
            judged, complete = _within(self._judged(chunk, run), order.limit, outcome)
            run.report(outcome)
            if order.execute:
                self._execute(judged, run)
            if complete or outcome.stopped or outcome.failing:
                break
        self._check_failures(run, at_once=True)

    def _judged(self, chunk: Sequence[StoredDeadLetter], run: _Run) -> Sequence[PlannedReplay]:
        contents = [content_of(one.dead_letter) for one in chunk]
        rows = [
            content.row
            for one, content in zip(chunk, contents, strict=True)
            if one.state is State.OPEN and content.row is not None
        ]
        applied, order = self._applied(rows), run.order
        terms = replace(self._terms, replay=run.outcome.replay, named=bool(order.selection.ids), force=order.force)
        now = self._clock.now()
        return [judge(one, content, applied, now, terms) for one, content in zip(chunk, contents, strict=True)]

    def _applied(self, rows: Sequence[RowOf]) -> Mapping[RowOf, str]:
        mirrors = self._mirrors
        if mirrors is None or not rows:
            return {}
        return self._retried(lambda: mirrors.sequences(rows))

    def _execute(self, judged: Sequence[PlannedReplay], run: _Run) -> None:
        outcome, failures, pace = run.outcome, run.failures, run.pace
        superseded = [one.dead_letter.id for one in judged if one.verdict is Verdict.SUPERSEDED]
        if superseded:
            self._retried(lambda: self._supersede(superseded, run.order.who))
        dead_letters = [one.dead_letter for one in judged if one.verdict is Verdict.SEND]
        forced = frozenset(one.dead_letter.id for one in judged if one.forced)
        ours, claimed_at = self._claimed(dead_letters, outcome)
        while ours:
            self._check_failures(run)
            if outcome.failing:
                return
            some = failures.that_may_go(ours[: pace.chunk], self._clock.now())
            chunk, ours = ours[:some], ours[some:]
            if self._stop.wait(pace.wait(some, self._clock.now()) if some else CHECK_EVERY):
                outcome.stopped = True
                return
            if self._clock.now() - claimed_at > nanoseconds(_RENEWED_AFTER):
                again, claimed_at = self._claimed([*chunk, *ours], outcome)
                chunk, ours = again[: len(chunk)], again[len(chunk) :]
            self._send(chunk, forced, run)
            run.report(outcome)

    def _claimed(
        self, dead_letters: Sequence[StoredDeadLetter], outcome: Outcome
    ) -> tuple[Sequence[StoredDeadLetter], Nanoseconds]:
        """Take dead letters; those that another replay or person has taken or closed meanwhile are left out."""
        now = self._clock.now()
        if not dead_letters:
            return [], now
        got = set(self._retried(lambda: self._store.claim(_ids(dead_letters), outcome.replay, now, LEASE)))
        self._join()  # the topic may have been changed until now, and cannot be while something is claimed
        if lost := len(dead_letters) - len(got):
            outcome.verdicts[Verdict.SEND] -= lost
            outcome.verdicts[Verdict.CLAIMED] += lost
        return [one for one in dead_letters if one.id in got], now

    def _send(self, chunk: Sequence[StoredDeadLetter], forced: Collection[DeadLetterId], run: _Run) -> None:
        if not chunk:
            return
        assert self._publisher is not None
        self._publisher.publish([one.dead_letter for one in chunk], forced)
        self._retried(lambda: self._store.sent(_ids(chunk), run.outcome.replay, run.order.who, self._clock.now()))
        run.outcome.sent += len(chunk)
        run.failures.were_sent(chunk, self._clock.now())

    def _join(self) -> None:
        publisher = self._publisher
        assert publisher is not None, "nothing can be executed"
        self._retried(lambda: self._store.join(Pipeline(topic=publisher.topic)))

    def _check_failures(self, run: _Run, *, at_once: bool = False) -> None:
        run.outcome.failing = self._retried(lambda: run.failures.check(self._clock.now(), at_once=at_once))
        run.outcome.failed_again = run.failures.count

    def _supersede(self, ids: Sequence[DeadLetterId], who: str) -> None:
        why = "the mirror holds something newer"
        only_from = frozenset({State.OPEN})
        self._store.set_state(ids, State.SUPERSEDED, only_from=only_from, who=who, now=self._clock.now(), why=why)

    def _retried(self, call: Callable[[], T]) -> T:
        return retrying(self._stop, _RETRY_BUDGET)(call)


class _Pace:
    """How fast dead letters go: in small chunks, each when those before it have had their time."""

    def __init__(self, rate: float | None) -> None:
        self._rate = rate
        self._due: Nanoseconds | None = None
        self._ahead = 0

    @property
    def chunk(self) -> int:
        """Return how many dead letters go out together."""
        return _CHUNK if self._rate is None else max(1, math.floor(self._rate / _CHUNKS_A_SECOND))

    def wait(self, count: int, now: Nanoseconds) -> timedelta:
        """Return how long to wait before so many dead letters may go."""
        if self._rate is None:
            return timedelta(0)
        if self._due is None or self._due - now > self._ahead + _SECOND:  # the latter where the clock was set back
            self._due = now
        due = max(now, self._due)
        self._ahead = round(count / self._rate * _SECOND)
        self._due = Nanoseconds(due + self._ahead)
        return timedelta(microseconds=(due - now) / 1_000)


def _within(
    judged: Sequence[PlannedReplay], limit: int | None, outcome: Outcome
) -> tuple[Sequence[PlannedReplay], bool]:
    """Count what is judged, up to the limit of what is sent; return whether that is reached."""
    for place, one in enumerate(judged):
        if limit is not None and one.verdict is Verdict.SEND and outcome.verdicts[Verdict.SEND] >= limit:
            return judged[:place], True
        outcome.add(one)
    return judged, False


def _ids(dead_letters: Sequence[StoredDeadLetter]) -> Sequence[DeadLetterId]:
    return [one.id for one in dead_letters]
