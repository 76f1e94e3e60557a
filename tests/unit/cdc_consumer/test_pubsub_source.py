"""The source: its options, its offsets and plans, and that every lease it takes is a row or given back."""

from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from pyspark.sql.datasource import InputPartition

from services.cdc_consumer.adapters.spark.data_source_api import ReadMaxRows
from services.cdc_consumer.adapters.spark.options import SourceOptions, decode_options, encode_options
from services.cdc_consumer.adapters.stream import pubsub_reader
from services.cdc_consumer.adapters.stream.message_data import unpack
from services.cdc_consumer.adapters.stream.pubsub_reader import pull_limits
from services.cdc_consumer.adapters.stream.pubsub_source import PubsubStreamReader
from services.cdc_consumer.core.stream.counts import Counts, Report
from shared.contracts.errors import MisconfiguredError
from shared.pubsub.stubs import PullResponse, Subscription
from tests.fakes.pubsub_channel import FakeChannel, FakeRpcError
from tests.unit.cdc_consumer.listening import heard

NAME = "projects/p/subscriptions/s"


def test_the_subscription_is_all_that_is_needed() -> None:
    assert read_options(b'{"subscription": "%s"}' % NAME.encode()) == SourceOptions(subscription=NAME)


def test_options_reach_the_source_as_they_were_given() -> None:
    options = SourceOptions(
        subscription=NAME,
        emulator_host="127.0.0.1:1",
        tasks=4,
        micro_batch_messages=100,
        micro_batch_bytes=1_000,
        linger=timedelta(milliseconds=10),
        longest_linger=timedelta(seconds=1),
        idle_wait=timedelta(seconds=3),
        ack_deadline=timedelta(seconds=10),
        stop_file="/tmp/stop",
    )

    assert decode_options(SourceOptions, encode_options(options)) == options
    assert pull_limits(options, 4).messages == 25


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (b"{}", "subscription"),
        (b'{"subscription": "s", "tasks": "two"}', "tasks"),
        (b'{"subscription": "s", "tasks": 0}', "tasks"),
        (b'{"subscription": "s", "linger": "50"}', "linger"),
        (b'{"subscription": "s", "idle_wait": "PT5M"}', "idle_wait"),
        (b"subscription=s", "JSON"),
    ],
)
def test_a_mistake_is_named(options: bytes, named: str) -> None:
    with pytest.raises(MisconfiguredError, match=named):
        read_options(options)


def read_options(text: bytes) -> SourceOptions:
    return decode_options(SourceOptions, {"settings": text.decode()})


class Pubsub:
    """A Pub/Sub in memory behind the source: the next pulls' answers, and what was given back."""

    def __init__(self) -> None:
        self.pulls: list[list[str] | grpc.StatusCode] = []
        self.released: list[str] = []
        self.extended: list[tuple[list[str], int]] = []
        self.channel = FakeChannel(self.answer)

    def answer(self, name: str, request: Any) -> Any:
        if name == "GetSubscription":
            return Subscription(ack_deadline_seconds=60)
        if name == "ModifyAckDeadline":
            if request.ack_deadline_seconds:
                self.extended.append((list(request.ack_ids), request.ack_deadline_seconds))
            else:
                self.released += request.ack_ids
            return None
        found = self.pulls.pop(0) if self.pulls else []
        if isinstance(found, grpc.StatusCode):
            raise FakeRpcError(found)
        return PullResponse(received_messages=[{"ack_id": one, "message": {"data": b"x"}} for one in found])


@pytest.fixture
def pubsub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pubsub]:
    pubsub = Pubsub()
    monkeypatch.setattr(pubsub_reader, "open_channel", lambda _host: pubsub.channel)
    monkeypatch.setattr(pubsub_reader, "_PAUSE", timedelta(0))
    forget_clients()
    yield pubsub
    forget_clients()


def forget_clients() -> None:
    pubsub_reader._channel.cache_clear()
    pubsub_reader._clients.cache_clear()


@pytest.fixture
def reader(pubsub: Pubsub) -> PubsubStreamReader:
    return PubsubStreamReader(SourceOptions(subscription=NAME, tasks=3, linger=timedelta(0)))


LIMIT = ReadMaxRows(100)
BEGIN, FIRST, SECOND = {"batch": 0}, {"batch": 1}, {"batch": 2}
DRAINING = SourceOptions(subscription=NAME, tasks=3, linger=timedelta(0), idle_wait=timedelta(seconds=1))


def rows(reader: PubsubStreamReader, partition: InputPartition) -> list[str]:
    messages, damaged = unpack(reader.read(partition))
    assert not damaged
    return [str(one) for one in messages["ack_id"].to_pylist()]


