"""A row that is missing, one that is changed and one too many, planted in BigQuery while everything changes.

`reconcile` names exactly these. They are healed by `--repair`, and others like them by a re-sync and a sweep.
"""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from deploy.local.emulators import ROOT
from deploy.local.services import CONSUMER, READER, start_consumer, start_reader, wait_until_ready
from deploy.local.source import SpannerInstance, Write
from shared.contracts.change_sequence import four_sections
from tests.e2e.rig import Rig
from tests.integration.stand_in import Writing
from tests.row_messages import CHANGE, change, row_message

pytestmark = pytest.mark.timeout(600)

_SETTLE = "30s"
"""Longer than changes take, on a busy machine too."""
_NOTHING_DIFFERS = (0, 3)
"""What it exits with; 3: rows that changed all the time are neither equal nor different."""
_STILL, _CHANGED = range(200), range(200, 300)
"""Singers that are left alone, and singers that change all the time."""


@pytest.fixture(scope="module")
def started(lasting_rig: Rig) -> Rig:
    """Return a pipeline that runs, with rows."""
    rig = lasting_rig
    rig.commit(*(Write("insert", "Singers", {"Id": key, "Name": f"singer {key}"}) for key in [*_STILL, *_CHANGED]))
    rig.commit(Write("insert", "Tags", {"Tag": "one"}))
    consumer = start_consumer(rig.processes, rig.pipeline)
    reader = start_reader(rig.processes, rig.pipeline, start=rig.start)
    wait_until_ready(rig.processes, reader, consumer)
    rig.wait_until_equal(patience=timedelta(minutes=2))
    return rig


@pytest.fixture
def running(started: Rig) -> Iterator[Rig]:
    """Return the pipeline, with rows that change until the test ends."""
    rig = started
    with changing(rig):
        yield rig


def test_reconcile_names_exactly_what_was_planted_and_a_repair_heals_it(running: Rig) -> None:
    rig = running
    plant(rig, deleted=10, changed=11, extra=1_000)

    assert differences(rig) == (1, {10: "missing", 11: "different", 1_000: "extra"})

    code, found = reconcile(rig, "Singers", "--repair")
    assert (found["differences"], found["repaired"]) == ([], 3), found
    assert code in _NOTHING_DIFFERS
    code, others = differences(rig)
    assert (code in _NOTHING_DIFFERS, others) == (True, {})


def test_a_resync_and_a_sweep_heal_it(running: Rig) -> None:
    rig = running
    plant(rig, deleted=20, changed=21, extra=2_000)

    before = complete_since(rig)
    assert command(rig, READER, "snapshot", "Singers")[0] == 0
    rig.wait(lambda: complete_since(rig) not in (None, before), "the snapshot to be complete")
    rig.wait(lambda: differences(rig) == (1, {2_000: "extra"}), "its rows to be applied", timedelta(minutes=2))
    sweep = ["sweep", "Singers", "--before", str(complete_since(rig)), "--json"]
    code, said = command(rig, CONSUMER, *sweep)
    assert json.loads(said)["gone"] == 1, said
    code, said = command(rig, CONSUMER, *sweep, "--execute")
    assert (code, json.loads(said)["deleted"]) == (0, 1), said

    code, others = differences(rig)
    assert (code in _NOTHING_DIFFERS, others) == (True, {})


