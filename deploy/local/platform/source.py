"""The source side of the local platform: a Spanner instance and its databases on an emulator, written and read whole.

On the generated client over a channel of its own, because the emulator's address is a value here (the hand-written
client takes it from the process's environment) and because each call gets a deadline: a client that retries for ever
would hide an emulator that died.
"""

import base64
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final, Literal

import grpc
from google.api_core.exceptions import Aborted, FailedPrecondition
from google.cloud.spanner_admin_database_v1 import DatabaseAdminClient, DatabaseDialect
from google.cloud.spanner_admin_database_v1.services.database_admin.transports import DatabaseAdminGrpcTransport
from google.cloud.spanner_admin_instance_v1 import Instance, InstanceAdminClient
from google.cloud.spanner_admin_instance_v1.services.instance_admin.transports import InstanceAdminGrpcTransport
from google.cloud.spanner_v1 import (
    CommitRequest,
    CommitResponse,
    ExecuteSqlRequest,
    Mutation,
    SpannerClient,
    TransactionOptions,
    TransactionSelector,
)
from google.cloud.spanner_v1.services.spanner.transports import SpannerGrpcTransport
from google.cloud.spanner_v1.streamed import StreamedResultSet
from tenacity import (
    retry,
    retry_if_exception_message,
    retry_if_exception_type,
    stop_after_delay,
    wait_random_exponential,
)

from shared.contracts.timestamps import Nanoseconds, parse_timestamp

_Json = dict[str, Any] | list[Any]
Value = bool | int | float | Decimal | str | bytes | date | datetime | _Json | tuple[Any, ...] | None
"""A Spanner value; a tuple is an ARRAY."""
Row = Mapping[str, Value]
Operation = Literal["insert", "update", "insert_or_update", "replace", "delete"]

DEADLINE: Final = 45.0
"""Seconds that one call may take: far more than the slowest commit of a busy emulator."""
_again_if_aborted: Final = retry(
    # an aborted transaction has changed nothing, and Spanner's clients have to run it again; the emulator, which takes
    # one transaction at a time, aborts whatever meets another
    retry=retry_if_exception_type(Aborted),
    wait=wait_random_exponential(multiplier=0.02, max=1),
    stop=stop_after_delay(60),
    reraise=True,
)
_again_if_busy: Final = retry(
    # Spanner lets a schema change wait for transactions; the emulator refuses it while one is open
    retry=retry_if_exception_type(FailedPrecondition) & retry_if_exception_message(match=".*concurrent schema change"),
    wait=wait_random_exponential(multiplier=0.02, max=1),
    stop=stop_after_delay(60),
    reraise=True,
)
_LARGE: Final = [("grpc.max_receive_message_length", 64 << 20), ("grpc.max_send_message_length", 64 << 20)]
_Mutation: Final = type(Mutation.pb(Mutation()))
_CommitRequest: Final = type(CommitRequest.pb(CommitRequest()))


@dataclass(frozen=True, slots=True)
class Write:
    """One mutation: an operation on one row. A delete names the key's values alone, in key order of ``row``."""

    operation: Operation
    table: str
    row: Row