def planned(reader: PubsubStreamReader, pubsub: Pubsub, *ack_ids: str) -> Sequence[InputPartition]:
    """Plan the first micro-batch, for which the driver has leased some messages."""
    pubsub.pulls = [list(ack_ids)]
    assert reader.latestOffset(BEGIN, LIMIT) == FIRST
    return reader.partitions(BEGIN, FIRST)


def test_nothing_there_is_no_new_offset(reader: PubsubStreamReader) -> None:
    assert reader.latestOffset(BEGIN, LIMIT) == BEGIN
    assert reader.partitions(BEGIN, BEGIN) == []


def test_one_message_is_read_by_one_task_and_travels_in_the_plan(reader: PubsubStreamReader, pubsub: Pubsub) -> None:
    (partition,) = planned(reader, pubsub, "a")
    pubsub.pulls = [["b"]]
    assert rows(reader, partition) == ["a", "b"]


def test_a_backlog_is_read_by_all_tasks_each_message_once(reader: PubsubStreamReader, pubsub: Pubsub) -> None:
    planned(reader, pubsub, "first")
    pubsub.pulls = [["a", "b"]]
    assert reader.latestOffset(FIRST, LIMIT) == SECOND
    partitions = reader.partitions(FIRST, SECOND)
    pubsub.pulls = [["c"], ["d"], ["e"]]

    assert [rows(reader, partition) for partition in partitions] == [["a", "b", "c"], ["d"], ["e"]]


def test_the_first_micro_batch_is_small(reader: PubsubStreamReader, pubsub: Pubsub) -> None:
    (partition,) = planned(reader, pubsub, "a", "b")

    assert isinstance(partition, pubsub_reader.MessagesPartition)
    assert partition.limits.bytes == 16 << 20


def test_the_next_micro_batch_has_messages_of_its_own(reader: PubsubStreamReader, pubsub: Pubsub) -> None:
    planned(reader, pubsub, "a")
    pubsub.pulls = [["b"]]

    assert reader.latestOffset(FIRST, LIMIT) == SECOND
    (partition,) = reader.partitions(FIRST, SECOND)
    assert rows(reader, partition) == ["b"]


def test_while_workers_are_being_started_leases_are_longer(reader: PubsubStreamReader, pubsub: Pubsub) -> None:
    for batch in range(4):
        pubsub.pulls = [[f"m{batch}"]]
        begin, end = {"batch": batch}, {"batch": batch + 1}
        assert reader.latestOffset(begin, LIMIT) == end
        reader.partitions(begin, end)

    assert pubsub.extended == [(["m0"], 240), (["m1"], 240)]


def test_asked_again_for_the_same_offset_it_leases_nothing_more(reader: PubsubStreamReader, pubsub: Pubsub) -> None:
    pubsub.pulls = [["a"], ["b"]]

    assert reader.latestOffset(BEGIN, LIMIT) == reader.latestOffset(BEGIN, LIMIT) == FIRST
    assert pubsub.pulls == [["b"]]


def test_after_a_restart_the_interrupted_micro_batch_takes_what_is_there(
    reader: PubsubStreamReader, pubsub: Pubsub
) -> None:
    (partition,) = reader.partitions(BEGIN, FIRST)
    pubsub.pulls = [["a"], ["b"]]

    assert rows(reader, partition) == ["a", "b"]


def test_stopped_before_the_plan_what_is_held_is_released_and_after_it_it_is_the_tasks_own(
    reader: PubsubStreamReader, pubsub: Pubsub
) -> None:
    planned(reader, pubsub, "a")
    reader.stop()
    assert pubsub.released == []

    pubsub.pulls = [["b", "c"]]
    reader.latestOffset(FIRST, LIMIT)
    reader.stop()
    assert pubsub.released == ["b", "c"]


def test_what_a_wait_brings_after_the_stop_file_is_released(pubsub: Pubsub, tmp_path: Path) -> None:
    stop_file = tmp_path / "stop"
    answer = pubsub.channel.answer

    def stop_meanwhile(name: str, request: Any) -> Any:
        stop_file.touch()
        return answer(name, request)

    pubsub.channel.answer = stop_meanwhile
    pubsub.pulls = [["a"]]
    deadline = timedelta(seconds=60)  # given, so that the first call is the pull
    reader = PubsubStreamReader(SourceOptions(subscription=NAME, stop_file=str(stop_file), ack_deadline=deadline))

    assert reader.latestOffset(BEGIN, LIMIT) == BEGIN
    assert pubsub.released == ["a"]
    assert reader.latestOffset(BEGIN, LIMIT) == BEGIN
    assert sum(name == "Pull" for name, _request in pubsub.channel.calls) == 1


