"""The health ports of the other services, asked over HTTP: no redirect is followed, and time and size are bounded."""

import http.client
import time
from datetime import timedelta
from typing import Final
from urllib.parse import urlsplit

from services.dead_letter.core.statuses import StatusAnswer
from shared.contracts.errors import TransientError

_LARGEST: Final = 4_000_000  # bytes: ten thousand tables in trouble
_LONGEST_OBSTACLE: Final = 2_000  # bytes


class HttpStatusPages:
    """The StatusPages of services at addresses such as http://host:8080."""

    def __init__(self, timeout: timedelta = timedelta(seconds=2)) -> None:
        self._timeout = timeout.total_seconds()

    def ask(self, address: str) -> StatusAnswer:
        """See `StatusPages.ask`."""
        until = time.monotonic() + self._timeout
        ready, why = self._get(address, "/readyz", _LONGEST_OBSTACLE, until)
        code, status = self._get(address, "/status", _LARGEST, until)
        if code != 200:
            raise TransientError(f"{address}/status answers with HTTP status {code}")
        obstacles = "" if ready == 200 else why.decode(errors="replace").strip().partition(": ")[2]
        return StatusAnswer(ready=ready == 200, obstacles=obstacles, status=status)

    def _get(self, address: str, path: str, largest: int, until: float) -> tuple[int, bytes]:
        parts = urlsplit(address)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(parts.hostname or "", parts.port, timeout=_left(until))
        try:
            connection.request("GET", parts.path.rstrip("/") + path)
            answer = connection.getresponse()
            data = b""
            while chunk := answer.read1(65_536):
                data += chunk
                if len(data) > largest:
                    raise TransientError(f"{address}{path} answers with more than {largest} bytes")
                if connection.sock is not None:
                    connection.sock.settimeout(_left(until))
        except TimeoutError:
            raise TransientError(f"{address}{path} does not answer in {self._timeout:g} s") from None
        except (OSError, http.client.HTTPException) as error:
            raise TransientError(f"{address}{path} cannot be asked: {type(error).__name__}: {error}") from None
        finally:
            connection.close()
        return answer.status, data


def _left(until: float) -> float:
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
