"""Whether the platform is up is never guessed; what it prints is in the order in which it is needed."""

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from deploy.local.demo.wide_tables import WIDE_TABLES
from deploy.local.platform.background import BackgroundPlatform, how_to_use
from deploy.local.platform.creation import DATABASES
from deploy.local.platform.emulators import ROOT
from deploy.local.platform.services import BigtablePipeline, DeadLettersApi, Endpoint, Flow, Pipeline
from deploy.local.platform.stack import Source, Stack, WideSource
from deploy.local.platform.target import BigQueryDataset


def test_down_with_nothing_up_reports_so(tmp_path: Path) -> None:
    lines: list[str] = []

    assert BackgroundPlatform(tmp_path / "up").down(lines.append) == 0
    assert lines == ["nothing is up"]


def test_what_a_dead_supervisor_left_behind_is_not_up_and_no_process_is_killed(tmp_path: Path) -> None:
    (tmp_path / "lock").touch()
    state = {"supervisor": os.getpid(), "sessions": [], "flow": None, "text": ""}
    (tmp_path / "state.json").write_text(json.dumps(state))
    lines: list[str] = []

    platform = BackgroundPlatform(tmp_path)

    assert platform.flow() is None
    assert platform.down(lines.append) == 0
    assert lines == ["nothing is up"]


ADDRESSES: dict[str, Any] = {"pubsub": "h:1", "bigquery_rest": "h:2", "bigquery_grpc": "h:3", "project": "p"}
AT = cast("Any", SimpleNamespace(instance=SimpleNamespace(path="projects/p/instances/local"), path="projects/p"))


def a_stack(sources: str) -> Stack:
    """Return a platform of which nothing runs."""
    databases = [
        Source(
            demo,
            Pipeline(**ADDRESSES, spanner="h:4", database=demo.name, change_stream="s", instance="local"),
            AT,
            Endpoint("h:5"),
        )
        for demo in DATABASES
    ]
    wide = [
        WideSource(
            demo,
            BigtablePipeline(**ADDRESSES, bigtable="h:6", instance="local", table=demo.name, app_profile="a"),
            AT,
            Endpoint("h:7"),
        )
        for demo in WIDE_TABLES
    ]
    return Stack(
        Flow(**ADDRESSES),
        databases if sources != "bigtable" else [],
        wide if sources != "spanner" else [],
        cast("BigQueryDataset", None),
        Endpoint("h:8"),
        Endpoint("h:9"),
        DeadLettersApi(10, ROOT / ".run/up/api-token"),
    )


@pytest.mark.parametrize("sources", ["both", "spanner", "bigtable"])
def test_what_is_needed_most_comes_first_and_where_everything_runs_last(sources: str) -> None:
    lines = how_to_use(a_stack(sources), ROOT / ".run/up").splitlines()

    command = "  .venv/bin/python -m deploy.local"
    assert lines[0].startswith("up. The console, in a browser")
    assert lines[1] == "  http://127.0.0.1:10/"
    assert lines[2].split()[:2] == ["cat", ".run/up/api-token"]
    assert lines[3] == "The state of the services, what could not be applied, and the end of it all:"
    assert lines[4:7] == [f"{command} status", f"{command} dead-letters groups", "  make down"]
    typed = [line.removeprefix(command).split()[0] for line in lines[7:] if line.startswith(command)]
    spanner, bigtable = ["sql", "query"] * 3 * (sources != "bigtable"), ["add", "query"] * (sources != "spanner")
    assert typed == spanner + bigtable, "a change, and the query that shows it"
    headings = [line for line in lines if not line.startswith(" ")]
    assert [line.split()[0] for line in headings[-4:]] == ["any", "dead", "BigQuery,", "where"]
    assert lines[-1].startswith("  logs"), "nobody has to type anything of where it runs"
    assert not any(line.startswith(command) for line in lines[lines.index("where it runs:") :])
