"""A watched Spanner database, a topic, and readers as processes between them."""

import json
from dataclasses import dataclass, field

import grpc

from deploy.local.platform.processes import ProcessDiedError, Processes
from deploy.local.platform.source import SpannerDatabase, Write
from shared.contracts.change_batch import decode_batch
from shared.contracts.timestamps import Nanoseconds, format_timestamp, parse_timestamp
from shared.pubsub.names import short_name
from shared.pubsub.topology import PubsubTopology
from tests.integration.pubsub_topics import pull
from tests.integration.readers import Readers

DDL = (
    "CREATE TABLE Planes (Id INT64 NOT NULL, Name STRING(MAX)) PRIMARY KEY (Id)",
    "CREATE CHANGE STREAM Everything FOR Planes OPTIONS (value_capture_type = 'NEW_ROW')",
)


@dataclass
class SpannerPipeline(Readers):
    """A watched database, a topic, and readers between them."""

    module = "services.spanner_reader"

    database: SpannerDatabase
    partitions: SpannerDatabase
    pubsub: str
    channel: grpc.Channel
    topology: PubsubTopology
    processes: Processes
    committed: list[tuple[int, Nanoseconds]] = field(default_factory=list)
    received: list[tuple[int, str]] = field(default_factory=list)
    """Key and commit timestamp of every change that was published, repeats too."""
    published_at: dict[tuple[int, str], float] = field(default_factory=dict)
    """When Pub/Sub first took each of these changes, in seconds since 1970."""
    messages: set[str] = field(default_factory=set)
    published_until: int = 0
    """By the newest heartbeat, in microseconds."""
    heartbeat_tables: set[str] = field(default_factory=set)

    def environment(self) -> dict[str, str]:
        """Return the settings of a reader."""
        return {
            "GOOGLE_CLOUD_PROJECT": self.database.instance.project,
            "SPANNER_INSTANCE": self.database.instance.instance,
            "SPANNER_DATABASE": self.database.name,
            "PARTITION_DATABASE": self.partitions.name,
            "CHANGE_STREAM": "Everything",
            "TOPIC": short_name(self.topology.topic),
            "DEAD_LETTER_TOPIC": short_name(self.topology.dead_letter_topic),
            "SPANNER_EMULATOR_HOST": self.database.instance.address,
            "PUBSUB_EMULATOR_HOST": self.pubsub,
            "HEARTBEAT_INTERVAL": "1s",
            "LEASE_DURATION": "6s",
            "PORT": "0",
        }

    def write(self, name: str = "n", rows: int = 1) -> None:
        """Commit new rows in one transaction."""
        first = len(self.committed)
        keys = range(first, first + rows)
        time = self.database.commit([Write("insert", "Planes", {"Id": key, "Name": name}) for key in keys])
        self.committed += [(key, time) for key in keys]

    def pull(self) -> None:
        """Take what is on the subscription now."""
        for one in pull(self.channel, self.topology.subscription):
            if one.message.message_id in self.messages:  # delivered again, which is not published again
                continue
            self.messages.add(one.message.message_id)
            batch = decode_batch(one.message.data)
            if isinstance(until := batch.header.published_until, int):
                self.published_until = max(until, self.published_until)
                self.heartbeat_tables.add(batch.header.table)
            keys = [int(json.loads(bytes(key))["Id"]) for key in batch.keys]
            changes = list(zip(keys, batch.commit_timestamp, strict=True))
            self.received += changes
            published_at = one.message.publish_time.ToMicroseconds() / 1e6
            for change in changes:
                self.published_at[change] = min(published_at, self.published_at.get(change, published_at))

    def wait_for_all(self) -> None:
        """Wait until everything committed has arrived, with its own commit timestamp."""
        wanted = {(key, format_timestamp(time)) for key, time in self.committed}
        try:
            self.wait(lambda: wanted <= set(self.received), "all changes", self.pull)
        except ProcessDiedError as error:
            missing = sorted(wanted - set(self.received))
            raise AssertionError(f"{len(missing)} changes did not come, such as {missing[:5]}") from error

    def watermark(self) -> Nanoseconds:
        """Return the watermark of the partition that got furthest: the emulator writes to one at a time."""
        return self._watermark("MAX(watermark)", "TRUE")

    def low_watermark(self) -> Nanoseconds:
        """Return the watermark of the partition that is furthest behind."""
        return self._watermark("MIN(watermark)", "state != 'FINISHED'")

    def _watermark(self, which: str, of: str) -> Nanoseconds:
        found = f"FORMAT_TIMESTAMP('%FT%H:%M:%E*SZ', {which}, 'UTC')"
        (row,) = self.partitions.query(f"SELECT {found} AS found FROM millrace_partitions WHERE {of}")
        return parse_timestamp(str(row["found"]))
