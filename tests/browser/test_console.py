"""What an operator wants of the console, each in a real browser: the pages, their forms, their script and style."""

import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from services.dead_letter.core.dead_letters import State
from services.dead_letter.core.selection import Selection
from shared.contracts.reasons import Reason
from tests.browser.chromium import Browser
from tests.browser.serving import Shown
from tests.unit.dead_letter.asgi import TOKEN
from tests.worlds.console import CONSUMER, FLIGHTS, HOSTILE, TRAFFIC

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images"
_SUBMIT = "document.querySelector('form[action=\"/sign-in\"] button').click()"


def sign_in(browser: Browser, shown: Shown) -> None:
    browser.open(f"{shown.url}/sign-in")
    browser.fill("Token", TOKEN)
    browser.run(_SUBMIT)
    browser.wait_for("Signed in as ada")


def open_group(browser: Browser, name: str) -> None:
    browser.press("Dead letters")
    browser.wait_for("Grouped by cause")
    browser.press(name)
    browser.wait_for("Its dead letters")


def open_count(shown: Shown, reason: Reason) -> int:
    return shown.store.count(Selection(reasons=frozenset({reason}), states=frozenset({State.OPEN})))


def test_see_what_needs_attention_and_copy_the_command_that_fixes_it(browser: Browser, shown: Shown) -> None:
    browser.allow_copying(shown.url)
    browser.wait_for("5 things need attention")
    first = browser.run("document.querySelector('main li').innerText")
    assert "table flights is deferred" in first
    assert "grant bigquery.tables.updateData" in first

    browser.run("document.querySelectorAll('.copy')[1].click()")
    browser.wait_for("Copied")
    assert browser.run("navigator.clipboard.readText()") == "./millrace spanner-reader snapshot airports"


def test_watch_the_pipeline_change_without_reloading(browser: Browser, shown: Shown) -> None:
    browser.wait_for("flights is deferred")
    browser.run("window.same = true")
    documents = shown.pages.documents
    documents[CONSUMER]["tables"][2] |= {"state": "running", "troubles": []}
    del documents[TRAFFIC]
    browser.wait_for("traffic: refuses connections")
    assert "flights is deferred" not in browser.text()
    assert browser.run("window.same") is True


def test_find_out_why_a_row_failed_and_see_its_values(browser: Browser, shown: Shown) -> None:
    browser.press("Dead letters")
    browser.wait_for("column seats of type INT64")
    browser.press("value does not fit")
    browser.wait_for("39 open of 39")
    assert "sign in" in browser.text()
    sign_in(browser, shown)
    open_group(browser, "value does not fit")
    browser.run("document.querySelector('tbody a').click()")
    browser.wait_for("Values are masked")
    assert "N1UA" not in browser.text()
    browser.press("Show values")
    browser.wait_for("N1UA")
    assert "values shown" in browser.text()


def test_replay_a_group_after_its_cause_is_fixed(browser: Browser, shown: Shown) -> None:
    go_on = threading.Event()
    shown.publisher.then = lambda _letters: _wait(go_on)
    sign_in(browser, shown)
    open_group(browser, "schema conflict")
    browser.press("Dry run")
    browser.wait_for("12 of 12 would be sent. Nothing was sent.")
    assert shown.publisher.published == []

    browser.press("Send 12 dead letters")
    browser.wait_for("12 of 12 dead letters taken, 0 sent.")
    assert browser.run("document.querySelector('progress').max") == 12
    go_on.set()
    browser.wait_for("12 sent.")
    assert open_count(shown, Reason.SCHEMA_CONFLICT) == 0
    assert len(shown.publisher.published) == 12


def _wait(go_on: threading.Event) -> None:
    assert go_on.wait(60)


