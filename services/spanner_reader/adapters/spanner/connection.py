"""A Spanner database through the low-level asynchronous client: queries, and transactions that read and then write.

The hand-written client is not used: its streaming iterator buffers without bound until a resume token comes and
retries by itself, without a wait; its calls retry where ours must end within a lease.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Self, TypeVar
from urllib.parse import quote

import grpc
from google.api_core.exceptions import (
    Aborted,
    AlreadyExists,
    GoogleAPICallError,
    InternalServerError,
    MethodNotImplemented,
    NotFound,
    ServiceUnavailable,
    from_grpc_error,
)
from google.cloud.spanner_admin_database_v1 import DatabaseAdminAsyncClient
from google.cloud.spanner_admin_database_v1.services.database_admin.transports import DatabaseAdminGrpcAsyncIOTransport
from google.cloud.spanner_v1 import (
    CommitRequest,
    DirectedReadOptions,
    ExecuteSqlRequest,
    Mutation,
    PartialResultSet,
    RequestOptions,
    RollbackRequest,
    Session,
    SpannerAsyncClient,
    TransactionOptions,
    TransactionSelector,
    Type,
    TypeCode,
)
from google.cloud.spanner_v1.services.spanner.transports import SpannerGrpcAsyncIOTransport, SpannerGrpcTransport
from google.protobuf.struct_pb2 import ListValue, Struct
from google.protobuf.timestamp_pb2 import Timestamp

from services.spanner_reader.adapters.spanner.chunks import RowValues
from services.spanner_reader.adapters.spanner.dialects import DIALECT, Dialect
from services.spanner_reader.adapters.spanner.errors import spanner_errors
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.contracts.timestamps import Nanoseconds, format_timestamp
from shared.reading.byte_budget import ByteBudget
from shared.streams.connections import KEEPALIVE, OPTIONS, Options, StreamConnections

TIMEOUT: Final = 5.0
"""Seconds for one call: less than a lease, and less than the ten seconds in which a service has to stop."""
DDL_TIMEOUT: Final = 30.0
"""Seconds after which a caller learns that a schema change goes on: less than the default of LIVENESS."""
LARGE_TIMEOUT: Final = 60.0
"""Seconds until the next response of a query whose result is as large as the customer's schema."""
_MOMENT: Final = 0.4
"""Seconds in which a transaction whose caller has gone may still end, and then be rolled back."""
_ABORTED_KEPT: Final = 32
"""How many aborted transactions are remembered until their next attempt. The oldest is forgotten first."""
_COMMITS_REPEATED: Final = 3
"""How often a Commit is sent again because Spanner answers with a newer precommit token."""

COMMIT_TIMESTAMP: Final = "spanner.commit_timestamp()"
"""What a column that allows it is set to, to hold the commit timestamp of the writing transaction."""

_SERVICE: Final = "spanner.googleapis.com"
_PORT: Final = ":443"
_TO_THE_LEADER: Final = ("x-goog-spanner-route-to-leader", "true")
"""Goes with what only the leader region answers, or every such call first goes to the nearest region. Source:
google-cloud-spanner, `_metadata_with_leader_aware_routing`; Spanner, "Leader-aware routing"."""

_STRONG: Final = TransactionSelector(single_use=TransactionOptions(read_only=TransactionOptions.ReadOnly(strong=True)))
_STRONG_AND_WHEN: Final = TransactionSelector(
    single_use=TransactionOptions(read_only=TransactionOptions.ReadOnly(strong=True, return_read_timestamp=True))
)
_BROKEN_OFF: Final = (ServiceUnavailable, InternalServerError)
"""What ends a stream whose result can be resumed where the service has given a token for that."""

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


