"""The command `reconcile` where one of the tables cannot be compared: that is told, and the others are."""

import io
import json
from collections.abc import Iterator, Sequence
from datetime import timedelta

import pytest

from services.cdc_consumer.adapters.reconcile.mirror_tables import BigQueryMirrorTables
from services.cdc_consumer.commands.command_line import COMMAND_LINE, ReconcileCommand
from services.cdc_consumer.ports import FoundMirror
from services.cdc_consumer.wiring.reconcile import reconcile
from shared.contracts.change_batch import Op
from shared.contracts.change_sequence import four_sections
from shared.runtime.stop import Stop
from tests.integration.stand_in import PROJECT, StandIn
from tests.integration.swept_mirror import SOURCE, Mirror
from tests.worlds.command_lines import parsed

pytestmark = pytest.mark.integration


@pytest.fixture
def mirror(bigquery_stand_in: tuple[str, str]) -> Iterator[Mirror]:
    found = Mirror(StandIn(bigquery_stand_in), bigquery_stand_in)
    found.write([10, 2_000], 1_000)
    yield found
    found.stand_in.client.delete_dataset(found.stand_in.dataset, delete_contents=True)


def test_a_table_that_cannot_be_described_is_reported_and_the_others_are_compared(
    mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.cdc_consumer.app.reconcile.recheck.RETRY_BUDGET", timedelta(0))
    out = io.StringIO()
    arguments = ["Nothing", "Things", "Busy", "--json", "--settle", "0s", "--source", SOURCE]
    code = reconcile(parsed(COMMAND_LINE, ReconcileCommand, "reconcile", *arguments), mirror.environment(), Stop(), out)
    told = json.loads(out.getvalue())

    assert code == 2
    (compared,) = told["tables"]
    assert (compared["table"], compared["verdict"]) == ("Things", "different")
    assert {one["kind"] for one in compared["differences"]} == {"missing", "different", "extra"}
    assert [one["table"] for one in told["not_compared"]] == ["Nothing", "Busy"]
    assert "no table Nothing" in told["not_compared"][0]["why"]
    assert "too busy" in told["not_compared"][1]["why"]


def test_how_far_a_mirror_is_says_no_row_of_a_time_to_come_or_of_another_form(mirror: Mirror) -> None:
    mirror.write([11], 10**15)
    mirror.stand_in.run("INSERT INTO Things (Id, _millrace_sequence) VALUES (12, 'FF'), (13, NULL)")
    mirrors = BigQueryMirrorTables(mirror.stand_in.client, PROJECT, mirror.stand_in.dataset)
    found = FoundMirror(f"{PROJECT}.{mirror.stand_in.dataset}.Things")

    for until, newest in ((10**15, 10**15), (10**15 - 1, 1_000), (1, 0)):
        progress = mirrors.progress(found, str(four_sections(until)))
        assert progress.newest == (str(four_sections(newest)) if newest else "")


def test_any_applied_change_shows_that_a_mirror_moves(mirror: Mirror) -> None:
    mirrors = BigQueryMirrorTables(mirror.stand_in.client, PROJECT, mirror.stand_in.dataset)
    found, until = FoundMirror(f"{PROJECT}.{mirror.stand_in.dataset}.Things"), str(four_sections(2_000))
    states = [mirrors.progress(found, until).state for _again in range(2)]
    assert len(set(states)) == 1
    applied: Sequence[tuple[int, int, Op]] = (
        (10, 1_001, "UPSERT"),
        (11, 5, "UPSERT"),
        (11, 6, "DELETE"),
        (10, 1_002, "UPSERT"),
    )
    for key, micros, op in applied:
        mirror.write([key], micros, op)
        states.append(mirrors.progress(found, until).state)

    assert len(set(states)) == 5 - 1, "without the row of 11 it is as it was before"
