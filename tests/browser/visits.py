"""Pages of the console, each reached as a person reaches it who has signed in."""

from collections.abc import Callable
from typing import Final

from tests.browser.chromium import Browser
from tests.browser.serving import Shown
from tests.unit.dead_letter.asgi import TOKEN

Visit = Callable[[Browser, Shown], None]
SUBMIT: Final = "document.querySelector('form[action=\"/sign-in\"] button').click()"
NOT_THERE: Final = "/dead-letters/groups/none"


def sign_in(browser: Browser, shown: Shown) -> None:
    sign_in_page(browser, shown)
    browser.fill("Token", TOKEN)
    browser.run(SUBMIT)
    browser.wait_for("Signed in as ada")


def open_group(browser: Browser, name: str) -> None:
    browser.press("Dead letters")
    browser.wait_for("Grouped by cause")
    enter_group(browser, name)


def enter_group(browser: Browser, name: str) -> None:
    """Open a group from the page of all groups."""
    browser.press(name)
    browser.wait_for("Act on the group")


def open_first(browser: Browser) -> None:
    """Open the first dead letter of the group that is shown."""
    browser.run("document.querySelector('tbody a').click()")
    browser.wait_for("Audit trail")


def pipeline(browser: Browser, shown: Shown) -> None:
    browser.open(f"{shown.url}/")
    browser.wait_for("5 things need attention")


def groups(browser: Browser, shown: Shown) -> None:
    browser.open(f"{shown.url}/dead-letters")
    browser.wait_for("Grouped by cause")


def group(browser: Browser, shown: Shown) -> None:
    groups(browser, shown)
    enter_group(browser, "value does not fit")


def dead_letter(browser: Browser, shown: Shown) -> None:
    group(browser, shown)
    open_first(browser)


def edit(browser: Browser, shown: Shown) -> None:
    """With a difference, of which nothing is kept."""
    dead_letter(browser, shown)
    browser.press("Edit the row")
    browser.wait_for("Show the difference")
    browser.fill("The row", str(browser.run("document.getElementById('row').value")).replace("150", "178"))
    browser.press("Show the difference")
    browser.wait_for("What changes")


def replay(browser: Browser, shown: Shown) -> None:
    """After its dry run."""
    groups(browser, shown)
    enter_group(browser, "schema conflict")
    browser.press("Dry run")
    browser.wait_for("12 of 12 would be sent. Nothing was sent.")


def sign_in_page(browser: Browser, shown: Shown) -> None:
    browser.open(f"{shown.url}/sign-in")
    browser.wait_for("Give a token")


def refused(browser: Browser, shown: Shown) -> None:
    """With the one thing that a browser says of such an answer."""
    before = list(browser.complaints)
    browser.open(f"{shown.url}{NOT_THERE}")
    browser.wait_for("Not here")
    assert all("404" in one for one in browser.complaints[len(before) :])
    browser.complaints[:] = before


PAGES: Final[tuple[Visit, ...]] = (pipeline, groups, group, dead_letter, edit, replay, sign_in_page, refused)
