"""The documentation site in a real browser, at the width of a desk and of a phone. Sphinx builds what is not there."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

import pytest

from tests.browser.chromium import Browser, chromium

ROOT: Final = Path(__file__).parents[2]
SITE: Final = ROOT / "build" / "site"
PAGES: Final = {
    "docs/index.html": "the first page",
    "docs/how-to/replay-dead-letters.html": "a how-to guide, with long commands",
    "docs/reference/metrics.html": "a wide table",
    "ARCHITECTURE.html": "drawings, and tables of links",
}
_WIDTHS: Final = (1280, 390)
_WIDER: Final = "[...document.querySelectorAll('.content')].filter(one => one.scrollWidth > one.clientWidth).length"
"""On a phone the theme lets the text scroll aside, where something is too wide, and not the page; tables always may."""
_HOSTS: Final = "[...new Set(performance.getEntriesByType('resource').map(one => new URL(one.name).host))]"
_BROKEN: Final = "[...document.images].filter(one => !one.naturalWidth).map(one => one.src)"


class _Quiet(SimpleHTTPRequestHandler):
    """Serves files and logs nothing."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the name that the class has
        """Log nothing."""


@pytest.fixture(scope="module")
def host() -> Iterator[str]:
    """Build the site as `make site` does, and serve it; the host and port."""
    sphinx = [sys.executable, "-m", "sphinx", "--builder", "html", "--conf-dir", "docs", "--fail-on-warning", "--quiet"]
    subprocess.run([*sphinx, "--doctree-dir", "build/doctrees", ".", SITE], cwd=ROOT, check=True)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(SITE))) as server:
        serving = threading.Thread(target=server.serve_forever, name="site")
        serving.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        serving.join()


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Open a browser."""
    with chromium(tmp_path_factory.mktemp("browser") / "profile") as found:
        yield found


@pytest.mark.parametrize("width", _WIDTHS)
@pytest.mark.parametrize("page", PAGES, ids=PAGES.get)
def test_a_page_fits_the_window_and_asks_no_other_host(reader: Browser, host: str, page: str, width: int) -> None:
    reader.complaints.clear()
    reader.resize(width)
    reader.open(f"http://{host}/{page}")

    assert reader.run("document.documentElement.scrollWidth") <= width
    assert reader.run(_WIDER) == 0
    assert reader.run(_HOSTS) == [host]
    assert reader.run(_BROKEN) == []
    assert reader.complaints == []


def test_the_root_of_the_site_leads_to_its_first_page(reader: Browser, host: str) -> None:
    reader.open(f"http://{host}/")
    reader.wait(f"location.href == {json.dumps(f'http://{host}/docs/index.html')}")
