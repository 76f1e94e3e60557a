"""What a container's HEALTHCHECK runs: ``python -S -m shared.runtime.probe``; exit code 0: alive, else 1.

An engine may replace an unhealthy container, so readiness is no part of it: a restart does not bring a cloud service
back that is unavailable. ``python -S -m shared.runtime.probe ready`` asks for readiness, for a script that waits.

The probe asks this very container, at PORT. It runs every few seconds in every container: HTTP is spoken by hand, for
the standard library's client takes five times as long to import as all of this takes.
"""

import os
import socket
import sys
from collections.abc import Mapping
from typing import Final

_TIMEOUT: Final = 4.0
"""Seconds."""


def main(environ: Mapping[str, str]) -> int:
    """Ask, and say what is wrong, which the engine keeps."""
    port = int(environ.get("PORT") or 8080)
    asked, path = ("ready", "/readyz") if sys.argv[1:] == ["ready"] else ("healthy", "/healthz")
    try:
        answer = _wrong(port, path)
        wrong = answer and f"{path}: {answer}"
    except OSError as error:
        wrong = f"port {port} does not answer: {error}"
    print(wrong or asked)  # noqa: T201 - the engine keeps what is said
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
    sys.exit(main(os.environ))  # noqa: TID251  a program of its own
