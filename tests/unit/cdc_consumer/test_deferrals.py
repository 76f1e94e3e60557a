"""Until when a drain that finds nothing has not drained the subscription, from one run to the next."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from zlib import crc32

import grpc
import pyarrow as pa
import pytest

from services.cdc_consumer.adapters.spark.options import SinkOptions
from services.cdc_consumer.adapters.stream.message_data import pack
from services.cdc_consumer.adapters.stream.state_directory import choose_state_directory
from services.cdc_consumer.app.stream.deferrals import DEFERRALS_FILE, Deferrals
from services.cdc_consumer.core.stream.counts import Counts
from services.cdc_consumer.core.stream.messages import PORTION_SCHEMA
from services.cdc_consumer.settings import Settings
from services.cdc_consumer.wiring import sink_task
from services.cdc_consumer.wiring.bigquery_cdc import BigQueryCdcWriter
from services.cdc_consumer.wiring.service import state_file
from shared.contracts.errors import MisconfiguredError
from shared.contracts.timestamps import format_timestamp
from shared.pubsub.stubs import PublishResponse
from shared.runtime.clock import SystemClock
from shared.runtime.settings import read_settings
from tests.builders import a_change, a_message, messages_table
from tests.fakes.durable_bytes import FakeDurableBytes
from tests.fakes.pubsub_channel import FakeChannel, FakeRpcError
from tests.unit.cdc_consumer.listening import OPTIONS, heard, listening
from tests.unit.cdc_consumer.world import AIRPORTS, NEEDED, NOW, SetClock, World


def test_the_next_run_knows_by_when_what_was_deferred_comes_again() -> None:
    world, kept = World(), FakeDurableBytes()
    world.tables.forbidden = {"planes"}
    first = Deferrals(kept, world.clock)
    first.take(world.apply(a_message(a_change(1), delivery_attempt=3), a_message(a_change(2))))
    first.take(world.apply(a_message(header=AIRPORTS)))
    deferred = world.leases.deferred_for
    assert deferred == {"a0": timedelta(minutes=2), "a1": timedelta(seconds=30)}

    world.clock.pass_time(timedelta(minutes=2))
    until = Deferrals(kept, world.clock).until()
    assert until is not None, "Pub/Sub need not deliver on the second"
    assert format_timestamp(until) == "2026-11-21T12:02:15Z"
    world.clock.pass_time(timedelta(seconds=10))
    assert Deferrals(kept, world.clock).until() is None
    assert first.until() is None


def test_where_nothing_is_deferred_nothing_is_kept_and_an_earlier_time_changes_nothing() -> None:
    kept, clock = FakeDurableBytes(), SetClock()
    deferrals = Deferrals(kept, clock)
    deferrals.take(Counts(messages=1, acked=1))
    assert (kept.data, deferrals.until()) == (None, None)

    for minutes in (5, 1):
        deferrals.take(Counts(deferred=1, deferred_until=NOW // 1000 + minutes * 60_000_000))
    clock.pass_time(timedelta(minutes=4))
    assert Deferrals(kept, clock).until() is not None


def test_a_time_that_a_clock_which_was_ahead_has_kept_is_passed_over_and_replaced() -> None:
    kept, clock = FakeDurableBytes(), SetClock()
    clock.pass_time(timedelta(days=1))
    Deferrals(kept, clock).take(Counts(deferred=1, deferred_until=clock.now() // 1000 + 600_000_000))
    clock.pass_time(-timedelta(days=1))
    drain = Deferrals(kept, clock)
    assert drain.until() is None
    drain.take(Counts(deferred=1, deferred_until=NOW // 1000 + 600_000_000))
    assert Deferrals(kept, clock).until() == NOW + 610_000_000_000


@pytest.mark.parametrize("data", [b"", b"\xff", b"soon", b"-1"])
def test_what_is_not_understood_of_what_was_kept_is_passed_over(data: bytes) -> None:
    kept = FakeDurableBytes()
    kept.write(data)
    assert Deferrals(kept, SetClock()).until() is None


def test_a_time_that_another_process_has_kept_counts_and_is_not_replaced_by_an_earlier_one() -> None:
    kept, clock = FakeDurableBytes(), SetClock()
    driver, worker = Deferrals(kept, clock), Deferrals(kept, clock)
    worker.take(Counts(deferred=1, deferred_until=NOW // 1000 + 60_000_000))
    assert driver.until() is not None

    driver.take(Counts(deferred=1, deferred_until=NOW // 1000 + 1_000_000))
    clock.pass_time(timedelta(seconds=60))
    assert Deferrals(kept, clock).until() is not None


# What a worker process says, and leaves to the next.


@pytest.fixture
def pubsub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeChannel]:
    """Be a worker process: its channel to Pub/Sub is in memory, and the logs of this process stay as they are."""
    channel = FakeChannel(lambda _name, _request: None)
    monkeypatch.setattr(sink_task, "open_channel", lambda _host: channel)
    monkeypatch.setattr(sink_task, "configure_logs", lambda *_arguments: None)
    monkeypatch.setattr(sink_task, "log_whatever_happens", lambda: None)
    sink_task._composed.cache_clear()
    yield channel
    sink_task._composed.cache_clear()


def trip_the_limit(options: SinkOptions) -> None:
    with pytest.raises(MisconfiguredError, match="POISON_LIMIT"):
        write(options, a_message(data=b"garbage", delivery_attempt=2), a_message(data=b"more"))


def write(options: SinkOptions, *messages: Mapping[str, object]) -> None:
    """Write messages as a task does that got them through Spark."""
    (batch,) = messages_table(*messages).to_batches()
    packed = pack(batch)
    row = {"task": 0, "checksum": crc32(packed), "messages": packed}
    BigQueryCdcWriter(options).write(iter([pa.RecordBatch.from_pylist([row], PORTION_SCHEMA)]))


def test_messages_deferred_at_the_limit_are_reported_with_the_time_by_which_the_last_of_them_comes_again(
    pubsub: FakeChannel,
) -> None:
    before = SystemClock().now() // 1000
    with heard(limit=0) as (driver, taken):
        trip_the_limit(replace(OPTIONS, driver=driver))
        counts = taken.get(timeout=10).counts.plus(taken.get(timeout=10).counts)
    after = SystemClock().now() // 1000

    deadlines = {request.ack_deadline_seconds for name, request in pubsub.calls if name == "ModifyAckDeadline"}
    assert deadlines == {30, 60}
    minute = timedelta(minutes=1) // timedelta(microseconds=1)
    assert (counts.deferred, counts.acked) == (2, 0)
    assert before + minute <= counts.deferred_until <= after + minute


def test_the_next_run_knows_of_messages_deferred_at_the_limit_though_no_report_of_them_has_arrived(
    pubsub: FakeChannel, tmp_path: Path
) -> None:
    next_run = read_settings(Settings, NEEDED | {"CHECKPOINT_LOCATION": str(tmp_path)})
    directory = choose_state_directory(next_run.checkpoint_location)
    with listening(lambda _report: None, limit=0) as driver:
        trip_the_limit(replace(OPTIONS, driver=driver, state_directory=str(directory)))

    assert any(name == "ModifyAckDeadline" for name, _request in pubsub.calls)
    assert Deferrals(state_file(next_run, DEFERRALS_FILE), SystemClock()).until() is not None


def test_what_could_not_be_dead_lettered_counts_no_more_once_its_task_has_ended(
    pubsub: FakeChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(name: str, _request: object) -> None:
        if name == "Publish":
            raise FakeRpcError(grpc.StatusCode.PERMISSION_DENIED)

    pubsub.answer = refused
    garbage = [a_message(data=b"garbage %d" % number) for number in range(2)]
    with listening(lambda _report: None, limit=2) as driver:
        options = replace(OPTIONS, driver=driver)
        write(options, *garbage)
        pubsub.answer = lambda _name, _request: PublishResponse(message_ids=["1", "2"])
        monkeypatch.setattr(os, "getpid", lambda: 1_000_000)  # another process
        write(options, *garbage)

    published = [request for name, request in pubsub.calls if name == "Publish"]
    assert [len(request.messages) for request in published] == [2, 2]


def test_the_poison_of_all_worker_processes_is_counted_together(
    pubsub: FakeChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_as(number: int, options: SinkOptions) -> None:
        monkeypatch.setattr(os, "getpid", lambda: 1_000_000 + number)  # each in a process of its own
        garbage = dict(a_message(data=b"garbage %d" % number)) | {"ordering_key": ""}
        write(options, garbage)

    pubsub.answer = lambda _name, _request: PublishResponse(message_ids=["1"])
    with listening(lambda _report: None, limit=2) as driver:
        options = replace(OPTIONS, driver=driver)
        for number in range(2):
            write_as(number, options)
        with pytest.raises(MisconfiguredError, match="3 of the last 3 messages"):
            write_as(2, options)
    published = [request for name, request in pubsub.calls if name == "Publish"]
    assert [len(request.messages) for request in published] == [1, 1]


def test_a_task_that_cannot_begin_releases_its_messages_and_reports_it(pubsub: FakeChannel) -> None:
    with heard() as (driver, reports):
        options = replace(OPTIONS, driver=driver, tables_file="no tables")
        with pytest.raises(MisconfiguredError):
            write(options, a_message(a_change(1)), a_message(a_change(2)))

    assert [(name, list(request.ack_ids), request.ack_deadline_seconds) for name, request in pubsub.calls] == [
        ("ModifyAckDeadline", ["a0", "a1"], 0)
    ]
    assert reports.get_nowait().counts == Counts(messages=2, released=2)
