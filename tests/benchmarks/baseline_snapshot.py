"""The baseline of a snapshot: the two high-level clients, and the loop that their documentation suggests.

Each table is read whole as it was at one time, by `Snapshot.read` of google.cloud.spanner, each row turned into JSON,
published as a message of its own with google.cloud.pubsub_v1.PublisherClient and its own batching, and every publish
awaited. No key ranges, no progress that a crash would leave, no sequence, no ordering keys. Run as ``python -m
tests.benchmarks.baseline_snapshot JSON``, with the emulators' addresses in the environment.
"""

import json
import sys
import time
from collections.abc import Mapping
from concurrent.futures import Future
from datetime import datetime
from typing import Any

from google.auth.credentials import AnonymousCredentials
from google.cloud import spanner
from google.cloud.pubsub_v1 import PublisherClient


def main(given: Mapping[str, Any]) -> None:
    """Read and publish the rows of all tables; say how long that took, and how much CPU."""
    anonymous: Any = AnonymousCredentials()  # type: ignore[no-untyped-call]
    client: Any = spanner.Client(project=given["project"], credentials=anonymous, disable_builtin_metrics=True)
    database = client.instance(given["instance"]).database(given["database"])
    publisher = PublisherClient(credentials=anonymous)
    columns, everything = given["columns"], spanner.KeySet(all_=True)  # type: ignore[no-untyped-call]
    publisher.publish(given["topic"], b"a first one, so that connecting is not measured").result()
    with database.snapshot() as snapshot:
        next(iter(snapshot.execute_sql("SELECT 1")))  # the same, of Spanner
    began, cpu = time.monotonic(), time.process_time()
    futures: list[Future[str]] = []
    for table in given["tables"]:
        with database.snapshot(read_timestamp=datetime.fromisoformat(given["at"])) as snapshot:
            for row in snapshot.read(table, columns, everything):
                data = json.dumps(dict(zip(columns, row, strict=True)), default=str).encode()
                futures.append(publisher.publish(given["topic"], data, table=table))
    for future in futures:
        future.result()
    answer = {
        "seconds": time.monotonic() - began,
        "cpu_seconds": time.process_time() - cpu,
        "rows": float(len(futures)),
    }
    sys.stdout.write(json.dumps(answer) + "\n")
    publisher.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
