"""The settings that both readers have; each adds its own."""

import os
import socket
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Literal

from shared.contracts.timestamps import Nanoseconds
from shared.runtime.google_names import project_id, subscription_id, topic_id
from shared.runtime.settings import LogFormat, LogLevel, check_together, file_there, setting, together


def whole_milliseconds(duration: timedelta) -> None:
    """Refuse a duration that the stream cannot be asked for; for ``check``."""
    if duration.microseconds % 1000:
        raise ValueError("not a number of whole milliseconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderSettings:
    """The settings of every reader."""

    project: str = setting("the Google Cloud project", env="GOOGLE_CLOUD_PROJECT", check=project_id)
    topic: str = setting("the topic for change batches", check=topic_id)
    dead_letter_topic: str = setting("the topic for changes that no message can hold", check=topic_id)
    subscription: str | None = setting(
        "the consumer's subscription of the topic, which has to keep every change; if it is not set, any one of the "
        "topic is enough",
        default=None,
        check=subscription_id,
    )
    start_timestamp: Nanoseconds | None = setting("where a first start begins; now", default=None)
    end_timestamp: Nanoseconds | None = setting("where to stop, inclusive; never", default=None)
    snapshot: Literal["initial", "never"] = setting(
        "whether a first start also reads the rows that are there already", default="initial"
    )
    snapshot_rows_per_second: int | None = setting(
        "how fast snapshots are read, by each reader; as fast as they are published", unit="rows", default=None, least=1
    )
    resync: Literal["manual", "automatic"] = setting(
        "whether a table that is pending resync is snapshot again without a command", default="manual"
    )
    heartbeat_interval: timedelta = setting(
        "how often a quiet partition sends a heartbeat",
        default=timedelta(seconds=10),
        least=timedelta(seconds=1),
        most=timedelta(minutes=5),
        check=whole_milliseconds,
    )
    lease_duration: timedelta = setting(
        "how long a reader that died keeps its partitions",
        default=timedelta(seconds=30),
        least=timedelta(seconds=1),
        most=timedelta(minutes=10),
    )
    buckets: int = setting("ordering keys per table", unit="ordering keys", default=16, least=1)
    batch_changes: int = setting("changes in a message, at most", unit="changes", default=500, least=1)
    batch_bytes: int = setting(
        "bytes in a message, about", unit="bytes", default=1_000_000, least=1_000, most=9_000_000
    )
    outstanding_bytes: int = setting(
        "bytes of all partitions that are read and not confirmed by Pub/Sub, at most, beside one record of each",
        unit="bytes",
        default=64 << 20,
        least=1_000_000,
    )
    ordering: Literal["key", "none"] = setting(
        "whether messages have ordering keys; without them one request takes messages of many keys, and no subscriber "
        "gets the changes of a row in order",
        default="key",
    )
    publish_requests: int = setting(
        "requests to Pub/Sub under way at once, at most", unit="requests", default=200, least=1, most=2_000
    )
    keep_messages_for: timedelta = setting(
        "how long a subscription of the topic has to keep messages", default=timedelta(days=7)
    )
    check_subscriptions_every: timedelta = setting(
        "how often the topic's subscriptions are inspected",
        default=timedelta(minutes=2),
        least=timedelta(seconds=1),
        most=timedelta(minutes=10),
    )
    topic_heartbeat_every: timedelta = setting(
        "how often a reader publishes how far it is, so that the consumer notices one that stopped",
        default=timedelta(minutes=1),
        least=timedelta(seconds=1),
        most=timedelta(minutes=5),
    )
    monitoring_url: str | None = setting(
        "where Cloud Monitoring answers what waits in the topic's subscriptions; Google's, and none beside an emulator",
        default=None,
    )
    tables_file: Path | None = setting(
        "which tables are read, and their ordering keys (TOML); all", default=None, check=file_there
    )
    liveness: timedelta = setting(
        "how long the loop may take to come round, until /healthz reports that it hangs; one that waits for a service "
        "comes round at each retry",
        default=timedelta(minutes=2),
        least=timedelta(seconds=15),
    )
    log_level: LogLevel = setting("the least severity that is logged", default="INFO")
    log_format: LogFormat = setting("text is for people; auto: text where stderr is a terminal", default="auto")
    host: str = setting("the address that health and metrics listen on", default="127.0.0.1")
    port: int = setting("of health and metrics; 0 for a free one", default=8080, least=0, most=65_535)
    pubsub_emulator_host: str | None = setting("host:port of an emulator", default=None)

    def __post_init__(self) -> None:
        """Check what shows only when the fields are seen together."""
        check_together(self)

    @together
    def _topics(self) -> str | None:
        topics = (self.topic, self.dead_letter_topic)
        same = len({one if "/" in one else f"projects/{self.project}/topics/{one}" for one in topics}) == 1
        return "TOPIC and DEAD_LETTER_TOPIC are the same: name the topic of the dead letters" if same else None

    @together
    def _times(self) -> str | None:
        start, end = self.start_timestamp, self.end_timestamp
        wrong = start is not None and end is not None and end < start
        return "END_TIMESTAMP is before START_TIMESTAMP" if wrong else None


def owner_name(unique: str) -> str:
    """Return a name for this process as the owner of leases: unique by ``unique``, found by host and process."""
    return f"{socket.gethostname()}/{os.getpid()}/{unique}"
