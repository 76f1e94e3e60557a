"""`query --wait` waits for the change that the last command made, and for nothing else."""

import io
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from deploy.local.__main__ import show_query
from deploy.local.platform.background import BackgroundPlatform
from deploy.local.platform.changes import Change, change_of, check_dml, is_applied, wait_until_applied
from deploy.local.platform.services import Endpoint
from deploy.local.platform.target import BigQueryDataset
from shared.contracts.errors import MisconfiguredError
from shared.contracts.timestamps import Nanoseconds, format_timestamp
from shared.runtime.stop import Stop

COMMITTED = Nanoseconds(1_700_000_000_123_456_789)
LATER = Nanoseconds(COMMITTED + 1_000_000_000)
EARLIER = Nanoseconds(COMMITTED - 1_000_000_000)


class Consumer(Endpoint):
    """A consumer whose status goes through these answers, a table's latest commit each, and stays at the last."""

    def __init__(self, *answers: Mapping[str, Nanoseconds | None]) -> None:
        super().__init__("")
        self._answers = list(answers)
        self.asked = 0

    def status(self) -> Mapping[str, Any]:
        self.asked += 1
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        committed = {table: None if at is None else format_timestamp(at) for table, at in answer.items()}
        return {"tables": [{"table": table, "committed": at} for table, at in committed.items()]}


class Dataset(BigQueryDataset):
    """A dataset in which each query finds so many rows, and then as many as the last did."""

    def __init__(self, *rows: int) -> None:
        self._rows = list(rows)
        self.queries: list[str] = []

    def query(self, sql: str, parameters: Sequence[Any] = ()) -> list[dict[str, Any]]:
        self.queries.append(sql)
        return [{"total": self._rows.pop(0) if len(self._rows) > 1 else self._rows[0]}]


def test_the_last_change_by_a_command_is_remembered(tmp_path: Path) -> None:
    platform = BackgroundPlatform(tmp_path)
    assert platform.last_change() is None
    for change in (Change("flights", COMMITTED, 3), Change("airport_traffic", LATER)):
        platform.remember_change(change)
        assert platform.last_change() == change


def test_a_later_change_of_another_table_is_not_the_one_that_is_waited_for() -> None:
    consumer = Consumer(
        {},
        {"airlines": LATER},
        {"airlines": LATER, "flights": None},
        {"airlines": LATER, "flights": EARLIER},
        {"airlines": LATER, "flights": COMMITTED},
    )
    wait_until_applied(Change("flights", COMMITTED), consumer, Dataset(0), Stop())
    assert consumer.asked == 5


def test_a_change_of_several_rows_is_applied_with_the_last_of_them() -> None:
    consumer, dataset = Consumer({"flights": COMMITTED}), Dataset(0, 1, 2, 3)
    wait_until_applied(Change("flights", COMMITTED, rows=3), consumer, dataset, Stop())
    assert len(dataset.queries) == 4
    (query,) = set(dataset.queries)
    assert query.startswith("SELECT COUNT(*) AS total FROM `flights` WHERE ")
    assert query.endswith(">= TIMESTAMP '2023-11-14T22:13:20.123456Z'"), "BigQuery has microseconds"


def test_a_consumer_that_does_not_answer_has_applied_nothing() -> None:
    assert not is_applied(Change("flights", COMMITTED), Endpoint("127.0.0.1:9"), Dataset(9))


@pytest.mark.parametrize(("wait", "shown"), [(True, "applied"), (False, "is not applied yet: `query --wait` waits")])
def test_a_query_that_waits_is_asked_once_the_change_is_applied(wait: bool, shown: str) -> None:
    consumer, text = Consumer({}, {"flights": EARLIER}, {"flights": COMMITTED}), io.StringIO()

    class Mirror(Dataset):
        def query(self, sql: str, parameters: Sequence[Any] = ()) -> list[dict[str, Any]]:
            return [{sql: "applied" if consumer.asked >= 3 else "old"}]

    arguments, change = Namespace(wait=wait, statement="SELECT"), Change("flights", COMMITTED)
    show_query(arguments, change, consumer, Mirror(), Console(file=text, width=80), Stop())
    assert shown in text.getvalue()
    assert ("old" in text.getvalue()) != wait


@pytest.mark.parametrize(
    ("statement", "change"),
    [
        ("UPDATE flights SET cancelled = TRUE WHERE TRUE", Change("flights", COMMITTED, 3)),
        ("insert into airlines (carrier) values ('ZZ')", Change("airlines", COMMITTED, 3)),
        ("INSERT OR UPDATE `airlines` (carrier) VALUES ('ZZ')", Change("airlines", COMMITTED, 3)),
        ("INSERT INTO \"stations\" (code) VALUES ('JFK')", Change("stations", COMMITTED, 3)),
        ("-- why\n@{LOCK_SCANNED_RANGES=exclusive}\n DELETE FROM flights WHERE TRUE", Change("flights", COMMITTED)),
        ("DELETE flights WHERE TRUE", Change("flights", COMMITTED)),
    ],
)
def test_the_table_of_a_change_is_that_of_its_statement(statement: str, change: Change) -> None:
    check_dml(statement)
    assert change_of(statement, 3, COMMITTED) == change


def test_names_of_tables_are_compared_as_spanner_does() -> None:
    assert is_applied(Change("Flights", COMMITTED), Consumer({"flights": COMMITTED}), Dataset(0))


def test_a_statement_that_changes_no_table_is_refused_with_the_command_that_reads() -> None:
    with pytest.raises(MisconfiguredError, match="no INSERT, UPDATE or DELETE of a table: SELECT 1; `query`"):
        check_dml("SELECT 1")
