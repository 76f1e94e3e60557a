"""The stand-in's document names every method of BigQuery's API that it refuses."""

from pathlib import Path

import pytest

from emulators.bigquery.unserved import UNSERVED

DOCUMENT = Path(__file__).parents[4] / "emulators" / "bigquery" / "README.md"


@pytest.mark.parametrize("name", sorted({name for _, _, name in UNSERVED}))
def test_what_is_not_served_is_documented(name: str) -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    resource, _, method = name.partition(".")
    whole = ("models", "routines", "rowAccessPolicies")

    documented = resource if resource in whole else method if method.endswith("IamPolicy") else name
    assert documented.removeprefix("jobs.insert with ") in text
