"""AppendRows calls to BigQuery's Storage Write API, and the open ones of a process: never more than a limit.

A call has bounded bytes in flight, matches answers to requests in order, and is read by a thread of its own. The client
library's AppendRowsStream is not used: it polls for answers, sends nothing again, and loses the error that ended an
idle connection. Here requests are bytes, ready to be sent again on another connection.

Sources: BigQuery, "BigQuery Storage Write API best practices" (limit the number of connections; Python has no
multiplexing) and "Quotas and limits" (concurrent connections, reported by RESOURCE_EXHAUSTED when one more is opened).
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from queue import SimpleQueue
from typing import Any, Final

import google.auth.exceptions
import grpc
import structlog
from google.api_core.gapic_v1 import routing_header
from google.cloud.bigquery_storage_v1.services.big_query_write.transports import BigQueryWriteGrpcTransport
from google.cloud.bigquery_storage_v1.types import AppendRowsRequest, AppendRowsResponse
from google.protobuf.descriptor_pb2 import DescriptorProto
from google.rpc.status_pb2 import Status

from services.cdc_consumer.adapters.bigquery.errors import call_status, is_exhausted
from services.cdc_consumer.core.stream.counts import Appends
from shared.contracts.errors import TransientError
from shared.pubsub.credentials import unusable_credentials
from shared.runtime.clock import Monotonic, SteadyClock
from shared.runtime.stop import Stop

_SERVICE: Final = "bigquerystorage.googleapis.com:443"
_OPTIONS: Final = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 5_000),  # two minutes by default: long after the service is back
]


def open_storage_channel(emulator_host: str | None) -> grpc.Channel:
    """Open a channel to what listens at ``emulator_host``, or to the service where that is None or empty."""
    if emulator_host:
        return grpc.insecure_channel(emulator_host, options=_OPTIONS)
    create_channel: Any = BigQueryWriteGrpcTransport.create_channel
    try:
        channel: grpc.Channel = create_channel(_SERVICE, options=_OPTIONS)
    except google.auth.exceptions.DefaultCredentialsError as error:
        raise unusable_credentials(error, "BIGQUERY_STORAGE_EMULATOR_HOST") from error
    return channel


_METHOD: Final = "/google.cloud.bigquery.storage.v1.BigQueryWrite/AppendRows"
_Request: Final = AppendRowsRequest.pb()
_Response: Final = AppendRowsResponse.pb()

_GRACE: Final = timedelta(seconds=3)
"""How long an answer is still awaited once the process has been asked to stop."""


class Lost:
    """The answer of a request that had none when its connection ended: it may or may not have been applied."""


@dataclass(slots=True, eq=False)
class AppendRequest:
    """Rows on their way, and which rows of the append they are. ``answer`` is set once, by the connection."""

    rows: Sequence[bytes]
    indices: Sequence[int]
    data: bytes = field(init=False)
    sent_at: float = 0.0
    answer: Any = None
    """None while there is none; then an AppendRowsResponse, a Status that ended the connection, or `Lost`."""
    connection: "AppendConnection | None" = None
    is_guess: bool = False
    """Whether the status is a guess: the connection ended, and one behind it may have been the reason."""
    guesses: int = 0
    """How many connections ended so, with this as the oldest request."""

    def __post_init__(self) -> None:
        message = _Request()
        message.proto_rows.rows.serialized_rows.extend(self.rows)
        self.data = message.SerializeToString()


def opening(stream: str, descriptor: DescriptorProto) -> bytes:
    """Return what goes before the first request of a connection: serialized messages joined are merged."""
    message = _Request(
        write_stream=stream,
        trace_id="millrace",
        default_missing_value_interpretation=AppendRowsRequest.MissingValueInterpretation.NULL_VALUE,
    )
    message.proto_rows.writer_schema.proto_descriptor.CopyFrom(descriptor)
    return bytes(message.SerializeToString())


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendLimits:
    """Sizes and times of append streams. BigQuery takes requests of 10 MB; nothing is gained above 4 MB."""

    request_bytes: int = 2_000_000
    largest_request_bytes: int = 9_000_000
    window_bytes: int = 8_000_000
    connections: int = 20
    """Open at once, of all tables."""
    connections_of_table: int = 2
    full_sends: int = 8
    """So many requests in a row that fill their connection's window, and the table gets another connection."""
    answer_within: timedelta = timedelta(seconds=60)
    close_after_idle: timedelta = timedelta(minutes=5)  # BigQuery itself closes after ten