@dataclass(frozen=True)
class SpannerInstance:
    """An instance on an emulator."""

    address: str
    project: str
    instance: str
    _channel: grpc.Channel = field(repr=False)
    _names: Iterator[int] = field(default_factory=lambda: itertools.count(1), repr=False)

    @classmethod
    def create(cls, address: str, project: str, instance: str) -> "SpannerInstance":
        """Create the instance."""
        made = cls.connect(address, project, instance)
        made.make()
        return made

    @classmethod
    def connect(cls, address: str, project: str, instance: str) -> "SpannerInstance":
        """Return an instance that is there."""
        return cls(address, project, instance, grpc.insecure_channel(address, options=_LARGE))

    def make(self) -> None:
        """Create the instance where it is not there."""
        admin = InstanceAdminClient(transport=InstanceAdminGrpcTransport(channel=self._channel))
        parent = f"projects/{self.project}"
        body = Instance(config=f"{parent}/instanceConfigs/emulator-config", display_name=self.instance, node_count=1)
        request = {"parent": parent, "instance_id": self.instance, "instance": body}
        _finish(admin.create_instance(request, timeout=DEADLINE))

    @property
    def path(self) -> str:
        """Return the instance's full name."""
        return f"projects/{self.project}/instances/{self.instance}"

    def create_database(
        self, statements: Sequence[str], name: str | None = None, *, postgresql: bool = False, protos: bytes = b""
    ) -> "SpannerDatabase":
        """Create a database with these DDL statements; under a new name unless given one.

        ``protos``: a FileDescriptorSet with the types that a CREATE PROTO BUNDLE among them names.
        """
        name = name or f"database-{next(self._names)}"
        request: dict[str, Any] = {"parent": self.path}
        if postgresql:  # which takes no other statement with this one
            request |= {"create_statement": f'CREATE DATABASE "{name}"', "database_dialect": DatabaseDialect.POSTGRESQL}
        else:
            request |= {"create_statement": f"CREATE DATABASE `{name}`", "extra_statements": list(statements)}
            request |= {"proto_descriptors": protos}
        _finish(self._database_admin().create_database(request, timeout=DEADLINE))
        made = self.database(name, postgresql=postgresql)
        if postgresql and statements:
            made.alter(*statements)
        return made

    def database(self, name: str, *, postgresql: bool = False) -> "SpannerDatabase":
        """Return a database that is there."""
        client = SpannerClient(transport=SpannerGrpcTransport(channel=self._channel))
        return SpannerDatabase(self, name, client, postgresql=postgresql)

    def close(self) -> None:
        """Close the channel; the databases of this instance cannot be used any more."""
        self._channel.close()

    def _database_admin(self) -> DatabaseAdminClient:
        return DatabaseAdminClient(transport=DatabaseAdminGrpcTransport(channel=self._channel))


class SpannerDatabase:
    """One database. One thread at a time: the emulator runs one read-write transaction at a time anyway."""

    def __init__(
        self, instance: SpannerInstance, name: str, client: SpannerClient, *, postgresql: bool = False
    ) -> None:
        self.instance = instance
        self.name = name
        self.postgresql = postgresql
        self.path = f"{instance.path}/databases/{name}"
        self._client = client
        self._session = client.create_session(database=self.path, timeout=DEADLINE).name

    @_again_if_busy
    def alter(self, *statements: str) -> None:
        """Run DDL statements and wait for them."""
        request = {"database": self.path, "statements": list(statements)}
        _finish(self.instance._database_admin().update_database_ddl(request, timeout=DEADLINE))

    def drop(self) -> None:
        """Drop the database."""
        self.instance._database_admin().drop_database(request={"database": self.path}, timeout=DEADLINE)

    @_again_if_aborted
    def commit(self, writes: Sequence[Write]) -> Nanoseconds:
        """Commit mutations in one transaction and return its commit timestamp."""
        request = _CommitRequest(session=self._session)
        request.single_use_transaction.read_write.SetInParent()
        for write in writes:
            mutation = request.mutations.add()
            if write.operation == "delete":
                mutation.delete.table = write.table
                mutation.delete.key_set.keys.add().extend([to_wire(value) for value in write.row.values()])
            else:
                body = getattr(mutation, write.operation)
                body.table = write.table
                body.columns.extend(write.row)
                body.values.add().extend([to_wire(value) for value in write.row.values()])
        answer = self._client.commit(CommitRequest.wrap(request), retry=None, timeout=DEADLINE)
        return _commit_timestamp(answer)

    @_again_if_aborted
    def execute(self, statement: str) -> tuple[int, Nanoseconds]:
        """Run one DML statement in a transaction of its own; return the number of rows and the commit timestamp."""
        begin = TransactionSelector(begin=TransactionOptions(read_write=TransactionOptions.ReadWrite()))
        request = ExecuteSqlRequest(session=self._session, sql=statement, transaction=begin, seqno=1)
        result = self._client.execute_sql(request, retry=None, timeout=DEADLINE)
        commit = CommitRequest(session=self._session, transaction_id=result.metadata.transaction.id)
        answer = self._client.commit(commit, retry=None, timeout=DEADLINE)
        return result.stats.row_count_exact, _commit_timestamp(answer)

    def now(self) -> Nanoseconds:
        """Return Spanner's own time."""
        now = "CURRENT_TIMESTAMP" if self.postgresql else "CURRENT_TIMESTAMP()"
        request = ExecuteSqlRequest(session=self._session, sql=f"SELECT {now}")
        answer = self._client.execute_sql(request, retry=None, timeout=DEADLINE)
        return parse_timestamp(str(answer.rows[0][0]))

    def query(self, sql: str) -> list[dict[str, Value]]:
        """Return the rows of a strong read, values as this package compares them (see `from_wire`)."""
        request = ExecuteSqlRequest(session=self._session, sql=sql)
        answers = self._client.execute_streaming_sql(request, retry=None, timeout=4 * DEADLINE)
        results = StreamedResultSet(answers, lazy_decode=True)
        rows = list(results)
        if not rows:
            return []
        fields = [(each.name, _Kind.of(each.type_)) for each in results.metadata.row_type.fields]
        return [{name: kind.value(cell) for (name, kind), cell in zip(fields, row, strict=True)} for row in rows]


