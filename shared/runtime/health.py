"""One small HTTP port: `/healthz` (alive means the loop made progress lately), `/readyz`, `/metrics` (Prometheus).

And `/status`, of a service that has more to say of itself: one JSON object.
"""

import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import wraps
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, TypeVar

import msgspec
import structlog
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from shared.contracts.errors import MisconfiguredError, TransientError
from shared.runtime.metrics import count_runtime
from shared.runtime.retries import what_to_check
from shared.runtime.stop import Stop

T = TypeVar("T")

TIMEOUT: Final = timedelta(minutes=2)
MOST_CONNECTIONS: Final = 32
"""At once, to the port of health and metrics."""
_POLL: Final = 0.1  # seconds after which is seen, at the latest, that the serving is to end
_CLIENTS_TIMEOUT: Final = 10.0  # seconds
_TEXT: Final = "text/plain; charset=utf-8"
_LASTING: Final = 5.0  # seconds after which a call that fails is no short disturbance


class Health:
    """What a service says of itself: it is ready, and when its loop last made progress.

    Alive is what a restart would not fix: a loop that comes round, or that asks again and again for a service that is
    unavailable. Ready is what works: not before it has begun, not while what it stands on is unavailable, not after a
    stop.
    """

    def __init__(self, timeout: timedelta = TIMEOUT, now: Callable[[], float] = time.monotonic) -> None:
        """Take how long the loop may take to come round; ``now`` counts seconds."""
        self._timeout = timeout.total_seconds()
        self._now = now
        self._progress = now()
        self._ready = False
        self._stopping = False
        self._obstacles: list[Callable[[], str]] = []
        self._failing: tuple[float, str] | None = None

    @property
    def ready(self) -> bool:
        """Return whether it works, and has not been asked to stop."""
        return self._ready and not self._stopping and not self.obstacles

    @ready.setter
    def ready(self, ready: bool) -> None:
        self._ready = ready
        if ready:
            self._failing = None

    def not_ready_while(self, obstacle: Callable[[], str]) -> None:
        """Add a condition: not ready while ``obstacle`` returns a text, which says why. Any thread may call it."""
        self._obstacles.append(obstacle)

    @property
    def obstacles(self) -> Sequence[str]:
        """Return why it is not ready, as far as conditions say so, or that a call has failed for long."""
        found = [why for obstacle in self._obstacles if (why := obstacle())]
        if self._failing is not None:
            since, error = self._failing
            if (seconds := self._now() - since) >= _LASTING:
                found.append(f"a call has failed for {seconds:.0f} s: {error}")
        return found

    def stopping(self) -> None:
        """Say that it has been asked to stop: from now on it is not ready."""
        self._stopping = True

    def progressed(self) -> None:
        """Say that the loop has just come round, whether or not there was anything to do."""
        self._progress = self._now()

    @property
    def alive(self) -> bool:
        """Return whether the loop came round within the timeout."""
        return self._now() - self._progress <= self._timeout

    def attempting(self, call: Callable[[], Awaitable[T]]) -> Callable[[], Awaitable[T]]:
        """Return a call of the loop, to be made until it succeeds: each attempt is progress, and ready it is not then.

        Who made the call says that it is ready again.
        """

        @wraps(call)
        async def attempt() -> T:
            self.progressed()
            try:
                return await call()
            except TransientError as error:
                self.failed(error)
                raise

        return attempt

    def failed(self, error: TransientError) -> None:
        """Say that an attempt has failed: not ready, until who made it says that it is."""
        self.ready = False
        since = self._now() if self._failing is None else self._failing[0]
        shown, check = getattr(error, "shown", str(error)), what_to_check(error)
        self._failing = since, f"{shown}; {check}" if check else shown


class _Server(ThreadingHTTPServer):
    """A thread for each connection, of a limited number: a new one takes the place of the oldest.

    So clients that connect and stay silent can neither take this process's threads nor keep a probe out.
    """

    request_queue_size = 64

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._open: dict[Any, None] = {}
        self._lock = threading.Lock()

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            oldest = next(iter(self._open)) if len(self._open) >= MOST_CONNECTIONS else None
            if oldest is not None:
                del self._open[oldest]
            self._open[request] = None
        if oldest is not None:
            with suppress(OSError):  # its thread has closed it just now
                oldest.shutdown(socket.SHUT_RDWR)  # ends its thread's waiting
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, _request: Any, _client_address: Any) -> None:
        """Say nothing: a client that has gone before its answer is no event, and Python would print a traceback."""


@contextmanager
def serving_health(
    health: Health,
    registry: CollectorRegistry,
    stop: Stop,
    host: str,
    port: int,
    status: Callable[[], Mapping[str, object]] | None = None,
) -> Iterator[int]:
    """Serve health and metrics while the block runs; yield the port (a free one if asked for 0).

    It is answered to the end of the block, and from a stop on with *not ready*.
    ``status`` is asked at each GET of `/status`, on a thread of its own; what it raises is that answer's fault alone.
    MisconfiguredError where the address is taken, or not ours.
    """

    class Handler(BaseHTTPRequestHandler):
        timeout = _CLIENTS_TIMEOUT

        def do_GET(self) -> None:
            code, body, content_type = _answer(self.path.partition("?")[0], health, registry, status)
            self.send_response(code)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_HEAD = do_GET  # noqa: N815  its name is the standard library's

        def log_message(self, *_arguments: object) -> None:
            """Say nothing: a probe every few seconds is no event."""

    count_runtime(registry)
    try:
        server = _Server((host, port), Handler)
    except OSError as error:
        raise MisconfiguredError(
            "address-in-use",
            f"cannot listen on HOST={host}, PORT={port} for health and metrics ({error}): choose others, or PORT=0",
        ) from error
    thread = threading.Thread(target=server.serve_forever, args=(_POLL,), name="health", daemon=True)
    thread.start()
    taken = int(server.server_address[1])
    structlog.get_logger().info("health_served", port=taken)
    try:
        with stop.calling(health.stopping):
            yield taken
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _answer(
    path: str, health: Health, registry: CollectorRegistry, status: Callable[[], Mapping[str, object]] | None
) -> tuple[int, bytes, str]:
    """Return what a path is answered with: the HTTP status, the body and its content type."""
    match path:
        case "/healthz":
            return (200, b"alive\n", _TEXT) if health.alive else (503, b"no progress\n", _TEXT)
        case "/readyz":
            why = "; ".join(health.obstacles)
            not_ready = f"not ready{': ' if why else ''}{why}\n".encode()
            return (200, b"ready\n", _TEXT) if health.ready else (503, not_ready, _TEXT)
        case "/metrics":
            return 200, generate_latest(registry), CONTENT_TYPE_LATEST
        case "/status" if status is not None:
            try:
                return 200, msgspec.json.encode(status()), "application/json"
            except Exception:  # noqa: BLE001  what an operator asks ends no service
                structlog.get_logger().exception("status_failed")
                return 500, b"the status cannot be given; the log says why\n", _TEXT
        case _:
            also = b", /status" if status is not None else b""
            return 404, b"/healthz, /readyz" + also + b" or /metrics\n", _TEXT
