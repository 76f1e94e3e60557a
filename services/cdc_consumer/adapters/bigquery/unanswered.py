"""Calls that BigQuery may not answer: a call is waited for a few seconds, and is not made again while it runs."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from functools import partial
from threading import Thread
from typing import Any, Final, TypeVar

from google.api_core import exceptions
from google.cloud import bigquery

from services.cdc_consumer.ports import UnansweredError

T = TypeVar("T")

ANSWERS_WITHIN: Final = timedelta(seconds=5)
"""As `RetryLimits.table`: how long a table may delay the others of its task."""
_AHEAD: Final = 4
"""Calls that are made ahead at a time. BigQuery takes 100 a second of one identity, which all tasks share."""
_AFTER_SILENCE: Final = timedelta(seconds=1)
"""After a call that ended without an answer. It is enough for BigQuery if all is well again."""
_LATE: Final = timedelta(seconds=30)
"""After a call whose answer came late: a slow service answers in the end."""


class Unanswered:
    """Makes each call in a thread of its own, and stops waiting for it after a while. Used from one thread.

    A late answer is not used, because it may be old. It only shows that BigQuery answers.
    """

    def __init__(self, answers_within: timedelta, seconds: Callable[[], float] = time.monotonic) -> None:
        """``seconds``: a clock that never goes back."""
        self._answers_within = answers_within
        self._seconds = seconds
        self._left: dict[str, dict[str, Future[Any]]] = {}
        """Of each thing, the last calls that had no answer in time, by their names."""
        self._ahead: dict[tuple[str, str], tuple[float, Future[Any]]] = {}
        """By thing and call, what was asked ahead, and when."""
        self._to_ask = deque[tuple[str, str, Callable[[], object]]]()
        """What is to be asked ahead once fewer calls run."""

    @contextmanager
    def ahead(self, call: str, questions: Mapping[str, Callable[[], object]]) -> Iterator[None]:
        """Ask about some things ahead of `ask`, which is called within the block: a few at a time, in this order.

        Each is waited for since it was asked, so a few that give no answer are waited for as long as one.
        """
        self._to_ask.extend((what, call, question) for what, question in questions.items())
        for _time in range(_AHEAD):
            self._ask_ahead()
        try:
            yield
        finally:
            self._to_ask.clear()
            self._ahead.clear()  # `ask` has not waited for these, so they do not count as calls without an answer

    def _ask_ahead(self) -> None:
        """Ask about the next thing of which no call runs."""
        while self._to_ask:
            what, call, question = self._to_ask.popleft()
            if all(each.done() for each in self._left.get(what, {}).values()):
                self._ahead[what, call] = self._seconds(), _begin(what, question)
                return

    def ask(self, what: str, call: str, question: Callable[[], T]) -> T:
        """Return the answer to ``question``, a ``call`` about something, or raise its error.

        UnansweredError if neither comes in time, or another call about the same still runs.
        """
        within, last = self._within(what, call)
        left = within.total_seconds()
        asked: Future[T]
        if (ahead := self._ahead.pop((what, call), None)) is not None:
            began, asked = ahead
            left = max(0.0, left - (self._seconds() - began))
        else:
            asked = _begin(what, question)
        try:
            asked.exception(left)
        except TimeoutError:
            self._left.setdefault(what, {})[call] = asked
            raise UnansweredError(f"{what}: BigQuery gives no answer{last}") from None
        finally:
            if ahead is not None:
                self._ask_ahead()
        self._left.get(what, {}).pop(call, None)
        return asked.result()

    def _within(self, what: str, call: str) -> tuple[timedelta, str]:
        """Return how long to wait, and how the last such call ended, if that was an error."""
        left = self._left.get(what, {})
        if not all(each.done() for each in left.values()):
            raise UnansweredError(f"{what}: BigQuery still gives no answer")
        if call not in left:
            return self._answers_within, ""
        error = left[call].exception()
        is_answer = error is None or isinstance(error, exceptions.ClientError)
        return _LATE if is_answer else _AFTER_SILENCE, "" if error is None else f"; its last one came late: {error}"


def _begin(what: str, question: Callable[[], T]) -> Future[T]:
    asked: Future[T] = Future()
    Thread(target=_answer, args=(asked, question), name=f"ask {what}", daemon=True).start()
    return asked


def _answer(asked: Future[T], question: Callable[[], T]) -> None:
    try:
        asked.set_result(question())
    except BaseException as error:  # noqa: BLE001  raised where the answer is taken
        asked.set_exception(error)


class AnsweringClient:
    """BigQuery's client for what is asked about tables: no call about one holds up the others for long.

    UnansweredError where there is no answer in time. What a call does all the same is found by the next one.
    """

    def __init__(self, client: bigquery.Client) -> None:
        self._client = client
        self._calls = Unanswered(ANSWERS_WITHIN)

    def get_table(self, table: bigquery.TableReference | str, **how: Any) -> bigquery.Table:
        """Return a table."""
        return self._calls.ask(f"table {table}", "get_table", partial(self._client.get_table, table, **how))

    def get_tables_ahead(self, tables: Iterable[str], **how: Any) -> AbstractContextManager[None]:
        """Ask for some tables ahead: within the block `get_table` takes these answers, in this order."""
        questions = {f"table {table}": partial(self._client.get_table, table, **how) for table in tables}
        return self._calls.ahead("get_table", questions)

    def create_table(self, table: bigquery.Table, **how: Any) -> bigquery.Table:
        """Make a table, and return it."""
        return self._calls.ask(
            f"table {table.reference}", "create_table", partial(self._client.create_table, table, **how)
        )

    def update_table(self, table: bigquery.Table, fields: Sequence[str], **how: Any) -> bigquery.Table:
        """Change some fields of a table, and return it."""
        return self._calls.ask(
            f"table {table.reference}", "update_table", partial(self._client.update_table, table, fields, **how)
        )

    def get_dataset(self, dataset: str, **how: Any) -> bigquery.Dataset:
        """Return a dataset."""
        return self._calls.ask(f"dataset {dataset}", "get_dataset", partial(self._client.get_dataset, dataset, **how))

    def list_tables(self, dataset: str, **how: Any) -> Sequence[bigquery.table.TableListItem]:
        """Return the tables of a dataset."""
        return self._calls.ask(
            f"dataset {dataset}", "list_tables", lambda: list(self._client.list_tables(dataset, **how))
        )

    def test_iam_permissions(self, table: str, permissions: Sequence[str], **how: Any) -> dict[str, Any]:
        """Return which of some permissions this identity has on a table."""
        asked = partial(self._client.test_iam_permissions, table, permissions, **how)
        return self._calls.ask(f"table {table}", "test_iam_permissions", asked)


TableClient = bigquery.Client | AnsweringClient
"""What makes calls about tables."""
