"""The `pubsub` source in real Spark against the real emulator: what is published is leased, and acknowledged, once.

Spark starts once, for all queries of the module: whether it asks the source when and for what the source expects shows
with Spark only.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from deploy.local.platform.processes import wait_until
from services.cdc_consumer.adapters.spark.partitioning import partition_of
from services.cdc_consumer.core.stream.messages import PORTION_DDL, PORTION_SCHEMA
from shared.pubsub.stubs import PublishRequest, publish_stub
from shared.pubsub.topology import PubsubTopology
from tests.integration.pubsub_query import messages_in, read_journal, spark_session, start_query
from tests.integration.pubsub_topics import a_topology, publish, pull

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

TIMEOUT = timedelta(seconds=150)  # Spark itself takes a minute to start on a busy machine
Start = Callable[..., StreamingQuery]


@pytest.fixture(scope="module")
def blocks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory for Spark's blocks that the environment names."""
    return tmp_path_factory.mktemp("blocks")


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory, blocks: Path) -> Iterator[SparkSession]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PYSPARK_SUBMIT_ARGS", f"--conf spark.local.dir={blocks} pyspark-shell")
        with spark_session(tmp_path_factory.mktemp("spark")) as session:
            yield session


@pytest.fixture
def start(session: SparkSession, pubsub_emulator: str, tmp_path: Path) -> Iterator[Start]:
    """Return a function that starts the query on a subscription; it is stopped after the test, however that ended."""
    started: list[StreamingQuery] = []

    def start_one(subscription: str, **options: Any) -> StreamingQuery:
        started.append(start_query(session, tmp_path, pubsub_emulator, subscription, **options))
        return started[-1]

    yield start_one
    for query in started:
        query.stop()


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "journal"


def wait_for(condition: Callable[[], object], what: str) -> None:
    wait_until(lambda: bool(condition()), what, timeout=TIMEOUT)


def wait_for_acks(journal: Path, count: int, before: timedelta = TIMEOUT) -> None:
    wait_until(lambda: len(messages_in(journal, "acked")) >= count, f"{count} messages to be acked", timeout=before)


def test_sparks_blocks_are_where_the_user_has_named_a_place_for_them(session: SparkSession, blocks: Path) -> None:
    assert session.range(1).count() == 1
    assert list(blocks.glob("blockmgr-*"))


def test_arrow_and_spark_mean_the_same_rows(session: SparkSession) -> None:
    declared = StructType.fromDDL(PORTION_DDL)
    assert isinstance(declared, StructType)

    assert to_arrow_schema(declared, timezone="UTC").equals(PORTION_SCHEMA)


def test_spark_partitions_integers_as_is_expected(session: SparkSession) -> None:
    numbers = [*range(100), 2**31 - 1]
    hashed = session.createDataFrame([(number,) for number in numbers], "number INT")
    for tasks in (1, 2, 7):
        found = hashed.selectExpr(f"pmod(hash(number), {tasks})").collect()
        assert [row[0] for row in found] == [partition_of(number, tasks) for number in numbers]


def test_over_many_micro_batches_published_is_leased_is_acked(
    start: Start, topology: PubsubTopology, channel: grpc.Channel, journal: Path
) -> None:
    query = start(topology.subscription, micro_batch_messages=250)
    published: list[str] = []
    for count in (1, 700, 2, 250, 0, 1_100, 3):
        published += publish(channel, topology.topic, count)
        wait_for_acks(journal, len(published))

    assert Counter(messages_in(journal, "taken")) == Counter(published)
    assert Counter(messages_in(journal, "acked")) == Counter(published)
    assert len(query.recentProgress) >= 8
    assert pull(channel, topology.subscription) == []


def test_no_message_waits_for_another_task_to_find_one(
    start: Start, topology: PubsubTopology, channel: grpc.Channel, journal: Path
) -> None:
    start(topology.subscription, idle_wait=timedelta(seconds=60))
    publish(channel, topology.topic, 1)
    wait_for_acks(journal, 1)
    for count in (1, 2, 1, 3, 1):
        seen = len(messages_in(journal, "acked")) + count
        publish(channel, topology.topic, count)
        wait_for_acks(journal, seen, before=timedelta(seconds=30))  # a wait of the source's own is twice as long


def test_one_change_at_a_time_over_several_tasks_is_each_alone_in_the_next_micro_batch(
    start: Start, topology: PubsubTopology, channel: grpc.Channel, journal: Path, tmp_path: Path
) -> None:
    start(topology.subscription, idle_wait=timedelta(seconds=60), tasks=2)
    published: list[str] = []
    for key in range(8):  # of keys that are routed to one task or the other
        message = {"data": b"one", "ordering_key": f"planes/{key}"}
        request = PublishRequest(topic=topology.topic, messages=[message])
        published += publish_stub(channel)(request, timeout=10).message_ids
        wait_for_acks(journal, len(published), before=timedelta(seconds=30) if key else TIMEOUT)  # half of a wait

    assert [one["messages"] for one in read_journal(journal, "taken")] == [[one] for one in published]
    done = [path.name for path in (tmp_path / "checkpoint/offsets").glob("[0-9]*")]
    assert sorted(done, key=int) == [str(number) for number in range(8)], (
        "no micro-batch waited beside another's message"
    )


