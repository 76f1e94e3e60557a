"""The Cloud SDK's `bq`, pointed at the stand-in with `--api`: it reads the discovery document first."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from deploy.local.platform import emulators
from tests.integration.stand_in import EMPLOYEES, PROJECT, StandIn
from tests.row_messages import CHANGE, change

pytestmark = pytest.mark.integration

Bq = Callable[..., str]


@pytest.fixture
def bq(bigquery_stand_in: tuple[str, str], tmp_path: Path) -> Bq:
    command = [
        str(emulators.find_sdk(os.environ) / "bin" / "bq"),
        "--oauth_access_token=any",
        f"--api=http://{bigquery_stand_in[0]}",
        f"--project_id={PROJECT}",
        "--quiet",
        "--headless",
        "--format=json",
    ]
    environment = {**os.environ, "HOME": str(tmp_path), "CLOUDSDK_CONFIG": str(tmp_path)}

    def run(*arguments: str, fails: bool = False) -> str:
        ended = subprocess.run(
            [*command, *arguments], capture_output=True, text=True, check=False, env=environment, timeout=120
        )
        assert (ended.returncode != 0) is fails, ended.stdout + ended.stderr
        return ended.stdout

    return run


def test_the_documents_table_is_made_written_and_queried(stand_in: StandIn, bq: Bq) -> None:
    query = ("query", "--nouse_legacy_sql", f"--dataset_id={stand_in.dataset}")
    bq(*query, EMPLOYEES)
    stand_in.run("ALTER TABLE employees SET OPTIONS (max_staleness = INTERVAL 0 MINUTE)")
    rows = [change("UPSERT", "1", id=1, name="Lucy")]
    assert not stand_in.append("employees", {"id": "int64", "name": "string", **CHANGE}, rows).HasField("error")

    assert json.loads(bq(*query, "SELECT * FROM employees")) == [{"id": "1", "name": "Lucy"}]
    shown = json.loads(bq("show", f"{stand_in.dataset}.employees"))
    assert shown["tableConstraints"] == {"primaryKey": {"columns": ["id"]}}
    assert "Not found" in bq(*query, "SELECT * FROM missing", fails=True)


def test_records_and_the_rarer_types_are_made_shown_and_queried(stand_in: StandIn, bq: Bq) -> None:
    query = ("query", "--nouse_legacy_sql", f"--dataset_id={stand_in.dataset}")
    bq(*query, "CREATE TABLE t (d DATETIME, b BIGNUMERIC, s ARRAY<STRUCT<r RANGE<DATE>, i INTERVAL>>, g GEOGRAPHY)")
    record = "STRUCT(RANGE<DATE> '[2024-01-01, UNBOUNDED)', INTERVAL 90 MINUTE)"
    bq(*query, f"INSERT INTO t VALUES ('2024-01-02 03:04:05', 1.5, [{record}], ST_GEOGFROMTEXT('POINT(1 2)'))")

    assert json.loads(bq(*query, "SELECT * FROM t")) == [
        {
            "d": "2024-01-02T03:04:05",
            "b": "1.5",
            "s": [{"r": "[2024-01-01, UNBOUNDED)", "i": "0-0 0 1:30:0"}],
            "g": "POINT(1 2)",
        }
    ]
    shown = json.loads(bq("show", "--schema", f"{stand_in.dataset}.t"))
    assert [(field["name"], field["type"]) for field in shown] == [
        ("d", "DATETIME"),
        ("b", "BIGNUMERIC"),
        ("s", "RECORD"),
        ("g", "GEOGRAPHY"),
    ]
    assert [field["type"] for field in shown[2]["fields"]] == ["RANGE", "INTERVAL"]


def test_datasets_tables_and_views_are_made_listed_and_removed(bq: Bq) -> None:
    bq("mk", "--dataset", "made_by_bq")
    bq("mk", "--table", "made_by_bq.t", "k:INTEGER,v:STRING")
    bq("mk", "--use_legacy_sql=false", "--view", "SELECT 1 AS one", "made_by_bq.w")

    listed = json.loads(bq("ls", "made_by_bq"))
    assert [(each["tableReference"]["tableId"], each["type"]) for each in listed] == [("t", "TABLE"), ("w", "VIEW")]
    assert json.loads(bq("head", "made_by_bq.t")) == []
    bq("rm", "-f", "-r", "made_by_bq")
    assert "Not found" in bq("ls", "made_by_bq", fails=True)


def test_bq_updates_a_dataset_dry_runs_a_query_and_reports_a_call_that_is_not_served(stand_in: StandIn, bq: Bq) -> None:
    stand_in.run("CREATE TABLE t (k INT64)")

    bq("update", "--description", "ours", stand_in.dataset)
    dry = json.loads(bq("query", "--dry_run", "--nouse_legacy_sql", f"SELECT k FROM {stand_in.dataset}.t"))
    refused = bq("cp", f"{stand_in.dataset}.t", f"{stand_in.dataset}.u", fails=True)

    assert stand_in.client.get_dataset(stand_in.dataset).description == "ours"
    assert dry["statistics"]["query"]["schema"]["fields"][0]["name"] == "k"
    assert "does not serve jobs.insert of a copy job" in " ".join(refused.split())
