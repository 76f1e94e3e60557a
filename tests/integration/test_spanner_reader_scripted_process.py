"""Reader processes against a scripted change stream; partition table, schema and clock are the emulator's."""

import json
from collections.abc import Callable, Iterator
from datetime import timedelta

import grpc
import pytest
from google.pubsub_v1 import SubscriberClient
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport

from deploy.local.platform.processes import Processes
from deploy.local.platform.source import SpannerDatabase
from services.spanner_reader.core.stream.records import ROOT, PartitionToken
from shared.runtime.service import MISCONFIGURED
from tests.integration.readers import STARTS
from tests.integration.scripted_spanner import Break
from tests.worlds.scripted_reader import T1, T2, T3, T4, T5, Scripted, scripted_reader

pytestmark = pytest.mark.integration


@pytest.fixture
def scripted(
    database: Callable[..., SpannerDatabase], pubsub_emulator: str, new_processes: Processes
) -> Iterator[Scripted]:
    """Return a pipeline whose change stream is scripted, with four partitions."""
    with scripted_reader(database, pubsub_emulator, new_processes) as scripted:
        yield scripted


@pytest.mark.parametrize(("first", "second"), [(T2, T3), (T3, T2)])
def test_a_merge_with_a_kill_between_its_parents_loses_nothing_and_is_read_after_both(
    scripted: Scripted, first: PartitionToken, second: PartitionToken
) -> None:
    reader = scripted.start()
    for token in (T1, T2, T3, T4):  # at once, on several partitions
        scripted.stream.breaks(token, Break(3), Break(7))
        scripted.write(token, rows=10)
    scripted.pipeline.wait_for_all()
    scripted.end(first, T5, parents=(T2, T3))
    scripted.pipeline.wait(lambda: scripted.state_of(first) == "FINISHED", "the first parent's end")
    reader.kill()
    scripted.write(T1, rows=5)
    scripted.write(second, rows=5)
    merged = scripted.end(second, T5, parents=(T2, T3))
    scripted.write(T5, rows=5, after=merged)
    assert scripted.stream.asked(T5) == []
    scripted.start()  # takes over when the dead one's leases have ended
    scripted.pipeline.wait_for_all()
    scripted.pipeline.wait(lambda: scripted.state_of(second) == "FINISHED", "the second parent's end")
    assert scripted.stream.asked(T5) == [merged]
    asked = [query.token for query in scripted.stream.queries]
    assert asked.index(T5) > max(index for index, token in enumerate(asked) if token in (T2, T3))


def test_two_readers_started_one_after_the_other_end_with_half_of_the_partitions_each(scripted: Scripted) -> None:
    first = scripted.start()
    scripted.pipeline.wait(lambda: scripted.leases() == [4], "the first reader to hold all")
    second = scripted.start()
    scripted.pipeline.wait(lambda: scripted.leases() == [2, 2], "equal shares")
    for token in (T1, T2, T3, T4):
        scripted.write(token, rows=10)
    scripted.pipeline.wait_for_all()
    released = [line for line in first.output().splitlines() if '"partitions_released"' in line]
    assert [json.loads(line)["partitions"] for line in released] == [2]
    assert len(scripted.pipeline.received) == 40  # each once
    second.ask_to_end()
    assert second.wait(timedelta(seconds=10)) == 0
    scripted.pipeline.wait(lambda: scripted.leases() == [4], "the first reader to hold all again")


def test_a_subscription_deleted_while_the_reader_runs_stops_it(scripted: Scripted) -> None:
    reader = scripted.start(CHECK_SUBSCRIPTIONS_EVERY="1s")
    scripted.write(T1)
    scripted.pipeline.wait_for_all()
    _delete_subscription(scripted.pipeline.channel, scripted.pipeline.topology.subscription)
    assert reader.wait(STARTS) == MISCONFIGURED, reader.obituary()
    output = reader.output()
    assert '"topic_loses_messages"' in output
    assert "may be lost" in output
    assert scripted.leases() == []
    (kept,) = scripted.pipeline.partitions.query(
        "SELECT needs_resync FROM millrace_partitions_tables WHERE shape LIKE '{%'"
    )
    assert "table_changes_lost_by_the_topic" in str(kept["needs_resync"])


def test_finished_partitions_are_forgotten_and_what_goes_on_goes_on(scripted: Scripted) -> None:
    reader = scripted.start()
    scripted.write(T2)
    scripted.pipeline.wait_for_all()
    split = scripted.end(T2, T5, parents=(T2,))
    scripted.pipeline.wait(lambda: scripted.state_of(T2) == "FINISHED", "the end")
    reader.ask_to_end()
    assert reader.wait(timedelta(seconds=10)) == 0
    again = scripted.start(KEEP_FINISHED_PARTITIONS_FOR="0s")
    scripted.pipeline.wait(lambda: '"finished_partitions_forgotten"' in again.output(), "rows to be forgotten")
    assert scripted.state_of(ROOT) == ""
    assert scripted.state_of(T2) == "FINISHED"  # T5's parent
    scripted.write(T5, rows=3, after=split)
    scripted.pipeline.wait_for_all()


def _delete_subscription(channel: grpc.Channel, name: str) -> None:
    client = SubscriberClient(transport=SubscriberGrpcTransport(channel=channel))
    client.delete_subscription(request={"subscription": name}, timeout=10)
