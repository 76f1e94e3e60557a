"""`make run` with Bigtable as the only source."""

import os
import subprocess
import sys

import pytest

from deploy.local.platform.services import child_environment
from tests.e2e.commands import ROOT, run_variable, running

pytestmark = pytest.mark.timeout(400)


def test_bigtable_alone_needs_nothing_of_spanner_and_ends_equal() -> None:
    variable = run_variable()
    size = {"SOURCES": "bigtable", "BEFORE": "200", "ROWS": "100", "SECONDS": "5", "RATE": "40"}

    run = subprocess.run(
        [sys.executable, "-m", "deploy.local", "run"],
        cwd=ROOT,
        env=child_environment(os.environ) | size | variable | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=390,
        check=False,
    )

    assert run.returncode == 0, run.stdout + run.stderr
    assert "discarded; none is open\n" in run.stdout
    assert run.stdout.rstrip().endswith("BigQuery equals Bigtable, every column of every row")
    assert not (ROOT / ".run/run/spanner_emulator.log").exists()
    assert running(variable) == []