class AppendConnection:
    """An open call that takes requests of one table and one descriptor."""

    def __init__(
        self,
        channel: grpc.Channel,
        stream: str,
        first: bytes,
        limits: AppendLimits,
        changed: threading.Condition,
        proven: Callable[[], None],
    ) -> None:
        """``proven`` is called once, when BigQuery accepts the first request of this connection."""
        self._opening = first
        self._opened = False  # whether the next request goes without the opening
        self._proven = False  # whether BigQuery has accepted anything on this connection
        self._window = limits.window_bytes
        self._timeout = limits.answer_within
        self._changed = changed  # of all connections of a pool
        self._on_proven = proven
        self._heard_at = 0.0  # or when that was sent that has waited for an answer since
        self._in_flight: deque[AppendRequest] = deque()
        self._bytes = 0
        self._ended = False
        self._refusal: Status | None = None  # why the connection itself was not taken, until a request reports it
        self.appends = Appends()
        self._outgoing: SimpleQueue[bytes | None] = SimpleQueue()
        untyped: Any = channel  # requests are bytes already, which the stubs do not foresee
        append_rows = untyped.stream_stream(_METHOD, response_deserializer=_Response.FromString)
        routing: Any = routing_header
        metadata = (routing.to_grpc_metadata((("write_stream", stream),)),)
        self._call: Any = append_rows(iter(self._outgoing.get, None), metadata=metadata)
        self._reader = threading.Thread(target=self._read, name=f"append {stream}", daemon=True)
        self._reader.start()

    @property
    def ended(self) -> bool:
        """Return whether this connection has ended, by either side."""
        return self._ended

    @property
    def idle(self) -> bool:
        """Return whether nothing sent is without an answer."""
        return not self._in_flight

    @property
    def proven(self) -> bool:
        """Return whether BigQuery has accepted anything here: what ends it is then no refusal of the connection."""
        return self._proven

    def has_room(self, request: AppendRequest) -> bool:
        """Return whether a request could be sent without waiting."""
        return not self._in_flight or self._bytes + len(request.data) <= self._window

    def send(self, request: AppendRequest, stop: Stop, until: float) -> bool:
        """Send a request, once there is room for it; return whether there was by then (`time.monotonic`).

        On a connection that has ended its answer is `Lost` at once.
        """
        with self._changed:
            if not self.wait_for(lambda: self.has_room(request) or self._ended, stop, until):
                return False
            request.connection = self
            request.answer = None
            if self._ended:
                request.answer, self._refusal = self._refusal or Lost(), None
                return True
            request.sent_at = time.monotonic()
            self._heard_at = self._heard_at if self._in_flight else request.sent_at
            self._in_flight.append(request)
            self._bytes += len(request.data)
            self._outgoing.put(request.data if self._opened else self._opening + request.data)
            self._opened = True
            return True

    def cancel(self) -> None:
        """Wait for no more answers: what has none yet is `Lost`, soon."""
        self._call.cancel()

    def close(self) -> None:
        """End the call and its thread; what has no answer yet is `Lost`."""
        self._outgoing.put(None)
        self._reader.join(timeout=1)
        if self._reader.is_alive():
            self._call.cancel()
            self._reader.join()

    def wait_for(self, done: Callable[[], bool], stop: Stop, until: float) -> bool:
        """Wait for what an answer brings about, until then (`time.monotonic`); return whether it is so.

        TransientError if asked to stop meanwhile.
        """
        with self._changed, stop.calling(self._wake):
            while not done():
                now = time.monotonic()
                if now >= until:
                    return False
                if stop.requested:  # a little longer, no more, whatever the number of appends
                    if not self._changed.wait_for(done, stop.left_of(_GRACE)):
                        raise TransientError("asked to stop before BigQuery had answered")
                    break
                silent_at = self._heard_at + self._timeout.total_seconds()
                if now >= silent_at:  # nothing at all has come: the connection is dead, and does not know
                    structlog.get_logger().warning("append_connection_silent", timeout=str(self._timeout))
                    self._call.cancel()
                    self._heard_at = now
                    continue
                self._changed.wait_for(lambda: done() or stop.requested, min(until, silent_at) - now)
        return True

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _read(self) -> None:
        end = Status(code=grpc.StatusCode.ABORTED.value[0], message="BigQuery closed the connection")
        try:
            for response in self._call:
                self._answer(response)
        except grpc.RpcError:
            end = call_status(self._call)
        finally:
            self._end(end)

    def _answer(self, response: Any) -> None:
        with self._changed:
            if not self._in_flight:  # no request to blame or to praise: whatever it is, another connection is safer
                self._call.cancel()
                return
            request = self._in_flight.popleft()
            self._bytes -= len(request.data)
            request.answer, request.is_guess = response, False
            self._heard_at = time.monotonic()
            took = self._heard_at - request.sent_at
            self.appends = self.appends.plus(Appends.of_one(len(request.data), took))
            if not self._proven and not response.HasField("error"):
                self._proven = True
                self._on_proven()
            self._opened = self._opened and self._proven  # it may be the opening that was refused: not known by now
            self._changed.notify_all()

    def _end(self, status: Status) -> None:
        with self._changed:
            self._ended = True
            if not self._in_flight and is_exhausted(status):
                self._refusal = status
            for index, request in enumerate(self._in_flight):
                request.answer = status if index == 0 else Lost()  # the oldest is what BigQuery was reading, most often
                request.is_guess = index == 0 and len(self._in_flight) > 1
                request.guesses += request.is_guess
            self._in_flight.clear()
            self._bytes = 0
            self._outgoing.put(None)
            self._changed.notify_all()