def test_a_read_that_fails_releases_all_that_it_took(reader: PubsubStreamReader, pubsub: Pubsub) -> None:
    (partition,) = planned(reader, pubsub, "a")
    pubsub.pulls = [[f"m{number}" for number in range(10)], grpc.StatusCode.NOT_FOUND]

    with pytest.raises(MisconfiguredError):
        rows(reader, partition)
    assert sorted(pubsub.released) == sorted(["a"] + [f"m{number}" for number in range(10)])


def test_a_reading_that_is_broken_off_releases_all_that_it_took_and_the_reports_balance(pubsub: Pubsub) -> None:
    with heard() as (driver, reports):
        reader = PubsubStreamReader(SourceOptions(subscription=NAME, tasks=1, driver=driver))
        (partition,) = planned(reader, pubsub, "a")
        pubsub.pulls = [[f"{pull}{number}" for number in range(20)] for pull in "bcde"]
        reading = reader.read(partition)
        next(reading), next(reading), next(reading)
        reading.close()  # type: ignore[attr-defined]
        counts = reports.get(timeout=10).counts

    assert {"a", "b0", "c19"} <= set(pubsub.released)
    assert len(pubsub.released) == counts.released == counts.taken


def test_that_pubsub_is_unavailable_is_reported_and_that_it_is_back(pubsub: Pubsub) -> None:
    with heard() as (driver, reports):
        reader = PubsubStreamReader(SourceOptions(subscription=NAME, idle_wait=timedelta(seconds=1), driver=driver))
        pubsub.pulls = [grpc.StatusCode.UNAVAILABLE] * 100
        assert reader.latestOffset(BEGIN, LIMIT) == BEGIN
        assert f"pull from {NAME}: UNAVAILABLE" in (reports.get(timeout=10).not_pulled or "")
        pubsub.pulls = [["a"]]
        assert reader.latestOffset(BEGIN, LIMIT) == FIRST
        assert reports.get(timeout=10).not_pulled == ""


def test_what_was_read_is_reported_as_taken(pubsub: Pubsub) -> None:
    with heard() as (driver, reports):
        reader = PubsubStreamReader(SourceOptions(subscription=NAME, tasks=1, driver=driver))
        (partition,) = planned(reader, pubsub, "a", "b")
        pubsub.pulls = [["c"]]
        assert rows(reader, partition) == ["a", "b", "c"]
        assert reports.get(timeout=10).counts == Counts(taken=3)
        pubsub.pulls = [["held"]]
        reader.latestOffset(FIRST, LIMIT)
        reader.stop()
        assert reports.get(timeout=10).counts == Counts(taken=1, released=1)


def test_pulls_that_were_made_again_are_reported(pubsub: Pubsub) -> None:
    with heard() as (driver, reports):
        reader = PubsubStreamReader(SourceOptions(subscription=NAME, tasks=1, driver=driver))
        pubsub.pulls = [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNAVAILABLE, ["a"]]
        assert reader.latestOffset(BEGIN, LIMIT) == FIRST
        assert reports.get(timeout=10) == Report(retries={"UNAVAILABLE": 2})
        reader.stop()


@pytest.mark.parametrize(
    "before",
    [
        pytest.param([grpc.StatusCode.DEADLINE_EXCEEDED], id="no answer is not an empty answer"),
        pytest.param([[], []], id="an empty answer before the wait is over is no sign that nothing is left"),
    ],
)
def test_available_now_ends_only_when_pubsub_reports_that_nothing_is_left(
    pubsub: Pubsub, before: list[list[str] | grpc.StatusCode]
) -> None:
    reader = PubsubStreamReader(DRAINING)
    reader.prepareForTriggerAvailableNow()
    pubsub.pulls = [*before, ["a"]]

    assert reader.latestOffset(BEGIN, LIMIT) == FIRST
    reader.partitions(BEGIN, FIRST)
    assert reader.latestOffset(FIRST, LIMIT) == FIRST
    pubsub.pulls = [["later"]]
    assert reader.latestOffset(FIRST, LIMIT) == FIRST
    assert pubsub.pulls == [["later"]]


def test_one_empty_answer_is_no_proof_that_the_subscription_is_drained(pubsub: Pubsub) -> None:
    at_once: list[list[str]] = [[], [], [], ["a"], *[[]] * 20]

    def answer(name: str, request: Any) -> Any:
        if name == "Pull" and request.return_immediately:
            pubsub.pulls = [at_once.pop(0)]
        return Pubsub.answer(pubsub, name, request)

    pubsub.channel = FakeChannel(answer)
    reader = PubsubStreamReader(DRAINING)
    reader.prepareForTriggerAvailableNow()

    assert reader.latestOffset(BEGIN, LIMIT) == FIRST
    reader.partitions(BEGIN, FIRST)
    assert reader.latestOffset(FIRST, LIMIT) == FIRST
    left = len(at_once)
    assert reader.latestOffset(FIRST, LIMIT) == FIRST
    assert len(at_once) == left, "it is drained, and asks no more"
