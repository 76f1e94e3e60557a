"""Sockets that listen for HTTP, whose answers go out at once."""

import socket
from typing import Final

_BACKLOG: Final = 128


def listening_socket(host: str, port: int) -> socket.socket:
    """Return a socket that listens on an address, and on a free port if asked for 0; OSError where it cannot.

    What it accepts waits for no ack before it sends the rest of an answer. asyncio sees to that for sockets that name
    their protocol, which these do not: each answer that is written in two parts would wait 40 ms for the first one's.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening
