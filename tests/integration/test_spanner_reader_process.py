"""The reader as a process, against both emulators: churn, kills, a second reader, refusals to start."""

import json
import signal
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator

import pytest

from deploy.local.platform import emulators
from deploy.local.platform.processes import Process, Processes
from deploy.local.platform.source import SpannerDatabase, SpannerInstance
from shared.contracts.timestamps import Nanoseconds, format_timestamp, microseconds
from shared.pubsub.channels import open_channel
from tests.integration.log_lines import events
from tests.integration.pubsub_topics import a_topology
from tests.integration.readers import STARTS, refusal, stop
from tests.worlds.spanner_pipeline import DDL, SpannerPipeline

pytestmark = pytest.mark.integration


@pytest.fixture
def pipeline(
    database: Callable[..., SpannerDatabase], spanner_pipeline: Callable[..., SpannerPipeline]
) -> SpannerPipeline:
    """Return a pipeline on the module's emulator, whose partitions stay as they are."""
    return spanner_pipeline(database(*DDL), database())


def test_what_is_committed_arrives_and_a_stop_is_quick_saves_the_watermark_and_gives_the_leases_back(
    pipeline: SpannerPipeline,
) -> None:
    reader = pipeline.start()
    pipeline.write(rows=50)
    pipeline.write()
    pipeline.wait_for_all()
    pipeline.wait(lambda: _published(reader) >= 51, "it to count what Pub/Sub has confirmed")
    pipeline.wait(lambda: _metrics(reader)["millrace_reader_lag_seconds"] < 30, "it to be in time")
    metrics = _metrics(reader)
    assert metrics["millrace_reader_changes_total"] == 51
    assert metrics["millrace_published_changes_total"] == 51
    assert metrics["millrace_partitions", "state", "FINISHED"] >= 1
    stop(reader)
    assert pipeline.watermark() >= pipeline.committed[-1][1]
    (row,) = pipeline.partitions.query("SELECT COUNT(*) AS held FROM millrace_partitions WHERE lease_until IS NOT NULL")
    assert row == {"held": 0}

    pipeline.write()  # committed while nobody reads
    pipeline.start()
    pipeline.wait_for_all()
    repeated = len(pipeline.received) - len(set(pipeline.received))
    assert repeated <= 1  # it went on at the watermark: the record that stood there, and nothing before it
    (started,) = events(reader, "service_started")
    assert "Everything" in json.dumps(started)


def test_a_reader_publishes_heartbeats_that_pass_what_was_committed_and_end_with_it(pipeline: SpannerPipeline) -> None:
    reader = pipeline.start(TOPIC_HEARTBEAT_EVERY="1s")
    pipeline.write()
    pipeline.wait_for_all()
    last = microseconds(pipeline.committed[-1][1])
    pipeline.wait(lambda: pipeline.published_until >= last, "a heartbeat from after the commit", pipeline.pull)
    stop(reader)
    pipeline.pull()
    until = pipeline.published_until

    pipeline.write()  # committed while nobody reads: no heartbeat says that it is published
    pipeline.pull()
    assert until == pipeline.published_until < microseconds(pipeline.committed[-1][1])
    assert pipeline.heartbeat_tables == {"Planes"}


@pytest.mark.parametrize("partitions_in_postgresql", [True, False])
def test_a_database_of_the_postgresql_dialect_is_read_and_resumed_wherever_the_partition_table_is(
    database: Callable[..., SpannerDatabase],
    spanner_pipeline: Callable[..., SpannerPipeline],
    partitions_in_postgresql: bool,
) -> None:
    watched = database(
        'CREATE TABLE "Planes" ("Id" bigint NOT NULL PRIMARY KEY, "Name" varchar)',
        """CREATE CHANGE STREAM "Everything" FOR "Planes" WITH (value_capture_type = 'OLD_AND_NEW_VALUES')""",
        postgresql=True,
    )
    pipeline = spanner_pipeline(watched, database(postgresql=partitions_in_postgresql))

    reader = pipeline.start()
    pipeline.write(rows=20)
    (warned,) = events(reader, "updates_completed_by_reads")
    watched.alter(warned["fix"].partition(" makes ")[0])  # Spanner takes it while it is read
    pipeline.write()
    pipeline.wait_for_all()
    reader.kill()
    pipeline.write()
    pipeline.start(KEEP_FINISHED_PARTITIONS_FOR="1s")
    pipeline.wait_for_all()


def test_killed_between_publish_and_watermark_it_goes_on_and_loses_nothing(pipeline: SpannerPipeline) -> None:
    attempts = 10
    for _attempt in range(attempts):
        reader = pipeline.start()
        pipeline.write(rows=20)
        pipeline.wait_for_all()
        reader.kill()
        if pipeline.watermark() < pipeline.committed[-1][1]:  # published, and not saved yet
            break
    else:
        pytest.fail(f"the watermark was saved before the kill {attempts} times in a row")
    pipeline.write()
    before = pipeline.received.copy()
    pipeline.start()  # takes over when the dead one's leases have ended
    pipeline.wait_for_all()
    assert set(pipeline.received[len(before) :]) & set(before)  # again, from the watermark: repeats, nothing lost


