"""What other services answer at their ports, over real sockets: the good, the absent and the bad."""

import socket
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
from prometheus_client import CollectorRegistry

from deploy.local.platform.emulators import free_port
from services.dead_letter.adapters.status_pages import HttpStatusPages
from services.dead_letter.app.service_poller import ServicePoller
from services.dead_letter.core.statuses import BigtableReaderStatus, Silence
from services.dead_letter.ports import SilentError
from shared.runtime.clock import SystemClock
from shared.runtime.health import Health, serving_health
from shared.runtime.stop import Stop

pytestmark = pytest.mark.integration

PAGES = HttpStatusPages(timedelta(seconds=2))
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


@contextmanager
def answering(answer: bytes, then: bytes = b"") -> Iterator[str]:
    """Answer every request so; send ``then`` again and again until the client has gone."""
    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0.1)

        def serve() -> None:
            while not ended.is_set():
                try:
                    client, _address = listening.accept()
                except TimeoutError:
                    continue
                with client:
                    client.settimeout(5)
                    try:
                        client.recv(65_536)
                        client.sendall(answer)
                        while then and not ended.wait(0.05):
                            client.sendall(then)
                    except OSError:
                        pass

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            ended.set()
            thread.join()


def test_a_service_is_asked_for_its_status_and_whether_it_is_ready() -> None:
    health, stop = Health(), Stop()
    health.not_ready_while(lambda: "the source is away")
    document = {"service": "bigtable_reader", "state": "reading"}
    with serving_health(health, CollectorRegistry(), stop, "127.0.0.1", 0, lambda: document) as port:
        answer = PAGES.ask(f"http://127.0.0.1:{port}")
        assert (answer.ready, answer.obstacles) == (False, "the source is away")
        assert answer.status == b'{"service":"bigtable_reader","state":"reading"}'


@pytest.mark.parametrize(
    ("answer", "then", "why", "silence"),
    [
        (HEAD + b"\r\n", b" ", "does not answer in 2 s", {Silence.HANGS}),
        (HEAD, b"X-Slow: x\r\n", "does not answer in 2 s|cannot be asked", {Silence.HANGS, Silence.NO_STATUS}),
        (HEAD + b"\r\n", b"x" * 1_000_000, "more than", {Silence.NO_STATUS}),
        (
            b"HTTP/1.1 302 Found\r\nLocation: /metrics\r\nContent-Length: 0\r\n\r\n",
            b"",
            "HTTP status 302",
            {Silence.NO_STATUS},
        ),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", b"", "HTTP status 404", {Silence.NO_STATUS}),
        (b"no HTTP\r\n\r\n", b"", "cannot be asked", {Silence.NO_STATUS}),
    ],
)
def test_whatever_else_answers_is_an_error_with_the_reason(
    answer: bytes, then: bytes, why: str, silence: Collection[Silence]
) -> None:
    with answering(answer, then) as address, pytest.raises(SilentError, match=why) as raised:
        PAGES.ask(address)
    assert raised.value.silence in silence


@pytest.mark.parametrize(
    ("host", "silence"), [("127.0.0.1", Silence.REFUSES), ("no-such-name.invalid", Silence.UNREACHABLE)]
)
def test_no_process_there_is_told_from_no_way_there(host: str, silence: Silence) -> None:
    with pytest.raises(SilentError) as raised:
        PAGES.ask(f"http://{host}:{free_port()}")
    assert raised.value.silence is silence


def test_the_first_inspection_waits_until_asking_a_service_that_hangs_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # connects, as a suspended process does
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        poller = ServicePoller({"hangs": address}, HttpStatusPages(), SystemClock())
        with poller.polling(Stop()):
            (hangs,) = poller.services()
    assert (hangs.silence, "does not answer in 2 s" in hangs.error) == (Silence.HANGS, True)


def test_a_page_never_waits_for_a_service_that_hangs_and_sees_one_that_comes_back() -> None:
    health, stop, port = Health(), Stop(), free_port()
    health.ready = True
    with answering(HEAD + b"\r\n", b" ") as hanging:
        services = {"hangs": hanging, "away": f"http://127.0.0.1:{port}"}
        poller = ServicePoller(services, HttpStatusPages(timedelta(seconds=5)), SystemClock())
        with poller.polling(stop):
            first = {one.name: one for one in poller.services()}
            assert first["hangs"].polled_at is None
            assert "cannot be asked" in first["away"].error
            document = {"service": "bigtable_reader", "state": "reading"}
            with serving_health(health, CollectorRegistry(), stop, "127.0.0.1", port, lambda: document):
                until = time.monotonic() + 60
                while not isinstance(poller.services()[1].status, BigtableReaderStatus):
                    assert time.monotonic() < until
            stop.request()
