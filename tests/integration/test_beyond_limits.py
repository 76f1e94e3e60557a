"""Calls that BigQuery refuses for a limit, as it refuses what is forbidden: they are made later, nothing is lost."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import grpc
import pytest
from google.cloud import bigquery
from structlog.testing import capture_logs

from services.cdc_consumer.adapters.bigquery.mirror_labels import COMPLETE_SINCE, DEAD_LETTERS, NEEDS_RESYNC, label_time
from services.cdc_consumer.adapters.bigquery.mirror_queries import MirrorQueries
from services.cdc_consumer.adapters.doctor.dataset_inspection import inspect_dataset
from services.cdc_consumer.adapters.schema.tables import BigQueryTables, check_dataset
from services.cdc_consumer.app.stream.table_notes import note_dead_letters
from services.cdc_consumer.core.schema.tables import TableColumn
from services.cdc_consumer.core.types.types import COLUMN_TYPES
from services.cdc_consumer.ports import LEFT_OUT, RECREATED, TableTroubleError
from services.dead_letter.adapters import mirrors as replayed
from services.dead_letter.core.rows import content_of
from shared.contracts.change_sequence import four_sections
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.contracts.timestamps import Nanoseconds
from shared.runtime.findings import Finding
from tests.builders import a_change, a_header
from tests.contract.table_places import HISTORY, PLANES
from tests.integration.stand_in import PROJECT, StandIn
from tests.unit.dead_letter.dead_letters import a_dead_letter

pytestmark = pytest.mark.integration

NO_RETRY: Any = None
MINUTE = 60_000_000
NOW = 1_700_000_000_000_000
LATER = 4_000_000_000_000_000
TEXT = COLUMN_TYPES["STRING"]
REASONS = ["rateLimitExceeded", "quotaExceeded"]
T = TypeVar("T")


@pytest.fixture
def stand_in(stand_in_alone: tuple[str, str]) -> Iterator[StandIn]:
    stand_in = StandIn(stand_in_alone)
    yield stand_in
    stand_in.control("DELETE", "faults")


def a_process(stand_in: StandIn) -> BigQueryTables:
    return BigQueryTables(stand_in.client, PROJECT, stand_in.dataset)


def refuse(stand_in: StandIn, reason: str, method: str, table: str = "", times: int = 1) -> None:
    name = f"{PROJECT}.{stand_in.dataset}.{table}" if table else ""
    fault = {"action": "answer", "on": "rest", "status": "RESOURCE_EXHAUSTED", "reason": reason, "method": method}
    stand_in.control("POST", "faults", **fault, table=name, times=times)


def use_up_updates(stand_in: StandIn) -> None:
    """Update the table as often as its limit allows in an hour of the stand-in's clock."""
    stand_in.control("POST", "limits", table_updates=3_600)
    for number in range(5):
        stand_in.run(f"ALTER TABLE planes ADD COLUMN c{number} STRING")


def a_table(stand_in: StandIn, name: str = "planes") -> bigquery.Table:
    return stand_in.client.get_table(f"{PROJECT}.{stand_in.dataset}.{name}")


def labels(stand_in: StandIn, name: str = "planes") -> dict[str, str]:
    found: dict[str, str] = a_table(stand_in, name).labels
    return found


def alterations(stand_in: StandIn, name: str = "planes") -> int:
    return int(stand_in.control("GET", "stats")["tables"][f"{PROJECT}.{stand_in.dataset}.{name}"]["alterations"])


