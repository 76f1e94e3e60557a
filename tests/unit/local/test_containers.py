"""What `make containers` knows of services that are killed on the way."""

import re
from collections.abc import Iterator

import pytest

from deploy.local.platform import compose
from deploy.local.platform.emulators import ROOT
from deploy.local.proof.containers import ContainerSettings, RestartedEndpoint
from shared.contracts.errors import MisconfiguredError
from shared.runtime.settings import read_settings
from tests.fakes.http_answers import answering


class Metrics:
    """A service's metrics, as they are just now; nothing is answered while there are none."""

    def __init__(self) -> None:
        self.text: str | None = None

    def answer(self, _path: str) -> tuple[int, bytes]:
        return (503, b"") if self.text is None else (200, self.text.encode())


@pytest.fixture
def metrics() -> Metrics:
    """Return what the service of the test says."""
    return Metrics()


@pytest.fixture
def endpoint(metrics: Metrics) -> Iterator[RestartedEndpoint]:
    """Serve the metrics, and yield the endpoint that asks for them."""
    with answering(metrics.answer) as address:
        yield RestartedEndpoint(address)


def test_what_a_killed_service_counted_is_added_to_the_next_ones(metrics: Metrics, endpoint: RestartedEndpoint) -> None:
    for text, counted in (
        ("a_total 5\ng 7\n", {"a_total": 5, "g": 7}),
        ("a_total 9\ng 2\n", {"a_total": 9, "g": 2}),
        (None, {}),
        ("a_total 1\ng 3\n", {"a_total": 10, "g": 3}),
        ("a_total 4\ng 1\n", {"a_total": 13, "g": 1}),
        ("a_total 0\ng 0\n", {"a_total": 13, "g": 0}),
    ):
        metrics.text = text
        assert endpoint.metrics() == counted


def test_a_metric_that_no_service_exposes_is_named_by_an_error(metrics: Metrics, endpoint: RestartedEndpoint) -> None:
    metrics.text = '# TYPE a counter\n# TYPE b counter\nb_total{table="t"} 2\nb_total{table="u"} 3\n'
    counted = endpoint.metrics()

    assert counted["a_total"] == 0  # of no table yet
    assert counted["b_total"] == 5
    with pytest.raises(LookupError, match="the service exposes no metric c_total"):
        counted["c_total"]


def test_a_service_that_does_not_answer_has_counted_nothing(endpoint: RestartedEndpoint) -> None:
    assert endpoint.metrics()["c_total"] == 0


def test_as_much_is_there_before_as_the_compose_file_puts_there() -> None:
    defaults = re.findall(r"BEFORE: \$\{BEFORE:-(\d+)\}", (ROOT / compose.FILE).read_text())
    assert defaults == [str(read_settings(ContainerSettings, {}).before)]


def test_a_run_in_containers_has_all_sources() -> None:
    assert read_settings(ContainerSettings, {"ROWS": "7"}).rows == 7
    with pytest.raises(MisconfiguredError, match="the compose file has all sources"):
        read_settings(ContainerSettings, {"SOURCES": "spanner"})
