"""A browser and a console for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser.chromium import Browser, chromium
from tests.browser.serving import Shown, console


@pytest.fixture
def shown(tmp_path: Path) -> Iterator[Shown]:
    with console(tmp_path) as found:
        yield found


@pytest.fixture
def browser(tmp_path: Path, shown: Shown) -> Iterator[Browser]:
    """Open a browser on the first page; in the end nothing may have been refused or have failed on any page."""
    with chromium(tmp_path / "profile") as found:
        found.resize(1280)
        found.open(shown.url)
        yield found
        assert found.complaints == []
