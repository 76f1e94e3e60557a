"""The command `advise` on the BigQuery stand-in: a history of jobs, reservations, and what may not be read."""

import io
import json
import os
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from services.cdc_consumer.adapters.advice import figures
from services.cdc_consumer.adapters.advice.figures import AdviceFigures
from services.cdc_consumer.commands.command_line import COMMAND_LINE, AdviseCommand
from services.cdc_consumer.wiring.advise import advise_command
from shared.contracts.errors import MisconfiguredError
from shared.runtime.stop import Stop
from tests.integration.mirror_with_missing_rows import SOURCE, Mirror
from tests.integration.stand_in import PROJECT, StandIn
from tests.monitoring_queries import RECOMMENDED, SLOTS
from tests.worlds.command_lines import parsed

pytestmark = pytest.mark.integration
CHANGE = {"id": "INT64", "_CHANGE_TYPE": "STRING"}


class World:
    def __init__(self, addresses: tuple[str, str]) -> None:
        self.stand_in = StandIn(addresses)
        self.addresses = addresses

    def advise(self, *words: str, **settings: str) -> tuple[int, str]:
        out = io.StringIO()
        environ = {**os.environ, **Mirror(self.stand_in, self.addresses).environment(), "PORT": "1", **settings}
        code = advise_command(parsed(COMMAND_LINE, AdviseCommand, "advise", *words), environ, Stop(), out)
        return code, " ".join(out.getvalue().split())

    def document(self, *words: str, **settings: str) -> Mapping[str, Any]:
        document: Mapping[str, Any] = json.loads(self.advise(*words, "--json", **settings)[1])
        return document

    def mirror(self, name: str, options: str = "max_staleness = INTERVAL 10 MINUTE", more: str = "") -> None:
        self.stand_in.run(
            f"CREATE TABLE {name} (id INT64, day DATE, PRIMARY KEY (id) NOT ENFORCED) {more} CLUSTER BY id OPTIONS "
            f"({options}{',' if options else ''} labels = [('millrace_mirror_of', 'x')])"
        )

    def past_apply(self, table: str, **job: float) -> None:
        path = f"{PROJECT}.{self.stand_in.dataset}.{table}"
        self.stand_in.control("POST", "applies/past", table=path, ago=3_600, **job)


@pytest.fixture
def world(bigquery_stand_in: tuple[str, str]) -> Iterator[World]:
    world = World(bigquery_stand_in)
    yield world
    world.stand_in.control("DELETE", "faults")


def test_the_queries_of_durations_and_slots_are_those_of_the_document() -> None:
    def words(query: str) -> str:
        return " ".join(query.replace("`", "").rstrip(";").split())

    assert words(figures.APPLIES) == words(RECOMMENDED.replace("region-us", "REGION"))
    assert words(figures.SLOTS) == words(SLOTS)


def test_each_mirror_gets_its_recommended_staleness_from_its_own_applies(world: World) -> None:
    world.mirror("often")
    world.mirror("once", options="")
    world.stand_in.run("CREATE TABLE not_a_mirror (id INT64)")
    for seconds in range(101):
        world.past_apply("often", seconds=seconds, slot_seconds=10, bytes=1 << 40)
    world.past_apply("once", seconds=90)
    world.stand_in.run("SELECT id FROM once")

    found = {
        one["mirror"]["name"].partition(".")[2]: one for one in world.document("--price", "on_demand=2")["mirrors"]
    }

    assert set(found) == {"often", "once"}
    assert (found["often"]["applies"]["p95_seconds"], found["often"]["recommended"]) == (95.0, "PT660S")
    assert found["often"]["mirror"]["clustered_by"] == ["id"]
    (applies,) = found["often"]["costs"]
    assert (applies["kind"], applies["jobs"], applies["on_demand"]) == ("background apply", 101, 202.0)
    assert (found["once"]["applies"]["p95_seconds"], found["once"]["recommended"]) == (90.0, "PT600S")
    assert [(cost["kind"], cost["jobs"]) for cost in found["once"]["costs"]] == [
        ("background apply", 1),
        ("runtime merge", 1),
    ]
    code, text = world.advise("often")
    assert code == 1
    assert "10m is less than the recommended 11m" in text


def test_the_slots_of_two_applies_in_one_second_are_added_as_by_the_query_of_the_document(world: World) -> None:
    project = f"slots-{world.stand_in.dataset.replace('_', '-')}"
    world.stand_in.run(f"CREATE SCHEMA `{project}`.d")
    world.stand_in.run(f"CREATE TABLE `{project}`.d.t (id INT64, PRIMARY KEY (id) NOT ENFORCED) CLUSTER BY id")
    for milliseconds in (60_000, 30_000):  # in each of the eleven seconds that the job touches
        slots = 11 * milliseconds / 1_000
        world.stand_in.control(
            "POST", "applies/past", table=f"{project}.d.t", ago=3_600, seconds=10, slot_seconds=slots
        )

    (capacity,) = world.document(GOOGLE_CLOUD_PROJECT=project, BIGQUERY_DATASET="d")["capacity"]

    assert (capacity["slots"]["per_query"], capacity["slots"]["busiest"]) == (1.5, 90.0)