def _finish(operation: Any) -> None:
    operation.result(timeout=DEADLINE)


def _commit_timestamp(answer: CommitResponse) -> Nanoseconds:
    return Nanoseconds(CommitResponse.pb(answer).commit_timestamp.ToNanoseconds())


def to_wire(value: Value) -> Any:
    """Return a value as Spanner's API takes it, for ``ListValue.extend``."""
    match value:
        case None | bool() | str():
            return value
        case int() | Decimal():
            return str(value)
        case float():
            return value if value - value == 0 else {"inf": "Infinity", "-inf": "-Infinity"}.get(str(value), "NaN")
        case bytes():
            return base64.b64encode(value).decode()
        case datetime():
            return value.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        case date():
            return value.isoformat()
        case dict() | list():
            return json.dumps(value)
        case tuple():
            return [to_wire(element) for element in value]


@dataclass(frozen=True, slots=True)
class _Kind:
    """A type of a column, read from the client's classes once, for they are slow."""

    code: str
    annotation: str
    element: "_Kind | None"

    @classmethod
    def of(cls, described: Any) -> "_Kind":
        code = described.code.name
        element = cls.of(described.array_element_type) if code == "ARRAY" else None
        return cls(code, described.type_annotation.name, element)

    def value(self, cell: Any) -> Value:
        if self.element is not None and not cell.HasField("null_value"):
            return tuple(self.element.value(element) for element in cell.list_value.values)
        if self.annotation == "PG_NUMERIC" and not cell.HasField("null_value"):
            return str(cell.string_value)  # of more digits than `Decimal` calculates with, and sometimes NaN
        return from_wire(self.code, cell)


def from_wire(code: str, cell: Any) -> Value:
    """Return a value of Spanner's API as Python holds it: TIMESTAMP cut to microseconds, JSON parsed."""
    if cell.HasField("null_value"):
        return None
    match code:
        case "BOOL":
            return bool(cell.bool_value)
        case "INT64" | "ENUM":
            return int(cell.string_value)
        case "FLOAT64" | "FLOAT32":
            return float(cell.string_value) if cell.HasField("string_value") else float(cell.number_value)
        case "NUMERIC":
            return Decimal(cell.string_value)
        case "BYTES" | "PROTO":
            return base64.b64decode(cell.string_value)
        case "DATE":
            return date.fromisoformat(cell.string_value)
        case "TIMESTAMP":
            microseconds = parse_timestamp(cell.string_value) // 1_000
            return datetime.fromtimestamp(microseconds // 1_000_000, UTC).replace(microsecond=microseconds % 1_000_000)
        case "JSON":
            return json.loads(cell.string_value)  # type: ignore[no-any-return]
        case "STRING":
            return str(cell.string_value)
        case _:
            raise NotImplementedError(f"type {code} is not compared yet")
