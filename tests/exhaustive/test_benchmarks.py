"""`make bench` from end to end at a tiny size: every figure that is promised is there, and none is judged."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from deploy.local.platform.emulators import ROOT
from tests.benchmarks.drain import ACCEPTED_TARGET, APPLIED_TARGET

PROMISED = {
    "drain.accepted",
    "drain.accepted.cpu",
    "drain.applied",
    "drain.accepted.high_level_subscriber",
    "peer.java_stream_writer",
    "flat.1000_changes.accepted",
    "flat.1_tables.cpu",
    "flat.100_tables.memory",
    "flat.100_tables.messages_again",
    "backlog.memory",
    "backlog.messages_again",
    "start.ready",
    "keys.80.cpu",
    "keys.160000.cpu",
    "start.first_change",
    "reader.records_per_cpu_second",
    "reader.unordered.records_per_cpu_second",
    "completion.cpu_per_change",
    "completion.published_p50_at_100",
    "completion.published_p99_at_100",
    "snapshot.rows_per_second",
    "snapshot.cpu_per_row",
    "bigtable_snapshot.rows_per_second",
    "bigtable_snapshot.cpu_per_row",
    "bigtable_snapshot.first_rows_after",
    "bigtable_reader.row.records_per_cpu_second",
    "bigtable_reader.changelog.records_per_cpu_second",
    "bigtable_reader.published_p50_at_200",
    "drain.accepted.packed_at_10000",
    "cluster.accepted",
    "freshness.p99_at_1",
    "freshness.p50_at_500",
    "freshness.p99_at_500",
    "amplification.zipf",
    "amplification.uniform",
    "idle.cores",
    "dead_letters.list",
    "dead_letters.groups",
    "dead_letters.filters",
    "dead_letters.stats",
}

FLAT = 1.3
"""How many times the memory of a tenth of a backlog all of it may take."""


@pytest.mark.timeout(1200)
def test_ten_million_small_changes_take_the_memory_of_one_million_and_none_comes_again(tmp_path: Path) -> None:
    figures = measured(tmp_path / "bench.json", {"BENCH_ONLY": "backlog"})[1]
    assert figures["backlog.memory"]["value"] < FLAT * figures["backlog.memory"]["baseline"]
    assert figures["backlog.memory"]["value"] < figures["backlog.memory"]["target"] == 1_500
    assert figures["backlog.messages_again"]["value"] == 0


@pytest.mark.timeout(1200)
def test_every_promised_figure_is_measured_and_written(tmp_path: Path) -> None:
    tiny = {
        "BENCH_CHANGES": "2000",
        "BENCH_RUNS": "1",
        "BENCH_REPEATS": "0",
        "BENCH_FLAT_CHANGES": "1000",
        "BENCH_BACKLOG": "2000",
        "BENCH_KEYS": "500",
        "BENCH_BASELINE_CHANGES": "200",
        "BENCH_RECORDS": "100",
        "BENCH_SECONDS": "2",
        "BENCH_SNAPSHOT_ROWS": "1000",
        "BENCH_DEAD_LETTERS": "200",
    }
    ended, figures = measured(tmp_path / "bench.json", tiny)
    assert figures.keys() >= PROMISED
    for one in figures.values():
        assert one.keys() >= {"name", "value", "unit", "runs", "date", "load"}
        assert len(one["runs"]) == 1
        assert one["value"] == one["runs"][0]
        assert one["value"] >= 0
    for name in (
        "drain.accepted",
        "drain.applied",
        "reader.records_per_cpu_second",
        "completion.cpu_per_change",
    ):
        assert figures[name]["ratio"] == pytest.approx(figures[name]["value"] / figures[name]["baseline"])
    assert figures["drain.accepted"]["target"] == ACCEPTED_TARGET
    assert figures["drain.applied"]["target"] == APPLIED_TARGET
    assert figures["amplification.zipf"]["value"] <= figures["amplification.uniform"]["value"] <= 1
    assert "every value as it should be" in ended
    # The profiles. So few changes are through most stages between two looks, but not through what waits for them.
    for part in (
        "consumer, 2,000 changes",
        "JVM: tasks",
        "PySpark worker",
        "append: answers",
        "reader, 100 changes",
        "row, 100 records",
    ):
        assert part in ended


def measured(output: Path, sizes: Mapping[str, str]) -> tuple[str, Mapping[str, Mapping[str, Any]]]:
    """Run `make bench`; return what it printed, and its figures by their names."""
    ended = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks"],
        cwd=ROOT,
        env={**os.environ, **sizes, "BENCH_OUTPUT": str(output)},
        capture_output=True,
        text=True,
        timeout=1100,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout, {one["name"]: one for one in json.loads(output.read_text())}