def test_correct_a_row_and_see_what_changes_before_it_is_kept(browser: Browser, shown: Shown) -> None:
    sign_in(browser, shown)
    open_group(browser, "value does not fit")
    browser.run("document.querySelector('tbody a').click()")
    browser.wait_for("Act on it")
    browser.press("Edit the row")
    browser.wait_for("Show the difference")
    row = browser.run("document.getElementById('row').value")
    browser.fill("The row", str(row).replace("150", "178"))
    browser.press("Show the difference")
    browser.wait_for("What changes")
    assert browser.run("document.querySelector('.removed').innerText") == '-  "seats": 150'
    assert browser.run("document.querySelector('.added').innerText") == '+  "seats": 178'
    browser.fill("What was wrong", "typed wrong")
    browser.press("Save the edited copy")
    browser.wait_for("this copy takes its place")
    assert "Edited copy of" in browser.text()
    assert shown.store.count(Selection(states=frozenset({State.SUPERSEDED}))) == 1


def test_discard_what_is_not_to_be_applied_and_take_it_back(browser: Browser, shown: Shown) -> None:
    sign_in(browser, shown)
    open_group(browser, "undecodable")
    browser.press("Discard 1 open")
    assert browser.run("document.getElementById('discard-why').validity.valueMissing")
    assert open_count(shown, Reason.UNDECODABLE) == 1
    browser.fill("Why not apply it?", "a rehearsal's")
    browser.press("Discard 1 open")
    browser.wait_for("1 dead letter discarded")
    assert open_count(shown, Reason.UNDECODABLE) == 0
    browser.press("Open 1 again")
    browser.wait_for("1 dead letter open again")
    assert open_count(shown, Reason.UNDECODABLE) == 1


