"""A row that is missing, one that is changed and one too many, planted in BigQuery while everything changes.

`reconcile` names exactly these, of a table of Spanner and of one of Bigtable. They are healed by `--repair`, and others
like them by a snapshot and the deletion of missing rows. What is done to both tables is done at the same time: most of
it is waiting.
"""

import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import pytest

from deploy.local.platform.services import Service, start_reader
from shared.contracts.timestamps import parse_timestamp
from tests.e2e.load import in_background
from tests.e2e.planting import Cells, Mirrored, Singers, Tags, an_upsert, never_reached
from tests.e2e.rig import Rig
from tests.integration.bigtable_front import Front

pytestmark = pytest.mark.timeout(900)

_TIMEOUT: Final = timedelta(minutes=2)
_NOTHING_DIFFERS: Final = (0, 3)
"""What it exits with; 3: rows that changed all the time are neither equal nor different."""
_STILL, _CHANGED = range(200), range(200, 1_200)
"""Rows that are left alone, and rows that change all the time: so many that each rests for longer than it is away."""
_AHEAD: Final = 20
"""Changes of Spanner's that may be on their way to its reader."""


@dataclass(frozen=True)
class Started:
    """A pipeline that runs, and its tables by where they are from."""

    rig: Rig
    consumer: Service
    spanner_reader: Service
    tables: Mapping[str, Mirrored]

    def for_each_table(self, prove: "Callable[[Started, Mirrored], None]") -> None:
        """Prove something of each table, at the same time."""
        with ThreadPoolExecutor(len(self.tables)) as pool:
            proving = {name: pool.submit(prove, self, table) for name, table in self.tables.items()}
        wrong = {name: error for name, one in proving.items() if (error := one.exception()) is not None}
        if wrong:
            raise AssertionError(f"not true of {', '.join(wrong)}") from next(iter(wrong.values()))

    def state(self, table: Mirrored) -> Mapping[str, Any]:
        """Return what the consumer says of a table."""
        return next((one for one in self.consumer.status().get("tables", ()) if one["table"] == table.name), {})

    def delete_before(self, table: Mirrored) -> str | None:
        """Return what the consumer says that rows of a table have to be as new as; None: they are."""
        since: str | None = self.state(table).get("delete_missing_rows_before")
        return since

    def settle(self, table: Mirrored) -> str:
        """Return longer than a change of a table takes to be applied, on a machine that may stand still for a while."""
        taken = sum(seconds or 0.0 for seconds in self.state(table)["lag_seconds"].values())
        return f"{10 + 5 * taken:.0f}s"


@pytest.fixture(scope="module")
def started(lasting_rig: Rig, bigtable_front: str) -> Iterator[Started]:
    """Return a pipeline that runs, with rows."""
    rig, before = lasting_rig, [*_STILL, *_CHANGED]
    with Front(bigtable_front) as front:
        tables: Mapping[str, Mirrored] = {"Spanner": Singers(rig), "Bigtable": Cells(rig, front.table("f"))}
        for table in (*tables.values(), Tags(rig)):
            table.write(before, "there before")
        consumer = rig.consumer()
        readers = {
            name: start_reader(rig.processes, table.pipeline, f"{name.lower()}_reader", start=None, **table.settings)
            for name, table in tables.items()
        }
        rig.wait_until_ready(*readers.values(), consumer)
        rig.wait_until_equal(timeout=_TIMEOUT)
        rig.wait(lambda: len(tables["Bigtable"].rows()) == len(before), "the rows of Bigtable", _TIMEOUT)
        yield Started(rig, consumer, readers["Spanner"], tables)


@pytest.fixture
def load(started: Started) -> Iterator[None]:
    """Change rows of all tables until the test ends; what comes of it is seen before it begins."""
    began = time.time_ns()

    def flows() -> bool:
        committed = [started.state(table).get("committed") for table in started.tables.values()]
        return all(one is not None and parse_timestamp(one) > began for one in committed)

    with changing(started):
        started.rig.wait(flows, "changes to be applied", _TIMEOUT)
        yield


