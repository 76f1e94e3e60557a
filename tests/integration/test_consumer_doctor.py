"""The consumer's doctor, and what its start warns of, on the Pub/Sub emulator and the BigQuery stand-in."""

import io
import json
import os
import re
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from google.cloud import bigquery
from structlog.testing import capture_logs

from deploy.local.platform.emulators import ROOT
from deploy.local.platform.processes import Processes, wait_until
from services.cdc_consumer.adapters.schema.tables import BigQueryTables
from services.cdc_consumer.settings import Settings
from services.cdc_consumer.wiring.doctor import doctor
from services.cdc_consumer.wiring.service import check_start
from shared.bigquery.client import open_client
from shared.pubsub.channels import open_channel
from shared.pubsub.stubs import PublishRequest, publish_stub
from shared.pubsub.topology import PubsubTopology
from shared.runtime.findings import Finding, Level
from shared.runtime.health import Health
from shared.runtime.settings import read_settings
from shared.runtime.stop import Stop
from tests.builders import a_header, table_definition
from tests.integration.pubsub_topics import pull
from tests.integration.stand_in import PROJECT, StandIn
from tests.row_messages import CHANGE, change
from tests.worlds.doctor_checks import unexplained

pytestmark = pytest.mark.integration


@dataclass
class World:
    stand_in: StandIn
    topology: PubsubTopology
    environ: dict[str, str]

    def findings(self, **settings: str) -> Sequence[Finding]:
        out = io.StringIO()
        code = doctor(self.environ | settings, out, as_json=True)
        found = [Finding(**{**one, "level": Level(one["level"])}) for one in json.loads(out.getvalue())]
        assert code == any(one.level is Level.ERROR for one in found)
        return found

    def wrong(self, **settings: str) -> Mapping[str, Finding]:
        """Return what is not right, by its check."""
        return {one.check: one for one in self.findings(**settings) if one.level is not Level.OK}

    def path(self, table: str) -> str:
        return f"{PROJECT}.{self.stand_in.dataset}.{table}"

    def make(self, name: str, *fields: bigquery.SchemaField, key: Sequence[str] = ("id",), **more: Any) -> None:
        table = bigquery.Table(self.path(name), schema=[bigquery.SchemaField("id", "INT64"), *fields])
        if key:
            primary_key = bigquery.table.PrimaryKey(list(key))
            table.table_constraints = bigquery.table.TableConstraints(primary_key, None)
        for attribute, value in more.items():
            setattr(table, attribute, value)
        self.stand_in.client.create_table(table)


@pytest.fixture
def world(
    pubsub_emulator: str, topology: PubsubTopology, stand_in: StandIn, bigquery_stand_in: tuple[str, str]
) -> Iterator[World]:
    environ = {
        "GOOGLE_CLOUD_PROJECT": PROJECT,
        "SUBSCRIPTION": topology.subscription,
        "DEAD_LETTER_TOPIC": topology.dead_letter_topic,
        "BIGQUERY_DATASET": stand_in.dataset,
        "PUBSUB_EMULATOR_HOST": pubsub_emulator,
        "BIGQUERY_EMULATOR_HOST": bigquery_stand_in[0],
        "BIGQUERY_STORAGE_EMULATOR_HOST": bigquery_stand_in[1],
    }
    yield World(stand_in, topology, _with_java(environ))
    stand_in.control("DELETE", "faults")


def _with_java(environ: dict[str, str]) -> dict[str, str]:
    return environ | {name: os.environ[name] for name in ("PATH", "JAVA_HOME") if name in os.environ}


