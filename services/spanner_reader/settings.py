"""The settings of this service, read once from the environment."""

import os
import re
import socket
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final, Literal

from shared.contracts.timestamps import Nanoseconds
from shared.runtime.settings import LogLevel, check_together, file_there, setting, together

_IDENTIFIER: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,127}", re.ASCII)


def _identifier(name: str) -> None:
    """Refuse what cannot stand in the text of a statement."""
    if _IDENTIFIER.fullmatch(name) is None:
        raise ValueError("not an identifier: a letter, then letters, digits and '_'; 128 characters at most")


def _whole_milliseconds(duration: timedelta) -> None:
    if duration.microseconds % 1000:
        raise ValueError("not a number of whole milliseconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a Spanner reader is told at its start."""

    project: str = setting("the Google Cloud project", env="GOOGLE_CLOUD_PROJECT")
    spanner_instance: str = setting("the Spanner instance")
    spanner_database: str = setting("the watched database")
    change_stream: str = setting("the change stream's name", check=_identifier)
    topic: str = setting("the topic for change batches")
    dead_letter_topic: str = setting("the topic for changes that no message can hold")
    partition_database: str | None = setting("where the partition table lives; the watched database", default=None)
    partition_table: str = setting("the partition table's name", default="millrace_partitions", check=_identifier)
    start_timestamp: Nanoseconds | None = setting("where a first start begins; Spanner's now", default=None)
    end_timestamp: Nanoseconds | None = setting("where to stop, inclusive; never", default=None)
    snapshot: Literal["initial", "never"] = setting(
        "whether a first start also reads the rows that are there already", default="initial"
    )
    snapshot_rows_per_second: int | None = setting(
        "how fast snapshots are read, by each reader; as fast as they are published", unit="rows", default=None, least=1
    )
    snapshot_data_boost: bool = setting(
        "whether snapshots are read by Data Boost, which spares the instance and costs extra", default=False
    )
    resync: Literal["manual", "automatic"] = setting(
        "whether a table that needs re-sync is snapshot again without being asked for", default="manual"
    )
    heartbeat_interval: timedelta = setting(
        "how often a quiet partition says so",
        default=timedelta(seconds=10),
        least=timedelta(seconds=1),
        most=timedelta(minutes=5),
        check=_whole_milliseconds,
    )
    lease_duration: timedelta = setting(
        "how long a reader that died keeps its partitions", default=timedelta(seconds=30), least=timedelta(seconds=1)
    )
    keep_finished_partitions_for: timedelta = setting(
        "how long the partition table remembers finished partitions", default=timedelta(days=1)
    )
    buckets: int = setting("ordering keys per table", unit="ordering keys", default=16, least=1)
    batch_changes: int = setting("changes in a message, at most", unit="changes", default=500, least=1)
    batch_bytes: int = setting(
        "bytes in a message, about", unit="bytes", default=1_000_000, least=1_000, most=9_000_000
    )
    outstanding_bytes: int = setting(
        "bytes that wait for Pub/Sub, at most", unit="bytes", default=64 << 20, least=1_000_000
    )
    keep_messages_for: timedelta = setting(
        "how long a subscription of the topic has to keep messages", default=timedelta(days=7)
    )
    check_subscriptions_every: timedelta = setting(
        "how often the topic's subscriptions are looked at again",
        default=timedelta(minutes=2),
        least=timedelta(seconds=1),
    )
    check_schema_every: timedelta = setting(
        "how often the tables are compared with what they were",
        default=timedelta(minutes=1),
        least=timedelta(seconds=1),
    )
    tables_file: Path | None = setting(
        "which tables are read, and their ordering keys (TOML); all", default=None, check=file_there
    )
    liveness: timedelta = setting(
        "how long the loop may take to come round, until /healthz says that it hangs; one that waits for a service "
        "comes round at each retry",
        default=timedelta(minutes=2),
        least=timedelta(seconds=15),
    )
    log_level: LogLevel = setting("the least severity that is logged", default="INFO")
    host: str = setting("the address that health and metrics listen on", default="127.0.0.1")
    port: int = setting("of health and metrics; 0 for a free one", default=8080, least=0, most=65_535)
    spanner_emulator_host: str | None = setting("host:port of an emulator", default=None)
    pubsub_emulator_host: str | None = setting("host:port of an emulator", default=None)

    def __post_init__(self) -> None:
        """Check what shows only when the fields are seen together."""
        check_together(self)

    @together
    def _times(self) -> str | None:
        start, end = self.start_timestamp, self.end_timestamp
        wrong = start is not None and end is not None and end < start
        return "END_TIMESTAMP is before START_TIMESTAMP" if wrong else None

    @property
    def database_path(self) -> str:
        """Return the watched database's full name."""
        return f"projects/{self.project}/instances/{self.spanner_instance}/databases/{self.spanner_database}"

    @property
    def partition_database_path(self) -> str:
        """Return the full name of the database that holds the partition table."""
        database = self.partition_database or self.spanner_database
        return f"projects/{self.project}/instances/{self.spanner_instance}/databases/{database}"

    @property
    def source(self) -> str:
        """Return the change stream's full name: what change batches name as their source."""
        return f"//spanner.googleapis.com/{self.database_path}/changeStreams/{self.change_stream}"


def owner_name(unique: str) -> str:
    """Return a name for this process as the owner of leases: told apart by ``unique``, found by host and process."""
    return f"{socket.gethostname()}/{os.getpid()}/{unique}"