def test_a_delete_is_applied_once_an_apply_has_passed_it(world: World) -> None:
    world.mirror("rows")
    dotted = f"{PROJECT}.{world.stand_in.dataset}.rows"
    world.stand_in.control("POST", "applies/hold", table=dotted)
    world.stand_in.append("rows", CHANGE, [{"id": 1, "_CHANGE_TYPE": "DELETE"}])
    streamed = datetime.now(UTC).isoformat()

    (before,) = world.document("rows", "--deleted-at", streamed)["mirrors"]
    world.stand_in.control("POST", "applies/release", table=dotted)
    world.stand_in.control("POST", "applies/run", table=dotted)
    (after,) = world.document("rows", "--deleted-at", streamed)["mirrors"]

    assert (before["delete_applied"], before["kind_now"]) == (False, "runtime merge")
    assert (after["delete_applied"], after["kind_now"]) == (True, "query")
    assert after["mirror"]["watermark"] > streamed.replace("+00:00", "Z")


def test_the_printed_statements_run_and_are_seen_as_in_force_afterwards(world: World) -> None:
    world.mirror("rows")
    admin = f"admin-{world.stand_in.dataset.replace('_', '-')}"
    (before,) = world.document("--admin-project", admin)["capacity"]
    for statement in before["statements"]:
        world.stand_in.run(statement)
    (after,) = world.document("--admin-project", admin)["capacity"]

    assert before["applies"] == "on demand"
    assert after["applies"] == "reservation millrace (BACKGROUND_CHANGE_DATA_CAPTURE, enterprise)"
    assert after["merges"] == "on demand"
    assert "CREATE RESERVATION" not in world.advise("--admin-project", admin)[1]


def test_a_partitioned_mirror_is_named(world: World) -> None:
    world.mirror("rows", more="PARTITION BY day")

    code, text = world.advise()

    assert code == 1
    assert "rows: partitioned: it is partitioned by day" in text


def test_mirrors_in_datasets_by_schema_are_found(world: World, tmp_path: Path) -> None:
    file = tmp_path / "tables.toml"
    file.write_text('[defaults]\ndataset = "test_{schema}"\n')
    world.mirror("rows")

    found = world.document(BIGQUERY_DATASET="nowhere", TABLES_FILE=str(file))

    assert f"{world.stand_in.dataset}.rows" in {one["mirror"]["name"] for one in found["mirrors"]}


def test_an_unknown_mirror_is_refused_with_those_that_there_are(world: World) -> None:
    world.mirror("Orders")

    with pytest.raises(MisconfiguredError, match=r"no mirror is called Ordres: the mirrors are \w+\.Orders"):
        world.advise("Ordres")


def test_a_dataset_that_is_not_there_is_a_problem_with_its_fix(world: World) -> None:
    code, text = world.advise(BIGQUERY_DATASET="nowhere")

    assert code == 1
    assert "(no mirror yet)" in text
    assert "dataset nowhere: cannot be read" in text
    assert "-> check BIGQUERY_DATASET" in text


def test_jobs_that_may_not_be_read_leave_the_rest_of_the_advice_whole(world: World) -> None:
    world.mirror("rows")
    world.stand_in.control(
        "POST", "faults", on="rest", action="answer", status="PERMISSION_DENIED", containing="INFORMATION_SCHEMA.JOBS"
    )
    code, text = world.advise()

    assert code == 1
    assert "jobs of region-us: may not be read" in text
    assert "roles/bigquery.resourceViewer" in text
    assert "max_staleness 10m;" in text
    assert "queries and runtime merges run: on demand" in text


def test_the_change_streams_retention_is_asked_of_the_source_unless_it_is_named(world: World) -> None:
    world.mirror("rows")

    answered, named = world.advise(SOURCE_ROWS=f"{SOURCE} retaining"), world.advise("--source-retention", "2d")
    assumed = world.advise()
    for (code, text), kept in (
        (answered, "the change stream keeps 3d (answered by SOURCE_ROWS)"),
        (named, "the change stream keeps 2d (--source-retention)"),
        (assumed, "the change stream keeps 1d (assumed: "),
        (world.advise(SOURCE_ROWS=SOURCE), "the change stream keeps 1d (assumed: "),
    ):
        assert kept in text
        assert "source retention:" not in text
        assert (code, fixes(text)) == (assumed[0], fixes(assumed[1]))
    code, text = world.advise(SOURCE_ROWS=f"{SOURCE} gone")
    assert code == 1
    assert "the change stream keeps 1d (assumed: " in text
    assert "source retention: the source's command ended (exit code 7)" in text
    assert fixes(text) - fixes(assumed[1]) == {"name it with --source-retention"}
    assert fixes(assumed[1]) <= fixes(text), "what else is wrong is still told"


def fixes(text: str) -> set[str]:
    """Return the lines of advice that say what to do."""
    return {line.rpartition(" -> ")[2] for line in text.splitlines() if " -> " in line}


def test_what_is_expected_is_computed_where_no_dataset_can_be_read(world: World) -> None:
    text = world.advise("--changes", "1000", "--change-bytes", "1500", BIGQUERY_DATASET="nowhere")[1]

    assert "throughput 1.5 MB/s, as expected" in text
    assert "Pub/Sub $282.89" in text
    assert "default quotas of US" in text
    assert "default quotas of any other region: 1,000 connections" in text


def test_a_region_without_history_is_no_error(world: World) -> None:
    client = world.stand_in.client
    asked = AdviceFigures(client, PROJECT, PROJECT)
    world.mirror("rows")
    (region,) = asked.regions([world.stand_in.dataset])

    assert asked.unread == []
    assert region.applies.keys() & {f"{world.stand_in.dataset}.rows"} == set()
