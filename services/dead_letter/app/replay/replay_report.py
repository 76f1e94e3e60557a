"""The report of a replay that is over: the document that the command prints and the API answers with."""

from collections import Counter
from typing import Final

from services.dead_letter.app.replay.replay import Outcome
from services.dead_letter.core.documents import Document
from services.dead_letter.core.plan import Verdict

DEFAULT_RATE: Final = 500.0
"""Dead letters a second: a replay in bulk leaves room for new changes."""
_SENT: Final = "sent"
REPLAY_RESULTS: Final = (_SENT, *(verdict.value for verdict in Verdict if verdict is not Verdict.SEND))
"""What a replay that is executed makes of a dead letter: Pub/Sub has confirmed it, or why it was not sent."""


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
