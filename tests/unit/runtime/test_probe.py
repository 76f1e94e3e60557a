"""The probe of a container's HEALTHCHECK, against the real port of a service."""

import socket
from datetime import timedelta

import pytest
from prometheus_client import CollectorRegistry

from shared.runtime.health import Health, serving_health
from shared.runtime.probe import main
from shared.runtime.stop import Stop


@pytest.mark.parametrize(
    ("alive", "ready", "asked", "code", "output"),
    [
        (True, True, [], 0, "healthy"),
        (True, False, [], 0, "healthy"),  # a restart would not bring back what it waits for
        (False, True, [], 1, "/healthz: 503 Service Unavailable: no progress"),
        (True, True, ["ready"], 0, "ready"),
        (True, False, ["ready"], 1, "/readyz: 503 Service Unavailable: not ready"),
    ],
)
def test_healthy_means_alive_and_readiness_is_asked_for_by_name(
    alive: bool,
    ready: bool,
    asked: list[str],
    code: int,
    output: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    health = Health(timedelta(hours=1) if alive else timedelta(hours=-1))
    health.ready = ready
    monkeypatch.setattr("sys.argv", ["probe", *asked])
    with serving_health(health, CollectorRegistry(), Stop(), "127.0.0.1", 0) as port:
        assert main({"PORT": str(port)}) == code
    assert capsys.readouterr().out.splitlines()[-1] == output


def test_a_service_that_is_unavailable_is_not_healthy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    monkeypatch.setattr("sys.argv", ["probe"])
    assert main({"PORT": str(port)}) == 1
    assert capsys.readouterr().out.startswith(f"port {port} does not answer: ")
