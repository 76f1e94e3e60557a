"""A client of the Bigtable emulator with its change-stream front: a fresh table, writes, streams, control.

    front = Front(bigtable_front)      # the fixture in tests/conftest.py: host:port of emulator and front as processes
    table = front.table("f", "g")      # a table of its own, with a change stream and these families
    table.write(b"k", set_cell("f", b"q", b"v"))
    front.control.split(table.name, b"k")
    for message in table.read(start=table.since): ...

Messages are the raw protobuf classes, as a reader would use them.
"""

import struct
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final, Self

import grpc
import pytest
from google.cloud.bigtable_admin_v2 import BigtableInstanceAdminClient, BigtableTableAdminClient
from google.cloud.bigtable_admin_v2 import types as admin_types
from google.cloud.bigtable_admin_v2.services.bigtable_instance_admin.transports import (
    BigtableInstanceAdminGrpcTransport,
)
from google.cloud.bigtable_admin_v2.services.bigtable_table_admin.transports import BigtableTableAdminGrpcTransport
from google.cloud.bigtable_v2 import BigtableClient
from google.cloud.bigtable_v2 import types as data_types
from google.cloud.bigtable_v2.services.bigtable.transports import BigtableGrpcTransport

from emulators.bigtable_streams.client import FrontControl

PROJECT: Final = "millrace-test"
INSTANCE: Final = f"projects/{PROJECT}/instances/front"
CLUSTER: Final = "front-c1"
"""The cluster that takes the writes of the profile `default`."""

Mutation: Final[Any] = data_types.Mutation.pb()
ReadChangeStreamRequest: Final[Any] = data_types.ReadChangeStreamRequest.pb()
ReadChangeStreamResponse: Final[Any] = data_types.ReadChangeStreamResponse.pb()
_DATA: Final = "/google.bigtable.v2.Bigtable"
_TIMEOUT: Final = 30.0

Cells = dict[tuple[str, bytes, int], bytes]
"""One row: (family, qualifier, timestamp in microseconds) -> value."""


