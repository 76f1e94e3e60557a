"""The page on dead letters says of each reason what it means and what to do, and of each state what it means."""

import re
from pathlib import Path
from typing import Final

from services.dead_letter.core.dead_letters import State
from shared.contracts.reasons import Reason

ROOT: Final = Path(__file__).resolve().parents[3]
PAGE: Final = (ROOT / "docs" / "reference" / "dead-letters.md").read_text()


def test_every_reason_is_documented_in_the_order_of_the_list_and_no_other() -> None:
    assert re.findall(r"^### `(\w+)`$", PAGE, re.MULTILINE) == [reason.value for reason in Reason]


def test_each_reports_what_it_means_and_what_to_do() -> None:
    sections = re.split(r"^### `\w+`$", PAGE, flags=re.MULTILINE)[1:]

    assert len(sections) == len(Reason)
    for section in sections:
        means, do = re.fullmatch(r"\s*\*Means:\* (.+?)\n\n\*Do:\* (.+?)\s*", section, re.DOTALL).groups()  # type: ignore[union-attr]
        assert min(len(means), len(do)) > 20


def test_every_state_is_documented() -> None:
    assert re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE) == [state.value for state in State]


def test_the_readme_leads_there() -> None:
    assert "](docs/reference/dead-letters.md)" in (ROOT / "README.md").read_text()
