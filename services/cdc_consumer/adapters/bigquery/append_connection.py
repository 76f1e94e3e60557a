"""One AppendRows call: bounded bytes in flight, answers matched to requests in order, read by a thread of its own.

The client library's AppendRowsStream is not used: it polls for answers, sends nothing again, and loses the error that
ended an idle connection. Here requests are bytes, ready to be sent again on another connection.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from queue import SimpleQueue
from typing import Any, Final

import grpc
import structlog
from google.api_core.gapic_v1 import routing_header
from google.cloud.bigquery_storage_v1.types import AppendRowsRequest, AppendRowsResponse
from google.protobuf.descriptor_pb2 import DescriptorProto
from google.rpc.status_pb2 import Status

from services.cdc_consumer.adapters.bigquery.errors import call_status, is_exhausted
from services.cdc_consumer.core.stream.counts import Appends
from shared.contracts.errors import TransientError
from shared.runtime.stop import Stop

_METHOD: Final = "/google.cloud.bigquery.storage.v1.BigQueryWrite/AppendRows"
_Request: Final = AppendRowsRequest.pb()
_Response: Final = AppendRowsResponse.pb()

_GRACE: Final = timedelta(seconds=3)
"""How long an answer is still awaited once the process has been asked to stop."""


class Lost:
    """The answer of a request that had none when its connection ended: it may or may not have been applied."""


@dataclass(slots=True, eq=False)
class Request:
    """Rows on their way, and which rows of the append they are. ``answer`` is set once, by the connection."""

    rows: Sequence[bytes]
    indices: Sequence[int]
    data: bytes = field(init=False)
    sent_at: float = 0.0
    answer: Any = None
    """None while there is none; then an AppendRowsResponse, a Status that ended the connection, or `Lost`."""
    connection: "AppendConnection | None" = None

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


class AppendConnection:
    """An open call that takes requests of one table and one descriptor."""

    def __init__(self, channel: grpc.Channel, stream: str, first: bytes, window: int, patience: timedelta) -> None:
        self._opening = first
        self._opened = False  # whether the next request goes without the opening
        self._proven = False  # whether BigQuery has accepted anything on this connection
        self._window = window
        self._patience = patience
        self._changed = threading.Condition()
        self._in_flight: deque[Request] = deque()
        self._bytes = 0
        self._ended = False
        self._refusal: Status | None = None  # why the connection itself was not taken, until a request is told
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
        """Tell whether nothing sent is without an answer."""
        return not self._in_flight

    @property
    def proven(self) -> bool:
        """Tell whether BigQuery has accepted anything here: what ends it is then no refusal of the connection."""
        return self._proven

    def has_room(self, request: Request) -> bool:
        """Tell whether a request could be sent without waiting."""
        return not self._in_flight or self._bytes + len(request.data) <= self._window

    def send(self, request: Request, stop: Stop) -> None:
        """Send a request, once there is room for it. On a connection that has ended its answer is `Lost` at once."""
        with self._changed:
            if not self.has_room(request) and not self._ended:
                self._wait_for(lambda: self.has_room(request) or self._ended, stop)
            request.connection = self
            request.answer = None
            if self._ended:
                request.answer, self._refusal = self._refusal or Lost(), None
                return
            request.sent_at = time.monotonic()
            self._in_flight.append(request)
            self._bytes += len(request.data)
            self._outgoing.put(request.data if self._opened else self._opening + request.data)
            self._opened = True

    def wait(self, request: Request, stop: Stop) -> None:
        """Wait until a request sent here has its answer. TransientError if asked to stop and none comes any more."""
        with self._changed:
            self._wait_for(lambda: request.answer is not None, stop)

    def wait_until_idle(self, stop: Stop) -> None:
        """Wait until all that was sent here has its answer; as `wait`."""
        with self._changed:
            self._wait_for(lambda: not self._in_flight, stop)

    def close(self) -> None:
        """End the call and its thread; what has no answer yet is `Lost`."""
        self._outgoing.put(None)
        self._reader.join(timeout=1)
        if self._reader.is_alive():
            self._call.cancel()
            self._reader.join()

    def _wait_for(self, done: Callable[[], bool], stop: Stop) -> None:
        with stop.calling(self._wake):
            while not done():
                before = len(self._in_flight)
                if self._changed.wait_for(lambda: done() or stop.requested, self._patience.total_seconds()):
                    break
                if len(self._in_flight) == before:  # nothing at all has come: the connection is dead, and does not know
                    structlog.get_logger().warning("append_connection_silent", patience=str(self._patience))
                    self._call.cancel()
            if not self._changed.wait_for(done, _GRACE.total_seconds()):  # asked to stop: a little longer, no more
                raise TransientError("asked to stop before BigQuery had answered")

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
            request.answer = response
            took = time.monotonic() - request.sent_at
            self.appends = self.appends.plus(Appends(requests=1, bytes=len(request.data), seconds=took))
            self._proven = self._proven or not response.HasField("error")
            self._opened = self._opened and self._proven  # it may be the opening that was refused: not known by now
            self._changed.notify_all()

    def _end(self, status: Status) -> None:
        with self._changed:
            self._ended = True
            if not self._in_flight and is_exhausted(status):
                self._refusal = status
            for index, request in enumerate(self._in_flight):
                request.answer = status if index == 0 else Lost()  # the oldest is what BigQuery was looking at
            self._in_flight.clear()
            self._bytes = 0
            self._outgoing.put(None)
            self._changed.notify_all()
