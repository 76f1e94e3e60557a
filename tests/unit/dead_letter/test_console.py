"""The console's pages and forms over HTTP: what each shows, who may act, and what a hostile value comes to."""

import base64
import hashlib
import hmac
import re
import threading
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from datetime import timedelta
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.__main__ import SERVICES as SERVICES_LAUNCHED
from services.dead_letter.app.replay.replay_tools import ReplayTools
from services.dead_letter.core.attention import Launcher, command, needs_attention
from services.dead_letter.core.guidance import GUIDANCE
from services.dead_letter.core.selection import Selection
from services.dead_letter.core.statuses import Silence, WatchedService
from services.dead_letter.settings import CommandSettings
from services.dead_letter.web.callers import Callers, read_tokens
from services.dead_letter.web.console import routes
from services.dead_letter.web.console.formats import duration, visible
from services.dead_letter.web.console.visitors import LASTS
from services.dead_letter.wiring.connections import known_launcher
from shared.contracts.dead_letter import DeadLetter
from shared.contracts.errors import MisconfiguredError
from shared.contracts.reasons import Reason
from tests.builders import a_change
from tests.fakes.status_pages import FakeStatusPages
from tests.unit.dead_letter.asgi import TOKEN, TOKENS, Answered, Api, with_dead_letters
from tests.unit.dead_letter.dead_letters import JUNK, NOW, ONE, TWO, a_dead_letter, at, junk
from tests.worlds.console import CONSUMER, FLIGHTS, HOSTILE, SERVICES, TRAFFIC, Visit, statuses, text_of, watching

DEAD_LETTER = f"/dead-letters/{ONE.identity}"
ACTIONS = (
    "/dead-letters/discard",
    "/dead-letters/restore",
    "/dead-letters/replays",
    f"{DEAD_LETTER}/edit",
    f"{DEAD_LETTER}/values",
)


@pytest.fixture
def api() -> Api:
    return with_dead_letters(watching(FakeStatusPages(statuses(at(NOW)))))


@pytest.fixture
def ada(api: Api) -> Visit:
    """Somebody who has signed in."""
    visit = Visit(api)
    assert visit.sign_in().status == 200
    return visit


def group_of(api: Api, dead_letter: DeadLetter) -> str:
    return str(api.get(f"dead-letters/{dead_letter.identity}").json["group"])


def state_of(api: Api, dead_letter: DeadLetter) -> str:
    return api.world.stored(dead_letter.identity).state.value


def test_the_pipeline_begins_with_what_needs_attention_and_the_command_for_it(api: Api) -> None:
    page = text_of(Visit(api).get("/"))

    assert page.index("5 things need attention") < page.index("Sources") < page.index("Tables")
    for wanted in (
        "Act now consumer : table flights is deferred since just now",
        "grant bigquery.tables.updateData on table flights to the consumer",
        "Act now flights : table airports is pending resync",
        "./millrace spanner-reader snapshot airports Copy",
        "Act now orders : refuses connections http://10.0.0.4:8080/status cannot be asked: ConnectionRefusedError",
        "curl --max-time 5 http://10.0.0.4:8080/readyz Copy",
        "Look soon dead letters : 1 message that is no change batch since 3 h ago",
        "Look soon dead letters : 2 open dead letters since 1 h ago",
        "flights ● reading 2.5 s 2026-11-21 13:00:00 UTC 3 running, 12 finished",
        "traffic ● reading 0.8 s",
        "4 tables, 1 in trouble",
        "flights ■ deferred 0.4 s 1.9 s just now",
    ):
        assert wanted in page
    assert page.index("flights ■ deferred") < page.index("airlines ● running"), "trouble comes first"


def test_a_lag_that_falls_in_jumps_falls_though_it_grows_in_between() -> None:
    pages, lag = FakeStatusPages(statuses(at(NOW), lag=5000.0)), 5000.0
    api = watching(pages)
    for step in (*(-40.0, 3.0, 3.0) * 4, -40.0, 3.0, 3.0, 3.0):
        lag += step
        pages.documents = statuses(at(NOW), lag=lag)
        api.tools.console.poller.poll("flights")
    page = text_of(Visit(api).get("/"))
    assert "flights : is far behind, and catches up" in page
    assert "falling" in page


