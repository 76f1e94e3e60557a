"""Each number of an alert rule, and how long it waits, matters to the rule's case: another one makes the case fail.

`make alerts` runs it, because it needs promtool.
"""

import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

ALERTS: Final = Path(__file__).parents[2] / "deploy" / "alerts"
_OLDER: Final = "a process that was seen last before the hour has counted nothing within the hour"
EQUIVALENT: Final[Mapping[tuple[str, str], str]] = {
    ("MillraceDeadLettersNotStored", "number 0: 1h to 10h"): _OLDER,
    ("MillraceDeadLettersNotStored", "number 2: 1h to 10h"): _OLDER,
    ("MillraceServiceRestarts", "number 1: 30m to 300m"): "a process that was seen last before them has no changes",
}
"""Mutants that no case can tell from the rule, by alert and change, and why."""

_NUMBER: Final = re.compile(r'"[^"]*"|(?<![\w.])(\d+(?:\.\d+)?)([smhd]?)\b')
_MILLISECONDS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

Rule = Mapping[str, Any]


def mutants(rule: Rule) -> Iterator[tuple[str, Rule]]:
    """Yield each mutant of a rule with what was changed: no wait, and a number ten times as large and as small."""
    if "for" in rule:
        yield "without for", {key: value for key, value in rule.items() if key != "for"}
    expression = rule["expr"]
    for place, found in enumerate(one for one in _NUMBER.finditer(expression) if one[1] and float(one[1])):
        number, unit = found[1], found[2]
        milliseconds = f"{float(number) * _MILLISECONDS.get(unit, 0) / 10:.0f}ms"
        for other in (f"{float(number) * 10:.15g}{unit}", milliseconds if unit else f"{float(number) / 10:.15g}"):
            changed = expression[: found.start()] + other + expression[found.end() :]
            yield f"number {place}: {number}{unit} to {other}", {**rule, "expr": changed}


def rules() -> Iterator[Rule]:
    """Yield each rule of each file."""
    for file in sorted(ALERTS.glob("*.yaml")):
        for group in yaml.safe_load(file.read_text())["groups"]:
            yield from group["rules"]


MUTANTS: Final = {(rule["alert"], change): mutant for rule in rules() for change, mutant in mutants(rule)}
CASES: Final = [yaml.safe_load(file.read_text()) for file in sorted((ALERTS / "cases").glob("*.yaml"))]


@pytest.mark.parametrize("which", MUTANTS, ids=": ".join)
def test_a_case_fails_with_another_number(which: tuple[str, str], tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "one", "rules": [MUTANTS[which]]}]}))
    runs = []
    for number, file in enumerate(CASES):
        if tests := [case for case in file["tests"] if case["name"] == which[0]]:
            runs.append(tmp_path / f"case-{number}.yaml")
            runs[-1].write_text(yaml.safe_dump({**file, "rule_files": ["rules.yaml"], "tests": tests}))

    ran = subprocess.run(["promtool", "test", "rules", *runs], capture_output=True, text=True, check=False)

    output = ran.stdout + ran.stderr
    if which in EQUIVALENT:
        assert ran.returncode == 0, f"it is not equivalent:\n{output}"
    else:
        assert ran.returncode == 1, output
        assert "exp:" in output, f"a case has to fail, not promtool:\n{output}"


def test_only_mutants_that_there_are_count_as_equivalent() -> None:
    assert EQUIVALENT.keys() <= MUTANTS.keys()
    assert len(MUTANTS) > 90
