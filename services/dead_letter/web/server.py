"""The API's port: an HTTP server on a thread beside the collector, which ends when the service is asked to stop."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import structlog
import uvicorn
from fastapi import FastAPI

from shared.contracts.errors import MisconfiguredError
from shared.runtime.stop import Stop

_BACKLOG: Final = 128
_GRACE: Final = 5  # seconds in which requests under way may end, when asked to stop
_CONNECTIONS: Final = 100
_LARGEST_HEAD: Final = 512 * 1024  # bytes of a URL and headers: every filter at its largest


def listening_socket(host: str, port: int) -> socket.socket:
    """Return a socket that listens on an address, and on a free port if asked for 0; OSError where it cannot.

    What it accepts waits for no ack before it sends the rest of an answer. asyncio sees to that for sockets that name
    their protocol, which these do not: each answer that is written in two parts would wait 40 ms for the first one's.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


@contextmanager
def serving(app: FastAPI, host: str, port: int, stop: Stop) -> Iterator[int]:
    """Serve while the block runs, or until asked to stop; yield the port (a free one if asked for 0).

    MisconfiguredError where the address is taken, or not ours.
    """
    try:
        listening = listening_socket(host, port)
    except OSError as error:
        raise MisconfiguredError(
            "api-address-in-use", f"cannot listen on API_HOST={host}, API_PORT={port} ({error}): choose others"
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