def test_rates_and_a_growing_lag_are_by_the_last_two_polls() -> None:
    pages = FakeStatusPages(statuses(at(NOW)))
    api = watching(pages)
    assert "unknown rows written a second" in text_of(Visit(api).get("/"))
    pages.documents = statuses(at(NOW), lag=40.0)
    pages.documents[CONSUMER]["changes"]["written"] += 600
    api.world.clock.move(timedelta(seconds=5))
    for name in SERVICES:
        api.tools.console.poller.poll(name)
    page = text_of(Visit(api).get("/"))
    assert "120 rows written a second" in page
    assert "flights ● reading 40 s rising" in page


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (
            b"<html>not found</html>",
            "consumer : answers without a status the answer is not a status of a reader",
        ),
        (b'{"service": "cdc_consumer", "tables": 5}', "the answer is not a status"),
        (b'{"service": "dead_letter"}', "the answer is not a status"),
        (b"[" * 100_000, "the answer is not a status"),
        (b"\xff", "the answer is not a status"),
        ({"service": "cdc_consumer", "state": "makes no progress"}, "consumer : makes no progress"),
        ({"service": "cdc_consumer", "labels": {"error": "no right to list"}}, "no right to list"),
        ({"service": "spanner_reader", "state": "paused"}, "consumer : is paused"),
        ({"service": "spanner_reader", "state": "reading", "lag_seconds": 4000.0}, "consumer : is far behind"),
        ({"service": "bigtable_reader", "low_watermark_stalled_seconds": 300.0}, "low watermark that stands still"),
        ({"service": "spanner_reader", "paused_tables": [{"table": "t"}]}, "./millrace spanner-reader resume t"),
    ],
)
def test_whatever_a_service_answers_the_page_is_there_and_reports_so(document: Any, message: str) -> None:
    page = Visit(watching(FakeStatusPages({CONSUMER: document}))).get("/")
    assert page.status == 200
    assert message in text_of(page)


def test_a_service_that_answers_nothing_keeps_its_last_status_marked_with_its_age() -> None:
    pages = FakeStatusPages(statuses(at(NOW)))
    api = watching(pages)
    del pages.documents[FLIGHTS]
    pages.hanging = {CONSUMER}
    pages.given_up.set()
    api.world.clock.move(timedelta(minutes=7))
    for name in SERVICES:
        api.tools.console.poller.poll(name)
    page = text_of(Visit(api).get("/"))

    assert "Act now consumer : hangs since 7 min ago (2026-11-21 13:00:00 UTC) http://10.0.0.1:8080/readyz" in page
    assert "Do: its process is there and does nothing: inspect it with ps -o pid,stat -p PID . T is" in page
    assert "Act now flights : refuses connections since 7 min ago" in page
    assert "Do: no process listens there: start it" in page
    assert "flights as 7 min ago , by its last answer ■ refuses connections 2.5 s" in page
    assert "consumer hangs: all of this is from its last answer, 7 min ago ." in page
    assert "■ hangs unknown rows written a second 4 tables, 1 in trouble" in page
    assert "flights ■ deferred 0.4 s 1.9 s" in page
    assert "consumer ■ hangs consumer http://10.0.0.1:8080 7 min ago" in page
    assert "orders ■ refuses connections unknown http://10.0.0.4:8080 -" in page


def test_a_service_that_is_not_ready_is_shown_with_its_reasons() -> None:
    pages = FakeStatusPages(statuses(at(NOW), lag=4000.0), obstacles={FLIGHTS: "Spanner is away"})
    page = text_of(Visit(watching(pages)).get("/"))
    assert "flights : is not ready since just now" in page
    assert "(2026-11-21 13:00:00 UTC) Spanner is away Do:" in page
    assert "is far behind" not in page, "one cause is one item, and more readers would not help"
    assert "flights ■ not ready" in page
    assert "./millrace spanner-reader doctor" in page


