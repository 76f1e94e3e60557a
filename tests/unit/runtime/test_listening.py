"""What listens for HTTP answers at once: a second part does not wait for an ack of the first one."""

import socket
from collections.abc import Callable

import pytest

from emulators.bigquery import server as bigquery_emulator
from services.dead_letter.web import server as dead_letter

Listening = Callable[[str, int], socket.socket]


@pytest.mark.parametrize("listening_socket", [dead_letter.listening_socket, bigquery_emulator.listening_socket])
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_what_is_accepted_sends_every_part_of_an_answer_at_once(listening_socket: Listening, host: str) -> None:
    with listening_socket(host, 0) as listening, socket.create_connection(listening.getsockname()[:2]):
        accepted, _ = listening.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_port_that_is_taken_is_refused() -> None:
    with dead_letter.listening_socket("127.0.0.1", 0) as taken, pytest.raises(OSError, match="in use"):
        dead_letter.listening_socket("127.0.0.1", taken.getsockname()[1])
