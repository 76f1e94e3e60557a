"""`doctor`, `status` and `synced` of the reader, on both emulators: a healthy setting, and faults planted in it."""

import io
import json
import re
import urllib.request
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from deploy.local.platform.source import SpannerDatabase, Write
from services.spanner_reader.__main__ import main
from services.spanner_reader.adapters.doctor.inspection import inspect_stream
from services.spanner_reader.adapters.schema.catalog import StreamDefinition
from services.spanner_reader.wiring.doctor import doctor
from shared.contracts.timestamps import Nanoseconds, format_timestamp
from shared.runtime.findings import Level
from shared.runtime.service import MISCONFIGURED
from tests.integration.log_lines import events
from tests.integration.monitoring_server import monitoring_server
from tests.integration.readers import stop
from tests.worlds.doctor_checks import unexplained
from tests.worlds.spanner_pipeline import DDL, SpannerPipeline

pytestmark = pytest.mark.integration

GOOD = StreamDefinition(
    watches_everything=False,
    value_capture_type="NEW_ROW",
    partition_mode="IMMUTABLE_KEY_RANGE",
    retention=timedelta(days=7),
)


@dataclass
class DoctorRig:
    """A pipeline, and the environment of a reader in it."""

    pipeline: SpannerPipeline
    variables: dict[str, str] = field(default_factory=dict)

    @property
    def database(self) -> SpannerDatabase:
        return self.pipeline.database

    @property
    def environment(self) -> Mapping[str, str]:
        return self.pipeline.environment() | self.variables

    def examine(self) -> tuple[int, list[dict[str, str]]]:
        """Return the exit code and the findings."""
        out = io.StringIO()
        code = doctor(self.environment, out, as_json=True)
        return code, json.loads(out.getvalue())

    def errors(self) -> dict[str, str]:
        """Return the fixes of the errors, by what was looked at."""
        code, findings = self.examine()
        found = {one["check"]: one["fix"] for one in findings if one["level"] == "error"}
        assert code == int(bool(found))
        return found


@pytest.fixture
def rig(database: Callable[..., SpannerDatabase], spanner_pipeline: Callable[..., SpannerPipeline]) -> DoctorRig:
    """Return a setting in which nothing is wrong, but the retention, which nobody has set."""
    return DoctorRig(spanner_pipeline(database(*DDL), database()))


def test_a_healthy_setting_has_no_error_and_reports_what_it_inspected(rig: DoctorRig) -> None:
    rig.database.alter("ALTER CHANGE STREAM Everything SET OPTIONS (retention_period = '7d')")
    code, findings = rig.examine()
    assert [one for one in findings if one["level"] != "ok"] == []
    assert code == 0
    looked_at = {one["check"] for one in findings}
    assert {
        "settings", "tables file", "stream Everything", "stream Everything: capture type", "table Planes",
        "stream Everything: exclusions", "stream Everything: partition mode", "stream Everything: retention",
        "stream Everything: query", "partition table", "progress", "clock", "backlogs",
        f"topic {rig.environment['TOPIC']}", f"database {rig.database.name}",
        f"rights on {rig.pipeline.partitions.name}",
    } <= looked_at  # fmt: skip
    assert unexplained(looked_at) == []


def test_a_right_to_read_the_backlogs_that_is_missing_is_a_warning(rig: DoctorRig) -> None:
    with monitoring_server() as monitoring:
        monitoring.error = 403
        rig.variables["MONITORING_URL"] = monitoring.url
        code, findings = rig.examine()
    (found,) = (one for one in findings if one["check"] == "backlogs")
    assert (code, found["level"]) == (0, "warning")
    assert "roles/monitoring.viewer" in found["detail"]


def test_a_stream_that_is_not_there_stops_no_other_check(rig: DoctorRig) -> None:
    rig.variables = {"CHANGE_STREAM": "Nothing", "TOPIC": f"unheard-{uuid.uuid4().hex}"}
    errors = rig.errors()
    assert "CREATE CHANGE STREAM Nothing" in errors["stream"]
    assert "services.cdc_consumer setup" in errors[f"topic {rig.variables['TOPIC']}"]
    assert errors.keys() == {"stream", f"topic {rig.variables['TOPIC']}"}