def test_commands_are_those_of_the_launcher_in_a_clone_and_of_the_image_in_a_container() -> None:
    pages = FakeStatusPages(statuses(at(NOW)))
    clone, image = watching(pages), watching(pages, launcher=Launcher(in_clone=False))
    in_clone, in_image = (text_of(Visit(api).get("/")) for api in (clone, image))
    assert "./millrace spanner-reader snapshot airports Copy" in in_clone
    assert "the reader says: ./millrace spanner-reader snapshot airports brings all rows as they are now" in in_clone
    assert "python -m" not in in_clone
    assert "UPDATE `airports` SET `city` = `city` WHERE TRUE" in in_clone, "SQL keeps its quotes"
    assert "`" not in in_clone.replace("`city`", "").replace("`airports`", "")
    assert "Commands run in the root of the clone" in in_clone
    assert "python -m services.spanner_reader snapshot airports Copy" in in_image
    assert "the reader says: python -m services.spanner_reader snapshot airports brings all rows" in in_image
    assert "Commands run in the container of that service" in in_image
    assert "millrace spanner-reader" not in in_image


@pytest.mark.parametrize("name", SERVICES_LAUNCHED)
def test_an_image_is_given_the_module_that_the_launcher_starts(name: str) -> None:
    module = SERVICES_LAUNCHED[name].module
    assert Launcher(in_clone=False).command(name, "doctor") == f"python -m {module} doctor"


def test_where_the_settings_of_services_are_known_a_command_loads_them_and_what_has_ended_shows_its_log() -> None:
    pages, launcher = FakeStatusPages(statuses(at(NOW))), Launcher(directory="it's here/up")
    page = text_of(Visit(with_dead_letters(watching(pages, launcher=launcher))).get("/"))
    loads = "(. 'it'\"'\"'s here/up/"
    assert f"{loads}flights.env'; ./millrace spanner-reader snapshot airports) Copy" in page
    assert f"{loads}dead_letter.env'; ./millrace dead-letters discard --reason undecodable --why" in page
    assert "each loads the settings that it needs" in page
    assert launcher.log_of("flights") == "tail -n 20 'it'\"'\"'s here/up/flights.log'"

    silent = needs_attention([unavailable(Silence.REFUSES), unavailable(Silence.HANGS)], None, launcher)
    assert [item.command for item in silent] == [
        launcher.log_of("flights"),
        "curl --max-time 5 http://10.0.0.1:1/readyz",
    ]
    (without,) = needs_attention([unavailable(Silence.REFUSES)], None, Launcher())
    assert without.command == "curl --max-time 5 http://10.0.0.1:1/readyz"


def unavailable(silence: Silence) -> WatchedService:
    return WatchedService(name="flights", address="http://10.0.0.1:1", polled_at=NOW, silence=silence)


def test_this_clone_is_known_as_one() -> None:
    assert known_launcher(CommandSettings()).in_clone


def test_without_services_the_page_says_how_to_watch_them(api: Api) -> None:
    page = text_of(Visit(with_dead_letters(Api())).get("/"))
    assert "CONSOLE_SERVICES" in page
    assert "2 things need attention - Pipeline" in page
    assert "Nothing needs attention" in text_of(Visit(Api()).get("/"))


def test_groups_have_counts_times_a_sparkline_and_what_to_do(api: Api) -> None:
    page = Visit(api).get("/dead-letters")
    read = text_of(page)

    assert "value does not fit column seats of type INT64: not a whole number Correct the row at its source" in read
    assert "schema conflict" in read
    assert "3 h ago" in read
    assert page.body.count(b'aria-label="1 failed in the last 24 hours, 1 at most in half an hour') == 3
    assert b"1 in the last hour" in page.body
    assert page.body.count(b"<rect") == 3
    assert "No dead letter is open" in text_of(Visit(Api()).get("/dead-letters"))


def test_a_group_lists_its_dead_letters_page_by_page(api: Api) -> None:
    api.world.keep(*(a_dead_letter(a_change(number)) for number in range(100, 160)))
    visit, path = Visit(api), f"/dead-letters/groups/{group_of(api, ONE)}"
    first = visit.get(path)
    second = visit.press(first, "Next page")
    shown = [set(re.findall(rb'href="/dead-letters/([0-9a-f]{32})"', page.body)) for page in (first, second)]
    assert ([len(one) for one in shown], shown[0] & shown[1]) == ([50, 11], set())
    assert ("To the beginning" in text_of(first), "Next page" in text_of(second)) == (False, False)
    assert visit.press(second, "To the beginning").body == first.body
    assert visit.get(path, after="no").status == 404


