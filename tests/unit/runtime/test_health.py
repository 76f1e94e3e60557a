"""The health port says alive, ready, and what was counted; over a real socket."""

import http.client
import socket
import struct
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from datetime import timedelta

import pytest
from google.api_core.exceptions import ResourceExhausted
from prometheus_client import CollectorRegistry, Counter

from shared.contracts.errors import MisconfiguredError, TransientError
from shared.runtime.health import MOST_CONNECTIONS, Health, serving_health
from shared.runtime.stop import Stop


def serving(
    health: Health | None = None,
    *,
    registry: CollectorRegistry | None = None,
    stop: Stop | None = None,
    port: int = 0,
    status: Callable[[], Mapping[str, object]] | None = None,
) -> AbstractContextManager[int]:
    """Serve on a port of this machine, which is any free one."""
    return serving_health(
        health or Health(), registry or CollectorRegistry(), stop or Stop(), "127.0.0.1", port, status
    )


def fetched(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_a_port_that_is_taken_is_named_with_the_settings_that_choose_another() -> None:
    with serving() as port:
        error = rf"cannot listen on HOST=127\.0\.0\.1, PORT={port} .*Address already in use.*: choose others, or PORT=0"
        with pytest.raises(MisconfiguredError, match=error), serving(port=port):
            pass


def test_a_service_is_ready_when_it_reports_so_and_alive_while_it_makes_progress() -> None:
    health = Health(timeout=timedelta(hours=1))
    with serving(health) as port:
        assert fetched(port, "/readyz")[0] == 503
        health.ready = True
        assert fetched(port, "/readyz")[0] == 200
        assert fetched(port, "/healthz")[0] == 200
        assert fetched(port, "/elsewhere")[0] == 404


def test_not_ready_reports_why_where_a_condition_knows() -> None:
    health, why = Health(), [""]
    health.not_ready_while(lambda: why[0])
    with serving(health) as port:
        health.ready = True
        assert fetched(port, "/readyz") == (200, "ready\n")
        why[0] = "publishing has failed for 40 s"
        assert fetched(port, "/readyz") == (503, "not ready: publishing has failed for 40 s\n")
        assert fetched(port, "/healthz")[0] == 200
        why[0] = ""
        assert fetched(port, "/readyz")[0] == 200


@pytest.mark.parametrize(("path", "status"), [("/metrics", 200), ("/healthz", 200), ("/readyz", 503), ("/x", 404)])
def test_head_is_answered_as_get_is_but_for_the_body(path: str, status: int) -> None:
    with serving() as port:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        connection.request("HEAD", path)
        answer = connection.getresponse()
        assert (answer.status, answer.read()) == (status, b"")
        assert answer.headers["Content-Length"] is not None
        connection.close()


def test_silent_clients_take_a_limited_number_of_threads_and_keep_no_probe_out() -> None:
    before = threading.active_count()
    with serving() as port, ExitStack() as clients:
        for _ in range(3 * MOST_CONNECTIONS):
            clients.enter_context(socket.create_connection(("127.0.0.1", port), 5))
        for _ in range(3):
            assert fetched(port, "/healthz")[0] == 200
        soon = time.monotonic() + 20
        while threading.active_count() > before + 1 + MOST_CONNECTIONS and time.monotonic() < soon:
            time.sleep(0.01)
        assert threading.active_count() <= before + 1 + MOST_CONNECTIONS


def test_a_loop_that_does_not_come_round_is_not_alive() -> None:
    seconds = [1000.0]
    health = Health(timeout=timedelta(seconds=60), now=lambda: seconds[0])
    with serving(health) as port:
        seconds[0] += 60
        assert fetched(port, "/healthz") == (200, "alive\n")
        seconds[0] += 1
        assert fetched(port, "/healthz") == (503, "no progress\n")
        health.progressed()
        assert fetched(port, "/healthz") == (200, "alive\n")


def test_from_a_stop_on_it_is_not_ready_whatever_is_reported_and_answers_to_the_end() -> None:
    health, stop = Health(), Stop()
    with serving(health, stop=stop) as port:
        health.ready = True
        assert fetched(port, "/readyz") == (200, "ready\n")
        stop.request()
        health.ready = True
        assert fetched(port, "/readyz") == (503, "not ready\n")
        assert fetched(port, "/healthz") == (200, "alive\n")


async def test_who_asks_again_for_what_is_unavailable_lives_and_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = [0.0]
    health = Health(timeout=timedelta(seconds=60), now=lambda: seconds[0])
    health.ready = True
    answers = iter([TransientError("away"), TransientError("away"), None])

    async def call() -> str:
        seconds[0] += 50  # a timeout's worth of it for each attempt
        answer = next(answers)
        if answer is not None:
            raise answer
        return "back"

    monkeypatch.setattr("shared.runtime.retries._emulators", {"SPANNER_EMULATOR_HOST": "127.0.0.1:9010"})
    for _ in range(2):
        with pytest.raises(TransientError):
            await health.attempting(call)()
        assert (health.alive, health.ready) == (True, False)
    assert health.obstacles == [
        "a call has failed for 50 s: away; check the network and SPANNER_EMULATOR_HOST=127.0.0.1:9010"
    ]
    assert await health.attempting(call)() == "back"
    assert (health.alive, health.ready) == (True, False), "ready says who made the call"
    health.ready = True
    assert not health.obstacles


async def test_a_call_that_is_answered_with_a_refusal_is_not_blamed_on_the_network() -> None:
    seconds = [0.0]
    health = Health(timeout=timedelta(seconds=60), now=lambda: seconds[0])

    async def call() -> None:
        raise TransientError("the quota is spent") from ResourceExhausted("quota")  # type: ignore[no-untyped-call]

    with pytest.raises(TransientError):
        await health.attempting(call)()
    seconds[0] += 50
    assert health.obstacles == ["a call has failed for 50 s: the quota is spent"]


def test_a_client_that_goes_before_its_answer_is_no_event(capfd: pytest.CaptureFixture[str]) -> None:
    asked = threading.Event()

    def status() -> dict[str, object]:
        asked.set()
        return {"much": "x" * 10_000_000}

    with serving(status=status) as port:
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
            client.sendall(b"GET /status HTTP/1.0\r\n\r\n")
            assert asked.wait(5)
        assert fetched(port, "/healthz")[0] == 200

    assert "Traceback" not in capfd.readouterr().err


def test_a_service_may_say_more_of_itself() -> None:
    with serving(status=lambda: {"state": "running"}) as port:
        assert fetched(port, "/status") == (200, '{"state":"running"}')
        assert "/status" in fetched(port, "/elsewhere")[1]
    with serving() as port:
        status, text = fetched(port, "/status")
        assert (status, "/status" in text) == (404, False)


def test_a_status_that_cannot_be_given_is_that_answers_fault_alone() -> None:
    def broken() -> dict[str, object]:
        raise LookupError("broken")

    with serving(status=broken) as port:
        assert fetched(port, "/status")[0] == 500
        assert fetched(port, "/healthz")[0] == 200


def test_metrics_are_prometheus_text() -> None:
    registry = CollectorRegistry()
    Counter("millrace_changes", "changes", registry=registry).inc(3)
    with serving(registry=registry) as port:
        status, text = fetched(port, "/metrics")

    assert status == 200
    assert "millrace_changes_total 3.0" in text
