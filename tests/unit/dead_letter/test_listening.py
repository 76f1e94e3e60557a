"""What listens for HTTP answers at once."""

import socket

import pytest

from services.dead_letter.web.server import listening_socket


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_what_is_accepted_sends_every_part_of_an_answer_at_once(host: str) -> None:
    with listening_socket(host, 0) as listening, socket.create_connection(listening.getsockname()[:2]):
        accepted, _ = listening.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_port_that_is_taken_is_refused() -> None:
    with listening_socket("127.0.0.1", 0) as taken, pytest.raises(OSError, match="in use"):
        listening_socket("127.0.0.1", taken.getsockname()[1])