def test_a_dead_letter_is_masked_until_a_named_visitor_asks(api: Api, ada: Visit) -> None:
    masked = ada.get(DEAD_LETTER)
    assert b"Ada" not in masked.body
    assert b"&lt;string of 3&gt;" in masked.body
    assert api.actions(ONE.identity) == [("arrived", "collector")]

    shown = ada.press(masked, "Show values")
    assert b"&#34;Ada&#34;" in shown.body
    assert api.actions(ONE.identity)[1:] == [("values_shown", "ada")]
    assert "ada values shown" in text_of(shown)


@pytest.mark.parametrize("of_its_group", [False, True])
def test_a_dry_run_sends_nothing_and_its_button_sends_what_it_has_shown(
    api: Api, ada: Visit, of_its_group: bool
) -> None:
    another = a_dead_letter(a_change(3))
    api.world.keep(another)
    meant = [ONE, another] if of_its_group else [ONE]
    sends = f"Send {len(meant)} dead letter{'s' * of_its_group}"
    dry = ada.press(ada.get(f"/dead-letters/groups/{group_of(api, ONE)}" if of_its_group else DEAD_LETTER), "Dry run")
    assert f"{len(meant)} of {len(meant)} would be sent. Nothing was sent." in text_of(dry)
    assert (api.world.publisher.published, state_of(api, ONE)) == ([], "open")

    done = ada.press(dry, sends)
    assert f"{len(meant)} sent." in text_of(done)
    assert [one.identity for one in api.world.publisher.published] == [one.identity for one in meant]
    assert api.actions(ONE.identity)[1:] == [("replayed", "ada")]
    assert (state_of(api, TWO), state_of(api, JUNK)) == ("open", "open"), "nothing else is meant"
    back = ada.press(done, f"Back to the dead letter{'s' * of_its_group}")
    assert "replayed" in text_of(back)


def test_a_replay_that_goes_on_shows_its_progress_and_can_be_stopped(api: Api, ada: Visit) -> None:
    more = [a_dead_letter(a_change(number)) for number in range(100, 160)]
    api.world.keep(*more)
    reached, go_on = threading.Event(), threading.Event()

    def waits(_dead_letters: object) -> None:
        reached.set()
        assert go_on.wait(30)

    api.world.publisher.then = waits
    shown = ada.submit("/dead-letters/replays", group=group_of(api, ONE), execute="yes")
    assert reached.wait(30)
    assert 'data-refresh="1"' in shown.body.decode()
    assert "61 of 61 dead letters taken, 0 sent." in text_of(shown)
    assert "What is not sent stays open." in text_of(ada.press(shown, "Stop"))
    (run,) = (run for run in threading.enumerate() if run.name.startswith("replay-"))
    go_on.set()
    run.join(30)

    stopped = ada.press(shown, "Refresh")
    over = text_of(stopped)
    assert "20 sent, 41 stay open." in over
    assert "It was stopped: a new replay goes on with the rest." in over
    assert len(api.world.publisher.published) == 20
    dry = ada.press(ada.press(stopped, "Back to the dead letters"), "Dry run")
    assert "41 of 41 would be sent." in text_of(dry)
    assert "not known here" in text_of(ada.get("/dead-letters/replays/000000000000"))


def test_a_replay_that_fails_reports_why_and_lets_the_next_one_begin(api: Api, ada: Visit) -> None:
    failing = with_dead_letters(Api(replay=ReplayTools(publisher=_refusing, mirrors=nullcontext)))
    visit = Visit(failing)
    visit.sign_in()
    for _again in range(6):  # more than may be under way at once
        page = text_of(visit.submit("/dead-letters/replays", dead_letter=ONE.identity, execute="yes"))
        assert "It has ended: set TOPIC" in page


def _refusing(_stop: object) -> Any:
    raise MisconfiguredError("no-topic", "set TOPIC: the topic of the change batches")