class TestDeadLetters:
    def test_many_processes_at_once_change_the_table_once(self, stand_in: StandIn) -> None:
        a_process(stand_in).ensure(PLANES)
        processes, before = [a_process(stand_in) for _ in range(12)], alterations(stand_in)
        stand_in.control("POST", "limits", table_updates=3_600)
        for number, process in enumerate(processes):
            process.note_dead_letters("planes", "", NOW + number * 500_000)

        assert alterations(stand_in) == before + 1
        assert label_time(labels(stand_in), DEAD_LETTERS) >= NOW + 11 * 500_000 + 5 * MINUTE

    def test_a_label_written_by_another_process_is_reused_until_it_changes(self, stand_in: StandIn) -> None:
        one, two = a_process(stand_in), a_process(stand_in)
        one.ensure(PLANES)
        one.note_dead_letters("planes", "", NOW)
        two.note_dead_letters("planes", "", NOW + 5 * MINUTE)
        assert label_time(labels(stand_in), DEAD_LETTERS) == NOW + 10 * MINUTE
        two.note_dead_letters("planes", "", NOW + 5 * MINUTE + 1)
        assert label_time(labels(stand_in), DEAD_LETTERS) == NOW + 15 * MINUTE + 1

    @pytest.mark.parametrize("reason", REASONS)
    @pytest.mark.parametrize("method", ["GET", "PATCH"])
    def test_a_refusal_is_reported_until_it_has_passed(self, stand_in: StandIn, reason: str, method: str) -> None:
        tables = a_process(stand_in)
        tables.ensure(PLANES)
        refuse(stand_in, reason, method, "planes", times=3)
        with capture_logs() as logs:
            notes = [note_dead_letters(tables, ("planes", ""), Nanoseconds(NOW * 1_000)) for _ in range(4)]

        assert [bool(why) for why in notes] == [True, True, True, False]
        assert label_time(labels(stand_in), DEAD_LETTERS) == NOW + 10 * MINUTE
        assert [line["event"] for line in logs if "not_" in line["event"]] == ["dead_letters_not_noted"] * 3

    def test_beyond_the_limit_the_report_has_when_calls_are_possible_again(self, stand_in: StandIn) -> None:
        tables = a_process(stand_in)
        tables.ensure(PLANES)
        use_up_updates(stand_in)
        for _attempt in range(2):
            with pytest.raises(TransientError, match="too many table update operations") as refused:
                tables.note_dead_letters("planes", "", NOW)
            assert not isinstance(refused.value, TableTroubleError)
        stand_in.control("POST", "clock", seconds=3_600)
        tables.note_dead_letters("planes", "", NOW)

        assert label_time(labels(stand_in), DEAD_LETTERS) == NOW + 10 * MINUTE

    def test_a_table_that_is_made_a_moment_later_is_reported_too(self, stand_in: StandIn) -> None:
        tables = a_process(stand_in)
        tables.note_dead_letters("planes", "", NOW)
        tables.ensure(PLANES)
        tables.note_dead_letters("planes", "", NOW + 1)
        assert DEAD_LETTERS in labels(stand_in)


class TestColumns:
    def test_beyond_the_limit_columns_are_added_when_there_is_room_again(self, stand_in: StandIn) -> None:
        tables = a_process(stand_in)
        tables.ensure(PLANES)
        use_up_updates(stand_in)
        wider = replace(PLANES, columns=(*PLANES.columns, TableColumn("more", TEXT)))
        with pytest.raises(TransientError, match="too many table update operations") as refused:
            tables.ensure(wider)
        assert not isinstance(refused.value, TableTroubleError)
        stand_in.control("POST", "clock", seconds=3_600)

        assert "more" in {column.name for column in tables.ensure(wider).columns}


def later(stand_in: StandIn, reason: str, method: str, call: Callable[[], T], table: str = "planes") -> T:
    """Check that a call which is refused once for a limit is for later, and no trouble of its table; make it again."""
    refuse(stand_in, reason, method, table)
    with pytest.raises(TransientError) as refused:
        call()
    assert not isinstance(refused.value, TableTroubleError)
    return call()


