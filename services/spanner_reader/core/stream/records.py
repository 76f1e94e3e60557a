"""What a change stream query returns: three kinds of records, and no fourth. Times are exact integer nanoseconds."""

from dataclasses import dataclass
from typing import Literal, NewType

from shared.contracts.timestamps import Nanoseconds

PartitionToken = NewType("PartitionToken", str)
"""The name of a change stream partition, given by Spanner."""

ROOT = PartitionToken("")
"""Stands for the first query of a stream, which names no partition (NULL) and returns the first ones."""


@dataclass(frozen=True, slots=True)
class SpannerColumnType:
    """A column as a data change record describes it; ``type`` is Spanner's JSON text of the type."""

    name: str
    type: str
    is_primary_key: bool
    ordinal_position: int


@dataclass(frozen=True, slots=True)
class Mod:
    """One row's change inside a data change record: JSON texts, as Spanner wrote them."""

    keys: str
    new_values: str | None
    old_values: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DataChangeRecord:
    """Changes of one table, one kind, one transaction, one partition."""

    commit_timestamp: Nanoseconds
    record_sequence: str
    server_transaction_id: str
    is_last_record_in_transaction_in_partition: bool
    table: str
    column_types: tuple[SpannerColumnType, ...]
    mods: tuple[Mod, ...]
    mod_type: str
    value_capture_type: str
    number_of_records_in_transaction: int
    number_of_partitions_in_transaction: int
    transaction_tag: str = ""
    is_system_transaction: bool = False


@dataclass(frozen=True, slots=True)
class HeartbeatRecord:
    """Every change up to this time has been returned; what is still to come is later."""

    timestamp: Nanoseconds


@dataclass(frozen=True, slots=True)
class ChildPartition:
    """A partition that goes on where its parents end. The first partitions of a stream have no parents."""

    token: PartitionToken
    parents: frozenset[PartitionToken]


@dataclass(frozen=True, slots=True)
class ChildPartitionsRecord:
    """The partition ends; its children carry on from ``start_timestamp``."""

    start_timestamp: Nanoseconds
    record_sequence: str
    children: tuple[ChildPartition, ...]


StreamRecord = DataChangeRecord | HeartbeatRecord | ChildPartitionsRecord
RecordKind = Literal["data", "heartbeat", "child_partitions"]


@dataclass(frozen=True, slots=True)
class SpannerStreamQuery:
    """The four arguments of a change stream query. Start and end are inclusive; no end means for ever."""

    token: PartitionToken
    start: Nanoseconds
    end: Nanoseconds | None
    heartbeat_milliseconds: int

    def __post_init__(self) -> None:
        if not 1_000 <= self.heartbeat_milliseconds <= 300_000:
            raise ValueError(f"heartbeat of {self.heartbeat_milliseconds} ms: Spanner takes 1000 to 300000")
        if self.end is not None and self.end < self.start:
            raise ValueError("a query ends before it starts")
