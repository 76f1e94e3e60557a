"""The alert rules: each has a severity, a sentence, a runbook, a case, and only metrics that a service exports.

`make alerts` runs the cases by promtool; this needs none.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.documents.made import DOCS
from tests.documents.metrics import text

ALERTS: Final = DOCS.parent / "deploy" / "alerts"
FILES: Final = sorted(ALERTS.glob("*.yaml"))
RULES: Final[Sequence[tuple[Path, Mapping[str, Any]]]] = [
    (file, rule) for file in FILES for group in yaml.safe_load(file.read_text())["groups"] for rule in group["rules"]
]
each_rule: Final = pytest.mark.parametrize(("file", "rule"), RULES, ids=[rule["alert"] for _, rule in RULES])

_METRIC: Final = re.compile(r"\b(?:millrace|process)_\w+")
_PARTS: Final = ("**Meaning.**", "**Confirm.**", "**Do.**", "**If you do nothing.**")


def page_of(file: Path) -> str:
    """Return the name of the page that explains a file's alerts."""
    return file.stem.replace("_", "-") + ".md"


def sections(page: Path) -> Mapping[str, str]:
    """Return the text of each section of a page by its heading."""
    parts = re.split(r"^## (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_alert_names_are_unique() -> None:
    names = [rule["alert"] for _, rule in RULES]
    assert len(names) == len(set(names))
    assert len(names) > 20


@each_rule
def test_an_alert_uses_only_metrics_that_a_service_exports(file: Path, rule: Mapping[str, Any]) -> None:
    exported = set(re.findall(r"^\| `(\w+)`", text(), flags=re.MULTILINE))
    used = {re.sub(r"_(bucket|sum|count)$", "", name) for name in _METRIC.findall(rule["expr"])}
    assert used
    assert used <= exported, file


@each_rule
def test_an_alert_says_how_urgent_it_is_and_what_happens(file: Path, rule: Mapping[str, Any]) -> None:
    assert rule["labels"] in ({"severity": "page"}, {"severity": "ticket"})
    summary = rule["annotations"]["summary"]
    assert summary.endswith(".")
    assert summary.count(". ") == 0, "one sentence"


@each_rule
def test_an_alert_has_a_runbook_with_each_part(file: Path, rule: Mapping[str, Any]) -> None:
    page, _, anchor = rule["annotations"]["runbook"].partition("#")
    assert page == f"docs/runbooks/{page_of(file)}"
    assert anchor == rule["alert"].lower()
    section = sections(DOCS.parent / page)[rule["alert"]]
    assert [section.count(part) for part in _PARTS] == [1, 1, 1, 1]


@pytest.mark.parametrize("file", FILES, ids=[file.stem for file in FILES])
def test_a_runbook_describes_no_alert_that_is_gone(file: Path) -> None:
    alerts = [rule["alert"] for where, rule in RULES if where == file]
    assert list(sections(DOCS / "runbooks" / page_of(file))) == alerts


def test_each_alert_has_a_case_that_is_silent_first_and_then_fires() -> None:
    files = [yaml.safe_load(file.read_text()) for file in sorted((ALERTS / "cases").glob("*.yaml"))]
    cases = [(file, case) for file in files for case in file["tests"]]
    assert {case["name"] for _, case in cases} == {rule["alert"] for _, rule in RULES}
    for file, case in cases:
        (of_rule,) = {where.name for where, rule in RULES if rule["alert"] == case["name"]}
        assert f"../{of_rule}" in file["rule_files"]
        assert {test["alertname"] for test in case["alert_rule_test"]} == {case["name"]}
        fires = [bool(test["exp_alerts"]) for test in case["alert_rule_test"]]
        assert not fires[0], case["name"]
        assert any(fires), case["name"]
