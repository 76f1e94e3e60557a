"""The settings of this service, read once from the environment."""

import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from shared.contracts.timestamps import Nanoseconds
from shared.reading.settings import ReaderSettings
from shared.runtime.settings import setting

_IDENTIFIER: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,127}", re.ASCII)


def _identifier(name: str) -> None:
    """Refuse what cannot stand in the text of a statement."""
    if _IDENTIFIER.fullmatch(name) is None:
        raise ValueError("not an identifier: a letter, then letters, digits and '_'; 128 characters at most")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(ReaderSettings):
    """The settings of a Spanner reader."""

    spanner_instance: str = setting("the Spanner instance")
    spanner_database: str = setting("the watched database")
    change_stream: str = setting("the change stream's name", check=_identifier)
    partition_database: str | None = setting(
        "where the partition table lives, better a database of its own; the watched database", default=None
    )
    partition_table: str = setting("the partition table's name", default="millrace_partitions", check=_identifier)
    start_timestamp: Nanoseconds | None = setting("where a first start begins; Spanner's now", default=None)
    snapshot_data_boost: bool = setting(
        "whether snapshots are read by Data Boost, which spares the instance and costs extra", default=False
    )
    keep_finished_partitions_for: timedelta = setting(
        "how long the partition table remembers finished partitions", default=timedelta(days=1)
    )
    check_schema_every: timedelta = setting(
        "how often the tables are compared with what they were",
        default=timedelta(minutes=1),
        least=timedelta(seconds=1),
    )
    spanner_emulator_host: str | None = setting("host:port of an emulator", default=None)

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