class Front:
    """A front that runs, and clients of it."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.channel = grpc.insecure_channel(address, options=[("grpc.max_receive_message_length", -1)])
        self.control = FrontControl(address)
        self.data = BigtableClient(transport=BigtableGrpcTransport(channel=self.channel))
        self.tables = BigtableTableAdminClient(transport=BigtableTableAdminGrpcTransport(channel=self.channel))
        self.instances = BigtableInstanceAdminClient(transport=BigtableInstanceAdminGrpcTransport(channel=self.channel))

    def table(
        self,
        *families: str,
        retention: timedelta | None = timedelta(days=1),
        splits: Iterable[bytes] = (),
        rules: Mapping[str, Any] | None = None,
        aggregates: Iterable[str] = (),
    ) -> "FrontTable":
        """Make a table; ``rules`` are GcRules by family, ``aggregates`` the families that hold INT64 sums."""
        message = admin_types.Table()
        for family in families:
            message.column_families[family] = admin_types.ColumnFamily(gc_rule=(rules or {}).get(family))
        for family in aggregates:
            message.column_families[family] = admin_types.ColumnFamily(
                value_type={"aggregate_type": {"input_type": {"int64_type": {}}, "sum": {}}}
            )
        if retention is not None:
            message.change_stream_config = admin_types.ChangeStreamConfig(retention_period=retention)
        made = self.tables.create_table(
            {
                "parent": INSTANCE,
                "table_id": f"t-{uuid.uuid4().hex[:12]}",
                "table": message,
                "initial_splits": [{"key": key} for key in splits],
            }
        )
        return FrontTable(self, str(made.name))

    def app_profile(self, *, transactional: bool = True, **instead: Any) -> str:
        """Make an app profile that routes to `CLUSTER`, or with ``instead`` as it says; return its ID."""
        routed = {"cluster_id": CLUSTER, "allow_transactional_writes": transactional}
        name, profile = f"p-{uuid.uuid4().hex[:12]}", instead or {"single_cluster_routing": routed}
        self.instances.create_app_profile({"parent": INSTANCE, "app_profile_id": name, "app_profile": profile})
        return name

    def route(self, profile: str, **how: Any) -> None:
        """Let an app profile route otherwise."""
        changed = {"name": f"{INSTANCE}/appProfiles/{profile}", **how}
        request = {"app_profile": changed, "update_mask": {"paths": list(how)}, "ignore_warnings": True}
        self.instances.update_app_profile(request).result()  # type: ignore[no-untyped-call]

    @contextmanager
    def failing(self, *methods: str, **how: Any) -> Iterator[None]:
        """Let calls fail meanwhile."""
        faults = [self.control.add_fault(method=method, **how) for method in methods]
        try:
            yield
        finally:
            for fault in faults:
                self.control.clear_faults(fault)

    def close(self) -> None:
        """Close the connections."""
        self.control.close()
        self.channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


class FrontTable:
    """One table behind the front."""

    def __init__(self, front: Front, name: str) -> None:
        self.front = front
        self.name = name

    @property
    def since(self) -> int:
        """Return when the change stream was enabled, in microseconds: the earliest start of a stream."""
        return self.front.control.describe(self.name).since

    def settings(self) -> dict[str, str]:
        """Return the settings of a reader of it, with topics that there are not."""
        name = self.name.rpartition("/")[2]
        return {
            "GOOGLE_CLOUD_PROJECT": PROJECT,
            "BIGTABLE_INSTANCE": INSTANCE.rpartition("/")[2],
            "BIGTABLE_TABLE": name,
            "PARTITION_TABLE": f"partitions-{name}"[:50],
            "TOPIC": "t",
            "DEAD_LETTER_TOPIC": "d",
            "BIGTABLE_EMULATOR_HOST": self.front.address,
        }

    def retain(self, retention: timedelta | None) -> None:
        """Let its change stream keep records for so long; None is no change stream."""
        table = admin_types.Table(name=self.name)
        if retention is not None:
            table.change_stream_config = admin_types.ChangeStreamConfig(retention_period=retention)
        self.front.tables.update_table({"table": table, "update_mask": {"paths": ["change_stream_config"]}}).result()  # type: ignore[no-untyped-call]

    def modify(self, *modifications: Mapping[str, Any]) -> None:
        """Make and drop families."""
        self.front.tables.modify_column_families({"name": self.name, "modifications": list(modifications)})

    def write(self, row_key: bytes, *mutations: Any) -> None:
        """Change a row with MutateRow."""
        request = data_types.MutateRowRequest.pb()(table_name=self.name, row_key=row_key, mutations=mutations)
        self.front.data.mutate_row(data_types.MutateRowRequest.wrap(request))

    def partitions(self) -> list[tuple[bytes, bytes]]:
        """Return the present partitions as (start, end)."""
        answers = self.front.data.generate_initial_change_stream_partitions(table_name=self.name)
        ranges = [answer.partition.row_range for answer in answers]
        return [(keys.start_key_closed, keys.end_key_open) for keys in ranges]

    def request(
        self,
        start_key: bytes = b"",
        end_key: bytes = b"",
        *,
        start: int | None = None,
        tokens: Sequence[Any] = (),
        end: int | None = None,
        heartbeat: timedelta = timedelta(seconds=5),
        profile: str = "",
    ) -> Any:
        """Make a ReadChangeStreamRequest; ``start`` and ``end`` in microseconds, tokens as StreamContinuationTokens."""
        request = ReadChangeStreamRequest(table_name=self.name, app_profile_id=profile)
        request.partition.row_range.start_key_closed = start_key
        request.partition.row_range.end_key_open = end_key
        request.heartbeat_duration.FromTimedelta(heartbeat)
        if start is not None:
            request.start_time.FromMicroseconds(start)
        if end is not None:
            request.end_time.FromMicroseconds(end)
        request.continuation_tokens.tokens.extend(tokens) if tokens else None
        return request

    def open(self, request: Any, timeout: float = _TIMEOUT) -> Any:
        """Open a stream: a call to iterate over and to cancel."""
        call = self.front.channel.unary_stream(
            f"{_DATA}/ReadChangeStream",
            request_serializer=ReadChangeStreamRequest.SerializeToString,
            response_deserializer=ReadChangeStreamResponse.FromString,
        )
        return call(request, timeout=timeout)

    def read(self, start_key: bytes = b"", end_key: bytes = b"", **how: Any) -> Iterator[Any]:
        """Yield the messages of a partition's stream until it is closed, or the caller has enough."""
        call = self.open(self.request(start_key, end_key, **how))
        try:
            yield from call
        finally:
            call.cancel()

    def changes(self, start: int | None = None) -> list[Any]:
        """Return every message of a change that there is by now, in a table of one partition."""
        end = self.front.control.describe(self.name).now
        messages = self.read(start=self.since if start is None else start, end=end)
        return [message.data_change for message in messages if message.HasField("data_change")]

    def rows(self) -> dict[bytes, Cells]:
        """Return every cell the table holds."""
        rows: dict[bytes, Cells] = {}
        request = data_types.ReadRowsRequest(table_name=self.name)
        row_key, family, qualifier, value = b"", "", b"", b""
        for answer in self.front.data.read_rows(request, timeout=_TIMEOUT):
            for chunk in data_types.ReadRowsResponse.pb(answer).chunks:
                row_key = chunk.row_key or row_key
                family = chunk.family_name.value if chunk.HasField("family_name") else family
                qualifier = chunk.qualifier.value if chunk.HasField("qualifier") else qualifier
                value += chunk.value
                if not chunk.value_size:
                    rows.setdefault(row_key, {})[family, qualifier, chunk.timestamp_micros] = value
                    value = b""
        return rows


