"""What an operator wants of the console, in a real browser: the pages, their forms, their script and style.

What a form does that needs no browser is in tests/unit/dead_letter/test_console.py, which presses the same buttons.
"""

import json
import threading

from services.dead_letter.core.dead_letters import State
from services.dead_letter.core.selection import Selection
from shared.contracts.reasons import Reason
from tests.browser.chromium import Browser
from tests.browser.serving import Shown
from tests.browser.visits import NOT_THERE, PAGES, groups, open_group, sign_in
from tests.unit.dead_letter.asgi import TOKEN
from tests.worlds.console import CONSUMER, FLIGHTS, HOSTILE, TRAFFIC


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
    shown.publisher.then = lambda _dead_letters: _wait(go_on)
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
    browser.tab_to("Send 12 dead letters")
    browser.key("Space")
    browser.wait_for("12 sent.")

    groups(browser, shown)
    browser.tab_to("value does not fit")
    browser.key("Enter")
    browser.wait_for("Act on the group")
    browser.tab_to(str(browser.run("document.querySelector('tbody a').innerText")))
    browser.key("Enter")
    browser.wait_for("Act on it")
    browser.tab_to("Edit the row")
    browser.key("Space")
    browser.wait_for("The row, as JSON")
    browser.tab_to("row")
    row = str(browser.run("document.activeElement.value"))
    browser.run("document.activeElement.select()")
    browser.type(row.replace("150", "178"))
    browser.tab_to("Show the difference")
    browser.key("Space")
    browser.wait_for("What changes")
    browser.tab_to("why")
    browser.type("typed wrong")
    browser.tab_to("Save the edited copy")
    browser.key("Enter")
    browser.wait_for("this copy takes its place")

    browser.open(f"{shown.url}{NOT_THERE}")
    browser.wait_for("Not here")
    browser.complaints.clear()
    browser.tab_to("Skip to the content")
    browser.key("Enter")
    browser.tab_to("Dead letters")
    assert browser.run("document.getElementById('main').contains(document.activeElement)")
    browser.key("Enter")
    browser.wait_for("Grouped by cause")
    browser.tab_to("Sign out")
    browser.key("Enter")
    browser.wait_for("Sign in")
    assert "Signed in as" not in browser.text()


def test_a_screen_reader_gets_names_headings_and_columns(browser: Browser, shown: Shown) -> None:
    sign_in(browser, shown)
    for width in (1280, 390):
        browser.resize(width)
        for page in PAGES:
            page(browser, shown)
            nodes = browser.accessible()
            roles = [role for role, _name in nodes]
            assert {"banner", "navigation", "main", "status"} <= set(roles), page
            assert browser.run("document.querySelectorAll('h1').length") == 1
            nameless = [role for role, name in nodes if role in _NAMED and not name]
            assert nameless == [], page
            has = _EXPECTED.get(page.__name__, _OF_A_TABLE)
            assert [one for one in has if one not in nodes and one[0] not in roles] == [], (page, width)
            assert [one for one in has if one[1] and one not in nodes] == [], (page, width)
            if has is _OF_A_TABLE:
                assert roles.count("columnheader") >= 4, (page, width)


_NAMED = frozenset(
    {"button", "link", "textbox", "checkbox", "img", "image", "region", "columnheader", "rowheader", "heading"}
)
_OF_A_TABLE = (("columnheader", ""), ("rowheader", ""))
_EXPECTED = {
    "edit": (
        ("textbox", "The row, as JSON"),
        ("textbox", "What was wrong with it?"),
        ("button", "Show the difference again"),
    ),
    "sign_in_page": (("textbox", "Token"), ("button", "Sign in")),
    "refused": (("alert", ""), ("heading", "Not here")),
}
"""Of the pages without a table: role and name."""


def test_pages_fit_a_desk_and_a_phone_by_day_and_by_night(browser: Browser, shown: Shown) -> None:
    sign_in(browser, shown)
    grounds = set()
    for theme in ("light", "dark"):
        browser.theme(theme)
        for width in (1280, 390):
            browser.resize(width)
            for page in PAGES:
                page(browser, shown)
                assert browser.run("document.documentElement.scrollWidth <= innerWidth"), (theme, width, page)
                parts = (*_EVERYWHERE, *_PARTS[page.__name__])
                contrast = browser.run(_CONTRAST % json.dumps(parts))
                assert set(contrast) == set(parts)
                low = {part: found for part, found in contrast.items() if found is None or found < 4.5}
                assert low == {}, (theme, width, page, "None: there is no such part")
        grounds.add(browser.run("getComputedStyle(document.body).backgroundColor"))
    assert len(grounds) == 2


_EVERYWHERE = (".brand", ".top a", ".who b", ".who button", "main h1", "main p, main label", "main a, main button")
_TABLE = ("thead th", "tbody th", "tbody td")
_PARTS = {
    "pipeline": (
        *(*_TABLE, "h2", "h3", ".quiet", ".hint", ".why", ".urgent .badge", ".soon .badge", ".command pre", ".copy"),
        *(".state.good", ".state.bad", ".figures b", "td code", "main a", "main p code"),
    ),
    "groups": (*_TABLE, ".detail", ".hint", ".count", "[aria-current]"),
    "group": (*_TABLE, ".why", ".figures", ".state.soon", ".hint", "label", "textarea", "button.main", "button.danger"),
    "dead_letter": (*_TABLE, "h1 .state", ".why", "dt", "dd", "pre code", ".hint", "h3", "textarea", "button.danger"),
    "edit": (".diff .added", ".diff .removed", ".diff .place", ".diff .same", "textarea.code", "label", "button.main"),
    "replay": (*_TABLE, ".notice", ".count", "button.main", ".hint", "td code", "th code"),
    "sign_in_page": ("label", "input[type=password]", "button.main", ".quiet", "p code"),
    "refused": (".notice.bad", "main p a"),
}
"""What is looked at on each page, and has to be there."""
_CONTRAST = """(parts => {
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
  const contrast = one => {
    const pair = [lightness(getComputedStyle(one).color), lightness(ground(one))].sort((a, b) => b - a);
    return (pair[0] + 0.05) / (pair[1] + 0.05);
  };
  return Object.fromEntries(parts.map(part => {
    const found = [...document.querySelectorAll(part)].map(contrast);
    return [part, found.length ? Math.min(...found) : null];
  }));
})(%s)"""


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