def test_an_edit_shows_its_difference_first_and_is_kept_with_a_reason(api: Api, ada: Visit) -> None:
    begun = ada.press(ada.get(DEAD_LETTER), "Edit the row")
    assert b"&#34;seats&#34;: 3" in begun.body
    assert api.actions(ONE.identity)[-1] == ("values_shown", "ada")
    row = '{"name": "Ada", "seats": 4}'.replace("}", "\r\n}")  # as a browser sends lines
    preview = ada.press(begun, "Show the difference", row=row)
    assert b'<span class="removed">-  &#34;seats&#34;: 3</span>' in preview.body
    assert b'<span class="added">+  &#34;seats&#34;: 4</span>' in preview.body
    assert state_of(api, ONE) == "open"

    without = ada.press(preview, "Save the edited copy", row=row, why=" ")
    assert (without.status, "Say what was wrong" in text_of(without)) == (422, True)
    saved = ada.press(preview, "Save the edited copy", row=row, why="typed wrong")
    assert "1 dead letter edited: this copy takes its place" in text_of(saved)
    assert (state_of(api, ONE), api.actions(ONE.identity)[-1]) == ("superseded", ("edited", "ada"))
    assert f"Edited copy of {ONE.identity[:8]}" in text_of(saved)


def test_an_edit_that_cannot_be_is_refused_with_the_reason(ada: Visit) -> None:
    page = ada.submit(f"{DEAD_LETTER}/edit", row='{"name": "Ada", "seats": 3, "id": "9"}')
    assert (page.status, "is in the primary key" in text_of(page)) == (409, True)


def test_dead_letters_are_discarded_for_a_reason_and_restored(api: Api, ada: Visit) -> None:
    group = ada.get(f"/dead-letters/groups/{group_of(api, TWO)}")
    assert re.search(rb'<textarea id="discard-why"[^>]* required>', group.body)
    assert ada.press(group, "Discard 1 open").status == 422
    assert state_of(api, TWO) == "open"
    done = ada.press(group, "Discard 1 open", why="a rehearsal's")
    assert "1 dead letter discarded: restore opens them again." in text_of(done)
    assert (state_of(api, TWO), api.actions(TWO.identity)[-1]) == ("discarded", ("discarded", "ada"))
    again = ada.press(ada.get(f"/dead-letters/{TWO.identity}"), "Open 1 again")
    assert "1 dead letter open again." in text_of(again)
    assert state_of(api, TWO) == "open"


@pytest.mark.parametrize("path", ACTIONS)
def test_a_form_without_a_dead_letter_or_of_none_changes_nothing(api: Api, ada: Visit, path: str) -> None:
    if path.endswith(("edit", "values")):
        assert ada.submit(path.replace(ONE.identity, "0" * 32)).status == 404
    else:
        assert ada.submit(path, why="x").status == 422
        assert ada.submit(path, why="x", dead_letter="0" * 32).status == 404
    assert {state_of(api, one) for one in (ONE, TWO, JUNK)} == {"open"}


@pytest.mark.parametrize("path", ACTIONS)
def test_no_visitor_acts_without_a_name(api: Api, path: str) -> None:
    visit = Visit(api)
    page = visit.submit(path, dead_letter=ONE.identity, why="x", execute="yes")
    assert (page.status, "sign in with a token" in text_of(page)) == (401, True)
    shown = visit.get(DEAD_LETTER)
    assert "To act on dead letters, or to see values, sign in" in text_of(shown)
    assert b"<form" not in shown.body
    assert (api.actions(ONE.identity), api.world.publisher.published) == ([("arrived", "collector")], [])


@pytest.mark.parametrize("path", ACTIONS)
@pytest.mark.parametrize(
    "headers",
    [
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "none"},
    ],
)
def test_a_form_of_another_site_is_refused(api: Api, ada: Visit, path: str, headers: Mapping[str, str]) -> None:
    form = ada.form()
    page = ada.post(path, {"form": form, "dead_letter": ONE.identity, "why": "x", "execute": "yes"}, headers)
    assert (page.status, "comes from another page" in text_of(page)) == (403, True)
    assert api.actions(ONE.identity) == [("arrived", "collector")]


@pytest.mark.parametrize("form", [{}, {"form": ""}, {"form": "0" * 64}])
def test_a_form_without_the_value_of_this_visit_is_refused(api: Api, ada: Visit, form: Mapping[str, str]) -> None:
    page = ada.post("/dead-letters/discard", {"dead_letter": ONE.identity, "why": "x", **form})
    assert (page.status, "earlier visit" in text_of(page)) == (403, True)
    assert state_of(api, ONE) == "open"


