"""The baseline of the reader: the two high-level clients, and the loop that their documentation suggests.

`execute_sql` on the change stream's read function up to an end, each data change record turned into JSON, published as
a message of its own with google.cloud.pubsub_v1.PublisherClient and its own batching, and every publish awaited. Run
as ``python -m tests.benchmarks.baseline_reader JSON``, with the emulators' addresses in the environment.
"""

import json
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from datetime import datetime
from typing import Any

from google.auth.credentials import AnonymousCredentials
from google.cloud import spanner
from google.cloud.pubsub_v1 import PublisherClient
from google.cloud.spanner_v1 import TypeCode


def main(given: Mapping[str, Any]) -> None:
    """Read and publish what is between two times; say how long that took, and how much CPU."""
    anonymous: Any = AnonymousCredentials()  # type: ignore[no-untyped-call]
    client: Any = spanner.Client(project=given["project"], credentials=anonymous, disable_builtin_metrics=True)
    database = client.instance(given["instance"]).database(given["database"])
    publisher = PublisherClient(credentials=anonymous)
    start, end = datetime.fromisoformat(given["start"]), datetime.fromisoformat(given["end"])
    publisher.publish(given["topic"], b"a first one, so that connecting is not measured").result()
    began, cpu = time.monotonic(), time.process_time()
    futures: list[Future[str]] = []
    tokens: list[str | None] = [None]
    with database.snapshot(multi_use=False) as snapshot:
        tokens = [child["token"] for record in _read(snapshot, given, start, end, None) for child in _children(record)]
    for token in tokens:
        with database.snapshot(multi_use=False) as snapshot:
            for record in _read(snapshot, given, start, end, token):
                for change in record["data_change_record"]:
                    data = json.dumps(change, default=str).encode()
                    futures.append(publisher.publish(given["topic"], data, table=change["table_name"]))
    for future in futures:
        future.result()
    answer = {
        "seconds": time.monotonic() - began,
        "cpu_seconds": time.process_time() - cpu,
        "records": float(len(futures)),
    }
    sys.stdout.write(json.dumps(answer) + "\n")
    publisher.stop()


def _read(
    snapshot: Any, given: Mapping[str, Any], start: datetime, end: datetime, token: str | None
) -> Iterator[Mapping[str, Any]]:
    results = snapshot.execute_sql(
        f"SELECT ChangeRecord FROM READ_{given['change_stream']} (start_timestamp => @start, end_timestamp => @end, "
        "partition_token => @token, heartbeat_milliseconds => 10000)",
        params={"start": start, "end": end, "token": token},
        param_types={
            "start": spanner.param_types.TIMESTAMP,
            "end": spanner.param_types.TIMESTAMP,
            "token": spanner.param_types.STRING,
        },
    )
    for row in results:
        for record in row[0]:
            yield _as_mapping(results.fields[0].type_.array_element_type, record)


def _as_mapping(kind: Any, value: Any) -> Any:
    """Name the fields of a STRUCT, which the client returns as a list."""
    if value is None:
        return None
    if kind.code == TypeCode.STRUCT:
        fields = kind.struct_type.fields
        return {field.name: _as_mapping(field.type_, each) for field, each in zip(fields, value, strict=True)}
    if kind.code == TypeCode.ARRAY:
        return [_as_mapping(kind.array_element_type, each) for each in value]
    return value


def _children(record: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for children in record["child_partitions_record"]:
        yield from children["child_partitions"]


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
