"""A pipeline that moves to another project, to another topic, or comes again after almost everything was lost.

Each test does what the table "Move, roll back, recover" of docs/how-to/deploy-on-google-cloud.md says, with load on a
source of each kind, but where the source was restored. The consumer runs without Java: these tests start nine of it.
"""

import base64
import json
import os
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from deploy.local.platform.processes import Processes
from deploy.local.platform.services import BIGTABLE_READER, DEAD_LETTER, READER, child_environment
from deploy.local.platform.source import SpannerDatabase, Write
from shared.pubsub.topology import create_topology
from tests.e2e.load import MARKER, Load
from tests.e2e.planting import an_upsert
from tests.e2e.rig import SCHEMA
from tests.exhaustive.deployment import ALL, TABLES, TIMEOUT, Deployment
from tests.integration.bigtable_front import delete_row, set_cell
from tests.integration.readers import refusal
from tests.integration.stand_in import Writing
from tests.row_messages import CHANGE, row_message
from tests.worlds.consumer import WITHOUT_SPARK

AHEAD = timedelta(seconds=30)
PLANTED, EXTRA = "row-901", "row-902"

pytestmark = pytest.mark.timeout(1_200)


@pytest.fixture
def load(deployment: Deployment) -> Load:
    """Start the services of the pipeline; return load on its sources."""
    deployment.start(*ALL)
    return Load(deployment.rig, deployment.source)


def test_a_second_pipeline_in_another_project_takes_over_when_reconcile_finds_both_equal(
    deployment: Deployment, load: Load, tmp_path: Path
) -> None:
    first, rig = deployment, deployment.rig
    elsewhere = replace(first.flow, project="millrace-elsewhere", name="moved-here")
    with Processes(tmp_path / "second", child_environment(os.environ)) as processes:
        second = Deployment(rig, first.source, processes, WITHOUT_SPARK, elsewhere)
        with load.running():
            first.wait_until_it_flows()
            second.create()
            second.start(*ALL)
            second.wait_until_it_flows()
        first.wait_until_equal(load, load.poison)
        for one in (first, second):
            assert [one.differences(mirrors) for mirrors in one.mirrors] == [{}, {}]
        load.target = second.target
        with load.running():
            first.stop(*ALL)
            second.wait_until_it_flows()
        second.wait_until_equal(load, dead_letters=0)


def test_after_all_but_the_sources_is_lost_the_first_steps_bring_every_row_again(
    deployment: Deployment, load: Load
) -> None:
    with load.running():
        deployment.wait_until_it_flows()
    deployment.wait_until_equal(load, load.poison)
    deployment.lose(mirrors=True)
    write_unread(deployment, load)
    before = load.poison

    deployment.create()
    deployment.start(*ALL)
    with load.running():
        deployment.wait_until_it_flows()
    deployment.wait_until_equal(load, load.poison - before)


def test_mirrors_that_are_left_are_equal_after_a_first_start_a_snapshot_and_the_deletion_of_missing_rows(
    deployment: Deployment, load: Load
) -> None:
    with load.running():
        deployment.wait_until_it_flows()
    deployment.wait_until_equal(load, load.poison)
    deployment.lose(mirrors=False)
    write_unread(deployment, load)
    deployment.create()
    deployment.start(*ALL)
    spanner, bigtable = deployment.mirrors
    plant_versions_ahead_of_the_clock(deployment)
    change(deployment, load, PLANTED)

    deployment.delete_missing_rows(spanner)
    deployment.rig.wait_until_equal(TABLES, TIMEOUT)
    deployment.wait(
        lambda: deployment.highest_version() < datetime.now(UTC), "the clock to pass the versions of the old mirror"
    )
    found = deployment.differences(bigtable)  # and what was deleted meanwhile, unless a first start looks back as far
    assert found.items() >= {PLANTED: "different", EXTRA: "extra"}.items()
    before = deployment.delete_before(deployment.bigtable.table)
    deployment.snapshot(deployment.bigtable)
    deployment.delete_missing_rows(bigtable, before)
    deployment.wait_until_equal(load, dead_letters=0)


def test_both_readers_go_on_in_another_topic_where_they_were(deployment: Deployment, load: Load) -> None:
    with load.running():
        deployment.wait_until_it_flows()
    deployment.wait_until_equal(load, load.poison)
    before = load.poison
    deployment.stop(*ALL)
    write_unread(deployment, load)
    topology = replace(
        deployment.flow.topology,
        topic=f"{deployment.flow.topology.topic}-another",
        subscription=f"{deployment.flow.topology.subscription}-another",
    )
    create_topology(deployment.rig.standing.channel, topology)
    deployment.more = {
        "spanner_reader": {"TOPIC": topology.topic, "SUBSCRIPTION": topology.subscription},
        "bigtable_reader": {"TOPIC": topology.topic, "SUBSCRIPTION": topology.subscription},
        "cdc_consumer": {"SUBSCRIPTION": topology.subscription},
        "dead_letter": {"TOPIC": topology.topic},
    }
    for done in (
        deployment.run(READER, "topic"),
        deployment.run(BIGTABLE_READER, "topic", pipeline=deployment.bigtable),
        deployment.run(DEAD_LETTER, "pipeline", "--topic", topology.topic),
    ):
        assert done.returncode == 0, done.stderr
    deployment.start(*ALL)
    with load.running():
        deployment.wait_until_it_flows()
    deployment.wait_until_equal(load, before)


