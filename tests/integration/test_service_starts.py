"""Every service as a process: what is missing or wrong ends it at once, with one message that names all of it."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from deploy.local.platform.services import BIGTABLE_READER, CONSUMER, DEAD_LETTER, READER, child_environment
from shared.runtime.service import MISCONFIGURED

pytestmark = pytest.mark.integration

ROOT: Final = Path(__file__).resolve().parents[2]
TIMEOUT: Final = 120  # seconds

REQUIRED: Final = {
    READER: ("GOOGLE_CLOUD_PROJECT SPANNER_INSTANCE SPANNER_DATABASE CHANGE_STREAM TOPIC DEAD_LETTER_TOPIC"),
    BIGTABLE_READER: "GOOGLE_CLOUD_PROJECT BIGTABLE_INSTANCE BIGTABLE_TABLE TOPIC DEAD_LETTER_TOPIC",
    CONSUMER: "GOOGLE_CLOUD_PROJECT SUBSCRIPTION DEAD_LETTER_TOPIC BIGQUERY_DATASET",
    DEAD_LETTER: "GOOGLE_CLOUD_PROJECT DEAD_LETTER_SUBSCRIPTION",
}
# Of every kind: a number, a duration, a bound, a choice, a file, a form, and two that do not go together.
WRONG: Final[Mapping[str, Mapping[str, str]]] = {
    READER: {
        "CHANGE_STREAM": "s; DROP TABLE t",
        "HEARTBEAT_INTERVAL": "soon",
        "BUCKETS": "0",
        "LOG_LEVEL": "LOUD",
        "TABLES_FILE": "/nowhere/tables.toml",
        "START_TIMESTAMP": "2024-01-02T00:00:00Z",
        "END_TIMESTAMP": "2024-01-01T00:00:00Z",
    },
    BIGTABLE_READER: {
        "BIGTABLE_TABLE": "not a table",
        "RESUME": "perhaps",
        "BATCH_BYTES": "many",
        "PORT": "65536",
        "TABLES_FILE": "/nowhere/tables.toml",
        "START_TIMESTAMP": "2024-01-02T00:00:00Z",
        "END_TIMESTAMP": "2024-01-01T00:00:00Z",
    },
    CONSUMER: {
        "SPARK_MASTER": "locl",
        "TASKS": "0",
        "LIVENESS": "1s",
        "TRIGGER": "once",
        "TABLES_FILE": "/nowhere/tables.toml",
        "BIGQUERY_EMULATOR_HOST": "127.0.0.1:1",
    },
    DEAD_LETTER: {
        "DATABASE": "oracle://me:marked-secret@host/letters",
        "PULL_BYTES": "1",
        "KEEP_DEAD_LETTERS_FOR": "long",
        "IAP_KEYS_FILE": "/nowhere/keys",
        "TABLES_FILE": "/nowhere/tables.toml",
        "API_HOST": "0.0.0.0",  # noqa: S104  with a port and nobody known: refused
        "API_PORT": "8083",
    },
}
SERVICES: Final = tuple(REQUIRED)


def refused(module: str, variables: Mapping[str, str]) -> dict[str, Any]:
    """Start a service that is to refuse; return the one line that it logs."""
    ran = subprocess.run(
        [sys.executable, "-m", module],
        env={**child_environment(os.environ), **variables, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT,
    )
    assert ran.returncode == MISCONFIGURED == 2, ran.stderr
    assert ran.stdout == ""
    (line,) = ran.stderr.splitlines()
    event: dict[str, Any] = json.loads(line)
    assert (event["event"], event["severity"]) == ("service_misconfigured", "ERROR")
    assert event["service"] == module.rpartition(".")[2]
    return event


@pytest.mark.parametrize("module", SERVICES)
def test_what_has_to_be_set_is_named_in_one_line(module: str) -> None:
    error = refused(module, {})["error"]

    for variable in REQUIRED[module].split():
        assert f"{variable} is not set (" in error


@pytest.mark.parametrize("module", SERVICES)
def test_whatever_is_wrong_is_named_in_one_line_beside_what_is_missing(module: str) -> None:
    wrong = WRONG[module]
    missing = [variable for variable in REQUIRED[module].split() if variable not in wrong]

    error = refused(module, wrong)["error"]

    for variable in (*missing, *wrong):
        assert variable in error
    assert "marked-secret" not in error
