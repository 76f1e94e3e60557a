"""Questions without an answer: how long each is waited for, and that only an answer of now is taken."""

import re
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from google.cloud import bigquery

from services.cdc_consumer.adapters.bigquery.unanswered import Unanswered
from services.cdc_consumer.adapters.schema.tables import BigQueryTables
from services.cdc_consumer.ports import UnansweredError
from tests.builders import PLANE_COLUMNS, a_header, table_definition
from tests.unit.cdc_consumer.bigquery_client import NOT_FOUND, FakeBigQuery
from tests.unit.cdc_consumer.world import NOW

PLANES = table_definition(a_header())
WIDER = table_definition(a_header(columns=(*PLANE_COLUMNS, ("wings", "INT64"))))
WITHIN = timedelta(seconds=5)


class Silent:
    """A question that is answered only when the test lets it; the test never waits in real time."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.is_asked = threading.Event()
        self.may_answer = threading.Event()

    def __call__(self) -> int:
        self.is_asked.set()
        self.may_answer.wait()
        if self.error is not None:
            raise self.error
        return 1

    def answer(self) -> None:
        """Answer, late."""
        self.may_answer.set()
        for thread in threading.enumerate():
            if thread.name.startswith("ask "):
                thread.join()


@pytest.fixture
def silent() -> Silent:
    return Silent()


@pytest.fixture
def waited(silent: Silent, monkeypatch: pytest.MonkeyPatch) -> Sequence[float]:
    """Return how long answers are waited for."""
    found: list[float] = []
    exception = Future.exception

    def wait(asked: Future[int], timeout: float | None = None) -> BaseException | None:
        if timeout is not None:
            found.append(timeout)
            while timeout and not (asked.done() or silent.is_asked.is_set()):
                time.sleep(0.001)
            silent.is_asked.clear()
        return exception(asked, 0)

    monkeypatch.setattr(Future, "exception", wait)
    return found


def refuse() -> int:
    raise ValueError("refused")


def test_what_is_not_answered_is_waited_for_once_and_not_while_it_is_under_way(
    silent: Silent, waited: Sequence[float]
) -> None:
    reads = Unanswered(WITHIN)
    for _time in range(3):
        with pytest.raises(UnansweredError, match=r"table: BigQuery (still )?gives no answer"):
            reads.ask("table", "get", silent)
    assert reads.ask("another table", "get", lambda: 7) == 7
    silent.answer()
    assert waited == [5, 5]


@pytest.mark.parametrize(
    ("error", "then"), [(None, 30), (NOT_FOUND("no table"), 30), (OSError("the call timed out"), 1)]
)
def test_a_late_answer_is_not_taken_and_the_next_one_is_waited_for(
    silent: Silent, waited: Sequence[float], error: Exception | None, then: float
) -> None:
    reads, silent.error = Unanswered(WITHIN), error
    with pytest.raises(UnansweredError):
        reads.ask("table", "get", silent)
    silent.answer()
    assert reads.ask("table", "get", lambda: 2) == 2
    assert reads.ask("table", "get", lambda: 3) == 3
    assert waited == [5, then, 5]


def test_each_call_about_a_thing_has_its_own_time_and_none_is_made_while_another_runs(
    silent: Silent, waited: Sequence[float]
) -> None:
    reads, silent.error = Unanswered(WITHIN), OSError("no token")
    with pytest.raises(UnansweredError, match="table: BigQuery gives no answer"):
        reads.ask("table", "update", silent)
    with pytest.raises(UnansweredError, match="table: BigQuery still gives no answer"):
        reads.ask("table", "get", silent)
    silent.answer()
    silent.may_answer.clear()
    assert reads.ask("table", "get", lambda: 2) == 2
    with pytest.raises(UnansweredError, match="table: BigQuery gives no answer; its last one came late: no token"):
        reads.ask("table", "update", silent)
    silent.answer()
    assert waited == [5, 5, 1]


def test_several_that_are_asked_ahead_and_give_no_answer_are_waited_for_as_long_as_one(
    silent: Silent, waited: Sequence[float]
) -> None:
    seconds = [0.0]
    reads = Unanswered(WITHIN, lambda: seconds[0])
    with reads.ahead("get", {"planes": silent, "airports": silent, "pilots": lambda: 7}):
        assert reads.ask("pilots", "get", refuse) == 7
        assert reads.ask("pilots", "get", lambda: 8) == 8
        for table in ("planes", "airports"):
            silent.is_asked.set()  # ahead
            with pytest.raises(UnansweredError, match=f"{table}: BigQuery gives no answer"):
                reads.ask(table, "get", refuse)
            seconds[0] = 5.0
    with reads.ahead("get", {"airports": refuse}), pytest.raises(UnansweredError, match="BigQuery still gives no"):
        reads.ask("airports", "get", refuse)
    silent.answer()
    assert waited == [5, 5, 5, 0]


def test_what_is_asked_ahead_answers_only_what_is_asked_in_the_block(silent: Silent, waited: Sequence[float]) -> None:
    reads = Unanswered(WITHIN)
    with reads.ahead("get", {"planes": lambda: 1, "airports": silent}):
        assert reads.ask("planes", "update", lambda: 2) == 2
    assert reads.ask("planes", "get", lambda: 3) == 3
    assert reads.ask("airports", "get", lambda: 4) == 4  # the call ahead does not count
    silent.answer()
    assert waited == [5, 5, 5]


def test_a_few_calls_run_ahead_at_a_time(waited: Sequence[float]) -> None:
    reads, begun = Unanswered(WITHIN), list[int]()

    def question(number: int) -> Callable[[], int]:
        def answer() -> int:
            begun.append(number)
            return number

        return answer

    with reads.ahead("get", {str(number): question(number) for number in range(7)}):
        for number in range(7):
            assert reads.ask(str(number), "get", refuse) == number
            assert len(begun) <= number + 5
    assert sorted(begun) == list(range(7))
    assert len(waited) == 7


def test_an_error_in_time_is_raised_and_says_nothing_of_the_next_answer(waited: Sequence[float]) -> None:
    reads = Unanswered(WITHIN)
    with pytest.raises(ValueError, match="refused"):
        reads.ask("table", "get", refuse)
    assert reads.ask("table", "get", lambda: 2) == 2
    assert waited == [5, 5]


@pytest.mark.parametrize(
    "call",
    [
        lambda tables: tables.ensure(PLANES),
        lambda tables: tables.complete(PLANES, NOW, NOW),
        lambda tables: tables.set_pending_resync(PLANES, NOW),
        lambda tables: tables.note_dead_letters("planes", "", NOW),
        lambda tables: tables.ensure(replace(PLANES, name="planes_history", instead_of="planes")),
    ],
    ids=["ensure", "complete", "set_pending_resync", "note_dead_letters", "a history in its stead"],
)
def test_nothing_about_a_table_waits_longer_for_its_definition(
    call: Callable[[BigQueryTables], object], silent: Silent, waited: Sequence[float]
) -> None:
    class SilentBigQuery(FakeBigQuery):
        def get_table(self, path: object, **more: Any) -> bigquery.Table:
            if str(path).endswith(".planes"):
                silent()
            return super().get_table(path, **more)

    client: Any = SilentBigQuery()
    with pytest.raises(UnansweredError, match=r"table p\.d\.planes: BigQuery gives no answer"):
        call(BigQueryTables(client, "p", "d"))
    assert set(waited) == {5}
    silent.answer()


@pytest.mark.parametrize(
    ("silent_call", "call", "what"),
    [
        ("get_dataset", lambda tables: tables.ensure(PLANES), "dataset p.d"),
        ("create_table", lambda tables: tables.ensure(PLANES), "table p.d.planes"),
        ("update_table", lambda tables: tables.ensure(WIDER), "table p.d.planes"),
        ("update_table", lambda tables: tables.complete(PLANES, NOW, NOW), "table p.d.planes"),
        ("test_iam_permissions", lambda tables: tables.check_rights(PLANES), "table p.d.planes"),
        ("list_tables", lambda tables: tables.check_rights(PLANES), "dataset p.d"),
    ],
)
def test_no_call_about_a_table_or_its_dataset_is_waited_for_longer(
    silent_call: str, call: Callable[[BigQueryTables], object], what: str, silent: Silent, waited: Sequence[float]
) -> None:
    class SilentBigQuery(FakeBigQuery):
        def fail_if_planned(self, call: str) -> None:
            if call == silent_call:
                silent()

        def test_iam_permissions(self, *_asked: Any, **_how: Any) -> dict[str, Any]:
            self.fail_if_planned("test_iam_permissions")
            return {}

        def list_tables(self, _dataset: str, **_more: Any) -> Sequence[Any]:
            self.fail_if_planned("list_tables")
            return ()

    client: Any = SilentBigQuery()
    if silent_call == "update_table":
        BigQueryTables(client, "p", "d").ensure(PLANES)
    with pytest.raises(UnansweredError, match=rf"{re.escape(what)}: BigQuery gives no answer"):
        call(BigQueryTables(client, "p", "d"))
    assert set(waited) == {5}
    silent.answer()


def test_a_table_that_is_made_late_is_used_by_the_next_attempt(silent: Silent, waited: Sequence[float]) -> None:
    class LateBigQuery(FakeBigQuery):
        def create_table(self, table: bigquery.Table, **more: Any) -> bigquery.Table:
            silent()
            return super().create_table(table, **more)

    client: Any = LateBigQuery()
    tables = BigQueryTables(client, "p", "d")
    for _attempt in range(2):
        with pytest.raises(UnansweredError, match=r"table p\.d\.planes: BigQuery (still )?gives no answer"):
            tables.ensure(PLANES)
    silent.answer()

    assert tables.ensure(PLANES).name == "planes"
    assert set(waited) == {5}