@pytest.mark.parametrize(
    ("origin", "status"),
    [(None, 403), ("null", 403), ("https://evil.example", 403), ("http://[", 403), ("http://127.0.0.1:8083", 303)],
)
def test_a_browser_that_sends_no_site_is_known_by_its_origin(ada: Visit, origin: str | None, status: int) -> None:
    fields = {"dead_letter": ONE.identity, "form": ada.form(), "why": "x"}
    answered = ada.post("/dead-letters/discard", fields, {"sec-fetch-site": None, "origin": origin})
    assert answered.status == status


def test_a_value_of_another_visitor_is_worth_nothing(api: Api, ada: Visit) -> None:
    other = Visit(api)
    fields = {"form": ada.form(), "dead_letter": ONE.identity, "why": "x"}
    assert other.post("/dead-letters/discard", fields).status == 401
    other.sign_in()
    assert other.post("/dead-letters/discard", fields).status == 403


def test_of_a_form_of_somebody_who_has_not_signed_in_little_is_read(api: Api) -> None:
    fields = {"name": "ada", "token": "x" * 100_000}
    assert Visit(api).post("/sign-in", fields).status == 413
    assert Visit(api).post("/sign-in", fields, {"sec-fetch-site": "cross-site"}).status == 403


@given(st.dictionaries(st.text(), st.text(), max_size=5), st.integers(3, 9))
def test_a_form_is_read_as_a_browser_writes_it(fields: dict[str, str], at_a_time: int) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(routes, "_AT_A_TIME", at_a_time)
        assert routes.form_fields(urlencode(fields).encode()) == fields


@pytest.mark.parametrize("seal", ["", "x", "YWRh.99999999999.0", "YWRh.1.2.3", "é.1.é", "%00.9.9", "YWRh.9e9.00"])
def test_a_cookie_that_was_made_up_signs_no_visitor_in(api: Api, seal: str) -> None:
    visit = Visit(api, {"millrace_signed_in": seal})
    assert "Sign in" in text_of(visit.get("/"))
    assert b"Signed in as" not in visit.get("/").body


def test_who_has_a_token_cannot_make_a_cookie_of_another_name(api: Api) -> None:
    name, until = base64.urlsafe_b64encode(b"bob").decode(), 99_999_999_999
    digest = hashlib.sha256(TOKEN.encode()).digest()
    seal = hmac.new(digest, f"console {name} {until}".encode(), hashlib.sha256).hexdigest()
    visit = Visit(api, {"millrace_signed_in": f"{name}.{until}.{seal}"})
    assert b"Signed in as" not in visit.get("/").body
    assert visit.submit("/dead-letters/discard", dead_letter=ONE.identity, why="as bob").status == 401
    assert api.actions(ONE.identity) == [("arrived", "collector")]


def test_signing_in_ends_with_the_token_the_time_or_the_person(api: Api) -> None:
    tokens = [*TOKENS, *read_tokens("bob another-token-of-some-length", "the test")]
    api = with_dead_letters(Api(Callers(tokens=lambda: tokens, open_reads=False)))
    visit = Visit(api)
    assert visit.get("/").status == 401
    assert visit.sign_in("wrong-token-of-some-length").status == 401
    assert "Signed in as ada" in text_of(visit.sign_in())
    cookie = visit.cookies["millrace_signed_in"]
    assert TOKEN not in cookie

    tokens.pop(0)
    assert visit.get("/").status == 401, "her token is taken back"
    tokens[:] = TOKENS
    assert visit.get("/").status == 200
    api.world.clock.move(timedelta(seconds=LASTS))
    assert visit.get("/").status == 401, "her time is over"
    visit.sign_in()
    visit.press(visit.get(DEAD_LETTER), "Sign out")
    assert visit.get("/").status == 401


def test_the_api_takes_no_cookie(api: Api, ada: Visit) -> None:
    cookies = "; ".join(f"{name}={value}" for name, value in ada.cookies.items())
    body = {"dead_letters": {"everything": True}, "why": "x"}
    assert api.post("discard", body, token=None, headers={"cookie": cookies}).status == 401


def test_cookies_are_for_no_script_no_other_site_and_over_tls_but_on_this_machine(api: Api) -> None:
    given = Visit(api).get("/sign-in").headers["set-cookie"].lower()
    assert "httponly" in given
    assert "samesite=strict" in given
    assert "secure" not in given
    assert "secure" in Visit(api, host="console.example").get("/sign-in").headers["set-cookie"].lower()


