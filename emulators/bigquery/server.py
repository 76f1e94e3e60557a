"""Both servers in one process and one event loop, and the thread that merges what was accepted."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog
import uvicorn
from starlette.applications import Starlette

from emulators.bigquery.control import AdvancingClock, Control
from emulators.bigquery.faults import Counters, Faults
from emulators.bigquery.rest import rest_app
from emulators.bigquery.throughput import Throughput
from emulators.bigquery.warehouse import Warehouse
from emulators.bigquery.write_api import write_server

HOST: Final = "127.0.0.1"
_APPLY_EVERY_SECONDS: Final = 0.5
_BACKLOG: Final = 128
_GRACE_SECONDS: Final = 0.5
KEPT_ALIVE_SECONDS: Final = 610
"""How long an idle REST connection stays open: as long as at Google's front ends (Cloud Load Balancing, "Client HTTP
keepalive timeout"). A client that finds a connection closed at the moment of its request fails."""
log = structlog.get_logger()


@dataclass(frozen=True)
class Ports:
    """Where the two servers listen."""

    rest_port: int
    grpc_port: int


@asynccontextmanager
async def serving(
    rest_port: int, grpc_port: int, directory: Path | None = None, host: str = HOST
) -> AsyncIterator[Ports]:
    """Serve inside the block; a port of 0 means a free one. Without a directory all data is in memory."""
    clock = AdvancingClock()
    warehouse = Warehouse(clock.now, directory)
    faults, counters, throughput = Faults(), Counters(), Throughput(clock.now)
    write = write_server(warehouse, faults, counters, throughput)
    bound = write.add_insecure_port(f"{host}:{grpc_port}")
    app = rest_app(warehouse, Control(warehouse, faults, counters, clock, throughput))
    rest = _RestServer(rest_config(app))
    with listening_socket(host, rest_port) as listening, _applying(warehouse):
        await write.start()
        running = asyncio.create_task(rest.serve(sockets=[listening]))
        try:
            while not rest.started and not running.done():  # noqa: ASYNC110 - uvicorn offers no event to wait for
                await asyncio.sleep(0.01)
            yield Ports(listening.getsockname()[1], bound)
        finally:
            rest.should_exit = True
            await asyncio.gather(write.stop(_GRACE_SECONDS), running)
    warehouse.close()


def rest_config(app: Starlette) -> uvicorn.Config:
    """Return how the REST side is served."""
    return uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=1,
        timeout_keep_alive=KEPT_ALIVE_SECONDS,
    )


def listening_socket(host: str, port: int) -> socket.socket:
    """Return a socket that listens; what it accepts waits for no ack before it sends the rest of an answer.

    asyncio sees to that for sockets that name their protocol, which these do not.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


class _RestServer(uvicorn.Server):
    """uvicorn without its own signal handlers: stopping is handed down."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.contextmanager
def _applying(warehouse: Warehouse) -> Iterator[None]:
    """Apply in the background, as BigQuery does; queries of a table without max_staleness find little left to do."""
    stop = threading.Event()

    def apply() -> None:
        while not stop.wait(_APPLY_EVERY_SECONDS):
            try:
                warehouse.apply_what_is_due()
                warehouse.drop_expired()
            except Exception:  # the next query meets the same error and reports it
                log.exception("apply_failed")

    thread = threading.Thread(target=apply, name="applying")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