@pytest.mark.usefixtures("load")
def test_reconcile_reports_exactly_the_planted_differences_and_repair_removes_them(started: Started) -> None:
    started.for_each_table(named_and_repaired)


def named_and_repaired(started: Started, table: Mirrored) -> None:
    table.plant(deleted=10, changed=11, extra=10_000)

    assert table.differences(started.settle(table)) == (1, {10: "missing", 11: "different", 10_000: "extra"})

    code, found = table.reconcile(started.settle(table), "--repair")
    assert (found["differences"], found["repaired"]) == ([], 3), found
    assert code in _NOTHING_DIFFERS
    code, others = table.differences(started.settle(table))
    assert (code in _NOTHING_DIFFERS, others) == (True, {})


@pytest.mark.usefixtures("load")
def test_a_snapshot_and_the_deletion_of_missing_rows_remove_the_planted_differences(started: Started) -> None:
    started.for_each_table(healed_by_snapshot_and_deletion)


def healed_by_snapshot_and_deletion(started: Started, table: Mirrored) -> None:
    table.plant(deleted=20, changed=21, extra=20_000)

    before = started.delete_before(table)
    table.snapshot()
    started.rig.wait(
        lambda: started.delete_before(table) not in (None, before), "the consumer to apply its end", _TIMEOUT
    )
    since = table.snapshot("--status")["complete_since"]
    assert started.delete_before(table) == since
    started.rig.wait(lambda: table.older(since) == {20_000}, "its rows to be applied", _TIMEOUT)
    code, answer = table.delete_missing_rows(since)
    assert (code, answer["gone"], answer["in_source"], answer["deleted"]) == (0, 1, 0, 0), answer
    assert [int(json.loads(key)[0]) for key in answer["some_gone"]] == [20_000]
    code, answer = table.delete_missing_rows(since, "--execute")
    assert (code, answer["deleted"], answer["left"]) == (0, 1, 0), answer

    code, others = table.differences(started.settle(table))
    assert (code in _NOTHING_DIFFERS, others) == (True, {})


def test_a_row_with_a_higher_sequence_than_any_repair_is_reported_as_not_repaired(started: Started) -> None:
    tags = Tags(started.rig)
    tags.append(an_upsert(never_reached(), tags.planted(1_000_000)))

    code, found = tags.reconcile("1s", "--repair")  # nobody else writes it
    assert (code, [(one["key"], one["kind"]) for one in found["differences"]]) == (1, [(["1000000"], "extra")])
    assert found["repaired"] == 0
    assert found["not_repaired"]


def test_all_tables_are_equal_when_the_changes_have_stopped(started: Started) -> None:
    started.for_each_table(equal)


def equal(started: Started, table: Mirrored) -> None:
    code, found = table.reconcile(started.settle(table))

    assert (code, found["verdict"], found["differences"]) == (0, "equal", []), found
    assert found["source_rows"] == found["mirror_rows"] == len(_STILL) + len(_CHANGED)


@contextmanager
def changing(started: Started) -> Iterator[None]:
    """Change rows of each table while the block runs: twenty a second, or as many as Spanner's emulator can follow.

    It reads its change stream between transactions, and falls behind without an end where a busy machine has too many.
    """

    def read() -> float:
        return started.rig.counted(started.spanner_reader, "millrace_reader_changes_total")

    def work(over: threading.Event) -> None:
        before, written = read(), 0
        for number in itertools.count():
            keys = {_CHANGED[(number * 70 + each * 13) % len(_CHANGED)] for each in range(10)}
            for table in started.tables.values():
                table.write(keys, f"change {number}")
            written += len(keys)
            while not over.wait(0.5) and read() - before < written - _AHEAD:
                pass
            if over.is_set():
                return

    with in_background(work):
        yield
