"""A Spanner whose change stream follows a script, over a real socket: what the emulator cannot do.

It answers change stream queries by itself, as strictly as the service does, and passes every other call on to the
emulator: the partition table, the schema and the clock are real. Without an emulator behind it, only sessions are made,
and there are no rows.
"""

import re
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import grpc
from google.cloud.spanner_v1 import (
    CommitRequest,
    CreateSessionRequest,
    ExecuteSqlRequest,
    PartialResultSet,
    ResultSet,
    Session,
    TypeCode,
)
from google.longrunning.operations_pb2 import Operation

from services.spanner_reader.core.stream.records import (
    ROOT,
    ChildPartitionsRecord,
    DataChangeRecord,
    HeartbeatRecord,
    PartitionToken,
    StreamRecord,
)
from shared.contracts.timestamps import Nanoseconds, format_timestamp, parse_timestamp
from tests.integration.scripted_spanner_rows import Form, responses

_SQL: Final = re.compile(
    r"SELECT ChangeRecord FROM READ_(\w+) \(start_timestamp => @start_timestamp, end_timestamp => @end_timestamp, "
    r"partition_token => @partition_token, heartbeat_milliseconds => @heartbeat_milliseconds\)"
)
_TYPES: Final = {
    "start_timestamp": TypeCode.TIMESTAMP,
    "end_timestamp": TypeCode.TIMESTAMP,
    "partition_token": TypeCode.STRING,
    "heartbeat_milliseconds": TypeCode.INT64,
}
_OPTIONS: Final = "INFORMATION_SCHEMA.CHANGE_STREAM_OPTIONS"
_Handler: TypeAlias = Any
_SPANNER: Final = "/google.spanner.v1.Spanner/"


