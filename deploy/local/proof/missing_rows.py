"""The command that deletes missing rows, at the end of a run: one row goes, and all others stay.

The row is put into BigQuery behind everybody's back, so Spanner never had it. `delete-missing-rows` goes by the time
of a complete snapshot, so one is taken first, by the reader's own command.
"""

import json
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from deploy.local.platform.stack import Source
from deploy.local.platform.target import BigQueryDataset
from deploy.local.proof.launching import Launcher
from shared.contracts.timestamps import Nanoseconds, format_timestamp
from shared.runtime.stop import Stop

_TABLE: Final = "airlines"
_KEY: Final = "??"
_COMPLETE_SINCE: Final = "millrace_complete_since"
_POLL: Final = timedelta(milliseconds=500)


@dataclass(frozen=True, slots=True)
class MissingRowsProof:
    """What became of the row, and of the others."""

    source: str
    stayed: int = 0
    wrong: str = ""

    def __str__(self) -> str:
        return self.wrong or f"a row of {_TABLE} that Spanner never had is deleted, {self.stayed:,} others stay"


def prove_missing_rows(
    launch: Launcher, source: Source, dataset: BigQueryDataset, timeout: timedelta, stop: Stop
) -> MissingRowsProof:
    """Put a row into the mirror, take a snapshot of the table, and delete missing rows by its time."""
    name, before, asked_at = source.demo.name, _rows(dataset), source.database.now()
    dataset.query(f"INSERT INTO {_TABLE} (carrier, name) VALUES ('{_KEY}', 'never in Spanner')")
    asked = launch(source.pipeline, "spanner-reader", "snapshot", _TABLE)
    if asked.returncode:
        return MissingRowsProof(name, wrong=_ended("snapshot", asked))
    since = _complete_since(dataset, asked_at, timeout, stop)
    if since is None:
        return MissingRowsProof(name, wrong=f"{_TABLE} did not become complete within {timeout.total_seconds():.0f} s")
    ran = launch(
        source.pipeline, "delete-missing-rows", _TABLE, "--before", format_timestamp(since), "--execute", "--json"
    )
    return read_deletion(name, ran, before, _rows(dataset))


def read_deletion(
    source: str, ran: "subprocess.CompletedProcess[str]", before: Mapping[str, str], after: Mapping[str, str]
) -> MissingRowsProof:
    """Return what a deletion says and what it did: to delete too much is wrong whatever it says."""
    try:
        document: Mapping[str, Any] = json.loads(ran.stdout)
        counted = [document[what] for what in ("older", "deleted", "left")]
    except (json.JSONDecodeError, KeyError, TypeError):
        return MissingRowsProof(source, wrong=_ended("delete-missing-rows", ran))
    if before != after:
        changed = sorted(dict(before.items() ^ after.items()))
        return MissingRowsProof(source, wrong=f"{_TABLE} is not what it was before the row came: {', '.join(changed)}")
    if ran.returncode or counted != [1, 1, 0]:
        return MissingRowsProof(
            source, wrong=f"delete-missing-rows ended with exit code {ran.returncode}; older, deleted, left: {counted}"
        )
    return MissingRowsProof(source, len(after))


def _rows(dataset: BigQueryDataset) -> Mapping[str, str]:
    return {row["carrier"]: row["name"] for row in dataset.rows(_TABLE) or ()}


def _complete_since(
    dataset: BigQueryDataset, asked_at: Nanoseconds, timeout: timedelta, stop: Stop
) -> Nanoseconds | None:
    """Wait until a snapshot of after a time has come to its end; return its time, or None."""
    deadline = time.monotonic() + timeout.total_seconds()
    while True:
        since = Nanoseconds(int(dataset.labels(_TABLE).get(_COMPLETE_SINCE, "0")) * 1_000)
        if since >= asked_at // 1_000 * 1_000:
            return since
        if time.monotonic() > deadline or stop.wait(_POLL):
            return None


def _ended(command: str, ran: "subprocess.CompletedProcess[str]") -> str:
    return f"{command} ended with exit code {ran.returncode}: {(ran.stderr or ran.stdout).strip()[-500:]}"
