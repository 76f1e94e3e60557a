"""The chart's values: what the schema takes, which is made from the settings, and what it refuses."""

import json
import re
from collections.abc import Iterator
from copy import deepcopy
from typing import Any, Final

import pytest
import yaml
from jsonschema import Draft7Validator

from tests.documents.made import DOCS

HELM: Final = DOCS.parent / "deploy/helm"
SCHEMA: Final = Draft7Validator(json.loads((HELM / "millrace/values.schema.json").read_text()))
EXAMPLES: Final = sorted((HELM / "examples").glob("*.yaml"))
MEGABYTES: Final = {"Mi": 1.048576, "Gi": 1073.741824}


def values(example: str = "spanner") -> dict[str, Any]:
    """Return the chart's own values, and those of an example over them."""
    found: dict[str, Any] = yaml.safe_load((HELM / "millrace/values.yaml").read_text())
    for key, value in yaml.safe_load((HELM / f"examples/{example}.yaml").read_text()).items():
        found[key] = found[key] | value if isinstance(value, dict) else value
    return found


def refusals(given: dict[str, Any]) -> list[str]:
    """Return what the schema says against values."""
    return [error.message for error in SCHEMA.iter_errors(given)]


def objects(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the path of each mapping in values, except what the user names."""
    if isinstance(value, dict):
        if path[-1:] not in (("spannerReaders",), ("bigtableReaders",), ("requests",), ("limits",)):
            yield path
        for key, one in value.items():
            yield from objects(one, (*path, key))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda file: file.stem)
def test_an_example_is_taken(example: Any) -> None:
    assert refusals(values(example.stem)) == []


@pytest.mark.parametrize("path", [*objects(values()), *objects(values("bigtable"))], ids=".".join)
def test_an_unknown_value_is_refused_wherever_it_is(path: tuple[str, ...]) -> None:
    given = deepcopy(values("bigtable" if "bigtableReaders" in path else "spanner"))
    place = given
    for key in path:
        place = place.setdefault(key, {})
    place["unheardOf"] = "x"

    assert any("unheardOf" in one for one in refusals(given))


@pytest.mark.parametrize(
    ("setting", "value"),
    [("LOG_LEVEL", "LOUD"), ("TASKS", 0), ("LIVENESS", "15"), ("SPARK_DRIVER_MEMORY", 2), ("API_TOKEN", "secret")],
)
def test_a_wrong_setting_is_refused(setting: str, value: object) -> None:
    given = values()
    given["consumer"]["settings"][setting] = value

    assert len(refusals(given)) == 1


def test_what_a_service_needs_has_to_be_given() -> None:
    own = yaml.safe_load((HELM / "millrace/values.yaml").read_text())

    assert any("SUBSCRIPTION" in one for one in refusals(own))


def test_a_limit_of_memory_is_not_below_the_page_on_sizes() -> None:
    own = yaml.safe_load((HELM / "millrace/values.yaml").read_text())
    rows = re.findall(r"^\| `(\w+)`.*\|([^|]+)\|$", (DOCS / "how-to/size.md").read_text(), re.MULTILINE)
    needed = {service: max(map(float, re.findall(r"([\d.]+) GB", at))) for service, at in rows if "GB" in at}
    limits = {
        "spanner_reader": own["readerDefaults"],
        "bigtable_reader": own["readerDefaults"],
        "cdc_consumer": own["consumer"],
        "dead_letter": own["deadLetter"],
    }

    assert needed.keys() == limits.keys()
    for service, own_values in limits.items():
        memory = own_values["resources"]["limits"]["memory"]
        assert float(memory[:-2]) * MEGABYTES[memory[-2:]] >= needed[service] * 1000
