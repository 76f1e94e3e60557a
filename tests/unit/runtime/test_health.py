"""The health port says alive, ready, and what was counted; over a real socket."""

import urllib.error
import urllib.request
from datetime import timedelta

import pytest
from prometheus_client import CollectorRegistry, Counter

from shared.contracts.errors import MisconfiguredError
from shared.runtime.health import Health, serving_health


def fetched(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_a_service_is_ready_when_it_says_so_and_alive_while_it_makes_progress() -> None:
    health = Health(patience=timedelta(hours=1))
    with serving_health(health, CollectorRegistry(), "127.0.0.1", 0) as port:
        assert fetched(port, "/readyz")[0] == 503
        health.ready = True
        assert fetched(port, "/readyz")[0] == 200
        assert fetched(port, "/healthz")[0] == 200
        assert fetched(port, "/elsewhere")[0] == 404


def test_a_loop_that_does_not_come_round_is_not_alive() -> None:
    health = Health(patience=timedelta(seconds=-1))
    with serving_health(health, CollectorRegistry(), "127.0.0.1", 0) as port:
        assert fetched(port, "/healthz") == (503, "no progress\n")


def test_an_address_that_is_taken_is_named_with_the_way_out() -> None:
    with (
        serving_health(Health(), CollectorRegistry(), "127.0.0.1", 0) as taken,
        pytest.raises(MisconfiguredError, match=f"PORT={taken}"),
        serving_health(Health(), CollectorRegistry(), "127.0.0.1", taken),
    ):
        pass


def test_a_service_may_say_more_of_itself() -> None:
    with serving_health(Health(), CollectorRegistry(), "127.0.0.1", 0, lambda: {"state": "running"}) as port:
        assert fetched(port, "/status") == (200, '{"state":"running"}')
        assert "/status" in fetched(port, "/elsewhere")[1]
    with serving_health(Health(), CollectorRegistry(), "127.0.0.1", 0) as port:
        status, text = fetched(port, "/status")
        assert (status, "/status" in text) == (404, False)


def test_a_status_that_cannot_be_told_is_that_answers_fault_alone() -> None:
    def broken() -> dict[str, object]:
        raise LookupError("broken")

    with serving_health(Health(), CollectorRegistry(), "127.0.0.1", 0, broken) as port:
        assert fetched(port, "/status")[0] == 500
        assert fetched(port, "/healthz")[0] == 200


def test_metrics_are_prometheus_text() -> None:
    registry = CollectorRegistry()
    Counter("millrace_changes", "changes", registry=registry).inc(3)
    with serving_health(Health(), registry, "127.0.0.1", 0) as port:
        status, text = fetched(port, "/metrics")

    assert status == 200
    assert "millrace_changes_total 3.0" in text
