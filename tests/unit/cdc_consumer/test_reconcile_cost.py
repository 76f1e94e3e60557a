"""What a comparison costs, how much of the table it covers, and which exit code that gives."""

import json
from datetime import timedelta
from fractions import Fraction
from pathlib import Path

import pytest

from services.cdc_consumer.app.reconcile import reconcile
from services.cdc_consumer.app.reconcile.comparison import Candidate, Difference, TableDifferences
from services.cdc_consumer.app.reconcile.reconcile_report import (
    Thresholds,
    document,
    estimate_lines,
    estimates_document,
    exit_code,
    lines,
)
from services.cdc_consumer.commands.command_line import COMMAND_LINE, ReconcileCommand
from services.cdc_consumer.core.reconcile.comparing import DifferenceKind
from services.cdc_consumer.ports import FoundMirror, QueryEstimate, QuerySpend
from shared.contracts.errors import MisconfiguredError
from tests.unit.cdc_consumer.compared import HEADER, NOTE, World, kinds, reconciled, reconciler
from tests.worlds.command_lines import parsed


def a_difference(number: int) -> Difference:
    return Difference(f"[{number}]", DifferenceKind.MISSING, Candidate((str(number),), {"id": number}))


def compared(differences: int = 0, undecided: int = 0, rows: int = 1_000) -> TableDifferences:
    found = TableDifferences("things", source_rows=rows, mirror_rows=rows, rows=rows, not_rechecked=undecided)
    found.differences = [a_difference(number) for number in range(differences)]
    return found


def test_rows_that_differ_take_two_queries_more_however_many_they_are(tmp_path: Path) -> None:
    world = World(dict.fromkeys(range(3_000), NOTE), {})

    result = reconciled(world, tmp_path)

    assert (len(result.differences), result.cost.queries) == (3_000, 3)


def test_more_rows_than_a_query_asks_for_take_two_queries_a_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconcile, "BLOCK", 2)

    result = reconciled(World(dict.fromkeys(range(5), NOTE), {}), tmp_path)

    assert (len(result.differences), result.cost.queries) == (5, 1 + 3 * 2)


def test_what_was_found_before_the_money_ran_out_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconcile, "BLOCK", 2)

    result = reconciled(World(dict.fromkeys(range(5), NOTE), {9: NOTE}, most_queries=4), tmp_path)

    assert (len(kinds(result)), result.not_rechecked, result.cost.queries) == (2, 4, 4)
    assert result.coverage == pytest.approx(2 / 6)
    assert exit_code([result]) == 1
    assert "--max-bytes allows no more" in "\n".join(lines(result, 20))
    (one,) = document([result], {})["tables"]
    assert (one["rows"], one["compared"], one["stopped"]) == (6, 2, "--max-bytes allows no more [made-up]")


def test_a_mirror_whose_reading_costs_too_much_is_not_compared(tmp_path: Path) -> None:
    with pytest.raises(MisconfiguredError, match="--max-bytes"):
        reconciled(World({1: NOTE}, {1: NOTE}, most_queries=0), tmp_path)


def test_rows_of_either_side_are_present_and_those_that_are_undecided_are_not_compared(tmp_path: Path) -> None:
    world = World({1: NOTE, 2: NOTE, 3: '{"ai": ["1", null]}'}, {1: NOTE, 4: NOTE})

    result = reconciled(world, tmp_path)

    assert (result.rows, result.compared, result.coverage) == (4, 4, Fraction(1))
    assert TableDifferences("things").coverage == 1, "of no rows, all"


@pytest.mark.parametrize(
    ("found", "thresholds", "code"),
    [
        (compared(), Thresholds(), 0),
        (compared(differences=1), Thresholds(), 1),
        (compared(undecided=1), Thresholds(), 3),
        (compared(differences=2), Thresholds(max_differences=2), 0),
        (compared(differences=3), Thresholds(max_differences=2), 1),
        (compared(undecided=1), Thresholds(min_coverage=99.9), 0),
        (compared(undecided=2), Thresholds(min_coverage=99.9), 3),
        (compared(differences=1, undecided=2), Thresholds(max_differences=1), 3),
        (compared(differences=2, undecided=2), Thresholds(max_differences=1, min_coverage=99), 1),
        (compared(undecided=1_000), Thresholds(min_coverage=0), 0),
    ],
)
def test_thresholds_decide_what_is_good_enough(found: TableDifferences, thresholds: Thresholds, code: int) -> None:
    assert exit_code([compared(), found], thresholds) == code


def test_the_coverage_and_the_cost_are_reported() -> None:
    found = compared(undecided=1)
    found.cost = QuerySpend(3, 31_457_280)

    assert "  999 of 1000 rows compared (99.9 %); BigQuery billed 31457280 bytes for 3 queries" in list(
        lines(found, 20)
    )
    (one,) = document([found], {})["tables"]
    assert (one["rows"], one["compared"], one["coverage_percent"]) == (1_000, 999, 99.9)
    assert (one["queries"], one["bytes_billed"]) == (3, 31_457_280)


def test_a_coverage_that_is_not_whole_is_never_shown_as_such() -> None:
    found = compared(undecided=1, rows=10_000_000)

    assert "99.99 %" in "\n".join(lines(found, 20))


def test_a_dry_run_reports_what_would_be_read_and_reads_nothing(tmp_path: Path) -> None:
    world = World(dict.fromkeys(range(5), NOTE), dict.fromkeys(range(3), NOTE))

    mirror, estimate = reconciler(world, tmp_path).estimate(HEADER.table)

    assert (estimate, world.queries) == (QueryEstimate(3, 6), 0)
    shown = "\n".join(estimate_lines("things", mirror, QueryEstimate(1_500_000_000, 20_000)))
    assert "1500000000 bytes (1.5 GB)" in shown
    assert "20000 bytes (20.0 kB)" in shown
    estimates = estimates_document({"things": (FoundMirror("p.d.things"), QueryEstimate(3, 6))}, {"odd": "why"})
    assert json.loads(json.dumps(estimates)) == {
        "tables": [{"table": "things", "mirror": "p.d.things", "read_bytes": 3, "recheck_bytes": 6}],
        "not_compared": [{"table": "odd", "why": "why"}],
    }


@pytest.mark.parametrize(
    ("text", "size"),
    [("1000", 1_000), ("5kB", 5_000), ("1.5GB", 1_500_000_000), ("2 TB", 2 * 10**12), ("1TiB", 1 << 40)],
)
def test_sizes_are_written_with_a_unit_or_without(text: str, size: int) -> None:
    command = parsed(COMMAND_LINE, ReconcileCommand, "reconcile", "things", "--max-bytes", text)

    assert command.max_bytes == size


@pytest.mark.parametrize("wrong", ["", "much", "-1", "5 parsecs", "1e3", "0.5"])
def test_what_is_no_size_is_refused(wrong: str) -> None:
    with pytest.raises(MisconfiguredError, match="max-bytes"):
        COMMAND_LINE.parse(["reconcile", "things", f"--max-bytes={wrong}"])


def test_the_pause_between_rechecks_is_the_time_that_rows_have_to_stand_still(tmp_path: Path) -> None:
    world = World({1: NOTE}, {})
    start = world.now

    reconciled(world, tmp_path, settle=30)

    assert timedelta(microseconds=(world.now - start) / 1_000) == timedelta(seconds=30)
