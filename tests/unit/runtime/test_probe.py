"""The probe of a container's HEALTHCHECK, against the real port of a service."""

import socket

import pytest
from prometheus_client import CollectorRegistry

from shared.runtime.health import Health, serving_health
from shared.runtime.probe import main
from shared.runtime.stop import Stop


@pytest.mark.parametrize("ready", [True, False])
def test_a_service_is_healthy_once_it_is_ready(
    ready: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    health = Health()
    health.ready = ready
    with serving_health(health, CollectorRegistry(), Stop(), "127.0.0.1", 0) as port:
        monkeypatch.setenv("PORT", str(port))
        assert main() == (0 if ready else 1)
    said = "healthy" if ready else "/readyz: 503 Service Unavailable: not ready"
    assert capsys.readouterr().out.splitlines()[-1] == said


def test_a_service_that_does_not_listen_is_not_healthy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    monkeypatch.setenv("PORT", str(port))
    assert main() == 1
    assert capsys.readouterr().out.startswith(f"port {port} does not answer: ")
