"""Questions that BigQuery does not answer: each is waited for a few seconds, and its late answer is taken later."""

from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from threading import Thread
from typing import Final, Generic, TypeVar

from shared.contracts.errors import TransientError

T = TypeVar("T")

ANSWERS_WITHIN: Final = timedelta(seconds=5)
"""As `RetryLimits.table`: so long a table may hold up the others of its task."""


class Unanswered(Generic[T]):
    """Asks in a thread what may stay without an answer. Used from one thread."""

    def __init__(self, answers_within: timedelta) -> None:
        self._answers_within = answers_within.total_seconds()
        self._asked: dict[str, Future[T]] = {}
        self._silent: set[str] = set()
        """What was given no answer when it was asked last: it is not waited for until it has one."""

    def ask(self, what: str, question: Callable[[], T]) -> T:
        """Return the answer, or one to the same question that was asked before and is there now; raise what it raises.

        TransientError: there is none yet. ``what`` names the question.
        """
        asked = self._asked.get(what)
        if asked is None:
            asked = self._asked[what] = Future()
            Thread(target=_answer, args=(asked, question), name=f"ask {what}", daemon=True).start()
        try:
            error = asked.exception(0 if what in self._silent else self._answers_within)
        except TimeoutError:
            self._silent.add(what)
            raise TransientError(f"{what}: BigQuery gives no answer") from None
        del self._asked[what]
        if not isinstance(error, OSError):  # as the timeout of the call is
            self._silent.discard(what)
        return asked.result()


def _answer(asked: Future[T], question: Callable[[], T]) -> None:
    try:
        asked.set_result(question())
    except BaseException as error:  # noqa: BLE001  raised where the answer is taken
        asked.set_exception(error)