def test_reads_are_open_on_this_machine_alone() -> None:
    callers = Callers(tokens=lambda: TOKENS, open_reads=True)
    assert Visit(Api(callers)).get("/dead-letters").status == 200
    assert Visit(Api(callers), host="evil.example").get("/dead-letters").status == 401
    refused = Visit(Api(Callers(open_reads=False))).get("/")
    assert (refused.status, "set API_TOKEN or API_TOKEN_FILE" in text_of(refused)) == (403, True)


def test_every_page_forbids_the_browser_all_that_is_not_ours(api: Api, ada: Visit) -> None:
    for path in ("/", "/dead-letters", DEAD_LETTER, "/sign-in", "/dead-letters/no-such-dead-letter"):
        page = ada.get(path)
        policy = page.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
        assert "frame-ancestors 'none'" in policy
        assert "form-action 'self'" in policy
        assert (page.headers["cache-control"], page.headers["x-content-type-options"]) == ("no-store", "nosniff")
    for asset, kind in (("console.css", "text/css"), ("console.js", "text/javascript"), ("icon.svg", "image/svg+xml")):
        answered = ada.get(f"/assets/{asset}")
        assert (answered.status, answered.headers["content-type"].partition(";")[0]) == (200, kind)
        assert b"http:" not in answered.body.replace(b"http://www.w3.org/2000/svg", b"")
    assert ada.get("/assets/..%2fpages.py").status == 404


class _Parsed(HTMLParser):
    """What a browser makes of a page: its tags, and the attributes that could run something or load it."""

    def __init__(self, page: bytes) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.risky: list[str] = []
        self.loaded: list[str] = []
        self.feed(page.decode())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.risky += [name for name, _value in attrs if name.startswith("on") or name == "style"]
        self.loaded += [str(value) for name, value in attrs if name in ("src", "href", "action", "formaction")]


def hostile_documents() -> dict[str, Any]:
    """Return statuses that have markup wherever a text may be, names of members too."""

    def spoiled(value: Any, name: str = "") -> Any:
        match value:
            case dict():
                names = {"partitions": HOSTILE} if name == "partitions" else {}
                return {names.get(name, each): spoiled(inner, each) for each, inner in value.items()}
            case list():
                return [spoiled(inner) for inner in value]
            case str() if name != "service":
                return HOSTILE
            case _:
                return value

    return {address: spoiled(document) for address, document in statuses(at(NOW)).items()}


def hostile_dead_letters() -> list[DeadLetter]:
    change = a_change(1, name=HOSTILE, seats=3)
    bad: dict[str, Any] = {
        "table": HOSTILE,
        "key": HOSTILE,
        "detail": HOSTILE,
        "failed_in": HOSTILE,
        "ordering_key": HOSTILE,
        "sequence": HOSTILE,
        "commit_timestamp": HOSTILE,
        "attributes": {HOSTILE: HOSTILE, "table": HOSTILE, "source": HOSTILE},
    }
    return [
        a_dead_letter(change, **bad),
        junk(HOSTILE.encode(), **bad | {"reason": Reason.UNEXPLAINED}),
        junk(b'{"' + b"<img src=x onerror=alert(1)>" + b'": ["<script>alert(1)</script>"]}', **bad),
    ]


def hostile_pages() -> Mapping[str, Answered]:
    """Return every page, over services and dead letters that are as hostile as can be."""
    pages = FakeStatusPages(hostile_documents(), obstacles={FLIGHTS: HOSTILE, TRAFFIC: HOSTILE})
    api = watching(pages, callers=Callers(tokens=lambda: [replace(TOKENS[0], name=HOSTILE)], open_reads=True))
    one, *others = api.world.keep(*hostile_dead_letters())
    visit = Visit(api)
    found = {"signed in": visit.sign_in()}
    found |= {path: visit.get(path) for path in ("/", "/dead-letters")}
    found["any state"] = visit.get("/dead-letters", state="any")
    for dead_letter in (one, *others):
        found[f"{dead_letter} masked"] = visit.get(f"/dead-letters/{dead_letter}")
        found[f"{dead_letter} shown"] = visit.submit(f"/dead-letters/{dead_letter}/values")
        group = str(api.get(f"dead-letters/{dead_letter}").json["group"])
        found[f"{dead_letter} group"] = visit.get(f"/dead-letters/groups/{group}")
        found[f"{dead_letter} dry"] = visit.submit("/dead-letters/replays", dead_letter=dead_letter)
    found["edit"] = visit.submit(f"/dead-letters/{one}/edit")
    row = '{"name": "' + HOSTILE.replace('"', "'").replace("\x00", "").replace("\x1b", "") + '"}'
    found["difference"] = visit.submit(f"/dead-letters/{one}/edit", row=row, why=HOSTILE)
    found["saved"] = visit.submit(f"/dead-letters/{one}/edit", row=row, why=HOSTILE, save="yes")
    found["superseded"] = visit.get(f"/dead-letters/{one}")
    found["discarded"] = visit.submit("/dead-letters/discard", dead_letter=others[0], why=HOSTILE)
    for path in (f"/dead-letters/{HOSTILE}", f"/dead-letters/groups/{HOSTILE}", f"/dead-letters/replays/{HOSTILE}"):
        found[f"none {path[:24]}"] = visit.get(path.replace("/script", "script"))
    found["a flash"] = visit.get(f"/dead-letters/{one}", done=HOSTILE, count=HOSTILE)
    return found


