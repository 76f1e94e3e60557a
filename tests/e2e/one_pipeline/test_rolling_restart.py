"""All four services restarted one after the other under load: each ends as it should, nothing is lost, nothing is told.

The rows, and the messages that cannot be applied, hold a marker: no log may have it, at DEBUG neither.
"""

import http.client
import itertools
import json
import os
import signal
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Collection
from contextlib import closing
from datetime import timedelta
from typing import Final

import pytest

from deploy.local.platform.processes import GRACE, Processes
from deploy.local.platform.services import Service, dead_letters_in, start_dead_letter, start_reader
from services.dead_letter.adapters.store.database import open_database
from services.dead_letter.adapters.store.store import SqlDeadLetterStore
from services.dead_letter.core.selection import Selection
from shared.contracts.reasons import Reason
from tests.e2e.load import MARKER, Load, mirrored
from tests.e2e.rig import Rig
from tests.integration.bigtable_front import Front

pytestmark = pytest.mark.timeout(1_800)

TIMEOUT: Final = timedelta(minutes=7)
READY: Final = 200
NOT_READY: Final = 503


def test_services_restarted_under_load_exit_with_0_lose_no_change_and_log_no_value(
    rig: Rig, processes: Processes, bigtable_front: str
) -> None:
    with Front(bigtable_front) as front:
        table = front.table("f")
        wide = rig.standing.bigtable(table)
        partitions = f"partitions-{uuid.uuid4().hex[:8]}"
        starts: dict[str, Callable[[], Service]] = {
            "spanner_reader": lambda: rig.start_reader(LOG_LEVEL="DEBUG"),
            "bigtable_reader": lambda: start_reader(
                processes, wide, "bigtable_reader", PARTITION_TABLE=partitions, LOG_LEVEL="DEBUG"
            ),
            "cdc_consumer": rig.consumer,
            "dead_letter": lambda: start_dead_letter(processes, rig.pipeline, LOG_LEVEL="DEBUG"),
        }
        first = {name: start() for name, start in starts.items()}
        services = dict(first)
        rig.wait_until_ready(*services.values(), timeout=TIMEOUT)

        load = Load(rig, table)
        with load.running():
            for name, start in starts.items():
                before = load.poison
                code, answers = stopped(services[name])
                assert code == 0, services[name].process.obituary()
                if name == "cdc_consumer":  # which takes seconds to end; the others may be gone between two looks
                    assert NOT_READY in answers, "it says that it is not ready before it is gone"
                services[name] = start()
                rig.wait_until_ready(services[name], timeout=TIMEOUT)
                rig.wait(lambda before=before: load.poison > before, "more load", TIMEOUT)  # type: ignore[misc]

        rig.wait_until_equal(("Singers", "Tags"), timeout=TIMEOUT)
        rig.wait(
            lambda: mirrored(rig.target.rows(wide.table) or []) == load.cells, "Bigtable's mirror to be equal", TIMEOUT
        )
        rig.wait(lambda: dead_letters(processes) == load.poison, f"{load.poison} dead letters", TIMEOUT)
        counted = {name: service.exposed() for name, service in services.items()}
        processes.end_all()
        rig.standing.stop()
    for name, text in counted.items():
        assert MARKER not in text, name
        samples = [line for line in text.splitlines() if not line.startswith("#")]
        assert 10 < len(samples) < 300, f"{name}: histograms by table, and nothing by row"
    outputs = {name: service.process.output() for name, service in first.items()}  # and what the second start says
    for name, text in outputs.items():
        assert MARKER not in text, f"{name}: {next(line for line in text.splitlines() if MARKER in line)}"
        logged = [json.loads(line) for line in text.splitlines()]
        names = [one.get("event") for one in logged]
        assert names.count("service_started") == names.count("service_stopped") == 2, name
        assert {one["service"] for one in logged} == {name}
        assert all({"time", "severity", "message"} <= one.keys() for one in logged)


def stopped(service: Service) -> tuple[int | None, Collection[int | None]]:
    """Ask a service twice to end; return its exit code, and what it said from then on of being ready."""
    answers: list[int | None] = []
    over = threading.Event()

    def poll() -> None:
        while not over.is_set():
            answers.append(readiness(service))
            time.sleep(0.005)

    polling = threading.Thread(target=poll, name="readiness", daemon=True)
    polling.start()
    pid = service.process.pid
    asked = len(answers)
    service.process.ask_to_end()
    try:
        os.kill(pid, signal.SIGTERM)
        code = service.process.wait(GRACE)
    finally:
        over.set()
        polling.join()
    since = list(itertools.dropwhile(lambda answer: answer == READY, answers[asked:]))
    assert READY not in since, "ready again after it was asked to stop"
    return code, since


def readiness(service: Service) -> int | None:
    """Return the status by which it says whether it is ready; None where there is no answer."""
    try:
        with urllib.request.urlopen(f"http://{service.address}/readyz", timeout=5) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except (OSError, http.client.HTTPException):
        return None


def dead_letters(processes: Processes) -> int:
    """Return how many dead letters the store has, each as often as it failed for the reason that it should."""
    with closing(open_database(f"sqlite:///{dead_letters_in(processes.directory)}", make=False)) as database:
        page = SqlDeadLetterStore(database).find(Selection(), limit=1_000, after=None)
    assert {one.reason for one in page.dead_letters} <= {Reason.UNDECODABLE, Reason.VALUE_DOES_NOT_FIT}
    return len(page.dead_letters)
