"""The baseline of a Bigtable snapshot: the two high-level clients, and the loop that their documentation suggests.

The table is read whole by `read_rows_stream` of google.cloud.bigtable.data.BigtableDataClient, the newest cell of each
column; each row is turned into JSON, published as a message of its own with google.cloud.pubsub_v1.PublisherClient and
its own batching, and every publish awaited. No parts, no progress that a crash would leave, no place among the changes
of a stream, no ordering keys. Run as ``python -m tests.benchmarks.baseline_bigtable_snapshot JSON``, with the
emulators' addresses in the environment.
"""

import base64
import json
import sys
import time
import warnings
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from google.auth.credentials import AnonymousCredentials
from google.cloud.bigtable.data import BigtableDataClient, ReadRowsQuery
from google.cloud.bigtable.data.row_filters import CellsColumnLimitFilter
from google.cloud.pubsub_v1 import PublisherClient


def main(given: Mapping[str, Any]) -> None:
    """Read and publish all rows; say how long that took, and how much CPU."""
    warnings.simplefilter("ignore")  # that it is an emulator
    anonymous: Any = AnonymousCredentials()  # type: ignore[no-untyped-call]
    publisher = PublisherClient(credentials=anonymous)
    publisher.publish(given["topic"], b"a first one, so that connecting is not measured").result()
    with BigtableDataClient(project=given["project"]) as client:
        table: Any = client.get_table(given["instance"], given["table"], app_profile_id=given["app_profile"])
        newest: Any = CellsColumnLimitFilter(1)
        table.read_rows(ReadRowsQuery(limit=1))  # the same, of Bigtable
        began, cpu = time.monotonic(), time.process_time()
        futures: list[Future[str]] = []
        for row in table.read_rows_stream(ReadRowsQuery(row_filter=newest)):
            image: dict[str, str] = {"row_key": row.row_key.decode()}
            for cell in row:
                image[f"{cell.family}:{cell.qualifier.decode()}"] = base64.b64encode(cell.value).decode()
            futures.append(publisher.publish(given["topic"], json.dumps(image).encode(), table="rows"))
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