class RefusalError(Exception):
    """An error that a query is answered with."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message


@dataclass(frozen=True)
class Break:
    """How a query ends before its time: after so many records, with an error; or without one, where there is none."""

    after: int
    refusal: RefusalError | None = field(
        default_factory=lambda: RefusalError(grpc.StatusCode.UNAVAILABLE, "GOAWAY received")
    )


@dataclass(frozen=True)
class Query:
    """A query as it came."""

    token: PartitionToken
    start: Nanoseconds
    end: Nanoseconds | None
    heartbeat_milliseconds: int


class ScriptedStream:
    """What each partition of a change stream holds, and how the queries of it go wrong. Safe from any thread."""

    def __init__(
        self, start: Nanoseconds, *, form: Form | None = None, clock: Callable[[], int] = time.time_ns
    ) -> None:
        self.form = form or Form()
        self.clock = clock
        self.keeps_from = start
        """The earliest time that can be read: the stream's creation, or what its retention has left."""
        self.queries: list[Query] = []
        self.open: list[PartitionToken] = []
        self.most_open: dict[PartitionToken, int] = defaultdict(int)
        """How many queries of a partition were open at one time, at the most."""
        self.without_children: dict[PartitionToken, int] = defaultdict(int)
        """How many more bounded queries of a partition end well, and without its child records."""
        self._breaks: dict[PartitionToken, list[Break]] = defaultdict(list)
        self._starts = {ROOT: start}
        self._records: dict[PartitionToken, list[StreamRecord]] = {ROOT: []}
        self._changed = threading.Condition()

    def add(self, token: PartitionToken, *records: StreamRecord) -> None:
        """Commit records to a partition; open queries return them at once. Child records make the children known."""
        with self._changed:
            self._records[token] += records
            for record in records:
                if isinstance(record, ChildPartitionsRecord):
                    for child in record.children:
                        self._starts.setdefault(child.token, record.start_timestamp)
                        self._records.setdefault(child.token, [])
            self._changed.notify_all()

    def breaks(self, token: PartitionToken, *breaks: Break) -> None:
        """Say how the next queries of a partition end."""
        with self._changed:
            self._breaks[token] += breaks

    def asked(self, token: PartitionToken) -> list[Nanoseconds]:
        """Return where the queries of a partition started."""
        return [query.start for query in self.queries if query.token == token]

    def answer(self, query: Query, active: Callable[[], bool]) -> Iterator[StreamRecord]:
        """Return the records that a query is answered with, for as long as somebody listens."""
        with self._changed:
            self.queries.append(query)
            self._check(query)
            # A query that its reader left is open here until the cancellation has come.
            self._changed.wait_for(lambda: query.token not in self.open, timeout=5)
            self.open.append(query.token)
            self.most_open[query.token] = max(self.most_open[query.token], self.open.count(query.token))
            planned = self._breaks[query.token].pop(0) if self._breaks[query.token] else None
        try:
            yield from self._records_of(query, planned, active)
        finally:
            with self._changed:
                self.open.remove(query.token)
                self._changed.notify_all()

    def wake(self) -> None:
        """Let open queries look whether somebody still listens."""
        with self._changed:
            self._changed.notify_all()

    def _records_of(self, query: Query, planned: Break | None, active: Callable[[], bool]) -> Iterator[StreamRecord]:
        position = sent = 0
        over = False
        while active():
            with self._changed:
                over = over or (query.end is not None and self.clock() > query.end)
                record = next(iter(self._records[query.token][position:]), None)
                if record is None and not over and not (planned and planned.after <= sent):
                    if self._has_ended(query):
                        return
                    self._changed.wait(0.1)
                    continue
            if planned is not None and planned.after <= sent:
                if planned.refusal is not None:
                    raise planned.refusal
                return
            if record is None:
                return
            position += 1
            if self._is_asked_for(record, query):
                sent += 1
                yield record

    def _has_ended(self, query: Query) -> bool:
        return self._end_of(query.token) is not None

    def _is_asked_for(self, record: StreamRecord, query: Query) -> bool:
        time = _time(record)
        if isinstance(record, ChildPartitionsRecord):
            if query.end is not None and self.without_children[query.token] > 0:
                self.without_children[query.token] -= 1
                return False
            return query.end is None or time <= query.end
        return query.start <= time and (query.end is None or time <= query.end)

    def _end_of(self, token: PartitionToken) -> Nanoseconds | None:
        ends = [record for record in self._records[token] if isinstance(record, ChildPartitionsRecord)]
        return ends[-1].start_timestamp if ends else None

    def _check(self, query: Query) -> None:
        if not 1_000 <= query.heartbeat_milliseconds <= 300_000:
            raise _invalid("heartbeat_milliseconds must be within min 1000 and max 300000")
        if query.end is not None and query.end < query.start:
            raise _invalid("If end_timestamp is specified, start_timestamp must be <= end_timestamp")
        if query.token not in self._records:
            raise _invalid(
                "Specified partition_token is invalid, as it does not belong to the Change Stream associated with the "
                f"TVF. Received partition_token: {query.token}."
            )
        if query.start < self.keeps_from:
            earliest, received = format_timestamp(self.keeps_from), format_timestamp(query.start)
            raise RefusalError(
                grpc.StatusCode.OUT_OF_RANGE,
                "Specified start_timestamp is too far in the past. Please specify a start_timestamp within the "
                f"earliest read timestamp: {earliest}. Received {received}",
            )
        first, last = self._starts[query.token], self._end_of(query.token)
        if query.token != ROOT and (query.start < first or (last is not None and query.start > last)):
            raise RefusalError(
                grpc.StatusCode.OUT_OF_RANGE,
                "Specified start_timestamp is invalid for the partition. Please specify a start_timestamp within "
                f"{format_timestamp(first)} and {'now' if last is None else format_timestamp(last)}.",
            )


