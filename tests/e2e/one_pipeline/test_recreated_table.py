"""A table dropped and made again, of which no record tells: healed by a snapshot and `delete-missing-rows`."""

import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest

from deploy.local.platform.emulators import ROOT
from deploy.local.platform.services import Service
from deploy.local.platform.source import Write
from tests.e2e.rig import Rig
from tests.worlds.commands import run_command

pytestmark = pytest.mark.timeout(1_800)

TIMEOUT = timedelta(minutes=5)
SOURCE = "python -m services.spanner_reader rows"


def answer(rig: Rig, service: str, *words: str, code: int | None = 0) -> Any:
    """Run a command, with the settings of both services; return its document."""
    settings = {**rig.pipeline.consumer_environment(rig.processes.directory), **rig.pipeline.reader_environment()}
    environment = {**rig.processes.environment, **settings, "PYTHONPATH": str(ROOT)}  # SOURCE is a process
    done = run_command(f"services.{service}", [*words, "--json"], environment)
    assert code in (None, done.returncode), (words, done.stdout, done.stderr)
    return json.loads(done.stdout)


def reader_status(rig: Rig) -> Mapping[str, Any]:
    found: Mapping[str, Any] = answer(rig, "spanner_reader", "status", code=None)
    return found


def tags(*names: str) -> list[Write]:
    return [Write("insert_or_update", "Tags", {"Tag": name}) for name in names]


def singer(key: int) -> Write:
    return Write("insert_or_update", "Singers", {"Id": key, "Name": f"singer {key}"})


def make_again(rig: Rig) -> None:
    """Drop the table and make it again, with some of the rows that it had and one more; the reader sees both."""
    rig.commit(singer(1), *tags("stays", "goes", "goes too"))
    rig.wait_until_equal(timeout=TIMEOUT)
    table = rig.named("Tags")
    rig.database.alter(f"DROP TABLE {table}")
    rig.wait(lambda: reader_status(rig)["left"] == [table], "the reader to see that the table is gone", TIMEOUT)
    rig.database.alter(f"CREATE TABLE {table} (Tag STRING(MAX) NOT NULL) PRIMARY KEY (Tag)")
    rig.commit(singer(2), *tags("stays", "comes"))


def state_of(consumer: Service, table: str) -> Mapping[str, Any]:
    return next((one for one in consumer.status().get("tables", ()) if one["table"] == table), {})


def test_a_recreated_table_is_resynced_by_commands(rig: Rig) -> None:
    consumer, reader = rig.consumer(), rig.start_reader(CHECK_SCHEMA_EVERY="1s")
    rig.wait_until_ready(reader, consumer, timeout=TIMEOUT)
    table = rig.named("Tags")
    make_again(rig)

    rig.wait(lambda: reader_status(rig)["pending_resync"], "the table to be marked", TIMEOUT)
    (request,) = reader_status(rig)["pending_resync"]
    assert (request["table"], request["why"][0]["kind"]) == (table, "table_dropped_and_made_again")
    answer(rig, "spanner_reader", "snapshot", table)

    def delete_before() -> str | None:
        shown: str | None = state_of(consumer, table).get("delete_missing_rows_before", "")
        return shown

    def complete_since() -> str | None:
        (shown,) = answer(rig, "spanner_reader", "snapshot", "--status", table, code=None)["snapshots"]
        since: str | None = shown["complete_since"]
        return since

    rig.wait(lambda: reader_status(rig)["pending_resync"] == [], "the mark to be taken away", TIMEOUT)
    since = complete_since()
    assert since is not None
    rig.wait(lambda: delete_before() == since, "the consumer to know which rows to delete", TIMEOUT)
    assert answer(rig, "spanner_reader", "status")["pending_resync"] == []

    def delete_missing(*words: str) -> Mapping[str, Any]:
        found: Mapping[str, Any] = answer(
            rig, "cdc_consumer", "delete-missing-rows", table, "--before", since, "--source", SOURCE, *words, code=None
        )
        return found

    rig.wait(lambda: delete_missing()["in_source"] == 0, "the snapshot's rows to arrive", TIMEOUT)
    dry = delete_missing()
    assert (dry["gone"], dry["some_gone"], dry["deleted"]) == (2, ['["goes"]', '["goes too"]'], 0)
    done = delete_missing("--execute")
    assert (done["deleted"], done["in_source"], done["left"]) == (2, 0, 0)
    rig.wait_until_equal(timeout=TIMEOUT)
    rig.wait(lambda: delete_before() is None, "the consumer to say that it is done", TIMEOUT)


def test_a_recreated_table_is_resynced_automatically(rig_without_spark: Rig) -> None:
    rig = rig_without_spark
    source = {"SOURCE_ROWS": SOURCE, **rig.pipeline.reader_environment()}
    consumer = rig.consumer(DELETE_MISSING_ROWS="automatic", DELETE_MISSING_ROWS_AFTER="2s", **source)
    reader = rig.start_reader(CHECK_SCHEMA_EVERY="1s", RESYNC="automatic")
    rig.wait_until_ready(reader, consumer, timeout=TIMEOUT)
    make_again(rig)

    rig.wait_until_equal(timeout=TIMEOUT)
    rig.wait(lambda: reader_status(rig)["pending_resync"] == [], "the mark to be taken away", TIMEOUT)
    rig.commit(*tags("after"))
    rig.wait_until_equal(timeout=TIMEOUT)
