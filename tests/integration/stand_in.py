"""A client of the BigQuery stand-in for tests: the official REST client, and AppendRows with nothing in between."""

import json
import os
import queue
import signal
import subprocess
import sys
import urllib.request
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self

import grpc
from google.auth.credentials import AnonymousCredentials
from google.cloud import bigquery
from google.cloud.bigquery_storage_v1 import types
from google.protobuf import descriptor_pb2

from deploy.local.platform.emulators import ROOT
from tests.row_messages import row_message, serialized

AppendRowsRequest: Any = types.AppendRowsRequest.pb()
AppendRowsResponse: Any = types.AppendRowsResponse.pb()
StorageError: Any = types.StorageError.pb()
PROJECT = "millrace-test"
# BigQuery, "Stream table updates with change data capture", section "Create a table with the max_staleness option".
EMPLOYEES = """CREATE TABLE employees (
  id INT64 PRIMARY KEY NOT ENFORCED,
  name STRING)
  CLUSTER BY
    id
  OPTIONS (
    max_staleness = INTERVAL 10 MINUTE);"""
_SERVICE = "/google.cloud.bigquery.storage.v1.BigQueryWrite"


@contextmanager
def a_process(
    end: signal.Signals, *options: str, dataset: str | None = None
) -> "Iterator[tuple[StandIn, subprocess.Popen[str]]]":
    """Run a stand-in of its own for the block, and end it by a signal."""
    command = [sys.executable, "-m", "emulators.bigquery", "--rest-port=0", "--grpc-port=0", *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            ports = json.loads(process.stdout.readline())
            yield StandIn((f"127.0.0.1:{ports['rest_port']}", f"127.0.0.1:{ports['grpc_port']}"), dataset), process
        finally:
            process.send_signal(end)
            process.wait(20)


class StandIn:
    """A stand-in that runs, and a fresh dataset in it, or one that is there."""

    def __init__(self, addresses: tuple[str, str], dataset: str | None = None) -> None:
        self._rest, self.grpc = addresses
        self.client = bigquery.Client(
            project=PROJECT,
            credentials=AnonymousCredentials(),  # type: ignore[no-untyped-call]
            client_options={"api_endpoint": f"http://{self._rest}"},
        )
        self.dataset = dataset or f"test_{uuid.uuid4().hex[:12]}"
        if dataset is None:
            self.client.create_dataset(self.dataset)

    def run(self, sql: str, **job_config: Any) -> list[tuple[Any, ...]]:
        """Run a statement with this dataset as the default; return its rows."""
        config = bigquery.QueryJobConfig(default_dataset=f"{PROJECT}.{self.dataset}", **job_config)
        return [tuple(row.values()) for row in self.client.query_and_wait(sql, job_config=config)]

    def stream(self, table: str) -> str:
        """Return the name of a table's default stream."""
        return f"projects/{PROJECT}/datasets/{self.dataset}/tables/{table}/streams/_default"

    def writing(self, table: str, fields: Mapping[str, str], **options: Any) -> "Writing":
        """Open a connection to a table."""
        return Writing(self.grpc, self.stream(table), row_message(fields), **options)

    def append(self, table: str, fields: Mapping[str, str], rows: Sequence[Mapping[str, Any]]) -> Any:
        """Append rows on a connection of their own; return the answer."""
        with self.writing(table, fields) as writing:
            return writing.append(rows)

    def control(self, method: str, path: str, /, **body: Any) -> Any:
        """Call the control endpoint."""
        request = urllib.request.Request(
            f"http://{self._rest}/control/{path}", method=method, data=json.dumps(body).encode()
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.load(answer)


class Writing:
    """One AppendRows connection. The first request names the stream and carries the schema, as a client must.

    ``routing``: the value of the routing header where it is to be another than the stream's; empty for no header.
    """

    def __init__(
        self,
        address: str,
        stream: str,
        descriptor: descriptor_pb2.DescriptorProto,
        *,
        routing: str | None = None,
    ) -> None:
        self._stream = stream
        self._descriptor = descriptor
        self.requests: queue.Queue[Any] = queue.Queue()
        self._first = True
        options = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
        self._channel = grpc.insecure_channel(address, options=options)
        call = self._channel.stream_stream(
            f"{_SERVICE}/AppendRows",
            request_serializer=AppendRowsRequest.SerializeToString,
            response_deserializer=AppendRowsResponse.FromString,
        )
        parameters = f"write_stream={stream}" if routing is None else routing
        metadata = (("x-goog-request-params", parameters),) if parameters else ()
        self.answers: Any = call(iter(self.requests.get, None), metadata=metadata, timeout=20)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.requests.put(None)
        self._channel.close()

    def request(self, rows: Sequence[Mapping[str, Any]] = (), messages: Sequence[bytes] = ()) -> Any:
        """Return the next request, to be changed before it is sent."""
        request = AppendRowsRequest()
        if self._first:
            request.write_stream = self._stream
            request.proto_rows.writer_schema.proto_descriptor.CopyFrom(self._descriptor)
        request.proto_rows.rows.serialized_rows.extend([*serialized(self._descriptor, rows), *messages])
        self._first = False
        return request

    def send(self, request: Any) -> Any:
        """Send a request and return its answer."""
        self.requests.put(request)
        return next(self.answers)

    def append(self, rows: Sequence[Mapping[str, Any]]) -> Any:
        """Append rows and return the answer."""
        return self.send(self.request(rows))


def get_write_stream(address: str, name: str, view: Any) -> Any:
    """Call GetWriteStream."""
    with grpc.insecure_channel(address) as channel:
        call = channel.unary_unary(
            f"{_SERVICE}/GetWriteStream",
            request_serializer=types.GetWriteStreamRequest.pb().SerializeToString,
            response_deserializer=types.WriteStream.pb().FromString,
        )
        metadata = (("x-goog-request-params", f"name={name}"),)
        return call(types.GetWriteStreamRequest.pb()(name=name, view=view), metadata=metadata, timeout=10)


def storage_error(details: Sequence[Any]) -> Any:
    """Return the StorageError among the details of a status."""
    error = StorageError()
    assert details[0].Unpack(error)
    return error