def test_what_comes_while_a_micro_batch_runs_is_all_in_the_very_next_one(
    start: Start, topology: PubsubTopology, channel: grpc.Channel, journal: Path, tmp_path: Path
) -> None:
    start(topology.subscription, idle_wait=timedelta(seconds=60), tasks=2, hold_seconds=3)
    published = publish(channel, topology.topic, 1)
    for _round in range(3):
        wait_for(lambda: len(messages_in(journal, "taken")) == len(published), "the micro-batch to be under way")  # noqa: B023
        published += publish(channel, topology.topic, 6)  # of keys that are routed to one task or the other
        assert len(messages_in(journal, "taken")) == len(published) - 6
    wait_for_acks(journal, len(published))

    done = [path.name for path in (tmp_path / "checkpoint/offsets").glob("[0-9]*")]
    assert sorted(done, key=int) == [str(number) for number in range(4)], "none waited for a second one"


def test_an_idle_query_runs_no_micro_batch(
    start: Start, topology: PubsubTopology, channel: grpc.Channel, tmp_path: Path
) -> None:
    query = start(topology.subscription, idle_wait=timedelta(seconds=1))
    publish(channel, topology.topic, 1)
    wait_for((tmp_path / "checkpoint/commits/0").exists, "the first micro-batch")

    query.awaitTermination(4)  # four waits of the source

    assert sorted(path.name for path in (tmp_path / "checkpoint/offsets").glob("[0-9]*")) == ["0"]


def test_after_the_stop_file_nothing_is_leased_any_more(
    start: Start, topology: PubsubTopology, channel: grpc.Channel, journal: Path, tmp_path: Path
) -> None:
    stop_file = tmp_path / "stop"
    query = start(topology.subscription, stop_file=str(stop_file))
    publish(channel, topology.topic, 1)
    wait_for((tmp_path / "checkpoint/commits/0").exists, "the first micro-batch")

    stop_file.touch()
    late = publish(channel, topology.topic, 3)  # perhaps to a pull that was waiting: it gives them back
    query.awaitTermination(3)
    query.stop()

    assert len(messages_in(journal, "taken")) == 1
    assert sorted(one.message.message_id for one in pull(channel, topology.subscription)) == sorted(late)


def test_once_is_refused_with_what_to_use_instead(start: Start, topology: PubsubTopology) -> None:
    query = start(topology.subscription, trigger={"once": True})

    with pytest.raises(StreamingQueryException, match=r"use trigger\(availableNow=True\)"):
        query.awaitTermination(60)


def test_a_subscription_that_is_not_there_ends_the_query_with_the_command_that_makes_it(start: Start) -> None:
    query = start("projects/millrace-test/subscriptions/nobody")

    with pytest.raises(StreamingQueryException, match=r"services\.cdc_consumer setup"):
        query.awaitTermination(60)


def test_a_restarted_query_does_its_interrupted_micro_batch_without_waiting(
    start: Start, topology: PubsubTopology, channel: grpc.Channel, journal: Path
) -> None:
    first = start(topology.subscription, hold_seconds=60)
    publish(channel, topology.topic, 1)
    wait_for(lambda: messages_in(journal, "taken"), "the first message to be leased")
    first.stop()  # in the middle of its micro-batch; the offset is written, the commit is not
    after = publish(channel, topology.topic, 5)

    start(topology.subscription)
    wait_for_acks(journal, 5)

    assert set(after) <= set(messages_in(journal, "acked"))


def test_a_source_whose_planner_is_killed_ends_the_query_and_another_start_goes_on(
    start: Start, channel: grpc.Channel, journal: Path
) -> None:
    topology = a_topology(channel, ack_deadline=timedelta(seconds=10))
    first = start(topology.subscription)
    publish(channel, topology.topic, 1)
    wait_for_acks(journal, 1)
    (planner,) = [one for one in psutil.Process().children(recursive=True) if _plans(one)]

    planner.kill()
    with pytest.raises(StreamingQueryException):
        first.awaitTermination(60)
    start(topology.subscription)
    published = publish(channel, topology.topic, 3)
    wait_for_acks(journal, 4)

    assert set(published) <= set(messages_in(journal, "acked"))


def _plans(process: psutil.Process) -> bool:
    """Return whether a process is the one on the driver that Spark asks for the source's offsets and plans."""
    try:
        return any("python_streaming_source_runner" in word for word in process.cmdline())
    except psutil.Error:
        return False
