"""A Spanner database through the low-level asynchronous client: queries, and transactions that read and then write.

The hand-written client is not used: its streaming iterator buffers without bound until a resume token comes and
retries by itself, without a wait; its calls retry where ours must end within a lease.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import grpc
from google.api_core.exceptions import GoogleAPICallError, MethodNotImplemented, NotFound
from google.cloud.spanner_admin_database_v1 import DatabaseAdminAsyncClient
from google.cloud.spanner_admin_database_v1.services.database_admin.transports import DatabaseAdminGrpcAsyncIOTransport
from google.cloud.spanner_v1 import (
    CommitRequest,
    ExecuteSqlRequest,
    Mutation,
    RollbackRequest,
    Session,
    SpannerAsyncClient,
    TransactionOptions,
    TransactionSelector,
    Type,
    TypeCode,
)
from google.cloud.spanner_v1.services.spanner.transports import SpannerGrpcAsyncIOTransport
from google.protobuf.struct_pb2 import ListValue, Struct, Value
from google.protobuf.timestamp_pb2 import Timestamp

from services.spanner_reader.adapters.dialects import DIALECT, Dialect
from services.spanner_reader.adapters.errors import spanner_errors
from shared.contracts.timestamps import Nanoseconds, format_timestamp

TIMEOUT: Final = 5.0
"""Seconds for one call: less than a lease, and less than the ten seconds in which a service has to stop."""
DDL_TIMEOUT: Final = 120.0
_MOMENT: Final = 0.4
"""Seconds in which a transaction whose caller has gone may still end, and then be rolled back."""
STREAMS_PER_CONNECTION: Final = 50
"""A connection to Google's front ends carries a hundred calls at once; one more would wait, silently, for ever."""

COMMIT_TIMESTAMP: Final = "spanner.commit_timestamp()"
"""What a column that allows it is set to, to hold the commit timestamp of the writing transaction."""

_OPTIONS: Final = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),  # channels with the same options would otherwise share one connection
]
_SERVICE: Final = "spanner.googleapis.com:443"
# A connection that died without a word is noticed. Not for the emulator, which closes connections for pinging.
_KEEPALIVE: Final = [("grpc.keepalive_time_ms", 30_000), ("grpc.keepalive_timeout_ms", 10_000)]

_STRONG: Final = TransactionSelector(single_use=TransactionOptions(read_only=TransactionOptions.ReadOnly(strong=True)))
_STRONG_AND_WHEN: Final = TransactionSelector(
    single_use=TransactionOptions(read_only=TransactionOptions.ReadOnly(strong=True, return_read_timestamp=True))
)
_READ_WRITE: Final = TransactionSelector(begin=TransactionOptions(read_write=TransactionOptions.ReadWrite()))

T = TypeVar("T")
Row = Sequence[Any]


@dataclass(frozen=True, slots=True)
class Parameter:
    """A value bound to a statement, and its type."""

    value: Any
    type: Any


def string(value: str | None) -> Parameter:
    """Bind a STRING."""
    return Parameter(value, Type(code=TypeCode.STRING))


def strings(values: Sequence[str]) -> Parameter:
    """Bind an ARRAY<STRING>."""
    return Parameter(list(values), Type(code=TypeCode.ARRAY, array_element_type=Type(code=TypeCode.STRING)))


def int64(value: int) -> Parameter:
    """Bind an INT64."""
    return Parameter(str(value), Type(code=TypeCode.INT64))


def timestamp(value: Nanoseconds | None) -> Parameter:
    """Bind a TIMESTAMP with all its digits."""
    return Parameter(None if value is None else format_timestamp(value), Type(code=TypeCode.TIMESTAMP))


@dataclass(frozen=True, slots=True)
class Statement:
    """SQL in the dialect of its database, and the values bound to it."""

    sql: str
    parameters: Mapping[str, Parameter] = field(default_factory=dict)

    def request(self, session: str, transaction: TransactionSelector) -> ExecuteSqlRequest:
        """Return the request that runs it."""
        params = Struct()
        params.update({name: bound.value for name, bound in self.parameters.items()})
        return ExecuteSqlRequest(
            session=session,
            transaction=transaction,
            sql=self.sql,
            params=params,
            param_types={name: bound.type for name, bound in self.parameters.items()},
            seqno=1,
        )


class _Connection:
    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel
        self.client = SpannerAsyncClient(transport=SpannerGrpcAsyncIOTransport(channel=channel))
        self.streams = 0


