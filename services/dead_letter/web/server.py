"""The API's port: an HTTP server on a thread beside the collector, which ends when the service is asked to stop."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import structlog
import uvicorn
from fastapi import FastAPI

from shared.contracts.errors import MisconfiguredError
from shared.runtime.listening import listening_socket
from shared.runtime.stop import Stop

_GRACE: Final = 5  # seconds in which requests under way may end, when asked to stop
_CONNECTIONS: Final = 100
_LARGEST_HEAD: Final = 512 * 1024  # bytes of a URL and headers: every filter at its largest


@contextmanager
def serving(app: FastAPI, host: str, port: int, stop: Stop) -> Iterator[int]:
    """Serve while the block runs, or until asked to stop; yield the port (a free one if asked for 0).

    MisconfiguredError where the address is taken, or not ours.
    """
    try:
        listening = listening_socket(host, port)
    except OSError as error:
        raise MisconfiguredError(
            f"cannot listen on API_HOST={host}, API_PORT={port} ({error}): choose others"
        ) from error
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            access_log=False,
            date_header=True,
            h11_max_incomplete_event_size=_LARGEST_HEAD,
            http="h11",
            lifespan="off",
            limit_concurrency=_CONNECTIONS,
            log_config=None,
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=_GRACE,
            ws="none",
        )
    )
    taken = int(listening.getsockname()[1])

    def run() -> None:
        server.run(sockets=[listening])
        if not server.should_exit:
            structlog.get_logger().error("api_ended")

    def end() -> None:
        server.should_exit = True

    thread = threading.Thread(target=run, name="api", daemon=True)
    thread.start()
    structlog.get_logger().info("api_served", port=taken)
    try:
        with stop.calling(end):
            yield taken
    finally:
        end()
        thread.join(2 * _GRACE)
        listening.close()
