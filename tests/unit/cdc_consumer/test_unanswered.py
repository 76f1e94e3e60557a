"""Questions without an answer: waited for once, answered late, answered with an error."""

import threading
from concurrent.futures import Future
from datetime import timedelta

import pytest

from services.cdc_consumer.adapters.schema.unanswered import Unanswered
from shared.contracts.errors import TransientError

SOON = timedelta(milliseconds=20)


class Question:
    """Is answered when it is let; counts how often it was asked."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.asked = 0
        self.may_answer = threading.Event()

    def __call__(self) -> int:
        self.asked += 1
        asked = self.asked
        self.may_answer.wait()
        if self.error is not None:
            raise self.error
        return asked

    def answer(self) -> None:
        """Answer all that was asked."""
        self.may_answer.set()
        for thread in threading.enumerate():
            if thread.name == "ask table":
                thread.join()


def test_a_question_without_an_answer_is_asked_once_and_its_late_answer_is_taken() -> None:
    reads, question = Unanswered[int](SOON), Question()
    for _time in range(3):
        with pytest.raises(TransientError, match="table: BigQuery gives no answer"):
            reads.ask("table", question)
    assert reads.ask("another table", lambda: 7) == 7
    question.answer()
    assert reads.ask("table", question) == 1
    assert reads.ask("table", question) == 2, "an answer is taken once"


def test_what_has_no_answer_is_waited_for_once_until_it_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    waited, wait = [], Future.exception

    def exception(asked: Future[int], timeout: float | None = None) -> BaseException | None:
        waited.append(timeout)
        return wait(asked, timeout)

    monkeypatch.setattr(Future, "exception", exception)
    reads = Unanswered[int](SOON)
    for silent in (Question(), Question(OSError("the call timed out"))):
        for _time in range(2):
            with pytest.raises(TransientError):
                reads.ask("table", silent)
        silent.answer()
        if silent.error is None:
            assert reads.ask("table", silent) == 1
        else:
            with pytest.raises(OSError, match="timed out"):
                reads.ask("table", silent)
    silent = Question()
    with pytest.raises(TransientError):
        reads.ask("table", silent)
    silent.answer()
    first, again = SOON.total_seconds(), 0
    assert waited == [first, again, again, first, again, again, again]


@pytest.mark.parametrize("error", [OSError("timed out"), ValueError("refused")])
def test_an_error_is_raised_where_its_answer_is_taken(error: Exception) -> None:
    reads, question = Unanswered[int](SOON), Question(error)
    with pytest.raises(TransientError):
        reads.ask("table", question)
    question.answer()
    with pytest.raises(type(error), match=str(error)):
        reads.ask("table", question)