class ConnectionPool:
    """Opens connections and closes them where others need one more. Not for several threads at once."""

    def __init__(self, channel: grpc.Channel, limits: AppendLimits, stop: Stop, clock: SteadyClock) -> None:
        self._channel = channel
        self._limits = limits
        self._stop = stop
        self._clock = clock
        self._open: list[AppendConnection] = []  # the one that was used longest ago first
        self._changed = threading.Condition()
        self._limit = limits.connections
        self._lowered_at: Monotonic | None = None
        self._past = Appends()  # over connections that are closed
        self.opened = 0

    @property
    def open_now(self) -> int:
        """Return how many connections are open."""
        return sum(not one.ended for one in self._open)

    @property
    def appends(self) -> Appends:
        """Return what went over all connections so far."""
        total = self._past
        for one in self._open:
            total = total.plus(one.appends)
        return total

    def open(self, table: str, path: str, first: bytes, until: float) -> AppendConnection | None:
        """Open a connection, in an idle one's place where there are too many.

        None where none is idle by then (`time.monotonic`). TransientError if asked to stop meanwhile.
        """
        if not self._make_room(until):
            return None
        self.opened += 1
        opened = self.opened

        def proven() -> None:  # while BigQuery cannot be reached there is no connection to report
            structlog.get_logger().info("append_connection_opened", table=table, opened=opened)

        connection = AppendConnection(self._channel, path, first, self._limits, self._changed, proven)
        self._open.append(connection)
        return connection

    def used(self, connection: AppendConnection) -> None:
        """Take note that a connection is in use: others are closed before it."""
        if self._open and self._open[-1] is not connection and connection in self._open:
            self._open.remove(connection)
            self._open.append(connection)

    def close(self, connection: AppendConnection) -> None:
        """End a connection and its thread."""
        connection.close()
        if any(one is connection for one in self._open):
            self._past = self._past.plus(connection.appends)
        self._open = [one for one in self._open if one is not connection]

    def refused(self) -> bool:
        """BigQuery takes no more connections: be content with those that are open; return whether there are any.

        Others may hold the rest, so after a while more are tried again.
        """
        self._forget_ended()
        if not self._open:
            return False
        self._limit = len(self._open)
        self._lowered_at = self._clock.monotonic()
        structlog.get_logger().warning("append_connections_limited", connections=self._limit)
        return True

    def _make_room(self, until: float) -> bool:
        self._forget_ended()
        while len(self._open) >= self._limit_now():
            if not self._open[0].wait_for(lambda: any(one.idle for one in self._open), self._stop, until):
                return False
            self.close(next(one for one in self._open if one.idle))
        return True

    def _limit_now(self) -> int:
        if self._lowered_at is not None:
            since = timedelta(microseconds=(self._clock.monotonic() - self._lowered_at) // 1000)
            if since >= self._limits.close_after_idle:
                self._limit, self._lowered_at = self._limits.connections, None
        return self._limit

    def _forget_ended(self) -> None:
        for one in [one for one in self._open if one.ended]:
            self.close(one)
