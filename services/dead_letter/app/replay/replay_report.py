"""The report of a replay that is over: the document that the command prints and the API answers with."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

from services.dead_letter.app.replay.replay import Outcome
from services.dead_letter.core.dead_letters import DeadLetterId
from services.dead_letter.core.documents import Document, planned_document
from services.dead_letter.core.plan import PlannedReplay, Verdict
from shared.contracts.dead_letter import DeadLetter

DEFAULT_RATE: Final = 500.0
"""Dead letters a second: a replay in bulk leaves room for new changes."""
_LISTED: Final = 1_000
_SENT: Final = "sent"
REPLAY_RESULTS: Final = (_SENT, *(verdict.value for verdict in Verdict if verdict is not Verdict.SEND))
"""What a replay that is executed makes of a dead letter: Pub/Sub has confirmed it, or why it was not sent."""


def results_of(outcome: Outcome) -> Counter[str]:
    """Return how many dead letters have come to each result so far; no number falls later."""
    results = {verdict.value: count for verdict, count in outcome.verdicts.items() if verdict is not Verdict.SEND}
    return Counter({_SENT: outcome.sent, **results})


@dataclass(slots=True)
class ReplayReport:
    """The first dead letters of a replay, and how many there are beside them."""

    dead_letters: list[PlannedReplay] = field(default_factory=list)
    left_out: int = 0

    def add(self, judged: Sequence[PlannedReplay]) -> None:
        """Keep the verdicts, while there is room."""
        room = _LISTED - len(self.dead_letters)
        self.dead_letters += judged[:room]
        self.left_out += max(0, len(judged) - room)


class DryRunPublisher:
    """The publisher of a dry run, for which no topic needs to be known."""

    @property
    def topic(self) -> str:
        """Refuse: there is none."""
        raise AssertionError("a dry run asks for no topic")

    def publish(self, letters: Sequence[DeadLetter], forced: Collection[DeadLetterId]) -> None:
        """Refuse: nothing is published."""
        raise AssertionError(f"a dry run publishes nothing: {len(letters)} letters, {len(forced)} forced")


def replay_document(outcome: Outcome, report: ReplayReport, executed: bool, seconds: float, *, asked: bool) -> Document:
    """Return how a replay went; ``asked``: whether BigQuery was asked what is superseded."""
    return {
        "replay": outcome.replay,
        "executed": executed,
        "verdicts": {verdict.value: outcome.verdicts[verdict] for verdict in Verdict},
        "sent": outcome.sent,
        "failed_again": outcome.failed_again,
        "failing": dict(outcome.failing),
        "left_open": outcome.left_open,
        "stopped": outcome.stopped,
        "seconds": round(seconds, 3),
        "mirrors_asked": asked,
        "dead_letters": [planned_document(one) for one in report.dead_letters],
        "dead_letters_left_out": report.left_out,
    }