def test_what_no_repair_can_win_over_is_said_and_not_called_healed(running: Rig) -> None:
    rig = running
    sequence = str(four_sections(rig.database.now() // 1_000 + timedelta(days=400) // timedelta(microseconds=1)))
    append(rig, "Tags", {**CHANGE, "Tag": "string"}, [change("UPSERT", sequence, Tag="planted", **ours(rig, sequence))])

    code, found = reconcile(rig, "Tags")
    assert (code, [(one["key"], one["kind"]) for one in found["differences"]]) == (1, [(["planted"], "extra")])
    code, found = reconcile(rig, "Tags", "--repair")
    assert (code, found["repaired"], len(found["differences"])) == (1, 0, 1)
    assert found["not_repaired"]


def test_once_nothing_changes_any_more_all_of_it_is_equal(started: Rig) -> None:
    code, found = reconcile(started, "Singers")

    assert (code, found["verdict"], found["differences"]) == (0, "equal", []), found


def plant(rig: Rig, *, deleted: int, changed: int, extra: int) -> None:
    """Write singers to BigQuery past the pipeline, as if the newest changes that there are were these."""
    sequence = str(four_sections(rig.database.now() // 1_000))
    rows = [change("DELETE", sequence, Id=deleted)]
    rows += [change("UPSERT", sequence, Id=key, Name="planted", **ours(rig, sequence)) for key in (changed, extra)]
    append(rig, "Singers", {**CHANGE, "Id": "int64", "Name": "string"}, rows)


def ours(rig: Rig, sequence: str) -> Mapping[str, Any]:
    """Return the columns of a planted row that the consumer would write beside the source's."""
    return {"_millrace_sequence": sequence, "_millrace_commit_timestamp": rig.database.now() // 1_000}


def append(rig: Rig, table: str, fields: Mapping[str, str], rows: Sequence[Mapping[str, Any]]) -> None:
    """Append rows to a mirror, as nobody but the consumer should."""
    named = {**fields, "_millrace_sequence": "string", "_millrace_commit_timestamp": "int64"}
    stream = f"projects/{rig.pipeline.project}/datasets/{rig.pipeline.dataset}/tables/{table}/streams/_default"
    with Writing(rig.pipeline.bigquery_grpc, stream, row_message(named)) as writing:
        answer = writing.append(rows)
    assert answer.HasField("append_result"), answer


def complete_since(rig: Rig) -> str | None:
    """Return since when the reader says that the table is complete; None: it is not."""
    told = json.loads(command(rig, READER, "snapshot", "--status", "--json")[1])
    (found,) = [one["complete_since"] for one in told["snapshots"] if one["table"] == "Singers"]
    return None if found is None else str(found)


@contextmanager
def changing(rig: Rig) -> Iterator[None]:
    """Change rows, twenty a second, while the block runs."""
    over = threading.Event()
    failed: list[Exception] = []
    pipeline = rig.pipeline

    def work() -> None:
        try:
            with closing(SpannerInstance.connect(pipeline.spanner, pipeline.project, pipeline.instance)) as instance:
                database = instance.database(pipeline.database)
                number = 0
                while not over.wait(0.2):
                    number += 1
                    keys = {_CHANGED[(number * 7 + each * 13) % len(_CHANGED)] for each in range(4)}
                    # whole seconds: in a change stream the emulator drops the rest
                    name, seen = f"change {number}", datetime.now(UTC).replace(microsecond=0)
                    database.commit(
                        [Write("update", "Singers", {"Id": key, "Name": name, "Seen": seen}) for key in keys]
                    )
        except Exception as error:  # noqa: BLE001 - raised again by whoever waits for this thread
            failed.append(error)

    thread = threading.Thread(target=work, name="changes")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    if failed:
        raise failed[0]


def differences(rig: Rig) -> tuple[int, Mapping[int, str]]:
    """Return what `reconcile` exits with, and which singers it says differ, and how."""
    code, found = reconcile(rig, "Singers")
    return code, {int(one["key"][0]): one["kind"] for one in found["differences"]}


def reconcile(rig: Rig, table: str, *more: str) -> tuple[int, Mapping[str, Any]]:
    """Compare a table; return the exit code, and what is said of it."""
    code, said = command(rig, CONSUMER, "reconcile", table, "--settle", _SETTLE, "--json", *more)
    (found,) = json.loads(said)["tables"]
    return code, found


def command(rig: Rig, module: str, *arguments: str) -> tuple[int, str]:
    """Run a command of the consumer or of the reader; return its exit code, and what it prints."""
    told = {
        **rig.processes.environment,
        **rig.pipeline.consumer_environment(rig.processes.directory / "cdc_consumer-checkpoint"),
        **rig.pipeline.reader_environment(),
        "PYTHONPATH": str(ROOT),
    }
    ran = subprocess.run(
        [sys.executable, "-m", module, *arguments], env=told, capture_output=True, text=True, check=False, timeout=300
    )
    assert ran.stdout, ran.stderr
    return ran.returncode, ran.stdout
