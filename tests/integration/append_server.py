"""A scripted BigQueryWrite server: it answers each AppendRows request as the test says, and remembers what came."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.cloud.bigquery_storage_v1.types import AppendRowsRequest, AppendRowsResponse, StorageError
from google.rpc.status_pb2 import Status

Request: Any = AppendRowsRequest.pb()
Response: Any = AppendRowsResponse.pb()
_StorageError: Any = StorageError.pb()


@dataclass(frozen=True)
class Close:
    """End the connection instead of answering; with OK it is just closed, as an idle one may be."""

    code: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE
    details: Sequence[Any] = ()


class Silence:
    """Give no answer to this request, nor to any after it on this connection."""


class Late:
    """Read on before this request is answered; the script closes the connection before that is due."""


Answer = Any
Script = Callable[[Any], Answer]


def accepted(*, updated_schema: bool = False) -> Any:
    response = Response()
    response.append_result.SetInParent()
    if updated_schema:
        response.updated_schema.SetInParent()
    return response


def refused(code: grpc.StatusCode, storage: str = "", message: str = "refused") -> Any:
    """Return an answer with an error, and with a StorageError if one is named."""
    response = Response()
    response.error.CopyFrom(a_status(code, storage, message))
    return response


def a_status(code: grpc.StatusCode, storage: str = "", message: str = "refused") -> Status:
    status = Status(code=code.value[0], message=message)
    if storage:
        status.details.add().Pack(_StorageError(code=storage, entity="e", error_message=message))
    return status


def bad_rows(*indices: int) -> Any:
    """Return the answer to a request with bad rows: nothing of it was appended."""
    response = refused(grpc.StatusCode.INVALID_ARGUMENT)
    for index in indices:
        response.row_errors.add(index=index, code="FIELDS_ERROR", message=f"row {index} is bad")
    return response


@dataclass
class Connection:
    """A connection as the server saw it."""

    metadata: dict[str, Any]
    requests: list[Any] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)


class AppendServer:
    """Listens on a free port. ``script`` is asked for the answer to each request; accepting them is the default."""

    def __init__(self, address: str = "127.0.0.1:0") -> None:
        self.script: Script = lambda _request: accepted()
        self.connections: list[Connection] = []
        self.released = threading.Event()
        self.released.set()
        self.most_open = 0
        self.taken_at_once: int | None = None
        """How many connections may be open at once; None: any number."""
        self._open = 0
        self._contexts: list[grpc.ServicerContext] = []
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._server = grpc.server(ThreadPoolExecutor(16), options=[("grpc.max_receive_message_length", -1)])
        handler = grpc.stream_stream_rpc_method_handler(self._append_rows, None, Response.SerializeToString)
        service = "google.cloud.bigquery.storage.v1.BigQueryWrite"
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {"AppendRows": handler}),))
        self.address = f"127.0.0.1:{self._server.add_insecure_port(address)}"
        self._server.start()

    def stop(self) -> None:
        self._over.set()
        self.released.set()
        self._server.stop(0).wait()

    def hang_up(self) -> None:
        """End every connection that is open now."""
        with self._lock:
            for context in self._contexts:
                context.cancel()  # type: ignore[no-untyped-call]
            self._contexts.clear()

    @property
    def requests(self) -> Sequence[Any]:
        """Return every request of every connection, in order."""
        return [request for connection in self.connections for request in connection.requests]

    @property
    def rows(self) -> Sequence[bytes]:
        """Return every row that came, repeats included."""
        return [row for request in self.requests for row in request.proto_rows.rows.serialized_rows]

    def _append_rows(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[Any]:
        connection = Connection(dict(context.invocation_metadata()))
        with self._lock:
            self._open += 1
            if self.taken_at_once is not None and self._open > self.taken_at_once:
                self._open -= 1
                context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many concurrent connections")
            self.most_open = max(self.most_open, self._open)
            self.connections.append(connection)
            self._contexts.append(context)
        try:
            yield from self._answers(connection, requests, context)
        finally:
            with self._lock:
                self._open -= 1

    def _answers(
        self, connection: Connection, requests: Iterator[bytes], context: grpc.ServicerContext
    ) -> Iterator[Any]:
        for data in requests:
            request = Request.FromString(data)
            connection.requests.append(request)
            connection.sizes.append(len(data))
            self.released.wait()
            answer = self.script(request)
            if isinstance(answer, Late):
                continue
            if isinstance(answer, Silence):
                while context.is_active() and not self._over.wait(0.01):
                    pass
                return
            if isinstance(answer, Close):
                if answer.code is not grpc.StatusCode.OK:
                    status = Status(code=answer.code.value[0], message="closed by the test", details=answer.details)
                    metadata = (("grpc-status-details-bin", status.SerializeToString()),)
                    context.set_trailing_metadata(metadata)
                    context.abort(answer.code, "closed by the test")
                return
            yield answer