def test_a_start_that_the_stream_does_not_keep_is_named_before_the_first_start(rig: DoctorRig) -> None:
    an_hour_ago = format_timestamp(Nanoseconds(rig.database.now() - 3_600_000_000_000))
    for variables in (
        *({"START_TIMESTAMP": start} for start in ("0001-01-01T00:00:00Z", "9999-01-01T00:00:00Z", an_hour_ago)),
        {"END_TIMESTAMP": an_hour_ago},
    ):
        rig.variables = variables
        errors = rig.errors()
        assert errors.keys() == {"progress: start"}
        assert "correct START_TIMESTAMP" in errors["progress: start"]


def test_a_start_counts_no_more_where_progress_is_there_beside_a_table_that_is_missing(rig: DoctorRig) -> None:
    reader = rig.pipeline.start()
    rig.pipeline.write()
    rig.pipeline.wait_for_all()
    reader.end()
    rig.variables = {"START_TIMESTAMP": "2026-01-01T00:00:00Z"}
    assert rig.errors() == {}
    rig.pipeline.partitions.alter("DROP TABLE millrace_partitions_pauses")  # as an upgrade that adds one finds it
    assert "progress: start" not in rig.errors()


def test_warnings_of_a_stream_and_of_its_tables_are_reported_with_their_fixes(rig: DoctorRig) -> None:
    rig.database.alter(
        "CREATE TABLE Loose (a INT64, b BYTES(8)) PRIMARY KEY (a, b)",
        "CREATE CHANGE STREAM Parts FOR Loose",
    )
    rig.variables = {"CHANGE_STREAM": "Parts"}
    assert not rig.errors()
    _code, findings = rig.examine()
    warnings = {one["check"]: (one["detail"], one["fix"]) for one in findings if one["level"] == "warning"}
    alter = "ALTER CHANGE STREAM Parts SET OPTIONS"
    assert f"{alter} (value_capture_type = 'NEW_ROW')" in warnings["stream Parts: capture type"][1]
    assert "retention_period = '7d'" in warnings["stream Parts: retention"][1]
    assert "a, b may be NULL" in warnings["table Loose: key"][0]
    assert "NOT NULL" in warnings["table Loose: key"][1]
    assert any("b (BYTES)" in one["detail"] for one in findings)


def test_what_it_costs_to_complete_updates_is_counted_in_the_last_of_the_stream(rig: DoctorRig) -> None:
    rig.database.alter(
        "CREATE TABLE Seats (Id INT64 NOT NULL, Booked BOOL, Name STRING(MAX)) PRIMARY KEY (Id)",
        "CREATE CHANGE STREAM Bookings FOR Seats",
    )
    rig.variables = {"CHANGE_STREAM": "Bookings"}
    created = rig.database.now()
    rig.database.commit([Write("insert", "Seats", {"Id": key, "Booked": False, "Name": "n"}) for key in range(4)])

    def sampled() -> str:
        code, findings = rig.examine()
        assert code == 0
        (found,) = [one for one in findings if one["check"] == "stream Bookings: capture type"]
        assert (found["level"], "SET OPTIONS (value_capture_type = 'NEW_ROW')" in found["fix"]) == ("warning", True)
        return found["detail"].partition("\n")[2]

    while rig.database.now() < created + 1_500_000_000:
        rig.database.commit([Write("update", "Seats", {"Id": key, "Booked": True}) for key in range(3)])
    rig.database.execute("UPDATE Seats SET Booked = FALSE WHERE Id = 3")  # with all columns, on the emulator
    output = sampled()
    number = r"(\d[\d,]*)"
    found = re.fullmatch(
        rf"sample of the last \d+ s: changes {number}, incomplete {number}, rows to read {number}, reads {number}; "
        r"for each change \d\.\d\d rows and \d\.\d\d reads",
        output,
    )
    assert found is not None, output
    changes, incomplete, rows, reads = (int(one.replace(",", "")) for one in found.groups())
    assert changes >= incomplete >= rows >= reads >= 1
    assert incomplete % 3 == 1, "three changes a commit, and that of the DML"


def test_a_stream_that_would_watch_the_partition_table_is_named(rig: DoctorRig) -> None:
    rig.database.alter("CREATE CHANGE STREAM Whole FOR ALL OPTIONS (value_capture_type = 'NEW_ROW')")
    rig.variables = {"CHANGE_STREAM": "Whole", "PARTITION_DATABASE": rig.database.name}
    errors = rig.errors()
    assert "PARTITION_DATABASE" in errors["partition table"]
    assert errors.keys() == {"partition table"}


