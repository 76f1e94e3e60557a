"""Every service as a process, asked to stop before it has begun: what it stands on does not answer, or is not there.

The consumer runs without Spark here; `test_cdc_consumer_spark.py` stops one while Spark starts.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from deploy.local.platform.emulators import free_port
from deploy.local.platform.processes import wait_until
from deploy.local.platform.services import BIGTABLE_READER, CONSUMER, DEAD_LETTER, READER, child_environment
from tests.worlds.consumer import WITHOUT_SPARK

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

ROOT: Final = Path(__file__).resolve().parents[2]
TIMEOUT: Final = timedelta(seconds=120)
STOPS_WITHIN: Final = 10  # seconds: what Cloud Run leaves between SIGTERM and SIGKILL
UNREACHABLE: Final = "127.0.0.1:1"

_EVERYWHERE: Final = {"GOOGLE_CLOUD_PROJECT": "p", "DEAD_LETTER_TOPIC": "letters"}
LEAST: Final[Mapping[str, Mapping[str, str]]] = {
    READER: {"SPANNER_INSTANCE": "i", "SPANNER_DATABASE": "d", "CHANGE_STREAM": "s", "TOPIC": "t"},
    BIGTABLE_READER: {"BIGTABLE_INSTANCE": "i", "BIGTABLE_TABLE": "t", "TOPIC": "t"},
    CONSUMER: {"SUBSCRIPTION": "s", "BIGQUERY_DATASET": "mirror"},
    DEAD_LETTER: {"DEAD_LETTER_SUBSCRIPTION": "s"},
}
HOSTS: Final = (
    "PUBSUB_EMULATOR_HOST SPANNER_EMULATOR_HOST BIGTABLE_EMULATOR_HOST BIGQUERY_EMULATOR_HOST "
    "BIGQUERY_STORAGE_EMULATOR_HOST"
)


@contextmanager
def started(module: str, address: str, directory: Path) -> Iterator[tuple["subprocess.Popen[bytes]", int, Path]]:
    """Start a service all of whose services are at one address; yield its process, its port and its log."""
    port, log = free_port(), directory / "log"
    environment = {
        **child_environment(os.environ),
        **_EVERYWHERE,
        **LEAST[module],
        **dict.fromkeys(HOSTS.split(), address),
        "DATABASE": f"sqlite:///{directory}/letters.sqlite3",
        "PORT": str(port),
        "PYTHONPATH": str(ROOT),
    }
    with log.open("wb") as file:
        command = [sys.executable, "-m", WITHOUT_SPARK if module == CONSUMER else module]
        process = subprocess.Popen(command, env=environment, stdout=file, stderr=file)
    try:
        yield process, port, log
    finally:
        process.kill()
        process.wait()


def answer(port: int, path: str) -> int | None:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as found:
            return int(found.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code
    except OSError:
        return None


def events(log: Path) -> list[dict[str, Any]]:
    """Return what was logged; every line has to be JSON."""
    return [json.loads(line) for line in log.read_text().splitlines()]


@pytest.mark.parametrize("answers", [False, True], ids=["nobody is there", "nobody answers"])
@pytest.mark.parametrize("module", LEAST)
def test_asked_twice_to_stop_while_it_starts_it_ends_in_time_with_0(
    module: str, tmp_path: Path, *, answers: bool
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}" if answers else UNREACHABLE
        stops_while_it_starts(module, address, tmp_path)


def stops_while_it_starts(module: str, address: str, directory: Path) -> None:
    with started(module, address, directory) as (process, port, log):
        wait_until(lambda: answer(port, "/readyz") or None, "the health port", timeout=TIMEOUT)
        assert answer(port, "/readyz") == 503, "it is not ready"
        assert answer(port, "/healthz") == 200, "it lives: no restart would help"
        assert answer(port, "/metrics") == 200
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGTERM)

        assert process.wait(STOPS_WITHIN) == 0, log.read_text()
        logged = events(log)
    names = [one.get("event") for one in logged]
    assert (names[0], names[-1]) == ("service_started", "service_stopped")
    assert logged[0]["version"]
    assert logged[0]["project"] == "p"
    assert {one["service"] for one in logged} == {module.rpartition(".")[2]}


@pytest.mark.parametrize("module", LEAST)
def test_a_signal_before_the_first_log_line_ends_a_service_too(module: str, tmp_path: Path) -> None:
    with started(module, UNREACHABLE, tmp_path) as (process, _port, log):
        process.send_signal(signal.SIGTERM)

        assert process.wait(STOPS_WITHIN) in (0, -signal.SIGTERM), "nothing has begun: any end will do"
        assert all(one["severity"] != "ERROR" for one in events(log))
