"""What a container's HEALTHCHECK runs: ``python -S -m shared.runtime.probe``; exit code 0: alive and ready, else 1.

Asked of this very container, at PORT. It runs every few seconds in every container: HTTP is spoken by hand, for the
standard library's client takes five times as long to import as all of this takes.
"""

import os
import socket
import sys
from typing import Final

_PATHS: Final = ("/healthz", "/readyz")
_TIMEOUT: Final = 4.0
"""Seconds."""


def main() -> int:
    """Ask, and say what is wrong, which the engine keeps."""
    port = int(os.environ.get("PORT") or 8080)
    try:
        wrong = [f"{path}: {answer}" for path in _PATHS if (answer := _wrong(port, path))]
    except OSError as error:
        wrong = [f"port {port} does not answer: {error}"]
    print("; ".join(wrong) or "healthy")  # noqa: T201 - the engine keeps what is said
    return 1 if wrong else 0


def _wrong(port: int, path: str) -> str:
    """Return what is wrong; nothing where nothing is."""
    with socket.create_connection(("127.0.0.1", port), _TIMEOUT) as connection:
        connection.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())
        with connection.makefile("rb") as answer:
            head, _, body = answer.read().decode().partition("\r\n\r\n")
    status = head.partition("\r\n")[0].partition(" ")[2]
    return "" if status.startswith("200 ") else f"{status}: {body.strip()}"


if __name__ == "__main__":
    sys.exit(main())
