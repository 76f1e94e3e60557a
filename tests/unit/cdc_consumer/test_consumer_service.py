"""What surrounds the query: settings, the sink's options, an error's own words, counts on their way to the metrics."""

import os
import pickle
import re
import socket
import tempfile
from contextlib import nullcontext
from dataclasses import replace
from datetime import timedelta
from itertools import count
from pathlib import Path

import pytest
from pyspark.sql.types import StructType

from services.cdc_consumer.adapters.process_directory import process_directory, remove_leftovers, temporary_places
from services.cdc_consumer.adapters.spark.options import DriverAddress, SinkOptions, decode_options, encode_options
from services.cdc_consumer.adapters.spark.spark_session import (
    QueryFailedError,
    check_java,
    error_of,
    full_disk_reported,
    is_submitted,
    query_error,
    start_error,
)
from services.cdc_consumer.adapters.stream import reports
from services.cdc_consumer.adapters.stream.reports import (
    DriverPoisonLimit,
    check_driver_answers,
    receiving_reports,
    request_at_driver_stop,
    send_report,
)
from services.cdc_consumer.adapters.stream.state_directory import choose_state_directory
from services.cdc_consumer.app.stream.dead_letter_limit import DeadLetterLimit
from services.cdc_consumer.core.stream.counts import Counts, Report, TableNote
from services.cdc_consumer.core.stream.task_totals import Seen, TaskTotals
from services.cdc_consumer.settings import Settings, SetupSettings
from services.cdc_consumer.wiring.bigquery_cdc import BigQueryCdcDataSource, BigQueryCdcWriter, Committed
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.runtime.settings import read_settings
from shared.runtime.stop import Stop
from tests.unit.cdc_consumer.listening import OPTIONS, heard, listening
from tests.unit.cdc_consumer.world import NEEDED

BY_SUBMIT = {"PYSPARK_GATEWAY_PORT": "1"}
COUNTS = Counts(messages=5, dead_letters={"undecodable": 1}, tables={"planes": TableNote(deferred="NOT_FOUND")})


def test_settings_have_defaults_for_everything_but_names() -> None:
    settings = read_settings(Settings, NEEDED)

    assert (settings.dataset_project, settings.tasks, settings.spark_master) == ("p", 2, "local[2]")


@pytest.mark.parametrize("place", ["gs://bucket/x", "s3a://b/x", "hdfs://host:8020/x", "/var/lib/x", "here"])
def test_the_place_of_the_checkpoint_reaches_spark_as_it_was_written(place: str) -> None:
    assert read_settings(Settings, NEEDED | {"CHECKPOINT_LOCATION": place}).checkpoint_location == place


def test_every_missing_setting_is_named_at_once() -> None:
    with pytest.raises(MisconfiguredError) as raised:
        read_settings(Settings, {})
    assert all(name in str(raised.value) for name in NEEDED)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"SPARK_MASTER": "local[1]"}, "TASKS=2 is more than the 1"),
        ({"SPARK_MASTER": "local"}, "TASKS=2 is more than the 1"),
        ({"TASKS": "3"}, "TASKS=3 is more than the 2"),
        ({"SPARK_MASTER": "yarn", "TASKS": "10001"}, "TASKS='10001': at most 10000"),
        ({"MICRO_BATCH_MESSAGES": "9" * 20}, "at most 100000000"),
        ({"CLOCK_MARGIN": "999999d"}, "CLOCK_MARGIN='999999d': longer than 36500d"),
        ({"BIGQUERY_EMULATOR_HOST": "h:1"}, "set both BIGQUERY_EMULATOR_HOST"),
        ({"BIGQUERY_STORAGE_EMULATOR_HOST": "h:1"}, "set both BIGQUERY_EMULATOR_HOST"),
        (
            {"DELETE_MISSING_ROWS": "automatic", "SPARK_MASTER": "spark://h:1"},
            "DELETE_MISSING_ROWS=automatic needs SOURCE_ROWS",
        ),
        ({"SPARK_MASTER": "locl"}, "SPARK_MASTER='locl': names no Spark: write local"),
        ({"SPARK_MASTER": "local[two]"}, "SPARK_MASTER='local[two]': names no Spark: write local"),
        ({"SPARK_MASTER": "h:7077"}, "SPARK_MASTER='h:7077': names no Spark: write local"),
    ],
)
def test_settings_that_cannot_work_are_refused(more: dict[str, str], words: str) -> None:
    with pytest.raises(MisconfiguredError, match=re.escape(words)):
        read_settings(Settings, NEEDED | more)


