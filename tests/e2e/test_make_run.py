"""The command that shows it all: what it exits with, and that it leaves nothing running.

What it says of a run with everything in it is looked at in `test_fresh_clone.py`.
"""

import json
import os
import re
import signal
import subprocess
import sys
from datetime import timedelta

import grpc
import pytest

from deploy.local.platform.creation import PROJECT
from deploy.local.platform.processes import wait_until
from deploy.local.platform.services import child_environment
from shared.pubsub.errors import status_of
from tests.e2e.commands import ROOT, run_variable, running
from tests.integration.stand_in import Writing
from tests.row_messages import row_message

pytestmark = pytest.mark.timeout(400)  # it starts the platform

UPSERT = {"carrier": "string", "name": "string", "_CHANGE_TYPE": "string", "_CHANGE_SEQUENCE_NUMBER": "string"}


def test_spanner_alone_starts_no_bigtable_and_an_unequal_run_exits_with_1_and_names_the_difference() -> None:
    variable = run_variable()
    size = {"SOURCES": "spanner", "BEFORE": "0", "ROWS": "100", "SECONDS": "5", "RATE": "40", "CATCH_UP_TIMEOUT": "20s"}
    command = [sys.executable, "-m", "deploy.local", "run"]
    environment = child_environment(os.environ) | size | variable | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as run:
        assert run.stdout is not None
        before = []
        for line in run.stdout:
            before.append(line)
            if "changing rows" in line:
                timeout, pause = timedelta(seconds=200), timedelta(seconds=0.5)  # each try opens a connection
                wait_until(a_row_is_changed_behind_its_back, "the table", timeout=timeout, pause=pause)
                break
        output = "".join(before) + run.stdout.read()

    assert run.returncode == 1, output
    assert "discarded; none is open\n" in output
    assert "BigQuery does NOT equal Spanner" in output
    assert re.search(
        r"differs: airlines\[UA\]: name is 'changed behind its back' in BigQuery and '.+' in Spanner", output
    )
    assert output.count("differs: ") == 1, "every other column of every row is equal"
    (asked,) = re.findall(r"^reconcile, .*airlines.*$", output, re.MULTILINE)
    assert '["UA"] different' in asked
    assert (
        "delete-missing-rows, flights: delete-missing-rows ended with exit code 1; older, deleted, left: [2, 1, 0]\n"
        in output
    ), "the changed row is older than the snapshot too; Spanner has it, so it stays"
    assert "bigtable_emulator.log" not in logs()
    assert running(variable) == []


def logs() -> set[str]:
    """Return the names of the logs of the last run here."""
    return {file.name for file in (ROOT / ".run" / "run").iterdir()}


def a_row_is_changed_behind_its_back() -> bool:
    """Write a row past the pipeline that no change from Spanner can win over; tell whether its table is there yet."""
    log = ROOT / ".run" / "run" / "bigquery_stand_in.log"
    (addresses,) = [line for line in log.read_text().splitlines() if "grpc_port" in line]
    stream = f"projects/{PROJECT}/datasets/millrace/tables/airlines/streams/_default"
    row = {"carrier": "UA", "name": "changed behind its back", "_CHANGE_TYPE": "UPSERT"}
    with Writing(f"127.0.0.1:{json.loads(addresses)['grpc_port']}", stream, row_message(UPSERT)) as writing:
        try:
            answer = writing.append([row | {"_CHANGE_SEQUENCE_NUMBER": "F" * 16}])
        except grpc.RpcError as error:
            if status_of(error)[0] is grpc.StatusCode.NOT_FOUND:
                return False
            raise
    assert not answer.row_errors
    return bool(answer.HasField("append_result"))


def test_ctrl_c_ends_make_run_soon_and_leaves_nothing_running() -> None:
    variable = run_variable()
    run = subprocess.Popen(
        ["make", "run"],
        cwd=ROOT,
        env=child_environment(os.environ) | variable | {"BEFORE": "200"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert run.stdout is not None
    for line in run.stdout:
        if "starting spanner_reader" in line:
            break

    assert any("spanner" in command for command in running(variable)), "its processes bear the mark"
    os.killpg(run.pid, signal.SIGINT)  # what a terminal does
    run.communicate(timeout=60)

    assert run.returncode != 0
    assert running(variable) == []
