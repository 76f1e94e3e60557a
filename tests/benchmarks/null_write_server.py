"""A write API that takes every row and keeps none: what is measured against it is our side alone.

It parses each request and counts its rows, as a server on another machine would have to, and says over a call of its
own how many rows it has accepted, and when the last. Run as ``python -m tests.benchmarks.null_write_server``.
"""

import json
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import grpc
from google.cloud.bigquery_storage_v1.types import AppendRowsRequest, AppendRowsResponse

STATS: Final = "/millrace.benchmarks.NullWriteServer/Stats"
_Request: Final[Any] = AppendRowsRequest.pb()
_Response: Final[Any] = AppendRowsResponse.pb()
_WRITE: Final = "google.cloud.bigquery.storage.v1.BigQueryWrite"


class Counted:
    """What was accepted. Used from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows = self._appends = 0
        self._last = 0.0

    def append_rows(self, requests: Iterator[bytes], _context: Any) -> Iterator[bytes]:
        """Accept every request."""
        answer = _Response()
        answer.append_result.SetInParent()
        accepted = answer.SerializeToString()
        for data in requests:
            rows = len(_Request.FromString(data).proto_rows.rows.serialized_rows)
            with self._lock:
                self._rows += rows
                self._appends += 1
                self._last = time.time()
            yield accepted

    def stats(self, _request: bytes, _context: Any) -> bytes:
        """Return the counts and the time of the last append, as JSON."""
        with self._lock:
            counted = {"rows": self._rows, "appends": self._appends, "last": self._last}
        return json.dumps(counted).encode()


def main() -> int:
    """Serve until asked to end."""
    counted = Counted()
    server = grpc.server(
        ThreadPoolExecutor(max_workers=1_000),  # a connection keeps one for as long as it is open
        options=[("grpc.max_receive_message_length", -1), ("grpc.so_reuseport", 0)],
    )
    write = {"AppendRows": grpc.stream_stream_rpc_method_handler(counted.append_rows)}
    stats = {"Stats": grpc.unary_unary_rpc_method_handler(counted.stats)}
    server.add_generic_rpc_handlers(
        (
            grpc.method_handlers_generic_handler(_WRITE, write),
            grpc.method_handlers_generic_handler(STATS.split("/")[1], stats),
        )
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    sys.stdout.write(json.dumps({"port": port}) + "\n")
    sys.stdout.flush()
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    server.stop(grace=None).wait()
    return 0


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    sys.exit(main())
