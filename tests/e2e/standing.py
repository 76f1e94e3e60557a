"""The standing pipeline: one topic, one dataset and one consumer, which serve one test after the other.

Spark's start is most of what a pipeline costs. So each test has a database, tables and readers of its own, and shares
the consumer. The consumer reaches BigQuery through wires that a test may cut.
"""

import itertools
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from datetime import timedelta
from typing import Any, Final

from google.pubsub_v1 import SubscriberClient
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport

from deploy.local.platform.processes import GRACE, Process, Processes
from deploy.local.platform.services import CONSUMER, BigtablePipeline, Flow, Pipeline, Service, start_consumer
from deploy.local.platform.source import SpannerDatabase
from deploy.local.platform.target import BigQueryDataset
from shared.contracts.dead_letter import DeadLetter, from_message
from shared.pubsub.channels import open_channel
from shared.pubsub.names import subscription_path
from shared.pubsub.topology import create_topology
from tests.conftest import PROJECT
from tests.integration.bigtable_front import INSTANCE, FrontTable
from tests.integration.log_lines import events
from tests.integration.pubsub_topics import take
from tests.integration.wire import wire

ACK_DEADLINE: Final = timedelta(seconds=10)
"""The shortest that Pub/Sub takes, so that what a killed consumer leased comes back soon."""
LIVENESS: Final = timedelta(seconds=15)
"""How long a consumer may give no sign of life: shorter than the outages that it has to survive."""
REFUSED_AFTER: Final = timedelta(seconds=1)
SETTINGS: Final = {
    "LIVENESS": f"{LIVENESS.seconds}s",
    "REFUSED_AFTER": f"{REFUSED_AFTER.seconds}s",
    "LOG_LEVEL": "DEBUG",
    "POISON_LIMIT": "1000000",
}
"""No log may hold a value, at DEBUG neither; and no test may trip a limit for another."""

_names = itertools.count(1)


class Standing:
    """The consumer that runs, what it stands on, and hands on its topics."""

    def __init__(self, processes: Processes, pubsub: str, bigquery: tuple[str, str], module: str = CONSUMER) -> None:
        """``bigquery``: the addresses of the stand-in's REST and gRPC sides. ``module``: what runs as the consumer."""
        self.processes = processes
        self._module = module
        self.channel = open_channel(pubsub)
        self.bigquery = bigquery
        self._pubsub = pubsub
        self._open = ExitStack()
        self.wires = [self._open.enter_context(wire(address)) for address in bigquery]
        self._consumer: Service | None = None
        self._settings: dict[str, str] = {}
        self.renew()

    def renew(self) -> None:
        """Kill the consumer, and go on with another topic and dataset: nothing of a test that failed is left."""
        if self._consumer is not None:
            self._consumer.process.kill()
            self._consumer = None
        for one in self.wires:
            one.fix()
        rest, write_api = self.wires
        self.flow = Flow(
            pubsub=self._pubsub,
            bigquery_rest=rest.address,
            bigquery_grpc=write_api.address,
            project=PROJECT,
            name=f"e2e-{next(_names)}",
        )
        create_topology(self.channel, replace(self.flow.topology, ack_deadline=ACK_DEADLINE))
        self._recorder = subscription_path(PROJECT, f"{self.flow.name}-recorder")
        SubscriberClient(transport=SubscriberGrpcTransport(channel=self.channel)).create_subscription(
            name=self._recorder, topic=self.flow.topology.topic, timeout=30
        )
        self.target = BigQueryDataset(self.bigquery[0], PROJECT, self.flow.dataset)
        self.target.create()
        self._open.callback(self.target.close)

    def consumer(self, **settings: str) -> Service:
        """Return the consumer that runs; start one where none runs, or one with other settings (beside `SETTINGS`)."""
        if self._consumer is None or self._consumer.process.exit_code is not None or self._settings != settings:
            self.stop()
            self._settings = settings
            self._consumer = start_consumer(self.processes, self.flow, module=self._module, **SETTINGS, **settings)
        return self._consumer

    def stop(self) -> None:
        """Ask the consumer to end: it ends in time, without an error, and says so. One that was killed is gone."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None and not consumer.process.expected_to_end:
            consumer.process.ask_to_end()
            assert consumer.process.wait(GRACE) == 0, consumer.process.obituary()
            assert len(events(consumer.process, "service_stopped")) == 1

    @property
    def running(self) -> Sequence[Process]:
        """Return the consumer's process, if there is one."""
        return [] if self._consumer is None else [self._consumer.process]

    def spanner(self, database: SpannerDatabase, partitions: SpannerDatabase) -> Pipeline:
        """Return the pipeline that a database of Spanner's takes."""
        instance = database.instance
        return Pipeline(
            **asdict(self.flow),
            spanner=instance.address,
            instance=instance.instance,
            database=database.name,
            partition_database=partitions.name,
            change_stream="everything",
        )

    def bigtable(self, table: FrontTable) -> BigtablePipeline:
        """Return the pipeline that a table of Bigtable takes."""
        return BigtablePipeline(
            **asdict(self.flow),
            bigtable=table.front.address,
            instance=INSTANCE.rpartition("/")[2],
            table=table.name.rpartition("/")[2],
            app_profile="default",
        )

    def published(self) -> list[Any]:
        """Return the messages that have been published since the last call."""
        return take(self.channel, self._recorder)

    def dead_letters(self) -> list[DeadLetter]:
        """Return the dead letters that have come since the last call."""
        found = take(self.channel, self.flow.topology.dead_letter_subscription)
        return [from_message(one.data, dict(one.attributes)) for one in found]

    def close(self) -> None:
        """End the consumer as `stop` does, and close the clients."""
        with self._open:
            self.stop()
            self.channel.close()