def set_cell(family: str, qualifier: bytes, value: bytes, timestamp: int = -1) -> Any:
    """Make a SetCell; the timestamp in microseconds, -1 for the server's time."""
    mutation = Mutation()
    cell = mutation.set_cell
    cell.family_name, cell.column_qualifier, cell.value, cell.timestamp_micros = family, qualifier, value, timestamp
    return mutation


def add_to_cell(family: str, qualifier: bytes, timestamp: int, amount: int) -> Any:
    """Make an AddToCell for a family of INT64 sums."""
    mutation = Mutation()
    cell = mutation.add_to_cell
    cell.family_name, cell.column_qualifier.raw_value = family, qualifier
    cell.timestamp.raw_timestamp_micros, cell.input.int_value = timestamp, amount
    return mutation


def merge_to_cell(family: str, qualifier: bytes, timestamp: int, amount: int) -> Any:
    """Make a MergeToCell for a family of INT64 sums."""
    mutation = Mutation()
    cell = mutation.merge_to_cell
    cell.family_name, cell.column_qualifier.raw_value = family, qualifier
    cell.timestamp.raw_timestamp_micros, cell.input.raw_value = timestamp, struct.pack(">q", amount)
    return mutation


def delete_column(family: str, qualifier: bytes, start: int = 0, end: int = 0) -> Any:
    """Make a DeleteFromColumn of the versions from ``start`` to ``end`` (microseconds; 0: open)."""
    mutation = Mutation()
    column = mutation.delete_from_column
    column.family_name, column.column_qualifier = family, qualifier
    column.time_range.start_timestamp_micros, column.time_range.end_timestamp_micros = start, end
    return mutation


def delete_family(family: str) -> Any:
    """Make a DeleteFromFamily."""
    mutation = Mutation()
    mutation.delete_from_family.family_name = family
    return mutation


def delete_row() -> Any:
    """Make a DeleteFromRow."""
    mutation = Mutation()
    mutation.delete_from_row.SetInParent()
    return mutation


def code_of(call: Any) -> grpc.StatusCode:
    """Return the status that a streaming call ends with, which is an error."""
    with pytest.raises(grpc.RpcError) as raised:
        list(call)
    code: grpc.StatusCode = raised.value.code()
    return code