def test_a_healthy_setup_has_no_finding_and_leaves_nothing_behind(world: World, bigquery_stand_in: Any) -> None:
    tables = BigQueryTables(open_client(PROJECT, bigquery_stand_in[0]), PROJECT, world.stand_in.dataset)
    tables.ensure(table_definition(a_header()))
    findings = world.findings()

    assert {one.check: one.detail for one in findings if one.level is not Level.OK} == {}
    seen = {one.check: one.detail for one in findings}
    assert unexplained(seen) == []
    assert {"java", "settings", "tables file", "write API", "table planes"} <= set(seen)
    assert "a mirror, primary key (id), fresh at every query" in seen["table planes"]
    assert [one.table_id for one in world.stand_in.client.list_tables(world.stand_in.dataset)] == ["planes"]


def test_it_leases_no_message(world: World) -> None:
    with open_channel(world.environ["PUBSUB_EMULATOR_HOST"]) as channel:
        publish_stub(channel)(PublishRequest(topic=world.topology.topic, messages=[{"data": b"x"}]), timeout=10)
        world.findings()
        (received,) = pull(channel, world.topology.subscription)
    assert received.delivery_attempt == 1


def test_missing_settings_are_all_named_and_java_is_still_inspected(world: World, tmp_path: Path) -> None:
    found = world.wrong(SUBSCRIPTION="", DEAD_LETTER_TOPIC="", SPARK_MASTER="locl", JAVA_HOME=str(tmp_path))

    assert set(found) == {"java", "settings"}
    assert "SUBSCRIPTION is not set" in found["settings"].detail
    assert "DEAD_LETTER_TOPIC is not set" in found["settings"].detail
    assert "SPARK_MASTER='locl': names no Spark" in found["settings"].detail
    assert "openjdk-17-jre-headless" in found["java"].fix


def test_every_check_runs_although_others_fail(world: World, tmp_path: Path) -> None:
    broken = tmp_path / "tables.toml"
    broken.write_text("[defaults]\nmoode = 'mirror'\n")
    found = world.wrong(
        SUBSCRIPTION="gone",
        DEAD_LETTER_TOPIC="gone",
        BIGQUERY_DATASET="nowhere",
        BIGQUERY_STORAGE_EMULATOR_HOST="127.0.0.1:1",
        JAVA_HOME=str(tmp_path),
        TABLES_FILE=str(broken),
    )

    assert set(found) == {
        "java",
        "tables file",
        "subscription gone",
        "topic gone",
        "dataset nowhere",
        "write API",
    }
    assert "tables.toml:2" in found["tables file"].detail
    assert found["subscription gone"].fix.endswith("or make it with python -m services.cdc_consumer setup")
    assert f"bq --location=LOCATION --project_id={PROJECT} mk --dataset nowhere;" in found["dataset nowhere"].fix
    assert "UNAVAILABLE" in found["write API"].detail


def test_pubsub_and_bigquery_unavailable_are_reported_separately(world: World) -> None:
    nowhere = "127.0.0.1:1"
    found = world.wrong(
        PUBSUB_EMULATOR_HOST=nowhere, BIGQUERY_EMULATOR_HOST=nowhere, BIGQUERY_STORAGE_EMULATOR_HOST=nowhere
    )
    dataset = f"dataset {world.stand_in.dataset}"

    assert {dataset, "write API"} < set(found)
    assert "BigQuery does not answer" in found[dataset].detail
    assert sum("Pub/Sub does not answer" in one.detail for one in found.values()) == 6


@pytest.mark.parametrize("what", ["table", "partition"])
def test_a_dataset_that_forgets_its_tables_is_refused(world: World, what: str) -> None:
    name = f"forgetful_{uuid.uuid4().hex[:8]}"
    dataset = bigquery.Dataset(f"{PROJECT}.{name}")
    setattr(dataset, f"default_{what}_expiration_ms", 3 * 86_400_000)
    world.stand_in.client.create_dataset(dataset)
    found = world.wrong(BIGQUERY_DATASET=name)

    assert list(found) == [f"dataset {name}: expiry"]
    assert "deleted after 3 days" in found[f"dataset {name}: expiry"].detail
    assert f"--default_{what}_expiration 0" in found[f"dataset {name}: expiry"].fix