def test_a_database_that_is_not_there_and_one_that_does_not_answer_are_named(rig: DoctorRig) -> None:
    rig.variables = {"PARTITION_DATABASE": "nowhere"}
    assert "PARTITION_DATABASE" in rig.errors()["database nowhere"]
    rig.variables = {"SPANNER_EMULATOR_HOST": "127.0.0.1:1"}
    errors = rig.errors()
    assert "SPANNER_EMULATOR_HOST" in errors[f"database {rig.database.name}"]
    assert {fix for fix in errors.values() if "CREATE" in fix or "create" in fix} == set(), "it would not help"
    assert not any(check.startswith("topic") for check in errors)


def test_settings_and_tables_files_with_mistakes_are_named(rig: DoctorRig, tmp_path: Path) -> None:
    rig.variables = {"HEARTBEAT_INTERVAL": "1ms"}
    assert rig.errors().keys() == {"settings"}
    file = tmp_path / "tables.toml"
    file.write_text("exclud = ['x']\n")
    rig.variables = {"TABLES_FILE": str(file)}
    assert rig.errors().keys() == {"tables file"}
    file.write_text("exclude = ['*']\n")
    assert "TABLES_FILE" in rig.errors()["tables"]
    file.write_text('[defaults]\nignored_columns = ["id"]\n[tables.Plains]\nbuckets = 1\n')
    assert rig.errors().keys() == {"tables file: [defaults]"}
    (warned,) = [one for one in rig.examine()[1] if one["check"] == 'tables file: [tables."Plains"]']
    assert (warned["level"], "Planes" in warned["fix"]) == ("warning", True)


@pytest.mark.parametrize(
    ("definition", "check", "fix"),
    [
        (replace(GOOD, partition_mode="MUTABLE_KEY_RANGE"), "partition mode", "another stream"),
        (replace(GOOD, retention=timedelta(days=1)), "retention", "retention_period = '7d'"),
        (
            replace(GOOD, exclusions=frozenset({"exclude_delete"})),
            "exclusions",
            "ALTER CHANGE STREAM s SET OPTIONS (exclude_delete = false)",
        ),
        (replace(GOOD, exclusions=frozenset({"allow_txn_exclusion"})), "exclusions", "allow_txn_exclusion = false"),
    ],
)
def test_what_the_emulator_cannot_have_is_named_too(definition: StreamDefinition, check: str, fix: str) -> None:
    (found,) = [one for one in inspect_stream("s", definition) if one.level is not Level.OK]
    assert found.check == f"stream s: {check}"
    assert fix in found.fix


@pytest.fixture
def pipeline(rig: DoctorRig, monkeypatch: pytest.MonkeyPatch) -> SpannerPipeline:
    """Return a pipeline in the healthy setting, whose environment is this process's, too."""
    for name, value in rig.environment.items():
        monkeypatch.setenv(name, value)
    return rig.pipeline