class Channels:
    """The connections to Spanner that everything here shares; to an emulator if one is named."""

    def __init__(self, emulator_host: str | None) -> None:
        self._emulator_host = emulator_host
        self._calls = self._open()
        self._streaming: list[_Connection] = []
        self.client = self._calls.client
        admin = DatabaseAdminGrpcAsyncIOTransport(channel=self._calls.channel)
        self.admin = DatabaseAdminAsyncClient(transport=admin)

    @contextlib.contextmanager
    def streaming(self) -> Iterator[SpannerAsyncClient]:
        """Yield a client for one call that does not end by itself, on a connection that has room for it."""
        connection = min(self._streaming, key=lambda one: one.streams, default=None)
        if connection is None or connection.streams >= STREAMS_PER_CONNECTION:
            connection = self._open()
            self._streaming.append(connection)
        connection.streams += 1
        try:
            yield connection.client
        finally:
            connection.streams -= 1

    async def close(self) -> None:
        """Close the connections; calls on them are cancelled."""
        for connection in (self._calls, *self._streaming):
            await connection.channel.close(None)

    def _open(self) -> _Connection:
        if self._emulator_host:
            return _Connection(grpc.aio.insecure_channel(self._emulator_host, options=_OPTIONS))
        with spanner_errors("connect to Spanner"):
            return _Connection(SpannerGrpcAsyncIOTransport.create_channel(_SERVICE, options=_OPTIONS + _KEEPALIVE))