def test_a_start_warns_of_a_dataset_that_forgets_its_tables_and_of_no_other(world: World) -> None:
    name = f"forgetful_{uuid.uuid4().hex[:8]}"
    dataset = bigquery.Dataset(f"{PROJECT}.{name}")
    dataset.default_table_expiration_ms = 3 * 86_400_000
    world.stand_in.client.create_dataset(dataset)
    settings = read_settings(Settings, world.environ)
    with capture_logs() as lines:
        check_start(settings, [world.stand_in.dataset, name], Health(), Stop())

    (warned,) = [line for line in lines if line["event"] == "dataset_has_defaults"]
    assert (warned["log_level"], warned["dataset"]) == ("warning", name)
    assert warned["defaults"] == {"default_table_expiration": "3 days"}
    assert "take them off with bq update" in warned["note"]


@pytest.mark.parametrize(("containing", "check"), [('"expirationTime"', "making tables"), ('"permissions"', "rights")])
def test_a_right_that_is_missing_is_named_with_the_role_that_has_it(world: World, containing: str, check: str) -> None:
    fault = {"on": "rest", "action": "answer", "status": "PERMISSION_DENIED", "message": "no", "method": "POST"}
    world.stand_in.control("POST", "faults", containing=containing, **fault)
    found = world.wrong()

    assert list(found) == [f"dataset {world.stand_in.dataset}: {check}"]
    assert "roles/bigquery.dataEditor" in next(iter(found.values())).fix


def test_tables_that_changes_cannot_be_applied_to_are_named(world: World) -> None:
    ours: dict[str, Any] = {"labels": {"millrace_mirror_of": "x"}}
    world.make("keyless", key=(), **ours)
    world.make("stranger", key=())
    world.make("anew", labels={**ours["labels"], "millrace_needs_resync": "table_made_anew"})
    world.make("conflict", bigquery.SchemaField("_millrace_sequence", "INT64"), **ours)
    world.make("strict", bigquery.SchemaField("name", "STRING", mode="REQUIRED"), **ours)
    world.make("fine", bigquery.SchemaField("_millrace_sequence", "STRING"), max_staleness="0-0 0 0:15:0", **ours)
    world.make("denied", bigquery.SchemaField("_millrace_sequence", "STRING"), **ours)
    world.stand_in.control("POST", "faults", action="answer", on="rights", table=world.path("denied"))
    found = world.wrong()

    assert set(found) == {
        "table keyless: primary key",
        "table stranger: primary key",
        "table anew: pending resync",
        "table conflict: column conflict",
        "table strict: column conflict",
        "table denied: rights",
    }
    assert found["table keyless: primary key"].level is Level.ERROR
    assert found["table stranger: primary key"].level is Level.WARNING
    assert "ADD PRIMARY KEY" in found["table keyless: primary key"].fix
    assert "--clear_label millrace_needs_resync" in found["table anew: pending resync"].fix
    assert f"DROP TABLE `{world.path('conflict')}`" in found["table conflict: column conflict"].fix
    assert "DROP NOT NULL" in found["table strict: column conflict"].fix
    assert "lacks bigquery.tables.get" in found["table denied: rights"].detail
    fine = {one.check: one.detail for one in world.findings()}["table fine"]
    assert "max_staleness" in fine
    assert "merged by BigQuery" not in fine


