"""The settings of this service, read once from the environment."""

import re
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final, Literal

from shared.reading.settings import ReaderSettings, whole_milliseconds
from shared.runtime.settings import file_there, setting, together

_TABLE: Final = re.compile(r"[_a-zA-Z0-9][-_.a-zA-Z0-9]{0,49}", re.ASCII)
_STREAM: Final = re.compile(r"[-_.a-zA-Z0-9]{1,100}", re.ASCII)


def _table(name: str) -> None:
    if _TABLE.fullmatch(name) is None:
        raise ValueError("not a table id: letters, digits, '_', '-' and '.', 50 characters at most")


def _stream(name: str) -> None:
    """Refuse what row keys of the partition table cannot begin with: '#' ends the name there."""
    if _STREAM.fullmatch(name) is None:
        raise ValueError("only letters, digits, '_', '-' and '.', 100 characters at most")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(ReaderSettings):
    """The settings of a Bigtable reader."""

    bigtable_instance: str = setting("the Bigtable instance")
    bigtable_table: str = setting("the watched table's id", check=_table)
    app_profile: str = setting("an app profile that routes to one cluster", default="default")
    change_stream_name: str | None = setting(
        "the name under which progress is kept and resumed; the table's id", default=None, check=_stream
    )
    resume: Literal["resume-or-new", "resume-or-fail", "new"] = setting(
        "resume-or-new, resume-or-fail (nothing known of the name is a mistake) or new (something known is)",
        default="resume-or-new",
    )
    partition_instance: str | None = setting("where the partition table lives; the watched instance", default=None)
    partition_table: str = setting("the partition table's id", default="millrace_partitions", check=_table)
    partition_app_profile: str | None = setting(
        "one that routes to one cluster and allows transactions on single rows; APP_PROFILE", default=None
    )
    snapshot: Literal["initial", "never"] = setting(
        "whether a first start also reads the rows that are there already (not for a change log alone)",
        default="initial",
    )
    heartbeat_interval: timedelta = setting(
        "how often a quiet partition sends a heartbeat",
        default=timedelta(seconds=5),
        least=timedelta(seconds=1),
        most=timedelta(minutes=5),
        check=whole_milliseconds,
    )
    wait_for_merge: timedelta = setting(
        "how long a key range waits for the other parts of a merge before it is read as it is",
        default=timedelta(minutes=2),
        least=timedelta(seconds=1),
    )
    wait_for_token: timedelta = setting(
        "how long a key range without a token waits before it is read from a time",
        default=timedelta(minutes=20),
        least=timedelta(seconds=1),
    )
    most_change_bytes: int = setting(
        "bytes of one change of a row that the reader keeps while its parts arrive",
        unit="bytes",
        default=256 << 20,
        least=1_000_000,
    )
    check_families_every: timedelta = setting(
        "how often the reader inspects what the stream never reports: families, clusters, retention, routing",
        default=timedelta(minutes=1),
        least=timedelta(seconds=1),
    )
    tables_file: Path | None = setting(
        "what is made of the table, and its ordering keys (TOML)", default=None, check=file_there
    )
    bigtable_emulator_host: str | None = setting("host:port of an emulator", default=None)

    @together
    def _tables(self) -> str | None:
        if self.partition_table != self.bigtable_table:
            return None
        if self.partition_instance is not None and self.partition_instance != self.bigtable_instance:
            return None
        return "PARTITION_TABLE is the watched table: reading it would change it; name another"

    @property
    def instance_path(self) -> str:
        """Return the watched table's instance by its full name."""
        return f"projects/{self.project}/instances/{self.bigtable_instance}"

    @property
    def table_path(self) -> str:
        """Return the watched table's full name."""
        return f"{self.instance_path}/tables/{self.bigtable_table}"

    @property
    def partition_instance_path(self) -> str:
        """Return the full name of the instance that progress is kept in."""
        return f"projects/{self.project}/instances/{self.partition_instance or self.bigtable_instance}"

    @property
    def partition_profile(self) -> str:
        """Return the app profile by which the partition table is read and written."""
        return self.partition_app_profile or self.app_profile

    @property
    def stream_name(self) -> str:
        """Return the name under which progress is kept."""
        return self.change_stream_name or self.bigtable_table

    @property
    def source(self) -> str:
        """Return the change stream's full name: what change batches name as their source."""
        return f"//bigtable.googleapis.com/{self.instance_path}/changeStreams/{self.stream_name}"
