"""The baselines of the drain: what a careful reader of the client libraries' documentation would write in an afternoon.

The generated Pub/Sub client pulls, or the high-level subscriber calls back for each message. Each message is one
change, each row becomes a python-protobuf message, each batch that has come is one AppendRows for each table in it on a
connection that stays open (all sent, then all awaited), then the messages are acked.
Run as ``python -m tests.benchmarks.baseline_consumer JSON``.
"""

import json
import queue
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime
from typing import Any, Final

import grpc
from google.cloud.bigquery_storage_v1 import BigQueryWriteClient
from google.cloud.bigquery_storage_v1.services.big_query_write.transports import BigQueryWriteGrpcTransport
from google.cloud.bigquery_storage_v1.types import AppendRowsRequest, ProtoRows, ProtoSchema
from google.cloud.pubsub_v1 import SubscriberClient as HighLevelSubscriber
from google.cloud.pubsub_v1.types import FlowControl
from google.pubsub_v1 import SubscriberClient
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport

from services.cdc_consumer.adapters.bigquery.row_encoder import message_class, row_descriptor
from shared.contracts.change_batch import Column, Header
from tests.benchmarks.workload import COLUMNS, TABLES
from tests.builders import table_definition

_EPOCH: Final = date(1970, 1, 1)
_AT_ONCE: Final = 1_000
"""Messages that are written together."""
_LARGE: Final = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


class Appender:
    """A default stream that stays open."""

    def __init__(self, client: Any, tables: str, table: str) -> None:
        columns = tuple(Column(name, kind) for name, kind in COLUMNS.items())
        header = Header(source="", table=table, primary_key=("id",), columns=columns)
        descriptor = row_descriptor(table_definition(header))
        self.message: Any = message_class(descriptor)
        self._requests: queue.SimpleQueue[AppendRowsRequest | None] = queue.SimpleQueue()
        self._stream = f"{tables}/{table}/streams/_default"
        self._schema: ProtoSchema | None = ProtoSchema(proto_descriptor=descriptor)
        self._client = client
        self._answers: Iterator[Any] | None = None

    def send(self, rows: list[bytes]) -> None:
        """Send rows."""
        data = AppendRowsRequest.ProtoData(rows=ProtoRows(serialized_rows=rows))
        if self._schema is not None:
            data.writer_schema = self._schema
        self._requests.put(AppendRowsRequest(write_stream=self._stream, proto_rows=data))
        self._schema = None

    def wait(self) -> None:
        """Wait until what was sent last is accepted."""
        if self._answers is None:  # not before there is a request: the client waits for the first answer
            # the routing header, which the generated client does not make for a stream of requests
            metadata = (("x-goog-request-params", f"write_stream={self._stream}"),)
            self._answers = iter(self._client.append_rows(iter(self._requests.get, None), metadata=metadata))
        answer = next(self._answers)
        if answer.error.code or answer.row_errors:
            raise RuntimeError(f"refused: {answer}")

    def close(self) -> None:
        """End the stream."""
        self._requests.put(None)


class Pulls:
    """Messages that the generated client pulls."""

    def __init__(self, channel: grpc.Channel, subscription: str) -> None:
        self._client = SubscriberClient(transport=SubscriberGrpcTransport(channel=channel))
        self._subscription = subscription
        self._ack_ids: list[str] = []

    def take(self) -> Sequence[bytes]:
        """Return the data of the next messages."""
        pulled = self._client.pull(subscription=self._subscription, max_messages=_AT_ONCE, timeout=60)
        self._ack_ids = [one.ack_id for one in pulled.received_messages]
        return [one.message.data for one in pulled.received_messages]

    def acknowledge(self) -> None:
        """Acknowledge what was taken last."""
        if self._ack_ids:
            self._client.acknowledge(subscription=self._subscription, ack_ids=self._ack_ids)

    def close(self) -> None:
        """End."""


class Callbacks:
    """Messages that the high-level subscriber calls back for, one at a time; it acknowledges beside that."""

    def __init__(self, channel: grpc.Channel, subscription: str) -> None:
        self._client: Any = HighLevelSubscriber(transport=SubscriberGrpcTransport(channel=channel))
        self._came: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._taken: list[Any] = []
        self._streaming: Any = self._client.subscribe(
            subscription, callback=self._came.put, flow_control=FlowControl(max_messages=10 * _AT_ONCE)
        )

    def take(self) -> Sequence[bytes]:
        """Return the data of the messages that have come."""
        self._taken = [self._came.get(timeout=60)]
        with suppress(queue.Empty):
            while len(self._taken) < _AT_ONCE:
                self._taken.append(self._came.get_nowait())
        return [one.data for one in self._taken]

    def acknowledge(self) -> None:
        """Acknowledge what was taken last."""
        for one in self._taken:
            one.ack()

    def close(self) -> None:
        """End, when it has acknowledged."""
        self._streaming.cancel()
        self._streaming.result(timeout=60)


def main(given: Mapping[str, Any]) -> None:
    """Take as many messages as there are; say how long that took."""
    pubsub = grpc.insecure_channel(given["pubsub"], options=_LARGE)
    storage = grpc.insecure_channel(given["write_api"], options=_LARGE)
    client: Any = BigQueryWriteClient(transport=BigQueryWriteGrpcTransport(channel=storage))  # type: ignore[no-untyped-call]
    appenders = {table: Appender(client, given["tables"], table) for table in TABLES}
    began, cpu, done = time.monotonic(), time.process_time(), 0
    messages = (Callbacks if given["subscriber"] == "high-level" else Pulls)(pubsub, given["subscription"])
    while done < given["messages"]:
        received = messages.take()
        rows: defaultdict[str, list[bytes]] = defaultdict(list)
        for data in received:
            batch = json.loads(data)
            table = batch["header"]["table"]
            rows[table].append(_row(appenders[table].message, batch))
        for table, encoded in rows.items():
            appenders[table].send(encoded)
        for table in rows:
            appenders[table].wait()
        messages.acknowledge()
        done += len(received)
    messages.close()
    answer = {"seconds": time.monotonic() - began, "cpu_seconds": time.process_time() - cpu}
    for appender in appenders.values():
        appender.close()
    sys.stdout.write(json.dumps(answer) + "\n")
    storage.close()
    pubsub.close()


def _row(message: Any, batch: Mapping[str, Any]) -> bytes:
    row = {**batch["keys"][0], **(batch["rows"][0] or {})}
    values = {name: _value(COLUMNS[name], value) for name, value in row.items() if value is not None}
    values |= {
        "_millrace_sequence": batch["sequence"][0],
        "_millrace_commit_timestamp": _value("TIMESTAMP", batch["commit_timestamp"][0]),
        "_CHANGE_TYPE": batch["op"][0],
        "_CHANGE_SEQUENCE_NUMBER": batch["sequence"][0],
    }
    encoded: bytes = message(**values).SerializeToString()
    return encoded


def _value(kind: str, value: Any) -> Any:
    match kind:
        case "INT64":
            return int(value)
        case "DATE":
            return (date.fromisoformat(value) - _EPOCH).days
        case "TIMESTAMP":
            return round(datetime.fromisoformat(value).timestamp() * 1_000_000)
        case _:
            return value


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
