"""The socket of the REST side: answers that are written in two parts do not wait for an ack of the first one."""

import socket

import pytest

from emulators.bigquery.server import listening_socket


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_what_is_accepted_sends_at_once(host: str) -> None:
    with listening_socket(host, 0) as listening, socket.create_connection(listening.getsockname()[:2]):
        accepted, _ = listening.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
