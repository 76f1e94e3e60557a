"""One small HTTP port: `/healthz` (alive means the loop made progress lately), `/readyz`, `/metrics` (Prometheus).

And `/status`, of a service that has more to say of itself: one JSON object.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import msgspec
import structlog
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from shared.contracts.errors import MisconfiguredError


class Health:
    """What a service says of itself: it is ready, and when its loop last made progress."""

    def __init__(self, patience: timedelta = timedelta(minutes=2)) -> None:
        self._patience = patience.total_seconds()
        self._progress = time.monotonic()
        self.ready = False

    def progressed(self) -> None:
        """Say that the loop has just come round, whether or not there was anything to do."""
        self._progress = time.monotonic()

    @property
    def alive(self) -> bool:
        """Tell whether the loop came round within the service's patience."""
        return time.monotonic() - self._progress <= self._patience


@contextmanager
def serving_health(
    health: Health,
    registry: CollectorRegistry,
    host: str,
    port: int,
    status: Callable[[], Mapping[str, object]] | None = None,
) -> Iterator[int]:
    """Serve health and metrics while the block runs; yield the port (a free one if asked for 0).

    ``status`` is asked at each GET of `/status`, on a thread of its own; what it raises is that answer's fault alone.
    MisconfiguredError where the address is taken, or not ours.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            match self.path.partition("?")[0]:
                case "/healthz":
                    self._answer(200 if health.alive else 503, b"alive\n" if health.alive else b"no progress\n")
                case "/readyz":
                    self._answer(200 if health.ready else 503, b"ready\n" if health.ready else b"not ready\n")
                case "/metrics":
                    self._answer(200, generate_latest(registry), CONTENT_TYPE_LATEST)
                case "/status" if status is not None:
                    try:
                        body = msgspec.json.encode(status())
                    except Exception:  # noqa: BLE001  what an operator asks ends no service
                        structlog.get_logger().exception("status_failed")
                        self._answer(500, b"the status cannot be told; the log says why\n")
                    else:
                        self._answer(200, body, "application/json")
                case _:
                    also = b", /status" if status is not None else b""
                    self._answer(404, b"/healthz, /readyz" + also + b" or /metrics\n")

        def _answer(self, status: int, body: bytes, content_type: str = "text/plain; charset=utf-8") -> None:
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_arguments: object) -> None:
            """Say nothing: a probe every few seconds is no event."""

    try:
        server = ThreadingHTTPServer((host, port), Handler)
    except OSError as error:
        raise MisconfiguredError(
            f"cannot listen on HOST={host}, PORT={port} for health and metrics ({error}): choose others, or PORT=0"
        ) from error
    thread = threading.Thread(target=server.serve_forever, name="health", daemon=True)
    thread.start()
    taken = int(server.server_address[1])
    structlog.get_logger().info("health_served", port=taken)
    try:
        yield taken
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
