"""The command that shows it all, as a user types it: what it exits with, and that it leaves nothing running."""

import json
import os
import re
import signal
import subprocess
import sys
from datetime import timedelta

import grpc
import pytest

from deploy.local.processes import wait_until
from deploy.local.services import child_environment
from deploy.local.stack import PROJECT
from shared.pubsub.errors import status_code
from tests.e2e.commands import ROOT, new_mark, running
from tests.integration.stand_in import Writing
from tests.row_messages import row_message

pytestmark = pytest.mark.timeout(400)  # each starts the whole platform

UPSERT = {"carrier": "string", "name": "string", "_CHANGE_TYPE": "string", "_CHANGE_SEQUENCE_NUMBER": "string"}


def test_make_run_ends_with_equal_tables_and_leaves_nothing_running() -> None:
    mark = new_mark()
    size = {"ROWS": "500", "SECONDS": "15", "RATE": "60"}

    run = subprocess.run(
        ["make", "run"],
        cwd=ROOT,
        env=child_environment(os.environ) | size | mark,
        capture_output=True,
        text=True,
        timeout=390,
        check=False,
    )

    assert run.returncode == 0, run.stdout + run.stderr
    tables = re.findall(r"│ (GoogleSQL|PostgreSQL|Bigtable) +│ (\w+) +│ +[\d,]+ │ +none │", run.stdout)
    assert sorted(tables) == [
        *(("Bigtable", table) for table in ("airport_traffic", "hourly_weather")),
        *(("GoogleSQL", table) for table in ("airlines", "airports", "flights", "planes")),
        *(("PostgreSQL", table) for table in ("observations", "stations")),
    ]
    added = re.findall(
        r"column added in mid-stream: (\S+) \((\S+)\) after [\d.]+ s, in BigQuery [\d.]+ s later\n"
        r"  ([\d,]+) of ([\d,]+) rows hold it, changed since [\d:.]+; the first was ",
        run.stdout,
    )
    assert [one[:2] for one in added] == [
        ("flights.aircraft", "GoogleSQL"),
        ("observations.temperature_c", "PostgreSQL"),
    ]
    assert all(0 < int(held.replace(",", "")) < int(total.replace(",", "")) for _, _, held, total in added)
    ((changes, committed),) = re.findall(
        r"history of flights: ([\d,]+) of ([\d,]+) changes.*, [\d,]+ versions; the current ones equal the mirror",
        run.stdout,
    )
    assert changes == committed
    assert re.search(r"^  \w\w \d+ 2013-01-\d\d [A-Z]{3} +[\d:.]+ to [\d:.]+ +inserted$", run.stdout, re.MULTILINE)
    ((entries, kinds),) = re.findall(
        r"change log of hourly_weather: ([\d,]+) entries.*: (.+); replayed, they are Bigtable's cells", run.stdout
    )
    counted = {kind: int(number.replace(",", "")) for number, kind in re.findall(r"([\d,]+) ([A-Z_]+)", kinds)}
    assert counted.keys() == {"SET_CELL", "DELETE_CELLS", "DELETE_FAMILY"}
    assert sum(counted.values()) == int(entries.replace(",", ""))
    ((split, merged),) = re.findall(r"hourly_weather (\d+) split, (\d+) merged", run.stdout)
    assert int(split) > 0
    assert int(split) >= int(merged)
    for source in ("Spanner", "Bigtable"):
        assert re.search(rf"^{source}, commit to queryable: p50 [\d.]+ s, p99 .* 0 unseen\)$", run.stdout, re.MULTILINE)
    assert run.stdout.rstrip().endswith("BigQuery equals Spanner and Bigtable, every column of every row")
    assert running(mark) == []


@pytest.mark.parametrize("source", ["Spanner", "Bigtable"])
def test_one_source_alone_needs_nothing_of_the_other(source: str) -> None:
    mark = new_mark()
    size = {"SOURCES": source.lower(), "ROWS": "100", "SECONDS": "5", "RATE": "40"}

    run = subprocess.run(
        [sys.executable, "-m", "deploy.local", "run"],
        cwd=ROOT,
        env=child_environment(os.environ) | size | mark | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=390,
        check=False,
    )

    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.rstrip().endswith(f"BigQuery equals {source}, every column of every row")
    others = {"spanner_emulator.log", "bigtable_emulator.log"} - {f"{source.lower()}_emulator.log"}
    assert not others & {file.name for file in (ROOT / ".run" / "run").iterdir()}
    assert running(mark) == []


def test_a_run_that_ends_unequal_exits_with_1_and_names_what_differs() -> None:
    mark = new_mark()
    size = {"SOURCES": "spanner", "ROWS": "200", "SECONDS": "5", "RATE": "40", "PATIENCE": "45s"}
    command = [sys.executable, "-m", "deploy.local", "run"]
    environment = child_environment(os.environ) | size | mark | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as run:
        assert run.stdout is not None
        before = []
        for line in run.stdout:
            before.append(line)
            if "changing rows" in line:
                wait_until(a_row_is_changed_behind_its_back, "the table", timeout=timedelta(seconds=60))
                break
        said = "".join(before) + run.stdout.read()

    assert run.returncode == 1, said
    assert "BigQuery does NOT equal Spanner" in said
    assert re.search(
        r"differs: airlines\[UA\]: name is 'changed behind its back' in BigQuery and '.+' in Spanner", said
    )
    assert said.count("differs: ") == 1
    assert running(mark) == []


def a_row_is_changed_behind_its_back() -> bool:
    """Write a row past the pipeline that no change from Spanner can win over; tell whether its table is there yet."""
    log = ROOT / ".run" / "run" / "bigquery_stand_in.log"
    (said,) = [line for line in log.read_text().splitlines() if "grpc_port" in line]
    stream = f"projects/{PROJECT}/datasets/millrace/tables/airlines/streams/_default"
    row = {"carrier": "UA", "name": "changed behind its back", "_CHANGE_TYPE": "UPSERT"}
    with Writing(f"127.0.0.1:{json.loads(said)['grpc_port']}", stream, row_message(UPSERT)) as writing:
        try:
            answer = writing.append([row | {"_CHANGE_SEQUENCE_NUMBER": "F" * 16}])
        except grpc.RpcError as error:
            if status_code(error) is grpc.StatusCode.NOT_FOUND:
                return False
            raise
    assert not answer.row_errors
    return bool(answer.HasField("append_result"))


def test_ctrl_c_ends_make_run_soon_and_leaves_nothing_running() -> None:
    mark = new_mark()
    run = subprocess.Popen(
        ["make", "run"],
        cwd=ROOT,
        env=child_environment(os.environ) | mark,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert run.stdout is not None
    for line in run.stdout:
        if "starting spanner_reader" in line:
            break

    assert any("spanner" in command for command in running(mark)), "its processes bear the mark"
    os.killpg(run.pid, signal.SIGINT)  # what a terminal does
    run.communicate(timeout=60)

    assert run.returncode != 0
    assert running(mark) == []