@pytest.mark.parametrize("reason", REASONS)
class TestTables:
    def test_the_end_of_a_snapshot_is_recorded_later(self, stand_in: StandIn, reason: str) -> None:
        tables = a_process(stand_in)
        tables.ensure(PLANES)
        later(stand_in, reason, "PATCH", lambda: tables.complete(PLANES, LATER, LATER))

        assert labels(stand_in)[COMPLETE_SINCE] == str(LATER)

    def test_a_mirror_is_left_out_later(self, stand_in: StandIn, reason: str) -> None:
        tables = a_process(stand_in)
        tables.ensure(PLANES)
        later(stand_in, reason, "PATCH", lambda: tables.ensure(HISTORY))

        assert labels(stand_in)[NEEDS_RESYNC] == LEFT_OUT

    def test_a_table_is_made_later(self, stand_in: StandIn, reason: str) -> None:
        assert later(stand_in, reason, "POST", lambda: a_process(stand_in).ensure(PLANES)) == PLANES

    def test_a_recreated_table_is_reported_later_and_once(self, stand_in: StandIn, reason: str) -> None:
        one, two = a_process(stand_in), a_process(stand_in)
        for tables in (one, two):
            tables.ensure(PLANES)
        stand_in.client.delete_table(a_table(stand_in))
        for tables in (one, two):
            tables.forget("planes")
        later(stand_in, reason, "PATCH", lambda: one.ensure(PLANES))
        assert labels(stand_in)[NEEDS_RESYNC] == RECREATED
        before = alterations(stand_in)
        two.ensure(PLANES)

        assert alterations(stand_in) == before

    def test_a_start_waits_and_suggests_no_useless_fix(self, stand_in: StandIn, reason: str) -> None:
        check = partial(check_dataset, stand_in.client, PROJECT, stand_in.dataset)
        later(stand_in, reason, "GET", check, table="")
        refuse(stand_in, "accessDenied", "GET")
        with pytest.raises(MisconfiguredError, match=r"roles/bigquery\.dataEditor"):
            check()

    def test_a_query_is_asked_again(self, stand_in: StandIn, reason: str) -> None:
        a_process(stand_in).ensure(PLANES)
        path = f"{PROJECT}.{stand_in.dataset}.planes"
        asked = partial(MirrorQueries(stand_in.client).rows, path, f"SELECT 7 AS n FROM `{path}`, UNNEST([1])")
        assert later(stand_in, reason, "POST", asked, table="") == []

    @pytest.mark.parametrize("method", ["GET", "POST"])
    def test_doctor_asks_for_no_right_that_is_there(
        self, stand_in: StandIn, stand_in_alone: tuple[str, str], reason: str, method: str
    ) -> None:
        def found() -> list[Finding]:
            with grpc.insecure_channel(stand_in_alone[1]) as storage:
                return list(inspect_dataset(stand_in.client, storage, PROJECT, stand_in.dataset))

        refuse(stand_in, reason, method)
        refused = [one for one in found() if "no more calls" in one.detail]
        assert [one.fix for one in refused] == ["ask again in a minute"]
        refuse(stand_in, "accessDenied", method)
        assert any("roles/bigquery.dataEditor" in one.fix for one in found())


@pytest.mark.parametrize("reason", REASONS)
class TestReplays:
    @pytest.fixture
    def ask(self, stand_in: StandIn) -> Callable[[], Any]:
        a_process(stand_in).ensure(PLANES)
        stand_in.run(f"INSERT INTO planes (id, _millrace_sequence) VALUES (1, '{four_sections(10)}')")
        row = content_of(a_dead_letter(a_change(1), a_header())).row
        assert row is not None
        mirrors = replayed.BigQueryMirrors(stand_in.client, PROJECT, [stand_in.dataset])
        return lambda: mirrors.sequences([row])

    @pytest.mark.parametrize("method", ["GET", "POST"])
    def test_what_is_applied_is_asked_again(
        self, stand_in: StandIn, ask: Callable[[], Any], reason: str, method: str
    ) -> None:
        assert list(later(stand_in, reason, method, ask, table="").values()) == [str(four_sections(10))]
        refuse(stand_in, "accessDenied", "POST")
        with pytest.raises(MisconfiguredError, match="jobUser"):
            ask()

    def test_doctor_reports_that_it_may_pass(self, stand_in: StandIn, reason: str) -> None:
        check = partial(replayed.check_dataset, stand_in.client, PROJECT, stand_in.dataset)
        later(stand_in, reason, "GET", check, table="")
