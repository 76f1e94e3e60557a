"""A consumer without Spark that leases its messages from the Pub/Sub emulator."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import grpc

from services.cdc_consumer.adapters.bigquery.append_connection import AppendLimits, open_storage_channel
from services.cdc_consumer.adapters.bigquery.append_stream import AppendStreams
from services.cdc_consumer.adapters.schema.tables import BigQueryTables
from services.cdc_consumer.adapters.stream.message_data import unpack
from services.cdc_consumer.adapters.stream.pulling import Puller, PullLimits, to_portions
from services.cdc_consumer.app.stream.micro_batch import Memory, Ports, apply
from services.cdc_consumer.app.stream.trouble import RetryLimits
from services.cdc_consumer.core.stream.counts import Counts
from shared.bigquery.client import open_client
from shared.contracts.dead_letter import DeadLetter, from_message
from shared.pubsub.dead_letters import DeadLetterPublisher
from shared.pubsub.leases import PubsubLeases
from shared.runtime.clock import SystemClock
from shared.runtime.stop import Stop
from tests.fakes.crash_counts import FakeCrashCounts
from tests.integration.pubsub_topics import a_topology, publish_each, pull
from tests.integration.stand_in import PROJECT, StandIn

TIMEOUT = timedelta(seconds=90)
SHORT = RetryLimits(
    table=timedelta(seconds=1),
    first_deferral=timedelta(seconds=1),
    longest_deferral=timedelta(seconds=2),
    between_calls=timedelta(milliseconds=200),
    between_probes=timedelta(milliseconds=500),
    between_waits=timedelta(seconds=1),
)


@dataclass
class LeasingConsumer:
    """One process's worth of a consumer, without Spark: it leases what there is and applies it."""

    channel: grpc.Channel
    addresses: tuple[str, str]
    stand_in: StandIn
    limits: RetryLimits = SHORT
    stop: Stop = field(default_factory=Stop)
    total: Counts = field(default_factory=Counts)

    def __post_init__(self) -> None:
        rest, write_api = self.addresses
        dataset = self.stand_in.dataset
        self.topology = a_topology(self.channel)
        self.leases = PubsubLeases(
            self.channel, self.topology.subscription, timedelta(seconds=60), self.stop, budget=timedelta(0)
        )
        self.puller = Puller(self.channel, self.topology.subscription, self.leases)
        self.storage = open_storage_channel(write_api)
        limits = AppendLimits(answer_within=timedelta(seconds=2))
        self.writer = AppendStreams(self.storage, PROJECT, dataset, self.stop, SystemClock(), limits)
        self.ports = Ports(
            leases=self.leases,
            dead_letters=DeadLetterPublisher(
                self.channel, self.topology.dead_letter_topic, self.stop, budget=timedelta(0)
            ),
            tables=BigQueryTables(open_client(PROJECT, rest), PROJECT, dataset),
            writer=self.writer,
            crash_counts=FakeCrashCounts(),
        )
        self.memory = Memory(self.limits)

    def publish(self, *messages: Mapping[str, Any]) -> None:
        publish_each(self.channel, self.topology.topic, *messages)

    def apply(self, enough: int = 1_000) -> Counts:
        """Lease what there is, up to so many messages, and apply it as one task."""
        limits = PullLimits(
            messages=enough, bytes=1 << 26, linger=timedelta(milliseconds=300), longest=timedelta(seconds=2)
        )
        messages, damaged = unpack(to_portions(response, (0,)) for response in self.puller.collect(limits))
        assert not damaged
        counts = apply(messages, self.ports, self.memory, self.stop, SystemClock())
        self.total = self.total.plus(counts)
        return counts

    def apply_until(self, done: Callable[[], bool], what: str) -> int:
        """Go on with micro-batches until it is so; return how many it took."""
        until = time.monotonic() + TIMEOUT.total_seconds()
        micro_batches = 0
        while not done():
            assert time.monotonic() < until, f"waited in vain for {what}"
            self.apply()
            micro_batches += 1
        return micro_batches

    def dead_letters(self) -> list[DeadLetter]:
        received = pull(self.channel, self.topology.dead_letter_subscription)
        return [from_message(one.message.data, one.message.attributes) for one in received]

    def path(self, table: str) -> str:
        return f"{PROJECT}.{self.stand_in.dataset}.{table}"

    def fault(self, table: str, **fault: Any) -> None:
        self.stand_in.control("POST", "faults", **{"action": "answer", "table": self.path(table)} | fault)

    def names(self, table: str) -> Mapping[int, str] | None:
        if not any(one.table_id == table for one in self.stand_in.client.list_tables(self.stand_in.dataset)):
            return None
        return dict(self.stand_in.run(f"SELECT id, name FROM `{table}`"))

    def close(self) -> None:
        self.stop.request()
        self.writer.close()
        self.storage.close()