def test_everything_is_reached_and_done_with_the_keyboard(browser: Browser, shown: Shown) -> None:
    browser.key("Tab")
    assert browser.run("document.activeElement.innerText") == "Skip to the content"
    browser.open(f"{shown.url}/sign-in")
    browser.wait("document.activeElement.id === 'token'")  # the focus comes after the page
    browser.type(TOKEN)
    browser.key("Enter")
    browser.wait_for("Signed in as ada")
    browser.tab_to("Dead letters")
    assert browser.run("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    browser.key("Enter")
    browser.wait_for("Grouped by cause")
    browser.tab_to("schema conflict")
    browser.key("Enter")
    browser.wait_for("Act on the group")
    browser.tab_to("Dry run")
    browser.key("Space")
    browser.wait_for("12 of 12 would be sent")


def test_a_screen_reader_is_told_names_headings_and_columns(browser: Browser, shown: Shown) -> None:
    sign_in(browser, shown)
    for width in (1280, 390):
        browser.resize(width)
        for go in (_pipeline, _groups, _group, _letter):
            go(browser, shown)
            told = browser.accessible()
            roles = [role for role, _name in told]
            assert {"banner", "navigation", "main", "status"} <= set(roles), go
            assert browser.run("document.querySelectorAll('h1').length") == 1
            nameless = [role for role, name in told if role in _NAMED and not name]
            assert nameless == [], go
            assert roles.count("columnheader") >= 4, (go, width)
            assert "rowheader" in roles, (go, width)
    assert ("textbox", "Why not apply it?") in browser.accessible()


_NAMED = frozenset(
    {"button", "link", "textbox", "checkbox", "img", "image", "region", "columnheader", "rowheader", "heading"}
)


def _pipeline(browser: Browser, shown: Shown) -> None:
    browser.open(f"{shown.url}/")
    browser.wait_for("5 things need attention")


def _groups(browser: Browser, _shown: Shown) -> None:
    browser.press("Dead letters")
    browser.wait_for("Grouped by cause")


def _group(browser: Browser, _shown: Shown) -> None:
    browser.press("value does not fit")
    browser.wait_for("Act on the group")


def _letter(browser: Browser, _shown: Shown) -> None:
    browser.run("document.querySelector('tbody a').click()")
    browser.wait_for("Audit trail")


def test_pages_fit_a_desk_and_a_phone_by_day_and_by_night(browser: Browser, shown: Shown, tmp_path: Path) -> None:
    sign_in(browser, shown)
    grounds = set()
    for theme in ("light", "dark"):
        browser.theme(theme)
        for width in (1280, 390):
            browser.resize(width)
            for go in (_pipeline, _groups, _group, _letter):
                go(browser, shown)
                assert browser.run("document.documentElement.scrollWidth <= innerWidth"), (theme, width, go)
                for part in ("h1", ".quiet, .hint, p", "a", "button"):
                    assert browser.run(_CONTRAST % part) >= 4.5, (theme, width, go, part)
        grounds.add(browser.run("getComputedStyle(document.body).backgroundColor"))
    assert len(grounds) == 2


_CONTRAST = """(() => {
  const lightness = text => {
    const parts = text.match(/[\\d.]+/g).map(Number).slice(0, 3).map(part => part / 255)
      .map(part => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
  };
  const ground = one => {
    for (; one; one = one.parentElement) {
      const color = getComputedStyle(one).backgroundColor;
      if (!color.endsWith(", 0)")) return color;
    }
  };
  return Math.min(21, ...[...document.querySelectorAll("main %s")].map(one => {
    const pair = [lightness(getComputedStyle(one).color), lightness(ground(one))].sort((a, b) => b - a);
    return (pair[0] + 0.05) / (pair[1] + 0.05);
  }));
})()"""


def test_what_a_hostile_writer_sends_runs_nothing(browser: Browser, shown: Shown) -> None:
    browser.before_scripts("window.ran = []; window.alert = value => { window.ran.push(value); };")
    browser.open("about:blank")
    browser.run(f"document.body.innerHTML = {json.dumps(HOSTILE)}")
    browser.wait("window.ran.length > 0")  # it does run where a page takes it for markup
    browser.complaints.clear()

    browser.open(shown.url)
    browser.wait_for("5 things need attention")
    table = {"table": HOSTILE, "state": HOSTILE, "troubles": [{"state": HOSTILE, "why": HOSTILE}]}
    shown.pages.documents[CONSUMER] |= {"state": HOSTILE, "tables": [table]}
    shown.pages.documents[FLIGHTS] |= {"state": HOSTILE, "partitions": {HOSTILE: 1}, "low_watermark": HOSTILE}
    _nothing_ran(browser)  # in what the page's script has fetched
    browser.open(f"{shown.url}/?{HOSTILE[:30].replace(' ', '')}")
    _nothing_ran(browser)


def _nothing_ran(browser: Browser) -> None:
    browser.wait_for("onerror=alert(1)")
    assert browser.run("document.querySelectorAll('main img, main script, [onfocus]').length") == 0
    assert browser.run("window.ran") == []


PICTURES: dict[str, tuple[int, str, tuple[Callable[[Browser, Shown], None], ...], int]] = {
    "pipeline": (1280, "light", (_pipeline,), 1140),
    "phone": (390, "dark", (_pipeline,), 844),
    "groups": (1280, "dark", (_groups,), 590),
    "letter": (1280, "light", (_groups, _group, _letter), 800),
    "letter-phone": (390, "light", (_groups, _group, _letter), 844),
}


@pytest.mark.parametrize("name", PICTURES)
def test_each_picture_of_the_documents_has_the_size_of_the_page_as_it_is_now(
    browser: Browser, shown: Shown, tmp_path: Path, name: str
) -> None:
    """A picture of now is left in the test's folder, to be looked at and copied to docs/images."""
    width, theme, steps, height = PICTURES[name]
    sign_in(browser, shown)
    browser.resize(width)
    browser.theme(theme)
    for step in steps:
        step(browser, shown)
    picture = tmp_path / f"console-{name}.png"
    browser.screenshot(picture, height=height)
    in_documents = (IMAGES / picture.name).read_bytes()
    assert in_documents[:24] == picture.read_bytes()[:24], "a PNG of this width and height"
    assert max(len(in_documents), picture.stat().st_size) < 150_000
