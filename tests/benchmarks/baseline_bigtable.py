"""The baseline of the Bigtable reader: the generated client, its own message classes, and the high-level publisher.

`read_change_stream` of google.cloud.bigtable_v2.BigtableClient on each partition up to an end; every change turned into
JSON, published as a message of its own with google.cloud.pubsub_v1.PublisherClient and its own batching, and every
publish awaited. For the mode of whole rows each hundred changed rows are read back with one `read_rows`, and of the
change no more is looked at than goes into the message. Nothing of Millrace is in it; what it does not do: leases,
tokens, versions, ordering keys, restarts. Run as ``python -m tests.benchmarks.baseline_bigtable JSON``, with the
Pub/Sub emulator's address in the environment.
"""

import base64
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from datetime import UTC, datetime
from typing import Any, Final

import grpc
from google.auth.credentials import AnonymousCredentials
from google.cloud.bigtable_v2 import BigtableClient
from google.cloud.bigtable_v2.services.bigtable.transports import BigtableGrpcTransport
from google.cloud.bigtable_v2.types import ReadChangeStreamRequest, ReadRowsRequest, RowFilter, RowSet, StreamPartition
from google.cloud.pubsub_v1 import PublisherClient

_ROWS_AT_ONCE: Final = 100


def main(given: Mapping[str, Any]) -> None:
    """Read and publish what is between two times; say how long that took, and how much CPU."""
    anonymous: Any = AnonymousCredentials()  # type: ignore[no-untyped-call]
    publisher = PublisherClient(credentials=anonymous)
    with grpc.insecure_channel(given["address"]) as channel:
        client = BigtableClient(transport=BigtableGrpcTransport(channel=channel))
        publisher.publish(given["topic"], b"a first one, so that connecting is not measured").result()
        began, cpu = time.monotonic(), time.process_time()
        futures: list[Future[str]] = []
        records = 0
        waiting: list[Mapping[str, Any]] = []
        for change in _changes(client, given):
            records += 1
            if given["mode"] == "changelog":
                futures.append(publisher.publish(given["topic"], json.dumps(change).encode(), table="changes"))
                continue
            waiting.append(change)
            if len(waiting) == _ROWS_AT_ONCE:
                futures += [_publish(publisher, given, image) for image in _images(client, given, waiting)]
                waiting.clear()
        futures += [_publish(publisher, given, image) for image in _images(client, given, waiting)]
        for future in futures:
            future.result()
    answer = {
        "seconds": time.monotonic() - began,
        "cpu_seconds": time.process_time() - cpu,
        "records": float(records),
    }
    sys.stdout.write(json.dumps(answer) + "\n")
    publisher.stop()


def _publish(publisher: Any, given: Mapping[str, Any], image: Mapping[str, Any]) -> "Future[str]":
    future: Future[str] = publisher.publish(given["topic"], json.dumps(image).encode(), table="rows")
    return future


def _changes(client: Any, given: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    named = {"table_name": given["table"], "app_profile_id": given["app_profile"]}
    partitions = client.generate_initial_change_stream_partitions(**named)
    for partition in [each.partition for each in partitions]:
        request = ReadChangeStreamRequest(
            **named,
            partition=StreamPartition(row_range=partition.row_range),
            start_time=datetime.fromtimestamp(given["start"] / 1e6, UTC),
            end_time=datetime.fromtimestamp(given["end"] / 1e6, UTC),
        )
        for response in client.read_change_stream(request):
            change = response.data_change
            if change.row_key:
                found: dict[str, Any] = {
                    "row_key": change.row_key.decode(),
                    "type": change.type_.name,
                    "cluster": change.source_cluster_id,
                    "commit_timestamp": change.commit_timestamp.isoformat(),
                    "tiebreaker": change.tiebreaker,
                }
                if given["mode"] == "changelog":
                    found["entries"] = [_entry(chunk.mutation.set_cell) for chunk in change.chunks]
                yield found


def _entry(cell: Any) -> Mapping[str, Any]:
    return {
        "family": cell.family_name,
        "column": cell.column_qualifier.decode(),
        "timestamp": cell.timestamp_micros,
        "value": base64.b64encode(cell.value).decode(),
    }


def _images(client: Any, given: Mapping[str, Any], changes: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield rows as they are now, each with what is known of its last change."""
    if not changes:
        return
    newest = {change["row_key"]: change for change in changes}
    rows: dict[str, dict[str, str]] = {key: {} for key in newest}
    row_key = family = column = ""
    request = ReadRowsRequest(
        table_name=given["table"],
        app_profile_id=given["app_profile"],
        rows=RowSet(row_keys=[key.encode() for key in newest]),
        filter=RowFilter(cells_per_column_limit_filter=1),
    )
    for answer in client.read_rows(request):
        for chunk in answer.chunks:
            row_key = chunk.row_key.decode() or row_key
            family = chunk.family_name or family
            column = chunk.qualifier.decode() if chunk.qualifier is not None else column
            rows[row_key][f"{family}:{column}"] = base64.b64encode(chunk.value).decode()
    for key, row in rows.items():
        yield {**newest[key], "row": row}


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
