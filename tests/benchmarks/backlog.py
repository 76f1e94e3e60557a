"""A backlog of change batches: packed by the reader's own packer at a rate, kept, and released at once.

The packer clocks itself, so how full batches are follows from how fast changes come and how long a publish takes. They
are published to the Pub/Sub emulator as a reader would publish them, collected from there, and published a second time
as they are, to the topic of whoever is measured, while that one is stopped.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import grpc
from google.pubsub_v1 import PublisherClient, SubscriberClient
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport

from services.spanner_reader.core.stream.records import DataChangeRecord
from shared.contracts.change_batch import encode_batch
from shared.pubsub.channels import open_async_channel, open_channel
from shared.pubsub.dead_letters import AsyncDeadLetterPublisher
from shared.pubsub.names import subscription_path, topic_path
from shared.pubsub.publisher import BatchPublisher, PublisherOptions
from shared.pubsub.stubs import (
    AcknowledgeRequest,
    PublishRequest,
    PubsubMessage,
    PullRequest,
    acknowledge_stub,
    publish_stub,
    pull_stub,
)
from shared.pubsub.topology import PubsubTopology, create_topology
from shared.runtime.stop import Stop
from tests.benchmarks.results import percentile
from tests.benchmarks.workload import TABLES, change_maker

_TICK: Final = 0.002
_AT_ONCE: Final = 8
_REQUEST_BYTES: Final = 4_000_000


@dataclass(frozen=True, slots=True)
class Backlog:
    """Messages as they were published, and how many changes are in each."""

    messages: Sequence[Any]
    sizes: Sequence[int]
    seconds: float
    """How long packing took."""
    cpu: float = 0.0
    """CPU seconds that it took, from records to the confirmation of the last message."""

    @property
    def changes(self) -> int:
        """Return how many changes there are in all."""
        return sum(self.sizes)

    def __str__(self) -> str:
        data = sum(len(message.data) for message in self.messages)
        return (
            f"{self.changes:,} changes came at {self.changes / self.seconds:,.0f}/s and were packed into "
            f"{len(self.messages):,} messages: {self.changes / len(self.messages):.1f} changes each "
            f"(p50 {percentile(self.sizes, 50):.0f}, p99 {percentile(self.sizes, 99):.0f}, most {max(self.sizes)}), "
            f"{data / self.changes:.0f} bytes a change"
        )


def pack(
    pubsub: str,
    project: str,
    name: str,
    records: Iterable[DataChangeRecord],
    rate: int,
    stop: Stop,
    tables: Sequence[str] = TABLES,
) -> Backlog:
    """Publish the records' changes at ``rate`` a second through the reader's publisher; return what was published."""
    topic, subscription = topic_path(project, name), subscription_path(project, name)
    dead_letter_topic = topic_path(project, f"{name}-letters")
    with open_channel(pubsub) as channel:
        create_topology(
            channel,
            PubsubTopology(
                topic=topic,
                subscription=subscription,
                dead_letter_topic=dead_letter_topic,
                dead_letter_subscription=subscription_path(project, f"{name}-letters"),
            ),
        )
        wanted, used = list(records), time.process_time()
        seconds = asyncio.run(_publish(pubsub, topic, dead_letter_topic, wanted, rate, stop, tables))
        cpu = time.process_time() - used
        messages = _collect(channel, subscription)
        _forget(channel, topic, subscription)
    sizes = [int(message.attributes["change_count"]) for message in messages]
    return Backlog(messages, sizes, seconds, cpu)


def one_change_a_message(records: Iterable[DataChangeRecord]) -> Backlog:
    """Return the records' changes as messages of one change each, for a baseline that knows no batches."""
    maker, messages = change_maker(), []
    for record in records:
        header, changes = maker.changes(record)
        for key, change in changes:
            attributes = {"table": header.table, "change_count": "1"}
            messages.append(PubsubMessage(data=encode_batch(header, [change]), attributes=attributes, ordering_key=key))
    return Backlog(messages, [1] * len(messages), 0.0)


def release(channel: grpc.Channel, topic: str, messages: Iterable[Any]) -> None:
    """Publish messages as they are, as fast as the emulator takes them; each request of one ordering key."""
    publish, waiting = publish_stub(channel), deque[Any]()
    by_key: dict[str, list[Any]] = {}
    for message in messages:
        by_key.setdefault(message.ordering_key, []).append(
            PubsubMessage(data=message.data, attributes=message.attributes, ordering_key=message.ordering_key)
        )
    # Interleaved, as they came: what is published key by key would be drained key by key.
    lanes = deque(deque(lane) for lane in by_key.values())
    while lanes:
        lane = lanes.popleft()
        request, size = PublishRequest(topic=topic), 0
        while lane and len(request.messages) < 50 and size < _REQUEST_BYTES:
            size += len(lane[0].data)
            request.messages.append(lane.popleft())
        waiting.append(publish.future(request, timeout=60))
        if lane:
            lanes.append(lane)
        if len(waiting) >= _AT_ONCE:
            waiting.popleft().result()
    for call in waiting:
        call.result()


async def _publish(
    pubsub: str,
    topic: str,
    dead_letter_topic: str,
    records: Sequence[DataChangeRecord],
    rate: int,
    stop: Stop,
    tables: Sequence[str],
) -> float:
    maker, futures = change_maker(tables), []
    async with open_async_channel(pubsub) as channel:
        dead_letters = AsyncDeadLetterPublisher(channel, dead_letter_topic, stop)
        async with BatchPublisher(
            channel, topic, dead_letters, stop, PublisherOptions(failed_in="benchmark")
        ) as publisher:
            began, due, published = time.monotonic(), deque(records), 0
            while due and not stop.requested:
                wanted = (time.monotonic() - began) * rate
                while due and published < wanted:
                    header, changes = maker.changes(due.popleft())
                    published += len(changes)
                    futures.append(await publisher.publish(header, changes))
                await asyncio.sleep(_TICK)  # the rate is kept tick by tick
            await asyncio.gather(*futures)
            return time.monotonic() - began


def _forget(channel: grpc.Channel, topic: str, subscription: str) -> None:
    """Delete what a backlog was packed through, and the emulator's memory with it."""
    SubscriberClient(transport=SubscriberGrpcTransport(channel=channel)).delete_subscription(subscription=subscription)
    PublisherClient(transport=PublisherGrpcTransport(channel=channel)).delete_topic(topic=topic)


def _collect(channel: grpc.Channel, subscription: str) -> Sequence[Any]:
    """Pull and ack everything there is, several pulls at once."""
    pull, acknowledge = pull_stub(channel), acknowledge_stub(channel)
    found: list[Any] = []
    lock = threading.Lock()

    def work() -> None:
        while True:
            request = PullRequest(subscription=subscription, max_messages=1000, return_immediately=True)
            received = pull(request, timeout=60).received_messages
            if not received:
                return
            ids = [one.ack_id for one in received]
            acknowledge(AcknowledgeRequest(subscription=subscription, ack_ids=ids), timeout=60)
            with lock:
                found.extend(one.message for one in received)

    threads = [threading.Thread(target=work) for _ in range(_AT_ONCE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found