def test_mirror_and_history_follow_a_database_that_was_restored_under_another_name(
    deployment: Deployment, tmp_path: Path
) -> None:
    rig, mirror, file = deployment.rig, deployment.rig.named("Singers"), tmp_path / "tables.toml"
    history = f"{mirror}_changelog"
    file.write_text('[defaults]\nmode = "both"\n', encoding="utf-8")
    deployment.more = {name: {"TABLES_FILE": str(file)} for name in ("spanner_reader", "cdc_consumer")}
    deployment.start("spanner_reader", "cdc_consumer")
    rig.commit(*(Write("insert", "Singers", {"Id": key, "Name": "in the backup"}) for key in (1, 2)))
    rig.commit(Write("update", "Singers", {"Id": 2, "Name": "later"}), Write("insert", "Singers", {"Id": 3}))
    rig.wait_until_equal(["Singers"], TIMEOUT)
    deployment.stop("spanner_reader")
    rig.database = restored(deployment)
    deployment.spanner = replace(deployment.spanner, database=rig.database.name)
    assert "partition-table-of-another-stream" in refusal(deployment.launch("spanner_reader").process)

    deployment.partitions += "_restored"
    deployment.start("spanner_reader")
    deployment.wait(lambda: waiting_for_labels(deployment) >= {mirror, history}, "the labels to be in the way")
    deployment.target.query(f"DROP VIEW `{mirror}_history`")
    for name in (mirror, history):
        deployment.target.query(f"ALTER TABLE `{name}` SET OPTIONS (labels = [])")
    deployment.delete_missing_rows((deployment.spanner, [mirror]))
    rig.wait_until_equal(["Singers"], TIMEOUT)
    current = deployment.target.query(f"SELECT Id, Name FROM `{mirror}_history` WHERE is_current ORDER BY Id")
    assert current == [{"Id": key, "Name": "in the backup"} for key in (1, 2)]


def restored(deployment: Deployment) -> SpannerDatabase:
    """Return another database, with the schema and the first two rows of Singers."""
    number, instance = deployment.rig.number, deployment.rig.database.instance
    database = instance.create_database([one.format(number=number) for one in SCHEMA])
    rows = ({"Id": key, "Name": "in the backup"} for key in (1, 2))
    database.commit([Write("insert", deployment.rig.named("Singers"), row) for row in rows])
    return database


def waiting_for_labels(deployment: Deployment) -> set[str]:
    """Return the tables of which the consumer says that they are of another source."""
    tables = deployment.running["cdc_consumer"].status().get("tables", ())
    return {one["table"] for one in tables if "holds another source table" in json.dumps(one["troubles"])}


def write_unread(deployment: Deployment, load: Load) -> None:
    """Delete rows of both sources, change others, and add some, which no reader sees."""
    rig = deployment.rig
    keys = sorted(int(str(row["Id"])) for row in rig.database.query(f"SELECT Id FROM {rig.named('Singers')}"))
    rig.commit(*(Write("delete", "Singers", {"Id": key}) for key in keys[:3]))
    rig.commit(*(Write("insert_or_update", "Singers", {"Id": key, "Name": f"{MARKER} 0"}) for key in (keys[4], 900)))
    gone, changed, *_ = sorted(load.cells)
    deployment.source.write(gone.encode(), delete_row())
    del load.cells[gone]
    change(deployment, load, changed)
    change(deployment, load, "row-900")


def change(deployment: Deployment, load: Load, key: str) -> None:
    """Write a row of Bigtable."""
    load.cells[key] = f"{MARKER} 0".encode()
    deployment.source.write(key.encode(), set_cell("f", b"q", load.cells[key]))


def plant_versions_ahead_of_the_clock(deployment: Deployment) -> None:
    """Write rows to Bigtable's mirror as a former reader whose clock was ahead: one that is there, one that is not."""
    micros = time.time_ns() // 1_000 + AHEAD // timedelta(microseconds=1)
    fields = {**CHANGE, "row_key": "string", "f": "string", "_millrace_sequence": "string"}
    flow, table = deployment.flow, deployment.bigtable.table
    stream = f"projects/{flow.project}/datasets/{flow.dataset}/tables/{table}/streams/_default"
    cells = json.dumps({"q": base64.b64encode(b"planted").decode()})
    rows = [an_upsert(micros, {"row_key": key, "f": cells}) for key in (PLANTED, EXTRA)]
    with Writing(flow.bigquery_grpc, stream, row_message({**fields, "_millrace_commit_timestamp": "int64"})) as writing:
        answer = writing.append(rows)
    assert answer.HasField("append_result"), answer
