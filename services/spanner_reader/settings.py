"""The settings of this service, read once from the environment."""

import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Literal

from shared.contracts.timestamps import Nanoseconds
from shared.reading.settings import ReaderSettings
from shared.runtime.settings import setting, together

_HOST: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*(:[0-9]{1,5})?", re.ASCII)
_REPLICA: Final = re.compile(r"([a-z][a-z0-9-]*)?(?::(read_only|read_write))?", re.ASCII)
_MOST_REPLICAS: Final = 10
"""Source: Spanner, "Directed reads"; `DirectedReadOptions` in the RPC reference."""
_IDENTIFIER: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,127}", re.ASCII)


def _identifier(name: str) -> None:
    """Refuse what cannot stand in the text of a statement."""
    if _IDENTIFIER.fullmatch(name) is None:
        raise ValueError("not an identifier: a letter, then letters, digits and '_'; 128 characters at most")


def _host(text: str) -> None:
    """Refuse what is no address."""
    if _HOST.fullmatch(text) is None:
        raise ValueError("not host or host:port, such as spanner.europe-west1.rep.googleapis.com")


def replicas(text: str) -> list[tuple[str, str]]:
    """Return the location and the type ("" is any) of each replica in a list of ``LOCATION[:TYPE]`` or ``:TYPE``."""
    found = []
    for one in text.split(","):
        matched = _REPLICA.fullmatch(one.strip())
        if matched is None or not one.strip():
            raise ValueError(
                f"{one.strip()!r} is not LOCATION, LOCATION:TYPE or :TYPE; TYPE is read_only or read_write, as in "
                "us-east1:read_only"
            )
        found.append((matched[1] or "", matched[2] or ""))
    if len(found) > _MOST_REPLICAS:
        raise ValueError(f"{len(found)} replicas: Spanner takes {_MOST_REPLICAS} at most")
    return found


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
    database_role: str | None = setting(
        "the role whose rights the reader has in the watched database (fine-grained access control); needs "
        "PARTITION_DATABASE; none",
        default=None,
        check=_identifier,
    )
    spanner_priority: Literal["low", "medium", "high"] = setting(
        "how urgent the reader's queries and transactions are to Spanner; rows are always read at low priority",
        default="high",
    )
    directed_reads: str | None = setting(
        "the replicas that are read, in their order: LOCATION[:read_only|:read_write],...; Spanner chooses",
        default=None,
        check=replicas,
    )
    spanner_endpoint: str | None = setting(
        "host[:port] of a regional endpoint, or of Private Service Connect; spanner.googleapis.com",
        default=None,
        check=_host,
    )
    spanner_emulator_host: str | None = setting("host:port of an emulator", default=None)

    @together
    def _role(self) -> str | None:
        same = self.partition_database in (None, self.spanner_database)
        return (
            "DATABASE_ROLE needs a PARTITION_DATABASE other than SPANNER_DATABASE: a role cannot create tables"
            if self.database_role is not None and same
            else None
        )

    @together
    def _endpoint(self) -> str | None:
        both = self.spanner_endpoint is not None and self.spanner_emulator_host is not None
        return "SPANNER_ENDPOINT and SPANNER_EMULATOR_HOST are both set: unset one" if both else None

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