def test_a_second_reader_takes_over_and_the_first_publishes_nothing_more(pipeline: SpannerPipeline) -> None:
    first = pipeline.start()
    pipeline.write()
    pipeline.wait_for_all()
    second = pipeline.start()
    first.signal(signal.SIGSTOP)  # as a long pause of its machine would
    pipeline.write(rows=5)
    pipeline.wait_for_all()  # by the second, when the leases have ended
    assert '"partition_claimed"' in second.output()
    # It counts once Pub/Sub has confirmed, which may be after others have received.
    pipeline.wait(lambda: _published(second) >= 5, "the second to count")
    first.signal(signal.SIGCONT)
    pipeline.wait(lambda: bool(events(first, "lease_lost")), "the first to notice")
    before, counted = _published(first), _published(second) + 5
    pipeline.write(rows=5)
    pipeline.wait_for_all()
    pipeline.wait(lambda: _published(second) >= counted, "the second to count")
    assert (_published(first), _published(second)) == (before, counted)


@pytest.fixture
def churning(new_processes: Processes, spanner_pipeline: Callable[..., SpannerPipeline]) -> Iterator[SpannerPipeline]:
    """Return a pipeline on an emulator of its own, whose partitions live for a second."""
    flags = {"override_change_stream_partition_token_alive_seconds": "1"}
    with emulators.spanner_emulator(new_processes, **flags) as address:
        instance = SpannerInstance.create(address, "millrace-test", "churning")
        yield spanner_pipeline(instance.create_database(DDL), instance.create_database([]))
        new_processes.end_all()


def test_partitions_that_live_for_a_second_lose_nothing_and_stay_in_time_though_the_reader_is_killed(
    churning: SpannerPipeline,
) -> None:
    def write(transactions: int) -> None:
        for _transaction in range(transactions):
            churning.write()
            time.sleep(0.05)

    first = churning.start()
    write(150)
    first.kill()  # in the middle of it all, partitions half handed on
    reader = churning.start()
    write(300)
    churning.wait_for_all()
    # It keeps up with their lives.
    churning.wait(lambda: _metrics(reader)["millrace_reader_lag_seconds"] < 10, "it to be in time")
    metrics = _metrics(reader)
    assert metrics["millrace_partitions_split_total"] >= 2
    assert metrics["millrace_partitions_merged_total"] >= 2
    assert metrics["millrace_partitions", "state", "FINISHED"] >= 10
    stop(reader)


def test_a_stop_is_quick_though_pubsub_is_unavailable_and_what_was_not_confirmed_is_published_later(
    database: Callable[..., SpannerDatabase], new_processes: Processes
) -> None:
    with emulators.pubsub_emulator(new_processes) as address, open_channel(address) as channel:
        made = database(*DDL), database()
        pipeline = SpannerPipeline(*made, address, channel, a_topology(channel), new_processes)
        reader = pipeline.start()
        pipeline.write()
        pipeline.wait_for_all()
        (emulator,) = (process for process in new_processes.running if "pubsub" in process.name)
        emulator.signal(signal.SIGSTOP)
        try:
            pipeline.write(rows=10)
            time.sleep(2)  # read, and waiting for a confirmation that does not come
            stop(reader)
        finally:
            emulator.signal(signal.SIGCONT)
        pipeline.start()
        pipeline.wait_for_all()
        new_processes.end_all()


def test_an_end_that_all_partitions_reach_ends_the_process(pipeline: SpannerPipeline) -> None:
    started = format_timestamp(pipeline.database.now())
    pipeline.write(rows=3)
    end = format_timestamp(pipeline.committed[-1][1])
    pipeline.write(rows=3)
    reader = pipeline.launch(START_TIMESTAMP=started, END_TIMESTAMP=end)
    assert reader.wait(STARTS) == 0
    reader.end()
    pipeline.pull()
    assert sorted(key for key, _time in pipeline.received) == [0, 1, 2]
    pipeline.launch()  # and on, without an end
    pipeline.wait_for_all()
    assert len(pipeline.received) == 6


def test_what_cannot_work_is_refused_with_exit_code_two_and_what_fixes_it(pipeline: SpannerPipeline) -> None:
    pipeline.database.alter("CREATE CHANGE STREAM Whole FOR ALL OPTIONS (value_capture_type = 'NEW_ROW')")
    early = format_timestamp(Nanoseconds(pipeline.database.now() - 3_600 * 1_000_000_000))
    cases = {
        "does not exist: correct TOPIC": {"TOPIC": f"unheard-{uuid.uuid4().hex}"},
        "CREATE CHANGE STREAM Nothing": {"CHANGE_STREAM": "Nothing"},
        "PARTITION_DATABASE": {"CHANGE_STREAM": "Whole", "PARTITION_DATABASE": pipeline.database.name},
        "START_TIMESTAMP within that range": {"START_TIMESTAMP": early},
        "is in the future": {"START_TIMESTAMP": "2999-01-01T00:00:00Z"},
    }
    refused = {wanted: pipeline.launch(**variables) for wanted, variables in cases.items()}
    for wanted, reader in refused.items():
        assert wanted in refusal(reader)
    reader = pipeline.start()  # nothing of a refused start was remembered
    assert '"first_start"' in reader.output()


class _Metrics(dict[object, float]):
    pass


def _published(reader: Process) -> float:
    return _metrics(reader)["millrace_published_changes_total"]


def _metrics(reader: Process) -> _Metrics:
    """Return the metrics by name, and by (name, label, value) where there is a label."""
    (served,) = events(reader, "health_served")
    with urllib.request.urlopen(f"http://127.0.0.1:{served['port']}/metrics", timeout=5) as answer:
        lines = answer.read().decode().splitlines()
    found = _Metrics()
    for line in lines:
        if not line.startswith("#"):
            name, _space, value = line.rpartition(" ")
            metric, _brace, labels = name.partition("{")
            label, _equals, text = labels.rstrip("}").partition("=")
            found[(metric, label, text.strip('"')) if label else metric] = float(value)
    return found
