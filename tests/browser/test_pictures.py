"""The pictures of the documents are of the pages as they are now.

The console's clock stands still here, so that a page reads the same each time. A test leaves the picture of now in its
folder, and names it where that of the documents is of another page.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from shared.contracts.timestamps import Nanoseconds, parse_timestamp
from tests.browser.chromium import Browser
from tests.browser.pictures import described_in, description, picture, size
from tests.browser.serving import Shown, console
from tests.browser.visits import Visit, dead_letter, edit, groups, pipeline, replay, sign_in

ROOT: Final = Path(__file__).parents[2]
IMAGES: Final = ROOT / "docs" / "images"
PAGE: Final = ROOT / "docs" / "how-to" / "use-the-console.md"
LARGEST: Final = 150_000  # bytes
PICTURES: Final[dict[str, tuple[Visit, int, str, int | None]]] = {
    "pipeline": (pipeline, 1280, "light", None),
    "pipeline-dark": (pipeline, 1280, "dark", 1000),
    "pipeline-phone": (pipeline, 390, "light", 1300),
    "pipeline-phone-dark": (pipeline, 390, "dark", 1300),
    "groups": (groups, 1280, "dark", None),
    "dead-letter": (dead_letter, 1280, "light", None),
    "dead-letter-dark": (dead_letter, 1280, "dark", 1000),
    "dead-letter-phone": (dead_letter, 390, "light", 1300),
    "dead-letter-phone-dark": (dead_letter, 390, "dark", 1300),
    "edit": (edit, 1280, "light", None),
    "replay": (replay, 1280, "dark", None),
}
"""The page, the width and the theme; the height, None where the whole page is shown."""


@pytest.fixture
def shown(tmp_path: Path) -> Iterator[Shown]:
    with console(tmp_path, StoppedClock()) as found:
        yield found


class StoppedClock:
    """It is always the same time."""

    def now(self) -> Nanoseconds:
        return parse_timestamp("2026-11-27T09:00:00Z")


@pytest.mark.parametrize("name", PICTURES)
def test_each_picture_of_the_documents_is_of_the_page_as_it_is_now(
    browser: Browser, shown: Shown, tmp_path: Path, name: str
) -> None:
    visit, width, theme, height = PICTURES[name]
    browser.resize(width)
    browser.theme(theme)
    sign_in(browser, shown)
    visit(browser, shown)
    now = description(browser, width, theme)
    taken = tmp_path / f"console-{name}.png"
    taken.write_bytes(picture(browser, height, now))
    assert len(taken.read_bytes()) < LARGEST
    kept = IMAGES / taken.name
    assert kept.exists(), f"look at {taken}, and copy it to {IMAGES}"
    assert described_in(kept.read_bytes()).splitlines() == now.splitlines(), f"copy {taken} to {IMAGES}"
    assert size(kept.read_bytes()) == size(taken.read_bytes())
    assert kept.stat().st_size < LARGEST


def test_the_documents_show_each_picture_and_no_other() -> None:
    names = {f"console-{name}.png" for name in PICTURES}
    assert {file.name for file in IMAGES.glob("*.png")} == names
    assert {name for name in names if f"](../images/{name})" in PAGE.read_text(encoding="utf-8")} == names