class ScriptedSpanner:
    """Serves a scripted stream on a free port, and passes on what is not its own."""

    def __init__(self, change_stream: str, stream: ScriptedStream, emulator: str | None = None) -> None:
        self.stream = stream
        self.with_deadline = 0
        """How many queries had one."""
        self.remembers_since = Nanoseconds(0)
        """From when on old versions can be read: what is older is refused, which the emulator does for no schema."""
        self.options: dict[str, str] = {}
        """More options of the change stream: the emulator knows few."""
        self.silent_for: float | None = 0.0
        """How many seconds a call that streams is taken before anything is said to it; None for ever."""
        self.given_up: list[str] = []
        """The calls that their callers ended before anything was said to them."""
        self.schema_changes_last = False
        """Whether operations that change the schema, though they are done, are said to be running."""
        self.commits_refused: list[RefusalError] = []
        """What the next commits are answered with after they were done."""
        self.calls: Counter[str] = Counter()
        """How many calls of each method were passed on."""
        self.commits: list[Any] = []
        """The CommitRequests that have come."""
        self.begun: list[Any] = []
        """The options of the read-write transactions that were begun by queries."""
        self.largest_result = 10 << 20
        """ExecuteSql refuses a larger one, and ExecuteStreamingSql does not."""
        self._name = change_stream
        unlimited = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
        self._emulator = None if emulator is None else grpc.insecure_channel(emulator, options=unlimited)
        self._over = threading.Event()
        self._server = grpc.server(ThreadPoolExecutor(64), options=unlimited)
        self._server.add_generic_rpc_handlers((_Calls(self._handler),))
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def stop(self) -> None:
        """End the server and every open query."""
        self._over.set()
        self.stream.wake()
        self._server.stop(grace=None).wait()
        if self._emulator is not None:
            self._emulator.close()

    def _handler(self, method: str) -> _Handler:
        if method == _SPANNER + "ExecuteStreamingSql":
            return grpc.unary_stream_rpc_method_handler(self._execute_streaming_sql)
        if self._emulator is None and method == _SPANNER + "StreamingRead":
            return grpc.unary_stream_rpc_method_handler(self._streaming_read)
        if self._emulator is None and method == _SPANNER + "CreateSession":
            return grpc.unary_unary_rpc_method_handler(_create_session)

        def pass_on(request: bytes, context: grpc.ServicerContext) -> bytes:
            if self._emulator is None:
                context.abort(grpc.StatusCode.UNIMPLEMENTED, f"{method}: there is no emulator behind this server")
            if method == _SPANNER + "ExecuteSql":
                self._check_transaction(request, context)
            if method == _SPANNER + "Commit":
                self.commits.append(CommitRequest.pb(CommitRequest.deserialize(request)))
            with _errors_passed_on(context):
                call: Any = self._emulator.unary_unary(method, None, None)
                answer: bytes = call(request, timeout=context.time_remaining(), metadata=_metadata(context))
            if method == _SPANNER + "ExecuteSql":
                answer = self._with_options(request, answer)
                if len(answer) > self.largest_result:
                    context.abort(grpc.StatusCode.FAILED_PRECONDITION, _TOO_LARGE)
            self.calls[method.rpartition("/")[2]] += 1
            if self.schema_changes_last and method.endswith(("UpdateDatabaseDdl", "GetOperation")):
                running = Operation.FromString(answer)
                answer = Operation(name=running.name, metadata=running.metadata).SerializeToString()
            if method == _SPANNER + "Commit" and self.commits_refused:
                refusal = self.commits_refused.pop(0)
                context.abort(refusal.code, refusal.message)
            return answer

        return grpc.unary_unary_rpc_method_handler(pass_on)

    def _check_transaction(self, data: bytes, context: grpc.ServicerContext) -> None:
        request = ExecuteSqlRequest.pb(ExecuteSqlRequest.deserialize(data))
        if request.transaction.HasField("begin"):
            self.begun.append(request.transaction.begin)
        read_only = request.transaction.single_use.read_only
        if read_only.HasField("read_timestamp") and read_only.read_timestamp.ToNanoseconds() < self.remembers_since:
            exceeded = "Read-only transaction timestamp has exceeded the maximum timestamp staleness"
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, exceeded)

    def _with_options(self, data: bytes, answer: bytes) -> bytes:
        if not self.options or _OPTIONS not in ExecuteSqlRequest.deserialize(data).sql:
            return answer
        found = ResultSet.pb(ResultSet.deserialize(answer))
        for option in self.options.items():
            found.rows.add().extend(option)
        return bytes(found.SerializeToString())

    def _be_silent(self, method: str, context: grpc.ServicerContext) -> None:
        """Say nothing to a call, not even that it was taken, until its time has come or its caller is gone."""
        gone = threading.Event()
        if not context.add_callback(gone.set) or gone.wait(self.silent_for):
            self.given_up.append(method)

    def _streaming_read(self, _request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        """Answer that there are no rows."""
        self._be_silent("StreamingRead", context)
        yield bytes(PartialResultSet.pb(PartialResultSet()).SerializeToString())

    def _pass_on_results(self, data: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        self._check_transaction(data, context)
        with _errors_passed_on(context):
            assert self._emulator is not None
            call: Any = self._emulator.unary_stream(_SPANNER + "ExecuteStreamingSql", None, None)
            self.calls["ExecuteStreamingSql"] += 1
            deadline = context.time_remaining()
            yield from call(data, timeout=deadline if deadline < _FOR_EVER else None, metadata=_metadata(context))
        if self.options and _OPTIONS in ExecuteSqlRequest.deserialize(data).sql:
            more = PartialResultSet.pb()()
            for option in self.options.items():
                for text in option:
                    more.values.add().string_value = text
            yield bytes(more.SerializeToString())

    def _execute_streaming_sql(self, data: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        request = ExecuteSqlRequest.pb(ExecuteSqlRequest.deserialize(data))
        if self._emulator is not None and "FROM READ_" not in request.sql:
            yield from self._pass_on_results(data, context)
            return
        self._be_silent("ExecuteStreamingSql", context)
        context.add_callback(self.stream.wake)
        try:
            if context.time_remaining() < _FOR_EVER:  # it is infinite where no deadline was sent
                self.with_deadline += 1
            query = _query(request, self._name)
            answer = self.stream.answer(query, lambda: context.is_active() and not self._over.is_set())
            for number, record in enumerate(answer, start=1):
                for response in responses(record, self.stream.form, first=number == 1, resume_token=b"%d" % number):
                    yield response.SerializeToString()
        except RefusalError as refusal:
            context.abort(refusal.code, refusal.message)


_FOR_EVER = 1e9  # seconds
_TOO_LARGE: Final = (
    "Result set too large. Result sets larger than 10.00M can only be yielded through the streaming API."
)


def _metadata(context: grpc.ServicerContext) -> Any:
    return tuple((key, value) for key, value in context.invocation_metadata() if "grpc-" not in key)


@contextmanager
def _errors_passed_on(context: grpc.ServicerContext) -> Iterator[None]:
    try:
        yield
    except grpc.RpcError as error:
        failed: Any = error
        context.set_trailing_metadata(tuple(failed.trailing_metadata() or ()))
        context.abort(failed.code(), failed.details() or "")


class _Calls(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    def __init__(self, handler: Callable[[str], _Handler]) -> None:
        self._handler = handler

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> _Handler:
        return self._handler(handler_call_details.method)


def _query(request: Any, change_stream: str) -> Query:
    """Return the query in a request, refused wherever the service would refuse it."""
    options = request.transaction.single_use.read_only
    if options.return_read_timestamp:
        raise _invalid("Change stream queries cannot return their read timestamp")
    if not options.strong:
        raise _invalid(
            "Change stream queries are not supported for multi use transactions. Change stream queries must be strong "
            "reads executed via single use transactions"
        )
    match = _SQL.fullmatch(request.sql)
    if match is None or match[1] != change_stream:
        raise _invalid(f"not a query of change stream {change_stream}: {request.sql}")
    types = {name: kind.code for name, kind in request.param_types.items()}
    if types != _TYPES:
        raise _invalid(f"wrong parameter types: {types}")
    given = request.params.fields
    if given["start_timestamp"].WhichOneof("kind") != "string_value":
        raise _invalid("start_timestamp must not be null.")
    end = given["end_timestamp"].string_value
    token = given["partition_token"]
    if token.WhichOneof("kind") == "string_value" and not token.string_value:
        raise _invalid("Specified partition_token is invalid. Received partition_token: .")
    return Query(
        PartitionToken(token.string_value),
        parse_timestamp(given["start_timestamp"].string_value),
        parse_timestamp(end) if end else None,
        int(given["heartbeat_milliseconds"].string_value),
    )


def _create_session(request: bytes, _context: grpc.ServicerContext) -> bytes:
    database = CreateSessionRequest.deserialize(request).database
    made: bytes = Session.serialize(Session(name=f"{database}/sessions/scripted", multiplexed=True))
    return made


def _invalid(message: str) -> RefusalError:
    return RefusalError(grpc.StatusCode.INVALID_ARGUMENT, message)


def _time(record: StreamRecord) -> Nanoseconds:
    match record:
        case DataChangeRecord():
            return record.commit_timestamp
        case HeartbeatRecord():
            return record.timestamp
        case ChildPartitionsRecord():
            return record.start_timestamp