class Database:
    """One database, read and written through one multiplexed session, which any number of calls may share."""

    def __init__(self, name: str, channels: Channels, dialect: Dialect = Dialect.GOOGLESQL) -> None:
        self.name = name
        self.dialect = dialect
        self.client = channels.client
        self.streaming = channels.streaming
        self._admin = channels.admin
        self._session: str | None = None
        self._making_session = asyncio.Lock()
        # The emulator runs one read-write transaction at a time; a reader has no use for more than one either.
        self._writing = asyncio.Lock()

    @property
    def metadata(self) -> Sequence[tuple[str, str]]:
        """Return what goes with every call."""
        return [("google-cloud-resource-prefix", self.name)]

    async def session(self) -> str:
        """Return the name of the session, made at the first call."""
        async with self._making_session:
            if self._session is None:
                made = await self.client.create_session(
                    request={"database": self.name, "session": Session(multiplexed=True)},
                    retry=None,
                    timeout=TIMEOUT,
                    metadata=self.metadata,
                )
                self._session = str(made.name)
            return self._session

    def forget_session(self) -> None:
        """Make another session for the next call: the service has dropped this one."""
        self._session = None

    async def learn_dialect(self) -> None:
        """Take the dialect that the database says it has."""
        for (dialect,) in await self.query(Statement(DIALECT)):
            self.dialect = Dialect(dialect)

    async def query(self, statement: Statement) -> list[Row]:
        """Return the rows of a strong read."""
        with self.errors("query"):
            request = statement.request(await self.session(), _STRONG)
            result = await self.client.execute_sql(request, retry=None, timeout=TIMEOUT, metadata=self.metadata)
        return _rows(result)

    async def snapshot(
        self, *statements: Statement, at: Nanoseconds | None = None
    ) -> tuple[Nanoseconds, list[list[Row]]]:
        """Return the rows of several statements, all of them as they were at one time, and that time: now, or ``at``.

        MisconfiguredError for a time that is too long ago for the database's version retention.
        """
        with self.errors("query"):
            # Not one transaction: the emulator ends it when another begins in the session, which all calls share.
            session, transaction = await self.session(), _STRONG_AND_WHEN if at is None else read_only_at(at)
            results: list[list[Row]] = []
            for statement in statements:
                request = statement.request(session, transaction)
                result = await self.client.execute_sql(request, retry=None, timeout=TIMEOUT, metadata=self.metadata)
                if at is None:
                    read = type(result.metadata).pb(result.metadata).transaction.read_timestamp
                    at, transaction = Nanoseconds(read.ToNanoseconds()), _as_of(read)
                results.append(_rows(result))
        assert at is not None, "there is a statement at least"
        return at, results

    async def read_then_write(self, statement: Statement, decide: Callable[[list[Row]], tuple[T, list[Mutation]]]) -> T:
        """Read rows, decide what to write, and write it, in one transaction; return what ``decide`` returned.

        TransientError if it was aborted by another transaction, or if its outcome is unknown. Cancelling the caller
        leaves a transaction that has begun a moment to end, and then rolls it back: left open it would hold its locks.
        Within a second that is over, whatever answers.
        """
        async with self._writing:
            with self.errors("transaction"):
                request = statement.request(await self.session(), _READ_WRITE)
                return await _to_its_end(self._transaction(request, decide))

    async def _transaction(
        self, request: ExecuteSqlRequest, decide: Callable[[list[Row]], tuple[T, list[Mutation]]]
    ) -> T:
        result = await self.client.execute_sql(request, retry=None, timeout=TIMEOUT, metadata=self.metadata)
        transaction = result.metadata.transaction.id
        try:
            answer, mutations = decide(_rows(result))
            if mutations:
                await self._commit(request.session, transaction, mutations, result.precommit_token)
        except asyncio.CancelledError:
            await self._roll_back(request.session, transaction, _MOMENT)
            raise
        except BaseException:
            await self._roll_back(request.session, transaction)
            raise
        if not mutations:
            await self._roll_back(request.session, transaction)
        return answer

    async def _commit(self, session: str, transaction: bytes, mutations: list[Mutation], token: Any) -> None:
        while token is not None:  # a multiplexed session's commit may ask to be repeated with a newer token
            request = CommitRequest(
                session=session, transaction_id=transaction, mutations=mutations, precommit_token=token
            )
            answer = await self.client.commit(request, retry=None, timeout=TIMEOUT, metadata=self.metadata)
            token = answer.precommit_token if "precommit_token" in answer else None

    async def _roll_back(self, session: str, transaction: bytes, seconds: float = TIMEOUT) -> None:
        with contextlib.suppress(GoogleAPICallError):  # its locks end by themselves if this does not reach Spanner
            request = RollbackRequest(session=session, transaction_id=transaction)
            await self.client.rollback(request, retry=None, timeout=seconds, metadata=self.metadata)

    async def granted(self, permissions: Sequence[str]) -> frozenset[str] | None:
        """Return those of the permissions that this identity has; None of an emulator, which knows none."""
        with self.errors("test of rights"):
            request = {"resource": self.name, "permissions": list(permissions)}
            try:
                answer = await self._admin.test_iam_permissions(request, timeout=TIMEOUT)
            except MethodNotImplemented:
                return None
        return frozenset(answer.permissions)

    async def change_schema(self, *statements: str) -> None:
        """Run DDL statements and wait until they are done."""
        with self.errors("schema change"):
            operation = await self._admin.update_database_ddl(
                request={"database": self.name, "statements": list(statements)}, retry=None, timeout=TIMEOUT
            )
            finished: Any = operation.result(timeout=DDL_TIMEOUT)  # type: ignore[no-untyped-call]
            await finished

    @contextlib.contextmanager
    def errors(self, what: str) -> Iterator[None]:
        """Translate errors; a session that the service has dropped is made anew at the next call."""
        with spanner_errors(f"{what} in {self.name}"):
            try:
                yield
            except NotFound as error:
                if "Session not found" in str(error.message):
                    self.forget_session()
                raise


async def _to_its_end(work: Coroutine[Any, Any, T]) -> T:
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task], timeout=_MOMENT)
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # seen: the one who asked is not there any more
        raise


def _proto(at: Nanoseconds) -> Timestamp:
    when = Timestamp()
    when.FromNanoseconds(at)
    return when


def read_only_at(at: Nanoseconds) -> TransactionSelector:
    """Return what makes one call read everything as it was at a time."""
    return _as_of(_proto(at))


def _as_of(when: Timestamp) -> TransactionSelector:
    as_then = TransactionOptions.ReadOnly(read_timestamp=when)
    return TransactionSelector(single_use=TransactionOptions(read_only=as_then))


def _rows(result: Any) -> list[Row]:
    return [from_wire(row) for row in type(result).pb(result).rows]


def from_wire(values: ListValue) -> list[Any]:
    """Return wire values as Python's: text, bool, float, None, lists of those."""
    return [value_from_wire(value) for value in values.values]


def value_from_wire(value: Value) -> Any:
    """Return a wire value as Python's."""
    kind = value.WhichOneof("kind")
    if kind == "list_value":
        return from_wire(value.list_value)
    return None if kind in (None, "null_value") else getattr(value, kind)


def row(values: Sequence[Any]) -> ListValue:
    """Return values as one row of a mutation."""
    wire = ListValue()
    wire.extend(list(values))
    return wire
