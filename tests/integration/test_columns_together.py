"""Columns that several tasks add at once, in the middle of their micro-batches: one table, each column once.

Each task is a thread with clients of its own, as each of Spark's workers has them; only leases and dead letters are in
memory.
"""

import itertools
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from structlog.testing import capture_logs

from services.cdc_consumer.adapters.bigquery.append_connection import open_storage_channel
from services.cdc_consumer.adapters.bigquery.append_stream import AppendStreams
from services.cdc_consumer.adapters.schema.tables import BigQueryTables
from services.cdc_consumer.app.stream.micro_batch import Memory, Ports, apply
from services.cdc_consumer.core.stream.counts import Counts
from shared.bigquery.client import open_client
from shared.runtime.clock import SystemClock
from shared.runtime.stop import Stop
from tests.builders import PLANE_COLUMNS, a_change, a_header, a_message, messages_table
from tests.fakes.crash_counts import FakeCrashCounts
from tests.fakes.dead_letters import FakeDeadLetters
from tests.fakes.leases import FakeLeases
from tests.integration.stand_in import PROJECT, StandIn

_TASKS = 4


def _apply_at_once(
    addresses: tuple[str, str], dataset: str, columns_of_tasks: Sequence[Sequence[str]], tables: Sequence[str]
) -> list[Counts]:
    """Let every task apply one change to each table, with columns of its own, all from the same moment on."""
    barrier = Barrier(len(columns_of_tasks))

    def task(number: int, columns: Sequence[str]) -> Counts:
        stop, clock = Stop(), SystemClock()
        with open_storage_channel(addresses[1]) as channel:
            writer = AppendStreams(channel, PROJECT, dataset, stop, clock)
            ports = Ports(
                leases=FakeLeases(),
                dead_letters=FakeDeadLetters(),
                tables=BigQueryTables(open_client(PROJECT, addresses[0]), PROJECT, dataset),
                writer=writer,
                crash_counts=FakeCrashCounts(),
            )
            messages = [
                a_message(
                    a_change(number, 1, "UPSERT", **{name: f"{name} of {number}" for name in columns}),
                    header=a_header(table, [*PLANE_COLUMNS, *((name, "STRING") for name in columns)]),
                )
                for table in tables
            ]
            barrier.wait()
            try:
                return apply(messages_table(*messages), ports, Memory(), stop, clock)
            finally:
                writer.close()

    with ThreadPoolExecutor(len(columns_of_tasks)) as pool:
        return list(pool.map(task, itertools.count(), columns_of_tasks))


def _alterations(stand_in: StandIn) -> dict[str, int]:
    """Return how often each table was altered, as the stand-in counts it."""
    prefix = f"{PROJECT}.{stand_in.dataset}."
    tables = stand_in.control("GET", "stats")["tables"]
    return {name.removeprefix(prefix): counts["alterations"] for name, counts in tables.items() if prefix in name}


def test_each_task_adds_its_own_and_no_row_loses_a_value(stand_in: StandIn, bigquery_stand_in: tuple[str, str]) -> None:
    columns = [[f"only_{number}", "shared_by_all"] for number in range(_TASKS)]
    tables = ["planes", "pilots"]
    _apply_at_once(bigquery_stand_in, stand_in.dataset, [[]] * 1, tables)
    with capture_logs() as logs:
        counts = _apply_at_once(bigquery_stand_in, stand_in.dataset, columns, tables)

    assert [(one.acked, one.deferred, dict(one.dead_letters)) for one in counts] == [(len(tables), 0, {})] * _TASKS
    added = Counter(
        (line["table"], name) for line in logs if line["event"] == "columns_added" for name in line["columns"]
    )
    wanted = [(table, name) for table in tables for name in ["shared_by_all", *(f"only_{n}" for n in range(_TASKS))]]
    assert added == Counter(wanted)  # each once, though all tasks lacked it at the same moment
    altered = _alterations(stand_in)
    assert set(altered) == set(tables)
    assert all(1 <= times <= _TASKS for times in altered.values()), "at most one for each set of columns"
    for table in tables:
        names = ", ".join(f"only_{number}" for number in range(_TASKS))
        rows = stand_in.run(f"SELECT id, shared_by_all, {names} FROM {table} ORDER BY id")
        assert rows == [
            (n, f"shared_by_all of {n}", *(f"only_{n} of {n}" if n == other else None for other in range(_TASKS)))
            for n in range(_TASKS)
        ]


def test_what_all_tasks_lack_at_once_is_added_by_one_alteration(
    stand_in: StandIn, bigquery_stand_in: tuple[str, str]
) -> None:
    tables = ["planes", "pilots"]
    _apply_at_once(bigquery_stand_in, stand_in.dataset, [[]], tables)
    assert _alterations(stand_in) == dict.fromkeys(tables, 0)

    for number, columns in enumerate((["colour", "age"], ["colour", "age", "owner"]), 1):
        counts = _apply_at_once(bigquery_stand_in, stand_in.dataset, [columns] * _TASKS, tables)

        assert [(one.acked, one.deferred) for one in counts] == [(len(tables), 0)] * _TASKS
        assert _alterations(stand_in) == dict.fromkeys(tables, number)


def test_all_tasks_make_the_table_at_once_and_it_is_made_once(
    stand_in: StandIn, bigquery_stand_in: tuple[str, str]
) -> None:
    with capture_logs() as logs:
        counts = _apply_at_once(bigquery_stand_in, stand_in.dataset, [["colour"]] * _TASKS, ["planes"])

    assert [one.acked for one in counts] == [1] * _TASKS
    assert [line["table"] for line in logs if line["event"] == "table_created"] == ["planes"]
    assert _alterations(stand_in) == {"planes": 0}
    assert stand_in.run("SELECT id, colour FROM planes ORDER BY id") == [(n, f"colour of {n}") for n in range(_TASKS)]