def test_up_to_when_bigquery_has_merged_a_tables_changes_is_shown(world: World) -> None:
    ours: dict[str, Any] = {"labels": {"millrace_mirror_of": "x"}}
    world.make("merged", max_staleness="0-0 0 0:15:0", **ours)
    answer = world.stand_in.append("merged", {"id": "int64", **CHANGE}, [change("UPSERT", "1", id=1)])
    assert not answer.HasField("error")
    before = datetime.now(UTC).replace(microsecond=0)
    world.stand_in.control("POST", "applies/run", table=world.path("merged"))

    detail = {one.check: one.detail for one in world.findings()}["table merged"]
    at = re.search(r"merged by BigQuery up to (.*) UTC", detail)

    assert at is not None
    assert datetime.strptime(at[1], "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC) >= before


def test_a_mirror_that_its_readers_are_refused_is_named(world: World) -> None:
    ours: dict[str, Any] = {"labels": {"millrace_mirror_of": "x"}}
    world.make("unset", **ours)
    world.make("late", max_staleness="0-0 0 0:0:1", **ours)
    world.make("young", max_staleness="0-0 1 0:0:0", **ours)
    world.make("plain")
    try:
        for name in ("unset", "late", "young", "plain"):
            world.stand_in.control("POST", "applies/hold", table=world.path(name))
            assert not world.stand_in.append(name, {"id": "int64", **CHANGE}, [change("UPSERT", "1", id=1)]).row_errors
        wait_until(lambda: "table late: readers" in world.wrong() or None, "a second to be over")
        found = world.wrong()
    finally:
        for name in ("unset", "late", "young", "plain"):
            world.stand_in.control("POST", "applies/release", table=world.path(name))

    assert set(found) == {"table unset: readers", "table late: readers"}
    assert found["table unset: readers"].level is Level.WARNING
    assert "changes wait to be applied" in found["table unset: readers"].detail
    assert "set max_staleness in TABLES_FILE" in found["table unset: readers"].fix
    assert "for longer than its max_staleness, 1s" in found["table late: readers"].detail
    assert "raise max_staleness" in found["table late: readers"].fix
    for name in ("unset", "late"):
        world.stand_in.control("POST", "applies/run", table=world.path(name))
    (advice,) = world.wrong().values()
    assert advice.check == f"advice: {world.stand_in.dataset}.late: max_staleness"
    assert advice.detail.startswith("1s is less than the recommended")


def test_datasets_that_a_schema_names_are_inspected_where_they_hold_a_table_of_ours(
    world: World, tmp_path: Path
) -> None:
    file, prefix = tmp_path / "tables.toml", f"of_{uuid.uuid4().hex[:8]}_"
    file.write_text(f'[defaults]\ndataset = "{prefix}{{schema}}"\n', encoding="utf-8")
    for schema, labels in (("air", {"millrace_mirror_of": "x"}), ("sea", {"of": "somebody_else"})):
        world.stand_in.client.create_dataset(prefix + schema)
        keyless = bigquery.Table(f"{PROJECT}.{prefix}{schema}.keyless", schema=[bigquery.SchemaField("id", "INT64")])
        keyless.labels = labels
        world.stand_in.client.create_table(keyless)
    found = {one.check: one for one in world.findings(TABLES_FILE=str(file))}

    assert found["datasets by schema"].detail == f"{prefix}{{schema}}: {prefix}air"
    assert found[f"dataset {prefix}air"].level is Level.OK
    assert found["table keyless: primary key"].fix.startswith(f"ALTER TABLE `{PROJECT}.{prefix}air.keyless` ADD ")
    assert f"dataset {prefix}sea" not in found


def test_as_a_command_it_prints_a_table_and_its_exit_code_reports_whether_there_is_an_error(
    world: World, new_processes: Processes
) -> None:
    def run(**settings: str) -> tuple[int | None, str]:
        environment = {**world.environ, **settings, "PYTHONPATH": str(ROOT)}
        process = new_processes.start(
            f"doctor{uuid.uuid4().hex[:6]}", [sys.executable, "-m", "services.cdc_consumer", "doctor"], environment
        )
        process.expected_to_end = True
        return process.wait(timedelta(seconds=60)), process.output()

    code, printed = run()
    assert code == 0, printed
    assert printed.splitlines()[-1].endswith(" ok, 0 warning, 0 error")
    code, printed = run(SUBSCRIPTION="gone")
    assert code == 1
    assert "-> correct the setting that names it, or make it with python -m services.cdc_consumer setup" in printed
