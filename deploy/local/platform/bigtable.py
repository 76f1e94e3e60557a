"""The Bigtable side of the local platform: an instance on the emulator behind its front, written and read whole.

On the generated clients over a channel of its own, each call with a deadline, as `source` does it for Spanner. Splits
and merges, and garbage collection when it is wanted, are calls of the front: Bigtable does them at its own times.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, assert_never

import grpc
from google.cloud.bigtable_admin_v2 import (
    AppProfile,
    BaseBigtableTableAdminClient,
    BigtableInstanceAdminClient,
    ChangeStreamConfig,
    ColumnFamily,
    Table,
)
from google.cloud.bigtable_admin_v2.services.bigtable_instance_admin.transports import (
    BigtableInstanceAdminGrpcTransport,
)
from google.cloud.bigtable_admin_v2.services.bigtable_table_admin.transports import BigtableTableAdminGrpcTransport
from google.cloud.bigtable_v2 import BigtableClient
from google.cloud.bigtable_v2 import Mutation as MutationMessage
from google.cloud.bigtable_v2.services.bigtable.transports import BigtableGrpcTransport
from google.cloud.bigtable_v2.types import MutateRowsRequest, ReadModifyWriteRule, RowFilter

from deploy.local.platform.cells import (
    Call,
    CheckAndMutate,
    DeleteCells,
    DeleteFamily,
    DeleteRow,
    DropRows,
    Increment,
    MutateRow,
    MutateRows,
    Mutation,
    Row,
    SetCell,
)
from deploy.local.platform.source import DEADLINE
from emulators.bigtable_streams.client import FrontControl
from shared.contracts.timestamps import Nanoseconds

_LARGE: Final = [("grpc.max_receive_message_length", 64 << 20), ("grpc.max_send_message_length", 64 << 20)]
_RETENTION: Final = timedelta(days=7)


@dataclass(frozen=True, slots=True)
class BigtableTable:
    """A table as it is to be made: its families, and of how many versions of a cell each keeps (0: all)."""

    name: str
    families: Mapping[str, int]
    change_stream: bool = True


class BigtableInstance:
    """An instance on an emulator's front. Any instance is there. One thread at a time."""

    def __init__(self, address: str, project: str, instance: str) -> None:
        self.address = address
        self.project = project
        self.name = instance
        self.path = f"projects/{project}/instances/{instance}"
        self._channel = grpc.insecure_channel(address, options=_LARGE)
        self._data = BigtableClient(transport=BigtableGrpcTransport(channel=self._channel))
        self._front = FrontControl(address)
        self._admin = BaseBigtableTableAdminClient(transport=BigtableTableAdminGrpcTransport(channel=self._channel))

    def create_table(self, table: BigtableTable) -> None:
        """Create a table."""
        config = ChangeStreamConfig(retention_period=_RETENTION) if table.change_stream else None
        families = {
            name: ColumnFamily(gc_rule={"max_num_versions": versions}) if versions else ColumnFamily()
            for name, versions in table.families.items()
        }
        body = Table(column_families=families, change_stream_config=config)
        request = {"parent": self.path, "table_id": table.name, "table": body}
        self._admin.create_table(request, timeout=DEADLINE)

    def create_profile(self, name: str, cluster: str) -> None:
        """Create an application profile that routes to one cluster and may write in transactions."""
        admin = BigtableInstanceAdminClient(transport=BigtableInstanceAdminGrpcTransport(channel=self._channel))
        routing = AppProfile.SingleClusterRouting(cluster_id=cluster, allow_transactional_writes=True)
        profile = AppProfile(description="Millrace", single_cluster_routing=routing)
        request = {"parent": self.path, "app_profile_id": name, "app_profile": profile, "ignore_warnings": True}
        admin.create_app_profile(request, timeout=DEADLINE)

    def apply(self, call: Call) -> Nanoseconds:
        """Make a call; return a time that is not after its commit, by the clock of this machine."""
        before = Nanoseconds(time.time_ns())
        match call:
            case MutateRow(table, row_key, mutations):
                request: dict[str, Any] = {"row_key": row_key, "mutations": _messages(mutations)}
                self._data.mutate_row({"table_name": self._table(table), **request}, retry=None, timeout=DEADLINE)
            case MutateRows(table, rows):
                entries = [
                    MutateRowsRequest.Entry(row_key=row.row_key, mutations=_messages(row.mutations)) for row in rows
                ]
                request = {"table_name": self._table(table), "entries": entries}
                for answer in self._data.mutate_rows(request, retry=None, timeout=DEADLINE):
                    failed = [entry.status.message for entry in answer.entries if entry.status.code]
                    assert not failed, failed
            case CheckAndMutate(table, row_key):
                request = {"row_key": row_key, "predicate_filter": _has(call.family, call.qualifier)}
                request |= {"true_mutations": _messages(call.then), "false_mutations": _messages(call.otherwise)}
                self._data.check_and_mutate_row({"table_name": self._table(table), **request}, timeout=DEADLINE)
            case Increment(table, row_key, amounts):
                rules = [
                    ReadModifyWriteRule(family_name=family, column_qualifier=qualifier, increment_amount=amount)
                    for family, qualifier, amount in amounts
                ]
                request = {"table_name": self._table(table), "row_key": row_key, "rules": rules}
                self._data.read_modify_write_row(request, timeout=DEADLINE)
            case DropRows(table, prefix):
                request = {"name": self._table(table), "row_key_prefix": prefix}
                self._admin.drop_row_range(request, timeout=DEADLINE)
            case _:
                assert_never(call)
        return before

    def rows(self, table: str) -> Mapping[bytes, Row]:
        """Return all rows with all versions of their cells."""
        rows: dict[bytes, dict[str, dict[bytes, dict[int, bytes]]]] = {}
        answers = self._data.read_rows({"table_name": self._table(table)}, retry=None, timeout=4 * DEADLINE)
        row_key, family, qualifier, timestamp, value = b"", "", b"", 0, b""
        for answer in answers:
            for chunk in type(answer).pb(answer).chunks:  # see google/bigtable/v2/bigtable.proto, CellChunk
                assert not chunk.reset_row
                row_key = chunk.row_key or row_key
                if chunk.HasField("family_name"):
                    family = chunk.family_name.value
                if chunk.HasField("qualifier"):
                    qualifier = chunk.qualifier.value
                if not value:
                    timestamp = chunk.timestamp_micros
                value += chunk.value
                if not chunk.value_size:
                    rows.setdefault(row_key, {}).setdefault(family, {}).setdefault(qualifier, {})[timestamp] = value
                    value = b""
        return rows

    def split(self, table: str, at: bytes) -> bool:
        """Have the front cut the partition of a table that holds a key in two; False where one starts there already."""
        return self._front.split(self._table(table), at)

    def merge(self, table: str, at: bytes) -> bool:
        """Have the front join the partition of a table that starts at a key with the one before; False if none does."""
        return self._front.merge(self._table(table), at)

    def collect_garbage(self, table: str) -> int:
        """Have the front apply a table's rules of garbage collection once; return how many rows lost cells."""
        return self._front.collect_garbage(self._table(table)).rows

    def close(self) -> None:
        """Close the connections."""
        self._front.close()
        self._channel.close()

    def _table(self, name: str) -> str:
        return f"{self.path}/tables/{name}"


