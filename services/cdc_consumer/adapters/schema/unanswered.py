"""Questions that BigQuery does not answer: each is waited for a few seconds, and not at all while it is under way."""

from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from threading import Thread
from typing import Final, Generic, TypeVar

from services.cdc_consumer.ports import UnansweredError

T = TypeVar("T")

ANSWERS_WITHIN: Final = timedelta(seconds=5)
"""As `RetryLimits.table`: so long a table may hold up the others of its task."""
_AFTER_SILENCE: Final = timedelta(seconds=1)
"""How long the next answer is waited for where a call was given none until it ended: enough where all is well again."""
_LATE: Final = timedelta(seconds=30)
"""The same where the answer came late: a service that is slow answers in the end."""


class Unanswered(Generic[T]):
    """Asks in a thread what may stay without an answer. Used from one thread.

    A late answer is not taken, for it may be of long ago; it tells only that there are answers.
    """

    def __init__(self, answers_within: timedelta) -> None:
        self._answers_within = answers_within
        self._left: dict[str, Future[T]] = {}
        """What was asked last and not waited for any longer."""

    def ask(self, what: str, question: Callable[[], T]) -> T:
        """Return the answer, or raise what it raises; UnansweredError if there is none in time. ``what`` names it."""
        asked: Future[T] = Future()
        within = self._within(what)
        Thread(target=_answer, args=(asked, question), name=f"ask {what}", daemon=True).start()
        try:
            asked.exception(within.total_seconds())
        except TimeoutError:
            self._left[what] = asked
            raise UnansweredError(f"{what}: BigQuery gives no answer") from None
        self._left.pop(what, None)
        return asked.result()

    def _within(self, what: str) -> timedelta:
        left = self._left.get(what)
        if left is None:
            return self._answers_within
        if not left.done():
            raise UnansweredError(f"{what}: BigQuery still gives no answer")
        return _LATE if left.exception() is None else _AFTER_SILENCE


def _answer(asked: Future[T], question: Callable[[], T]) -> None:
    try:
        asked.set_result(question())
    except BaseException as error:  # noqa: BLE001  raised where the answer is taken
        asked.set_exception(error)