Priority = Literal["low", "medium", "high"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOptions:
    """How a database is asked: with the rights of which role, how urgently, and which of its replicas."""

    role: str | None = None
    priority: Priority | None = None
    directed_reads: DirectedReadOptions | None = None
    """Spanner takes it for what only reads, and refuses a read-write transaction with it."""


def directed_reads(replicas: Iterable[tuple[str, str]]) -> DirectedReadOptions:
    """Return which replicas are asked, by location and type, "" being any; where none is available, others are."""
    chosen = [
        DirectedReadOptions.ReplicaSelection(location=location, type_=kind.upper() or "TYPE_UNSPECIFIED")
        for location, kind in replicas
    ]
    return DirectedReadOptions(include_replicas=DirectedReadOptions.IncludeReplicas(replica_selections=chosen))


class _Result:
    """What ExecuteStreamingSql has answered so far.

    That call, everywhere: ExecuteSql refuses a result of more than 10 MiB. Source: Spanner, RPC reference.
    """

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.transaction = b""
        self.read_timestamp = Timestamp()
        self.precommit_token: Any = None
        self._values: RowValues | None = None

    def note_transaction(self, response: Any) -> None:
        """Remember the transaction that the first response names, before any of its rows count."""
        self.transaction = self.transaction or response.metadata.transaction.id

    def add(self, response: Any) -> None:
        """Take the next response."""
        if self._values is None:
            self._values = RowValues(max(1, len(response.metadata.row_type.fields)))
            self.read_timestamp = response.metadata.transaction.read_timestamp
        self.rows += self._values.rows(response)
        if response.HasField("precommit_token"):
            token = response.precommit_token
            if self.precommit_token is None or token.seq_num > self.precommit_token.seq_num:
                self.precommit_token = token

    def end(self) -> "_Result":
        """Check that it is complete."""
        if self._values is None:
            raise TransientError("Spanner ended the answer to a query before its first response")
        self._values.end()
        return self


class SpannerChannels:
    """The connections to Spanner that everything here shares; to an emulator if one is named."""

    def __init__(
        self, emulator_host: str | None, endpoint: str | None = None, budget: ByteBudget | None = None
    ) -> None:
        """``endpoint``: where Spanner answers, with or without a port; None is everywhere.

        ``budget``: of the responses to streaming calls that have come and are not handed over.
        """
        service = endpoint or _SERVICE
        self._address = emulator_host or (service if ":" in service else service + _PORT)
        self._emulated = bool(emulator_host)
        self._channel = self._open()
        self._streams = StreamConnections(self._open_for_threads, budget)
        self.client = SpannerAsyncClient(transport=SpannerGrpcAsyncIOTransport(channel=self._channel))
        admin = DatabaseAdminGrpcAsyncIOTransport(channel=self._channel)
        self.admin = DatabaseAdminAsyncClient(transport=admin)

    async def portions(
        self, method: str, request: Any, metadata: Sequence[tuple[str, str]]
    ) -> AsyncGenerator[Sequence[bytes], None]:
        """Yield the responses to a streaming method of Spanner as bytes, many at a time. GoogleAPICallError.

        ``request`` is of a raw class, and names a session. Closing the generator ends the call. It is made on a
        connection that has room for one more, and has no deadline, for a live partition lasts long.
        """
        routing = ("x-goog-request-params", f"session={quote(request.session, safe='/')}")
        try:
            path = f"/google.spanner.v1.Spanner/{method}"
            async with aclosing(self._streams.portions(path, request, [*metadata, routing])) as found:
                async for portion in found:
                    yield portion
        except grpc.RpcError as error:
            raise from_grpc_error(error) from error  # type: ignore[no-untyped-call]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections; calls on them are cancelled."""
        await self._channel.close(None)
        self._streams.close()

    def _open(self) -> grpc.aio.Channel:
        if self._emulated:
            return grpc.aio.insecure_channel(self._address, options=OPTIONS)
        with spanner_errors("connect to Spanner"):
            channel: grpc.aio.Channel = SpannerGrpcAsyncIOTransport.create_channel(
                self._address, options=OPTIONS + KEEPALIVE
            )
            return channel

    def _open_for_threads(self, more: Options) -> grpc.Channel:
        if self._emulated:
            return grpc.insecure_channel(self._address, options=[*OPTIONS, *more])
        with spanner_errors("connect to Spanner"):
            options = [*OPTIONS, *KEEPALIVE, *more]
            channel: grpc.Channel = SpannerGrpcTransport.create_channel(self._address, options=options)
            return channel


class SpannerDatabaseClient:
    """One database, read and written through one multiplexed session, which any number of calls may share."""

    def __init__(
        self,
        name: str,
        channels: SpannerChannels,
        dialect: Dialect = Dialect.GOOGLESQL,
        options: CallOptions | None = None,
    ) -> None:
        self.name = name
        self.dialect = dialect
        self.options = options or CallOptions()
        self.client = channels.client
        self._channels = channels
        self._admin = channels.admin
        self._session: str | None = None
        self._making_session = asyncio.Lock()
        # The emulator runs one read-write transaction at a time; a reader has no use for more than one either.
        self._writing = asyncio.Lock()
        self._schema_change: tuple[Sequence[str], Any] | None = None
        """The statements that run, and their operation."""
        self._aborted: deque[tuple[Statement, bytes]] = deque(maxlen=_ABORTED_KEPT)
        """Transactions that were aborted: the next attempt with the same read takes over the priority for locks."""

    @property
    def metadata(self) -> Sequence[tuple[str, str]]:
        """Return what goes with every call."""
        return [("google-cloud-resource-prefix", self.name)]

    @property
    def _leader_metadata(self) -> Sequence[tuple[str, str]]:
        return [*self.metadata, _TO_THE_LEADER]

    def portions(self, method: str, request: Any) -> AsyncGenerator[Sequence[bytes], None]:
        """Yield the responses to a streaming method; see `SpannerChannels.portions`."""
        return self._channels.portions(method, request, self.metadata)

    def reading(self, statement: Statement, session: str, transaction: TransactionSelector) -> ExecuteSqlRequest:
        """Return the request that runs a query, for which ``transaction`` reads only."""
        request = self._asking(statement, session, transaction)
        if self.options.directed_reads is not None:
            request.directed_read_options = self.options.directed_reads
        return request

    def _asking(self, statement: Statement, session: str, transaction: TransactionSelector) -> ExecuteSqlRequest:
        request = statement.request(session, transaction)
        request.request_options = self._request_options
        return request

    @property
    def _request_options(self) -> RequestOptions:
        priority = self.options.priority
        return RequestOptions(priority=f"PRIORITY_{priority.upper()}") if priority else RequestOptions()

    async def session(self) -> str:
        """Return the name of the session, made at the first call."""
        async with self._making_session:
            if self._session is None:
                made = await self.client.create_session(
                    request={
                        "database": self.name,
                        "session": Session(multiplexed=True, creator_role=self.options.role or ""),
                    },
                    retry=None,
                    timeout=TIMEOUT,
                    metadata=self._leader_metadata,
                )
                self._session = str(made.name)
            return self._session

    def forget_session(self, message: str) -> None:
        """Make another session for the next call if the message says that the service has dropped the present one.

        Of many calls that fail at once the first ends the session; the others are of one that is replaced already.
        """
        if self._session is not None and (self._session in message or "/sessions/" not in message):
            self._session = None
            self._aborted.clear()  # transactions of that session

    async def learn_dialect(self) -> None:
        """Take the dialect that the database says it has. MisconfiguredError where it is none that is known."""
        for (dialect,) in await self.query(Statement(DIALECT)):
            try:
                self.dialect = Dialect(dialect)
            except ValueError as error:
                known = " and ".join(one.value for one in Dialect)
                raise MisconfiguredError(
                    "dialect-unknown",
                    f"database {self.name} has the dialect {dialect}, and this version knows {known}: upgrade the "
                    "reader, or name a database of one of these in SPANNER_DATABASE and PARTITION_DATABASE",
                ) from error

    async def query(self, statement: Statement, *, large: bool = False) -> list[Row]:
        """Return the rows of a strong read; ``large``: the size is the customer's, and no limit is set to its time."""
        with self.errors("query"):
            return (await self._read(self.reading(statement, await self.session(), _STRONG), large=large)).rows

    async def snapshot(
        self, *statements: Statement, at: Nanoseconds | None = None, large: bool = False
    ) -> tuple[Nanoseconds, list[list[Row]]]:
        """Return the rows of several statements, all of them as they were at one time, and that time: now, or ``at``.

        MisconfiguredError for a time that is too long ago for the database's version retention.
        """
        with self.errors("query"):
            # Not one transaction: the emulator ends it when another begins in the session, which all calls share.
            session, transaction = await self.session(), _STRONG_AND_WHEN if at is None else read_only_at(at)
            results: list[list[Row]] = []
            for statement in statements:
                result = await self._read(self.reading(statement, session, transaction), large=large)
                if at is None:
                    read = result.read_timestamp
                    at, transaction = Nanoseconds(read.ToNanoseconds()), _as_of(read)
                results.append(result.rows)
        assert at is not None, "there is a statement at least"
        return at, results

    async def _read(self, request: ExecuteSqlRequest, result: _Result | None = None, *, large: bool = False) -> _Result:
        """Return the result of a query; one that breaks off goes on where its last resume token stands.

        A caller that passes ``result`` knows the transaction from the first response on, even if the query then fails.
        """
        result, resumed_at = result or _Result(), b""
        single_use = request.transaction._pb.HasField("single_use")  # else it would begin another transaction
        while True:
            since_token = []  # what a resumed query sends again
            try:
                async with aclosing(self._responses(request, large=large)) as responses:
                    async for response in responses:
                        result.note_transaction(response)
                        since_token.append(response)
                        if response.resume_token:
                            request.resume_token = response.resume_token
                            for one in since_token:
                                result.add(one)
                            since_token.clear()
            except _BROKEN_OFF:
                if not single_use or request.resume_token == resumed_at:  # it came no further than the time before
                    raise
                resumed_at = request.resume_token
                continue
            for one in since_token:
                result.add(one)
            return result.end()

    async def _responses(self, request: ExecuteSqlRequest, *, large: bool) -> AsyncGenerator[Any, None]:
        """Yield what a query is answered with: all within `TIMEOUT`, or each response within `LARGE_TIMEOUT`."""
        responses: Any = None
        metadata = self.metadata if request.transaction._pb.HasField("single_use") else self._leader_metadata
        try:
            while True:
                async with asyncio.timeout(LARGE_TIMEOUT if large else None):
                    if responses is None:
                        responses = await self.client.execute_streaming_sql(
                            request, retry=None, timeout=None if large else TIMEOUT, metadata=metadata
                        )
                        iterator = aiter(responses)
                    response = await anext(iterator, None)
                if response is None:
                    return
                yield PartialResultSet.pb(response)
        except TimeoutError as error:
            raise TransientError(f"query in {self.name}: no response within {LARGE_TIMEOUT:g} s") from error
        finally:
            if responses is not None:
                responses.cancel()

    async def read_then_write(
        self, statement: Statement, decide: Callable[[list[Row]], tuple[T, list[Mutation]]], *, large: bool = False
    ) -> T:
        """Read rows, decide what to write, and write it, in one transaction; return what ``decide`` returned.

        TransientError if it was aborted by another transaction, if its outcome is unknown, or if a row that it inserts
        is there already: reading again says why. ``large`` is as in `query`. Cancelling the caller
        leaves a transaction that has begun a moment to end, and then rolls it back: left open it would hold its locks.
        Within a second that is over, whatever answers.
        """
        async with self._writing:
            with self.errors("transaction"):
                return await _to_its_end(self._transaction(statement, await self.session(), decide, large=large))

    async def _transaction(
        self,
        statement: Statement,
        session: str,
        decide: Callable[[list[Row]], tuple[T, list[Mutation]]],
        *,
        large: bool,
    ) -> T:
        aborted = next((one for one in self._aborted if one[0] == statement), None)
        before = b"" if aborted is None else aborted[1]
        read_write = TransactionOptions.ReadWrite(multiplexed_session_previous_transaction_id=before)
        begin = TransactionSelector(begin=TransactionOptions(read_write=read_write))
        result = _Result()
        try:
            await self._read(self._asking(statement, session, begin), result, large=large)
            answer, mutations = decide(result.rows)
            if mutations:
                await self._commit(session, result.transaction, mutations, result.precommit_token)
        except asyncio.CancelledError:
            await self._roll_back(session, result.transaction, _MOMENT)
            raise
        except Aborted:
            if result.transaction:
                self._forget(aborted)
                self._aborted.append((statement, result.transaction))
            raise
        except BaseException:
            await self._roll_back(session, result.transaction)
            raise
        self._forget(aborted)
        if not mutations:
            await self._roll_back(session, result.transaction)
        return answer

    def _forget(self, aborted: tuple[Statement, bytes] | None) -> None:
        if aborted is not None and aborted in self._aborted:
            self._aborted.remove(aborted)

    async def _commit(self, session: str, transaction: bytes, mutations: list[Mutation], token: Any) -> None:
        again = {"session": session, "transaction_id": transaction, "request_options": self._request_options}
        request = CommitRequest(**again, mutations=mutations, precommit_token=token)
        for _attempt in range(1 + _COMMITS_REPEATED):
            try:
                answer = await self.client.commit(request, retry=None, timeout=TIMEOUT, metadata=self._leader_metadata)
            except AlreadyExists as error:
                raise TransientError(f"transaction in {self.name}: {error.message}") from error
            if "precommit_token" not in answer:
                return
            # The service asks for another commit with a newer token. It has kept the mutations of the first one: an
            # insert that is sent again fails with ALREADY_EXISTS. Source: google-cloud-go, pull request 11472.
            request = CommitRequest(**again, precommit_token=answer.precommit_token)
        raise TransientError(
            f"transaction in {self.name}: Spanner asked for another Commit after each of {1 + _COMMITS_REPEATED}"
        )

    async def _roll_back(self, session: str, transaction: bytes, seconds: float = TIMEOUT) -> None:
        if not transaction:  # none has begun
            return
        with contextlib.suppress(GoogleAPICallError):  # its locks end by themselves if this does not reach Spanner
            request = RollbackRequest(session=session, transaction_id=transaction)
            await self.client.rollback(request, retry=None, timeout=seconds, metadata=self._leader_metadata)

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
        """Run DDL statements and wait until they are done; TransientError while they run: the next call waits on."""
        with self.errors("schema change"):
            if self._schema_change is None or self._schema_change[0] != statements:
                started: Any = await self._admin.update_database_ddl(
                    request={"database": self.name, "statements": list(statements)}, retry=None, timeout=TIMEOUT
                )
                self._schema_change = statements, started
            operation = self._schema_change[1]
            try:
                await operation.result(timeout=DDL_TIMEOUT)
            except TimeoutError as error:
                name = operation.operation.name
                raise TransientError(
                    f"{statements[0].partition('(')[0].strip()} in {self.name} is still running (`gcloud spanner "
                    f"operations describe {name}` shows it); Spanner may take minutes"
                ) from error
            except GoogleAPICallError:
                self._schema_change = None
                raise
            self._schema_change = None

    @contextlib.contextmanager
    def errors(self, what: str) -> Iterator[None]:
        """Translate errors; a session that the service has dropped is made again at the next call."""
        with spanner_errors(f"{what} in {self.name}"):
            try:
                yield
            except NotFound as error:
                if "Session not found" in str(error.message):
                    self.forget_session(str(error.message))
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
            task.exception()  # seen: the one who asked is no longer there
        raise


def read_only_at(at: Nanoseconds) -> TransactionSelector:
    """Return what makes one call read everything as it was at a time."""
    when = Timestamp()
    when.FromNanoseconds(at)
    return _as_of(when)


def _as_of(when: Timestamp) -> TransactionSelector:
    as_then = TransactionOptions.ReadOnly(read_timestamp=when)
    return TransactionSelector(single_use=TransactionOptions(read_only=as_then))


def row(values: Sequence[Any]) -> ListValue:
    """Return values as one row of a mutation."""
    wire = ListValue()
    wire.extend(list(values))
    return wire