def _status(capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    code = main(["status", "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_status_needs_no_reader_and_names_what_needs_resync_until_it_is_synced(
    pipeline: SpannerPipeline, rig: DoctorRig, capsys: pytest.CaptureFixture[str]
) -> None:
    code, before = _status(capsys)
    assert (code, before["state"], before["low_watermark"]) == (1, "not started yet", None)

    reader = pipeline.start(CHECK_SCHEMA_EVERY="1s")
    pipeline.write(rows=3)
    pipeline.wait_for_all()
    code, running = _status(capsys)
    assert (code, running["state"], running["pending_resync"]) == (0, "reading", [])
    assert sum(one["partitions"] for one in running["readers"]) >= 1
    assert running["partitions"]["FINISHED"] >= 1  # the first query
    assert 0 <= running["lag_seconds"] < 30
    assert running["retention_left_seconds"] <= running["retention_seconds"]

    rig.database.alter("ALTER TABLE Planes DROP COLUMN Name", "ALTER TABLE Planes ADD COLUMN Name INT64")
    pipeline.wait(lambda: bool(events(reader, "resync_requested")), "the mark")
    (served,) = events(reader, "health_served")
    with urllib.request.urlopen(f"http://127.0.0.1:{served['port']}/status", timeout=5) as answer:
        asked = json.loads(answer.read())
    assert (asked["state"], [one["table"] for one in asked["pending_resync"]]) == ("reading", ["Planes"])
    stop(reader)

    code, after = _status(capsys)
    assert (code, after["state"]) == (1, "no reader")
    (table,) = after["pending_resync"]
    assert (table["table"], table["why"][0]["kind"], table["why"][0]["columns"]) == (
        "Planes", "column_type_changed", ["Name"],
    )  # fmt: skip
    assert "synced Planes" in table["fix"]
    assert main(["status"]) == 1
    assert "Planes: pending resync since" in capsys.readouterr().out
    _code, findings = rig.examine()
    assert any(one["check"] == "table Planes" and one["level"] == "warning" for one in findings)

    capsys.readouterr()
    assert main(["synced", "Planes", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"table": "Planes"}
    assert main(["synced", "Planes"]) == MISCONFIGURED
    assert (
        "table Planes has no resync request: `python -m services.spanner_reader status` lists"
        in capsys.readouterr().err
    )
    assert _status(capsys)[1]["pending_resync"] == []


@pytest.mark.parametrize("arguments", [("status", "--json"), ("synced", "Planes")])
def test_a_command_to_which_spanner_does_not_answer_reports_so_in_one_line(
    arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ("GOOGLE_CLOUD_PROJECT", "SPANNER_INSTANCE", "SPANNER_DATABASE", "CHANGE_STREAM", "TOPIC")
    for name in (*names, "PARTITION_DATABASE"):
        monkeypatch.setenv(name, "nobody-asks")
    monkeypatch.setenv("DEAD_LETTER_TOPIC", "nor-this")
    monkeypatch.setenv("CHANGE_STREAM", "Everything")
    monkeypatch.setenv("SPANNER_EMULATOR_HOST", "127.0.0.1:1")

    assert main(arguments) == MISCONFIGURED
    (line,) = "".join(capsys.readouterr()).splitlines()
    assert "Spanner does not answer" in line
    assert "Traceback" not in line


def test_a_tables_file_keeps_a_table_out_and_reports_how_many_ordering_keys_it_has(
    pipeline: SpannerPipeline, rig: DoctorRig, tmp_path: Path
) -> None:
    file = tmp_path / "tables.toml"
    file.write_text('exclude = ["tmp_*"]\n[tables.Planes]\nbuckets = 1\nignored_columns = ["Nam"]\n[tables.Plains]\n')
    rig.database.alter(
        "CREATE TABLE tmp_1 (Id INT64 NOT NULL) PRIMARY KEY (Id)",
        "CREATE CHANGE STREAM Two FOR Planes, tmp_1 OPTIONS (value_capture_type = 'NEW_ROW')",
    )
    reader = pipeline.start(TABLES_FILE=str(file), CHANGE_STREAM="Two")
    rig.database.commit([Write("insert", "tmp_1", {"Id": 1})])
    pipeline.write(rows=20)
    pipeline.wait_for_all()
    assert sorted(key for key, _time in pipeline.received) == list(range(20))
    assert [one["table"] for one in events(reader, "table_announced")] == ["Planes"]
    warned = [one["section"] for one in events(reader, "tables_file_section_unmatched")]
    assert sorted(warned) == ['[tables."Plains"]', '[tables."Planes"]']
    file.write_text('[tables.Planes]\nignored_columns = ["id"]\n')
    assert "primary key" in pipeline.refused(TABLES_FILE=str(file))
    assert "TABLES_FILE" in pipeline.refused(TABLES_FILE=str(tmp_path / "none.toml"))


def test_a_history_that_keeps_less_than_the_stream_retains_is_refused_at_start_and_named_by_doctor(
    pipeline: SpannerPipeline, rig: DoctorRig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "tables.toml"
    file.write_text('[tables.Planes]\nmode = "both"\nkeep = "6d"\n')
    rig.database.alter("ALTER CHANGE STREAM Everything SET OPTIONS (retention_period = '7d')")
    rig.variables = {"TABLES_FILE": str(file)}

    assert rig.errors().keys() == {"tables file: keep"}
    refused = pipeline.refused(TABLES_FILE=str(file))
    for words in ("line 3 of the tables file", "shorter than the 7d that its change stream", "history-kept-too-short"):
        assert words in refused
    assert _status(capsys)[1]["state"] == "not started yet", "nothing was made"
    file.write_text('[tables.Planes]\nmode = "both"\nkeep = "7d"\n')
    assert not rig.errors()
    pipeline.start(TABLES_FILE=str(file))