@pytest.mark.parametrize("more", [{"SOURCE_ROWS": "rows", "SPARK_MASTER": "yarn"}, {"SPARK_MASTER": "local[2]"}])
def test_automatic_deletion_asks_the_source_or_knows_what_is_outstanding(more: dict[str, str]) -> None:
    assert (
        read_settings(Settings, NEEDED | {"DELETE_MISSING_ROWS": "automatic"} | more).delete_missing_rows == "automatic"
    )


def test_set_up_needs_the_topic_and_not_the_dataset() -> None:
    with pytest.raises(MisconfiguredError, match="TOPIC is not set") as raised:
        read_settings(SetupSettings, {"GOOGLE_CLOUD_PROJECT": "p", "SUBSCRIPTION": "s", "DEAD_LETTER_TOPIC": "d"})
    assert "BIGQUERY" not in str(raised.value)


def test_the_sinks_options_reach_it_as_they_were_given() -> None:
    options = replace(OPTIONS, ack_deadline=timedelta(seconds=30), clock_margin=timedelta(0), tables_file='"[x]\n')

    assert decode_options(SinkOptions, encode_options(options)) == options


def test_the_sinks_options_have_defaults_for_everything_but_names() -> None:
    names = '{"subscription": "s", "dead_letter_topic": "d", "project": "p", "dataset": "mirror"}'
    options = decode_options(SinkOptions, {"settings": names})

    assert (options.clock_margin, options.driver) == (timedelta(minutes=5), None)


def test_rows_of_another_source_are_refused_by_the_columns_they_lack() -> None:
    source = BigQueryCdcDataSource(encode_options(OPTIONS))
    with pytest.raises(MisconfiguredError, match="columns are missing: task, checksum, messages"):
        source.streamWriter(StructType().add("data", "binary"), overwrite=False)


def test_writer_and_commit_message_travel_between_processes() -> None:
    writer = BigQueryCdcWriter(OPTIONS)
    assert isinstance(pickle.loads(pickle.dumps(writer)), BigQueryCdcWriter)
    assert pickle.loads(pickle.dumps(Committed(COUNTS))) == Committed(COUNTS)


def test_a_task_without_messages_opens_nothing() -> None:
    assert BigQueryCdcWriter(OPTIONS).write(iter([])) == Committed(Counts())


FROM_A_TASK = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Job aborted: \
Task 0 in stage 3.0 failed 1 times, most recent failure: org.apache.spark.api.python.PythonException: Traceback:
  File "micro_batch.py", line 1, in apply
    decode()
ValueError: first

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "bigquery_cdc.py", line 1, in write
{error}

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:1)
\tat java.base/java.lang.Thread.run(Thread.java:840)

Driver stacktrace: SQLSTATE: XXKST
=== Streaming Query ===
Identifier: cdc_consumer
"""
FROM_A_PLAN = """[PYTHON_DATA_SOURCE_ERROR] Failed to create Python data source instance: Traceback:
{error}
 SQLSTATE: 38000