def test_hostile_values_are_harmless_wherever_they_are_shown() -> None:
    pages = hostile_pages()

    plain = _Parsed(Visit(with_dead_letters(Api())).get("/dead-letters").body)
    for name, page in pages.items():
        assert page.status in (200, 404), name
        parsed = _Parsed(page.body)
        assert parsed.risky == [], name
        assert parsed.tags.count("script") == 1, name
        assert not {"img", "iframe", "object", "embed", "base"} & set(parsed.tags), name
        assert {one[:1] for one in parsed.loaded} <= {"/", "#"}, name
        assert not any(one.startswith("//") for one in parsed.loaded), name
        for unseen in ("\u202e", "\x1b", "\x00"):
            edited = re.sub(r"<textarea.*?</textarea>", "", page.body.decode(), flags=re.DOTALL)
            assert unseen not in edited, name
        assert b"autofocus 49" not in page.body, f"{name}: a template in a template"
    assert plain.tags.count("script") == 1
    assert "characters that are not seen" in text_of(pages["difference"])
    text = text_of(pages["/"])
    assert "\\u202etxt.exe\\u0000\\u001b[31m" in text
    assert "onerror=alert(1)" in text, "it is shown, as a text"


def test_a_command_holds_a_name_as_one_word_or_is_left_out() -> None:
    assert command("millrace", "x", name="a b; rm -rf ~") == "millrace x 'a b; rm -rf ~'"
    assert command("millrace", "x", name="$(reboot)") == "millrace x '$(reboot)'"
    for name in ("--execute", "-h", "a\nb", "a\x1bb", "a\u202eb"):
        assert command("millrace", "x", name=name) is None
    page = Visit(watching(FakeStatusPages(hostile_documents()))).get("/").body.decode()
    copied = re.findall(r'data-copy="([^"]*)"', page)
    assert copied
    assert not [one for one in copied if "onerror" in one], "a name that cannot be shown is not handed out to be run"


def test_a_dead_letter_and_its_group_name_the_code_and_where_it_is_explained() -> None:
    api = with_dead_letters(watching(FakeStatusPages(statuses(at(NOW)))))
    (line, *_others) = api.tools.store.find(Selection(reasons=frozenset({Reason.UNDECODABLE})), limit=1).dead_letters
    for path in (f"/dead-letters/{line.id}", f"/dead-letters/groups/{line.group}"):
        page = text_of(Visit(api).get(path))
        assert "Code undecodable , explained in docs/reference/dead-letters.md#undecodable" in page


def test_each_reason_has_its_guidance() -> None:
    assert set(GUIDANCE) == set(Reason)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0 s"),
        (9.96, "10.0 s"),
        (59.0, "59 s"),
        (61.0, "1 min 1 s"),
        (3_600.0, "1 h"),
        (90_061.0, "1 d 1 h"),
        (-90.0, "-1 min 30 s"),
        (None, "unknown"),
    ],
)
def test_durations_are_in_their_two_largest_units(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


def test_unseen_characters_are_shown_and_others_stay() -> None:
    assert visible("Zoë 名前\n\t{}") == "Zoë 名前\n\t{}"
    assert visible("a\u200bb\ud800\U000e0041") == "a\\u200bb\\ud800\\U000e0041"