def _messages(mutations: Sequence[Mutation]) -> list[MutationMessage]:
    return [_message(mutation) for mutation in mutations]


def _message(mutation: Mutation) -> MutationMessage:
    match mutation:
        case SetCell(family, qualifier, timestamp, value):
            return MutationMessage(
                set_cell=MutationMessage.SetCell(
                    family_name=family, column_qualifier=qualifier, timestamp_micros=timestamp, value=value
                )
            )
        case DeleteCells(family, qualifier, start, end):
            time_range = {"start_timestamp_micros": start, "end_timestamp_micros": end}
            return MutationMessage(
                delete_from_column=MutationMessage.DeleteFromColumn(
                    family_name=family, column_qualifier=qualifier, time_range=time_range
                )
            )
        case DeleteFamily(family):
            return MutationMessage(delete_from_family=MutationMessage.DeleteFromFamily(family_name=family))
        case DeleteRow():
            return MutationMessage(delete_from_row=MutationMessage.DeleteFromRow())
    assert_never(mutation)


def _has(family: str, qualifier: bytes) -> RowFilter:
    """Return a filter that lets something through where a column has a cell. The names here need no escaping."""
    filters = [RowFilter(family_name_regex_filter=family), RowFilter(column_qualifier_regex_filter=qualifier)]
    return RowFilter(chain=RowFilter.Chain(filters=filters))
