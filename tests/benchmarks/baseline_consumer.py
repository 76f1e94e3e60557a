"""The baseline of the drain: what a careful reader of the client libraries' documentation would write in an afternoon.

The generated Pub/Sub client pulls, each message is one change, each row becomes a python-protobuf message, each pulled
batch is one AppendRows for each table in it on a connection that stays open (all sent, then all awaited), then the
messages are acked. Run as ``python -m tests.benchmarks.baseline_consumer JSON``.
"""

import json
import queue
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import date, datetime
from typing import Any, Final

import grpc
from google.cloud.bigquery_storage_v1 import BigQueryWriteClient
from google.cloud.bigquery_storage_v1.services.big_query_write.transports import BigQueryWriteGrpcTransport
from google.cloud.bigquery_storage_v1.types import AppendRowsRequest, ProtoRows, ProtoSchema
from google.pubsub_v1 import SubscriberClient
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport

from services.cdc_consumer.adapters.bigquery.row_encoder import message_class, row_descriptor
from services.cdc_consumer.core.schema.tables import table_definition
from shared.contracts.change_batch import Column, Header
from tests.benchmarks.workload import COLUMNS, TABLES

_EPOCH: Final = date(1970, 1, 1)
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


def main(told: Mapping[str, Any]) -> None:
    """Take as many messages as there are; say how long that took."""
    pubsub = grpc.insecure_channel(told["pubsub"], options=_LARGE)
    subscriber = SubscriberClient(transport=SubscriberGrpcTransport(channel=pubsub))
    storage = grpc.insecure_channel(told["write_api"], options=_LARGE)
    client: Any = BigQueryWriteClient(transport=BigQueryWriteGrpcTransport(channel=storage))  # type: ignore[no-untyped-call]
    appenders = {table: Appender(client, told["tables"], table) for table in TABLES}
    subscription, done = told["subscription"], 0
    began, cpu = time.monotonic(), time.process_time()
    while done < told["messages"]:
        received = subscriber.pull(subscription=subscription, max_messages=1000, timeout=60).received_messages
        rows: defaultdict[str, list[bytes]] = defaultdict(list)
        for one in received:
            batch = json.loads(one.message.data)
            table = batch["header"]["table"]
            rows[table].append(_row(appenders[table].message, batch))
        for table, encoded in rows.items():
            appenders[table].send(encoded)
        for table in rows:
            appenders[table].wait()
        ack_ids = [one.ack_id for one in received]
        if ack_ids:
            subscriber.acknowledge(subscription=subscription, ack_ids=ack_ids)
        done += len(ack_ids)
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
