"""The Grafana dashboard: each query uses only metrics and labels that a service exports, each panel has one."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pytest

from tests.documents.made import DOCS
from tests.documents.metrics import text

DASHBOARD: Final[Mapping[str, Any]] = json.loads((DOCS.parent / "deploy" / "grafana" / "millrace.json").read_text())
PANELS: Final[Sequence[Mapping[str, Any]]] = DASHBOARD["panels"]
each_panel: Final = pytest.mark.parametrize("panel", PANELS, ids=[panel["title"] for panel in PANELS])

_EXPORTED: Final[Mapping[str, set[str]]] = {
    name: set(re.findall(r"`(\w+)`", labels))
    for name, labels in re.findall(r"^\| `(\w+)` \| \w+ \| (.*?) \| ", text(), flags=re.MULTILINE)
}
_OF_PROMETHEUS: Final = {"job", "instance", "le"}


def metrics_of(query: str) -> set[str]:
    """Return the metrics that a query uses, a histogram's by its own name."""
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name in re.findall(r"\b(?:millrace|process)_\w+", query)}


@each_panel
def test_a_panel_uses_only_metrics_and_labels_that_a_service_exports(panel: Mapping[str, Any]) -> None:
    assert panel["targets"]
    for target in panel["targets"]:
        used = metrics_of(target["expr"])
        assert used
        assert used <= _EXPORTED.keys()
        labels = _OF_PROMETHEUS.union(*(_EXPORTED[name] for name in used))
        grouped = {label for by in re.findall(r"by \(([^)]*)\)", target["expr"]) for label in by.split(", ")}
        assert grouped | set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= labels
        assert set(re.findall(r"\{(\w+)=", target["expr"])) <= labels


def test_no_two_panels_lie_on_each_other_and_all_ask_the_chosen_prometheus() -> None:
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in PANELS]
    assert len(places) == len(set(places)) > 10
    assert {panel["datasource"]["uid"] for panel in PANELS} == {"${datasource}"}
    assert [one["name"] for one in DASHBOARD["templating"]["list"]] == ["datasource"]