=== Streaming Query ===
Identifier: cdc_consumer
"""


@pytest.mark.parametrize("text", [FROM_A_TASK, FROM_A_PLAN])
def test_an_error_of_sparks_processes_is_reported_in_its_own_words(text: str) -> None:
    fix = "subscription s cannot be used:\n  it expires; fix it with `gcloud x`\n  it has a filter"
    error = error_of(text.format(error=f"shared.contracts.errors.MisconfiguredError: {fix} [made-up]"))
    assert isinstance(error, MisconfiguredError)
    assert (error.message, error.code) == (fix, "made-up")

    error = error_of(text.format(error="google.api_core.exceptions.TeapotError: no coffee"))
    assert type(error) is QueryFailedError
    assert str(error).splitlines()[-1] == "google.api_core.exceptions.TeapotError: no coffee"


def test_an_error_without_python_in_it_is_reported_as_it_is() -> None:
    assert str(error_of("too many open files")) == "too many open files"


@pytest.mark.parametrize(
    "words", ["java.io.IOException: No space left on device", "OSError: [Errno 28] No space left on device: 'x.data'"]
)
def test_a_full_disk_is_reported_with_the_settings_that_name_it(words: str) -> None:
    said, fix = str(error_of(words)).splitlines()
    assert said == words
    assert "CHECKPOINT_LOCATION" in fix


def test_a_full_disk_at_the_start_is_reported_with_the_settings_that_name_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    full = tmp_path / "full"
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: [str(full)])

    with pytest.raises(QueryFailedError) as raised, full_disk_reported():
        choose_state_directory(str(tmp_path))
    said, fix = str(raised.value).splitlines()
    assert str(full) in said
    assert "TMPDIR" in fix
    with pytest.raises(FileNotFoundError), full_disk_reported():
        full.read_bytes()


def test_a_start_removes_what_ended_processes_have_left_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left, other = tmp_path / "millrace-process-x", tmp_path / "millrace-suspects-1"
    for directory in (left, other):
        directory.mkdir()
        (directory / "file").touch()

    with process_directory() as alive:
        remove_leftovers([tmp_path / "not there", tmp_path])
        assert set(tmp_path.iterdir()) == {alive, other}
    assert list(tmp_path.iterdir()) == [other]


@pytest.mark.parametrize("named", ["TMPDIR", "TEMP", "TMP", None])
def test_a_start_looks_for_leftovers_wherever_a_directory_of_a_process_may_be(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, named: str | None
) -> None:
    for name in ("TMPDIR", "TEMP", "TMP"):
        monkeypatch.delenv(name, raising=False)
    if named:
        monkeypatch.setenv(named, str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    places = {place.absolute() for place in temporary_places(os.environ)}
    with process_directory() as made:
        assert made.parent in places
    assert {Path(place) for place in tempfile._candidate_tempdir_list()} == places  # type: ignore[attr-defined]


def test_a_working_directory_that_is_gone_keeps_no_consumer_from_its_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    here, left = tmp_path / "here", tmp_path / "there" / "millrace-process-1"
    here.mkdir()
    left.mkdir(parents=True)
    monkeypatch.chdir(here)
    here.rmdir()
    remove_leftovers([Path(), left.parent])

    assert not left.exists()


@pytest.mark.parametrize(
    "words",
    [
        "Failed to read log file file:/srv/c/offsets/72. Incomplete log file\n=== Streaming Query ===\nIdentifier: c",
        "Failed to read log file file:/srv/c/commits/5. Incomplete log file in the offset commit log",
        "Failed to read log file file:/srv/c/offsets/5. [MALFORMED_LOG_FILE] Log file was malformed. SQLSTATE: KD002",
        "com.fasterxml.jackson.MismatchedInputException: No content to map due to end-of-input\n at [Source",
        "Unexpected end-of-input in field name\n at [Source: REDACTED; line: 1, column: 7]\n=== Streaming Query ===",
    ],
)
def test_a_checkpoint_that_spark_cannot_read_is_no_failure_that_a_restart_would_end(words: str) -> None:
    error = error_of(words)

    assert isinstance(error, MisconfiguredError)
    assert error.code == "checkpoint-damaged"
    assert f"CHECKPOINT_LOCATION ({words.splitlines()[0]})" in str(error)
    assert "delete that directory" in str(error)


def test_json_that_ends_early_in_a_task_is_no_damage_of_the_checkpoint() -> None:
    error = error_of(FROM_A_TASK.format(error="made.up.JsonError: Unexpected end-of-input"))
    assert type(error) is QueryFailedError


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("org.apache.spark.SparkException: Could not parse Master URL: 'locl'\n\tat org.apache.x", MisconfiguredError),
        ("java.net.ConnectException: Connection refused\n\tat java.base/y", QueryFailedError),
        ("", QueryFailedError),
    ],
)
def test_a_spark_that_does_not_start_is_reported_in_one_line(words: str, kind: type[Exception]) -> None:
    error = start_error("locl", RuntimeError(words))

    assert type(error) is kind
    assert str(error).startswith("Spark does not start at SPARK_MASTER=locl: ")
    assert (words.splitlines() or ["RuntimeError"])[0] in str(error)
    assert "\n" not in str(error)


NO_CONNECTOR = """org.apache.spark.SparkException: [CANNOT_LOAD_CHECKPOINT_FILE_MANAGER.UNCATEGORIZED] Error loading \
streaming checkpoint file manager for path=gs://bucket/x.  SQLSTATE: 58030
\tat org.apache.spark.sql.execution.streaming.StreamingErrors$.cannotLoadCheckpointFileManager(StreamingErrors.scala:1)
"""


@pytest.mark.parametrize(
    "words",
    [
        NO_CONNECTOR,
        "java.io.IOException: mkdir of file:/proc/x/y failed\n\tat org.apache.hadoop.fs.FileSystem.x(F.java:1)",
        "org.apache.hadoop.fs.ParentNotDirectoryException: Parent path is not a directory: file:/etc/hostname",
        "java.io.FileNotFoundException: gs:/bucket/x/metadata (Permission denied)",
        "org.apache.hadoop.security.AccessControlException: Permission denied: user=a, path=/bucket/x/offsets",
    ],
)
def test_a_checkpoint_that_spark_cannot_use_is_named_with_its_setting_and_without_a_stack(words: str) -> None:
    error = query_error("gs://bucket/x", RuntimeError(words))

    assert type(error) is MisconfiguredError
    assert str(error).startswith(f"Spark cannot use CHECKPOINT_LOCATION=gs://bucket/x: {words.splitlines()[0]}; name a")
    assert type(query_error(None, RuntimeError(words))) is QueryFailedError


@pytest.mark.parametrize(
    "words",
    [
        "java.io.FileNotFoundException: /tmp/blockmgr-1/temp_shuffle (Permission denied)",
        "org.apache.hadoop.security.AccessControlException: Permission denied: user=a, path=/jars/x.jar",
        "java.net.SocketException: Permission denied",
    ],
)
@pytest.mark.parametrize("checkpoint", ["gs://bucket/x", "file:///srv/checkpoint", "/srv/checkpoint/"])
def test_a_refusal_of_anything_else_is_no_trouble_of_the_checkpoint(words: str, checkpoint: str) -> None:
    error = query_error(checkpoint, RuntimeError(words))

    assert type(error) is QueryFailedError
    assert words in str(error)


@pytest.mark.parametrize(
    ("master", "tasks", "one_machine"),
    [
        ("local", 1, True),
        ("local[2]", 1, True),
        ("local[4]", 4, True),
        ("local[*]", 4, True),
        ("local[*,3]", 1, True),
        ("local-cluster[2,1,1024]", 1, False),
        ("spark://host:7077", 4, False),
        ("k8s://https://host", 4, False),
        ("yarn", 4, False),
    ],
)
def test_what_spark_takes_as_a_master_is_taken_with_tasks_for_its_slots_and_data_goes_past_it_on_one_machine(
    master: str, tasks: int, one_machine: bool
) -> None:
    settings = read_settings(Settings, NEEDED | {"SPARK_MASTER": master, "TASKS": f"{tasks}"})

    assert (settings.spark_master, settings.tasks, settings.one_machine) == (master, tasks, one_machine)


NEEDED_JAVA = r"Spark needs Java 17 or newer \(apt-get install openjdk-17-jre-headless\), in JAVA_HOME or on PATH; "


def test_a_missing_java_is_named_with_the_way_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(MisconfiguredError, match=f"{NEEDED_JAVA}none was found \\[java-missing\\]$"):
        check_java({"PATH": str(tmp_path)})
    with pytest.raises(MisconfiguredError, match=f"{NEEDED_JAVA}none was found in JAVA_HOME={tmp_path}"):
        check_java({"JAVA_HOME": str(tmp_path)})


@pytest.mark.parametrize(("version", "too_old"), [("11.0.2", "11"), ("17.0.1", None), ("21", None), ("1.8.0_292", "1")])
def test_java_has_to_be_new_enough(tmp_path: Path, version: str, too_old: str | None) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2021-01-01' >&2\n")
    java.chmod(0o755)
    for environ in ({"JAVA_HOME": str(tmp_path)}, {"PATH": str(java.parent)}):
        with pytest.raises(MisconfiguredError, match=f"{NEEDED_JAVA}{java} is {too_old}") if too_old else nullcontext():
            check_java(environ)


def test_reports_reach_the_driver_whatever_the_number_of_their_tables() -> None:
    tables = {f"table_{number}": TableNote(deferred="x" * 300) for number in range(20_000)}
    report = Report(counts=replace(COUNTS, tables=tables), process="p", oldest_outstanding=5)
    with heard() as (driver, reports):
        send_report(driver, report)

    found = reports.get_nowait()
    assert found.counts.plus(Counts()) == report.counts.plus(Counts())
    assert (found.process, found.oldest_outstanding) == ("p", 5)
    assert reports.empty()


def test_what_is_reported_last_arrives_though_the_driver_is_ending() -> None:
    with heard() as (driver, reports):
        for number in range(1_000):
            send_report(driver, Report(retries={"code": number}))

    assert [reports.get_nowait().retries for _ in range(reports.qsize())] == [{"code": n} for n in range(1_000)]


def test_a_report_that_is_not_received_is_dropped() -> None:
    with heard() as (driver, reports):
        send_report(driver, Report(process="heard"))
    for _ in range(2):
        send_report(driver, Report(process="after it"))
    send_report(None, Report(process="to no driver"))

    assert [reports.get_nowait().process for _ in range(reports.qsize())] == ["heard"]


def test_who_does_not_know_the_secret_is_not_heard() -> None:
    with heard() as (driver, reports):
        another = replace(driver, secret="0" * len(driver.secret))
        send_report(another, Report(counts=COUNTS))
        with pytest.raises(TransientError, match="does not answer"):
            DriverPoisonLimit(another).judge(TaskTotals(messages=Seen({"": 1}, {"": 1})))

    assert reports.empty()
    assert driver.secret not in repr(OPTIONS) + repr(replace(OPTIONS, driver=driver))


def test_a_question_is_asked_again_if_the_connection_has_ended_and_what_was_admitted_over_it_counts_once() -> None:
    def drop_the_connection(_report: Report) -> None:
        raise ConnectionResetError

    poison = TaskTotals(messages=Seen({"": 2}, {"": 2}))
    with listening(drop_the_connection, limit=5) as driver:
        limit = DriverPoisonLimit(driver)
        limit.judge(poison)
        send_report(driver, Report(counts=COUNTS))
        limit.judge(poison)
        limit.remember(poison)
        with pytest.raises(MisconfiguredError, match="6 of the last 6 messages"):
            limit.judge(poison)


def test_a_task_that_does_not_reach_the_driver_names_the_address_and_the_fix() -> None:
    with listening(lambda _report: None) as driver:
        check_driver_answers(driver)
    with pytest.raises(MisconfiguredError, match=rf"127.0.0.1:{driver.port}.*TASKS_PORT"):
        check_driver_answers(driver)


def test_a_port_that_is_taken_is_named() -> None:
    with listening(lambda _report: None) as one, receiving_reports(lambda _report: None, DeadLetterLimit()) as other:
        message = rf"127.0.0.1:{one.port}: .*TASKS_PORT"
        with pytest.raises(MisconfiguredError, match=message):
            other.listen("127.0.0.1", port=one.port)


def test_tasks_hear_of_a_stop_whether_they_listened_before_or_not_and_of_the_drivers_end() -> None:
    before, after, orphan = Stop(), Stop(), Stop()
    with receiving_reports(lambda _report: None, DeadLetterLimit()) as server:
        request_at_driver_stop(server.listen("127.0.0.1"), before)
        assert not before.wait(timedelta(milliseconds=200))
        server.stop_tasks()
        assert before.wait(timedelta(seconds=10))
        request_at_driver_stop(server.listen("127.0.0.1"), after)
        assert after.wait(timedelta(seconds=10))
    with listening(lambda _report: None) as driver:
        request_at_driver_stop(driver, orphan)
        assert not orphan.wait(timedelta(milliseconds=200))
    assert orphan.wait(timedelta(seconds=10))


def test_what_tasks_report_that_have_heard_of_a_stop_is_taken_before_their_spark_ends() -> None:
    stop, taken = Stop(), list[Report]()
    with receiving_reports(taken.append, DeadLetterLimit()) as server:
        address = server.listen("127.0.0.1")
        request_at_driver_stop(address, stop)
        holds, released = Report(process="t", oldest_outstanding=1), Report(process="t", counts=Counts(released=1))
        send_report(address, holds)
        send_report(address, Report())  # a sign of life

        def release() -> None:
            Stop().wait(timedelta(seconds=1))  # longer than a silence that ends what needs no more
            send_report(address, released)

        with stop.calling(release):
            assert not stop.wait(timedelta(milliseconds=200))
            server.stop_tasks()
            server.take_last_words()
            assert taken == [holds, Report(), released]


def test_one_attempt_to_reach_the_driver_that_fails_is_no_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    stop, attempts, connect = Stop(), count(), reports._connect

    def connects_late(address: DriverAddress) -> socket.socket:
        if next(attempts) == 0:
            raise TimeoutError("lost on the way")
        return connect(address)

    monkeypatch.setattr(reports, "_connect", connects_late)
    with receiving_reports(lambda _report: None, DeadLetterLimit()) as server:
        request_at_driver_stop(server.listen("127.0.0.1"), stop)
        assert not stop.wait(timedelta(seconds=2))
        server.stop_tasks()
        assert stop.wait(timedelta(seconds=10))


def test_spark_submit_and_the_master_say_the_same() -> None:
    assert is_submitted("submitted", BY_SUBMIT)
    assert not is_submitted("local[2]", {})


@pytest.mark.parametrize(
    ("master", "environ", "words"),
    [
        ("submitted", {}, "SPARK_MASTER=submitted, but spark-submit has not started this process"),
        ("local[2]", BY_SUBMIT, r"SPARK_MASTER=local\[2\], but spark-submit has started this process"),
    ],
)
def test_where_they_do_not_the_start_is_refused(master: str, environ: dict[str, str], words: str) -> None:
    with pytest.raises(MisconfiguredError, match=words):
        is_submitted(master, environ)
