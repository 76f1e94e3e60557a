"""The health ports of the other services, asked over HTTP: no redirect is followed, and time and size are bounded."""

import http.client
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Final
from urllib.parse import urlsplit

from services.dead_letter.core.statuses import Silence, StatusAnswer
from services.dead_letter.ports import ANSWERS_WITHIN, SilentError

_LARGEST: Final = 4_000_000  # bytes: ten thousand tables in trouble
_LONGEST_OBSTACLE: Final = 2_000  # bytes


class HttpStatusPages:
    """The StatusPages of services at addresses such as http://host:8080."""

    def __init__(self, timeout: timedelta = ANSWERS_WITHIN) -> None:
        self._timeout = timeout.total_seconds()

    def ask(self, address: str) -> StatusAnswer:
        """See `StatusPages.ask`."""
        until = time.monotonic() + self._timeout
        ready, why = self._get(address, "/readyz", _LONGEST_OBSTACLE, until)
        code, status = self._get(address, "/status", _LARGEST, until)
        if code != 200:
            raise SilentError(Silence.NO_STATUS, f"{address}/status answers with HTTP status {code}")
        obstacles = "" if ready == 200 else why.decode(errors="replace").strip().partition(": ")[2]
        return StatusAnswer(ready=ready == 200, obstacles=obstacles, status=status)

    def _get(self, address: str, path: str, largest: int, until: float) -> tuple[int, bytes]:
        parts = urlsplit(address)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(parts.hostname or "", parts.port, timeout=max(0.001, until - time.monotonic()))
        silence = Silence.UNREACHABLE
        try:
            connection.connect()
            silence = Silence.NO_STATUS
            with _ended_at(connection.sock, until):
                connection.request("GET", parts.path.rstrip("/") + path)
                answer = connection.getresponse()
                data = answer.read(largest + 1)
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, TimeoutError) or time.monotonic() >= until:
                raise self._hangs(address, path) from None
            if isinstance(error, ConnectionRefusedError):
                silence = Silence.REFUSES
            raise SilentError(silence, f"{address}{path} cannot be asked: {type(error).__name__}: {error}") from None
        finally:
            connection.close()
        if time.monotonic() >= until:
            raise self._hangs(address, path)
        if len(data) > largest:
            raise SilentError(Silence.NO_STATUS, f"{address}{path} answers with more than {largest} bytes")
        return answer.status, data

    def _hangs(self, address: str, path: str) -> SilentError:
        """Return the error; a suspended process stops taking connections when those that wait for it are many."""
        return SilentError(Silence.HANGS, f"{address}{path} does not answer in {self._timeout:g} s")


@contextmanager
def _ended_at(connected: socket.socket, until: float) -> Iterator[None]:
    """End what is read for the block at a time, however slowly it comes: a socket's own timeout is of each byte."""

    def end() -> None:
        with suppress(OSError):
            connected.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(max(0.0, until - time.monotonic()), end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
