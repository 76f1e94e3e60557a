"""The HTTP API: what it answers, what it does, who may, and what it refuses with which message."""

import json
from datetime import timedelta
from typing import Any

import pytest

from services.dead_letter.core.letters import LetterId, State
from services.dead_letter.core.selection import Selection
from services.dead_letter.web.callers import ASSERTION, UNNAMED, Callers, read_tokens
from services.dead_letter.web.gate import LARGEST_BODY
from shared.contracts.change_batch import decode_batch
from shared.contracts.dead_letter import DeadLetter
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.contracts.reasons import Reason
from tests.builders import a_change, a_header
from tests.unit.dead_letter.asgi import TOKEN, TOKENS, Api
from tests.unit.dead_letter.letters import HOUR, a_letter, at, junk

ONE = a_letter(a_change(1, sequence=10, name="Ada", seats=3))
TWO = a_letter(a_change(2, sequence=20), header=a_header("pilots"), reason=Reason.SCHEMA_CONFLICT, failed_at=ONE.failed_at - HOUR)  # fmt: skip # noqa: E501
JUNK = junk(failed_at=ONE.failed_at - 3 * HOUR)
WRITES = ("discard", "restore", f"letters/{ONE.identity}/edit", "replays")
READS = ("letters", f"letters/{ONE.identity}", f"letters/{ONE.identity}/trail", "groups", "stats")
EVERYTHING = {"letters": {"everything": True}}


@pytest.fixture
def api() -> Api:
    return with_letters(Api())


def with_letters(api: Api) -> Api:
    api.world.keep(ONE, TWO, JUNK)
    return api


def ids(api: Api, **filters: Any) -> set[str]:
    answered = api.get("letters", **filters)
    assert answered.status == 200, answered.message
    return {one["id"] for one in answered.json["letters"]}


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        ({}, (ONE, TWO, JUNK)),
        ({"id": ONE.identity[:9].upper()}, (ONE,)),
        ({"id": [ONE.identity, TWO.identity]}, (ONE, TWO)),
        ({"table": "planes"}, (ONE,)),
        ({"table": ["planes", "pilots"]}, (ONE, TWO)),
        ({"reason": "undecodable"}, (JUNK,)),
        ({"key": "[2]"}, (TWO,)),
        ({"state": "replayed"}, ()),
        ({"state": "any"}, (ONE, TWO, JUNK)),
        ({"since": at(ONE.failed_at)}, (ONE,)),
        ({"since": "30m"}, (ONE,)),
        ({"until": "90m"}, (JUNK,)),
        ({"sequence_from": "B"}, (TWO,)),
        ({"sequence_until": "B"}, (ONE,)),
        ({"table": "planes", "reason": "undecodable"}, ()),
    ],
)
def test_letters_are_listed_by_every_filter_of_the_commands(
    api: Api, filters: dict[str, Any], found: tuple[DeadLetter, ...]
) -> None:
    assert ids(api, **filters) == {one.identity for one in found}


def test_a_list_comes_in_pages_that_neither_repeat_nor_leave_out(api: Api) -> None:
    seen: list[str] = []
    after: dict[str, str] = {}
    for _page in range(3):
        page = api.get("letters", limit=1, **after).json
        assert page["matched"] == 3
        seen += [one["id"] for one in page["letters"]]
        after = {"after": page["after"]}

    assert after == {"after": None}
    assert seen == [ONE.identity, TWO.identity, JUNK.identity]


def test_a_letter_is_shown_masked_and_with_values_to_who_is_named_in_the_trail(api: Api) -> None:
    masked = api.get(f"letters/{ONE.identity[:8]}", token=None)
    assert (masked.status, masked.json["masked"]) == (200, True)
    assert b"Ada" not in masked.body
    assert api.actions(ONE.identity) == [("arrived", "collector")]

    shown = api.get(f"letters/{ONE.identity}", values="true")
    assert b'"Ada"' in shown.body
    assert api.actions(ONE.identity)[1:] == [("values_shown", "ada")]
    assert shown.json["trail"][-1]["who"] == "ada"


@pytest.mark.parametrize("callers", [None, Callers(open_reads=True)])
def test_values_are_shown_to_nobody_without_a_name_and_nothing_is_written_then(callers: Callers | None) -> None:
    api = with_letters(Api(callers))
    answered = api.get(f"letters/{ONE.identity}", values="true", token=None)

    assert (answered.status, b"Ada" in answered.body) == (403 if callers else 401, False)
    assert ("API_TOKEN" if callers else "Authorization: Bearer") in answered.message
    assert api.actions(ONE.identity) == [("arrived", "collector")]


def test_digits_come_through_as_they_are_in_the_letter_and_in_an_edit(api: Api) -> None:
    exact = '{"price":0.12345678901234567890,"id_of":12345678901234567890123}'
    letter = a_letter(a_change(9), header=a_header())
    batch = decode_batch(letter.data)
    data = letter.data.replace(bytes(batch.rows[0]), exact.encode())
    (identity,) = api.world.keep(a_letter(a_change(9), data=data))
    assert exact.encode() in api.get(f"letters/{identity}", values="true").body.replace(b" ", b"")

    body = b'{"why": "too long", "set": {"price": 1.000000000000000000009}}'
    edited = api.post(f"letters/{identity}/edit", body)
    assert edited.status == 200, edited.message
    shown = api.get(f"letters/{edited.json['id']}", values="true").body
    assert b"1.000000000000000000009" in shown
    assert b"12345678901234567890123" in shown


def test_groups_numbers_and_trails(api: Api) -> None:
    groups = api.get("groups").json["groups"]
    assert sorted(one["reason"] for one in groups) == ["schema_conflict", "undecodable", "value_does_not_fit"]
    assert len(api.get("groups", table="planes").json["groups"]) == 1
    assert ids(api, group=groups[0]["id"]) == {groups[0]["sample"]}
    assert api.get("stats").json["open_by_table"] == {"planes": 1, "pilots": 1, "": 1}
    (arrived,) = api.get(f"letters/{ONE.identity}/trail").json["trail"]
    assert (arrived["action"], arrived["who"]) == ("arrived", "collector")


def test_letters_are_discarded_and_restored_by_somebody_and_for_a_reason(api: Api) -> None:
    discarded = api.post("discard", {"letters": {"table": ["planes"]}, "why": "not ours"})
    assert discarded.json == {"state": "discarded", "changed": 1, "matched": 1, "more": False}
    assert api.actions(ONE.identity)[1:] == [("discarded", "ada")]
    assert ids(api) == {TWO.identity, JUNK.identity}

    restored = api.post("restore", EVERYTHING)
    assert restored.json == {"state": "open", "changed": 1, "matched": 1, "more": False}
    assert api.world.states() == {State.OPEN: 3}


def test_a_request_changes_no_more_than_its_limit_and_says_that_there_is_more(api: Api) -> None:
    answers = [api.post("discard", EVERYTHING | {"why": "x", "limit": 2}).json for _again in range(2)]
    assert [(one["changed"], one["more"]) for one in answers] == [(2, True), (1, False)]


def test_an_edit_takes_the_letters_place(api: Api) -> None:
    answered = api.post(f"letters/{ONE.identity[:8]}/edit", {"why": "typed wrong", "set": {"seats": 4}})
    copy = api.world.store.get(LetterId(answered.json["id"]))

    assert copy is not None
    assert copy.edit_of == ONE.identity == answered.json["edit_of"]
    assert json.loads(bytes(decode_batch(copy.letter.data).rows[0])) == {"name": "Ada", "seats": 4}
    assert api.actions(ONE.identity)[1:] == [("edited", "ada")]
    again = api.post(f"letters/{ONE.identity}/edit", {"why": "x", "row": {"name": "Bob"}})
    assert (again.status, copy.id in again.message) == (409, True)


@pytest.mark.parametrize(
    ("letter", "body", "told"),
    [
        (ONE, {"set": {"seets": 4}}, "no column seets"),
        (ONE, {"set": {"id": 4}}, "primary key"),
        (ONE, {"row": {"name": "Ada", "seats": 3}}, "nothing is changed"),
        (JUNK, {"set": {"name": "x"}}, "cannot be read"),
    ],
)
def test_what_cannot_be_edited_so_says_what_can_be_done(api: Api, letter: DeadLetter, body: Any, told: str) -> None:
    answered = api.post(f"letters/{letter.identity}/edit", body | {"why": "x"})
    assert (answered.status, told in answered.message) == (409, True), answered.message


def test_a_replay_is_dry_until_it_is_executed_and_then_answers_at_its_end(api: Api) -> None:
    dry = api.post("replays", EVERYTHING).json
    assert (dry["executed"], dry["verdicts"]["send"], dry["sent"], dry["matched"]) == (False, 3, 0, 3)
    assert api.world.publisher.published == []

    limited = api.post("replays", EVERYTHING | {"execute": True, "limit": 1, "rate": 100}).json
    assert (limited["sent"], limited["left_open"], len(limited["letters"])) == (1, 0, 1)
    rest = api.post("replays", {"letters": {"id": [ONE.identity, TWO.identity]}, "execute": True}).json
    assert (rest["sent"], rest["mirrors_asked"], rest["stopped"]) == (2, True, False)
    assert api.world.states() == {State.REPLAYED: 3}
    assert api.actions(TWO.identity)[1:] == [("replayed", "ada")]


def test_a_replay_that_takes_too_long_ends_where_it_is_and_goes_on_when_asked_again() -> None:
    slow = with_letters(Api(longest=timedelta(milliseconds=50)))
    order = EVERYTHING | {"execute": True, "rate": 0.1}
    stopped = slow.post("replays", order).json
    assert (stopped["stopped"], stopped["sent"], stopped["left_open"]) == (True, 1, 2)
    assert all(one.claimed_by is None for one in slow.world.store.in_replay_order(Selection()))
    assert slow.post("replays", order).json["sent"] == 1


def test_a_replay_ends_when_the_service_is_asked_to_stop(api: Api) -> None:
    api.stop.request()
    stopped = api.post("replays", EVERYTHING | {"execute": True}).json
    assert (stopped["stopped"], stopped["sent"]) == (True, 0)


def test_more_replays_than_the_service_takes_at_once_are_told_to_come_again(api: Api) -> None:
    while api.tools.replays.acquire(blocking=False):
        pass
    answered = api.post("replays", EVERYTHING)
    assert (answered.status, answered.headers["retry-after"]) == (429, "5")


@pytest.mark.parametrize("path", WRITES)
def test_who_writes_brings_a_token_that_is_good(api: Api, path: str) -> None:
    for token in (None, "", "another-token-that-is-long-enough", TOKEN + "x"):
        answered = api.post(path, b"not even JSON", token=token)
        assert (answered.status, answered.headers["www-authenticate"][:6]) == (401, "Bearer")
        assert "Authorization: Bearer TOKEN" in answered.message
        assert TOKEN not in answered.message
    assert api.world.states() == {State.OPEN: 3}


@pytest.mark.parametrize("path", WRITES)
def test_where_no_token_is_set_nobody_writes_and_the_setting_is_named(path: str) -> None:
    answered = with_letters(Api(Callers(open_reads=True))).post(path, EVERYTHING)
    assert answered.status == 403
    for setting in ("API_TOKEN", "API_TOKEN_FILE", "IAP_AUDIENCE"):
        assert setting in answered.message


@pytest.mark.parametrize("path", READS)
def test_reads_are_open_to_this_machine_alone(path: str) -> None:
    api, closed = with_letters(Api()), with_letters(Api(Callers(tokens=TOKENS)))
    for host in ("127.0.0.1:8083", "localhost", "[::1]:8083", "[::1]"):
        assert api.get(path, token=None, host=host).status == 200
    assert api.get(path, token=None, host="evil.example:8083").status == 401
    assert api.get(path, host="evil.example").status == 200
    assert closed.get(path, token=None).status == 401
    assert closed.get(path).status == 200
    assert closed.get("openapi.json", token=None).status == 200


class Proxy:
    """An identity-aware proxy whose word is `ada's word`."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error

    def who(self, assertion: str) -> str:
        if self.error is not None:
            raise self.error
        if assertion != "ada's word":
            raise ValueError("expired")
        return "ada@example.com"


def test_the_proxys_word_names_who_writes() -> None:
    api = with_letters(Api(Callers(proxy=Proxy())))
    good, bad = {ASSERTION: "ada's word"}, {ASSERTION: "eve's word"}
    body = EVERYTHING | {"why": "x"}

    assert api.post("discard", body, headers=good, token=None).status == 200
    assert api.actions(ONE.identity)[1:] == [("discarded", "ada@example.com")]
    refused = api.post("restore", body, headers=bad, token=None)
    assert (refused.status, "expired" in refused.message) == (401, True)
    assert "eve" not in refused.message
    assert api.post("restore", body, token=None).status == 401
    away = Api(Callers(proxy=Proxy(TransientError("the keys cannot be had"))))
    assert away.get("stats", headers=good).status == 503


def test_a_header_of_a_proxy_that_nobody_set_up_means_nothing(api: Api) -> None:
    assert api.post("discard", EVERYTHING, headers={ASSERTION: "ada's word"}, token=None).status == 401


@pytest.mark.parametrize(
    ("path", "query", "told"),
    [
        ("letters", {"tabel": "x"}, "tabel: unknown here; known are id, group, table"),
        ("letters", {"access_token": TOKEN}, "access_token: unknown"),
        ("stats", {"limit": 3}, "known are none"),
        ("openapi.json", {"limit": 3}, "known are none"),
        ("letters", {"limit": 0}, "query.limit"),
        ("letters", {"limit": 501}, "query.limit"),
        ("letters", {"after": "1"}, "query.after"),
        ("letters", {"since": "yesterday"}, "write an age"),
        ("letters", {"since": "2026-02-30"}, "write an age"),
        ("letters", {"state": "closed"}, "query.state"),
        ("letters", {"reason": "bad"}, "query.reason"),
        ("letters", {"sequence_from": "x"}, "query.sequence_from"),
        ("letters", {"id": "abc"}, "query.id"),
        ("letters", {"table": "a\0"}, "query.table"),
        ("letters/zzzzzzzz", {}, "path.letter"),
        (f"letters/{ONE.identity}", {"values": "maybe"}, "query.values"),
    ],
)
def test_a_wrong_parameter_is_refused_by_its_name_and_its_value_is_not_said_again(
    api: Api, path: str, query: dict[str, Any], told: str
) -> None:
    answered = api.get(path, **query)
    assert (answered.status, told in answered.message) == (422, True), answered.message
    assert answered.json["error"]["problems"]
    assert TOKEN not in answered.message


@pytest.mark.parametrize(
    "letters",
    [
        {},
        {"state": ["open"]},
        {"id": []},
        {"id": [], "table": []},
        {"since": None},
        {"everything": False},
        {"everything": None},
    ],
)
@pytest.mark.parametrize("path", ["discard", "restore", "replays"])
def test_no_empty_filter_means_every_letter(api: Api, path: str, letters: Any) -> None:
    why = {} if path == "replays" else {"why": "x"}
    answered = api.post(path, {"letters": letters} | why)
    assert (answered.status, "everything" in answered.message) == (422, True)


@pytest.mark.parametrize(
    ("path", "body", "told"),
    [
        ("discard", b"{", "JSON"),
        ("discard", [], "body"),
        ("discard", EVERYTHING, "why"),
        ("discard", EVERYTHING | {"why": " "}, "why"),
        ("discard", EVERYTHING | {"why": "x", "force": True}, "force: unknown here"),
        ("discard", {"letters": {"tabel": ["x"]}, "why": "x"}, "tabel: unknown here"),
        ("discard", EVERYTHING | {"why": "x", "limit": True}, "limit"),
        ("discard", EVERYTHING | {"why": "x", "limit": 10_001}, "limit"),
        ("discard", EVERYTHING | {"why": "\ud800"}, "why"),
        ("replays", EVERYTHING | {"execute": "yes"}, "execute"),
        ("replays", EVERYTHING | {"rate": 0}, "rate"),
        ("replays", EVERYTHING | {"rate": float("inf")}, "rate"),
        (f"letters/{ONE.identity}/edit", {"why": "x"}, "set"),
        (f"letters/{ONE.identity}/edit", {"why": "x", "set": {}, "row": {}}, "set"),
        (f"letters/{ONE.identity}/edit", {"why": "x", "row": {"seats": float("nan")}}, "JSON"),
    ],
)
def test_a_wrong_body_is_refused_and_changes_nothing(api: Api, path: str, body: Any, told: str) -> None:
    answered = api.post(path, body)
    assert (answered.status, told in answered.message) == (422, True), answered.message
    assert api.world.states() == {State.OPEN: 3}
    assert api.world.publisher.published == []


def test_a_body_that_no_page_of_another_site_can_send_is_json_by_its_name(api: Api) -> None:
    body = json.dumps(EVERYTHING | {"why": "x"}).encode()
    assert api.post("discard", body, headers={"content-type": "text/plain"}).status == 422
    assert api.world.states() == {State.OPEN: 3}


def test_a_body_is_bounded_whether_or_not_it_says_how_long_it_is(api: Api) -> None:
    large = b'{"why": "' + b"x" * LARGEST_BODY + b'"}'
    assert api.post("discard", large).status == 413
    assert api.post("discard", large, headers={"content-length": "0"}).status == 413


@pytest.mark.parametrize("path", READS)
def test_head_goes_where_get_goes_and_nothing_else_does(api: Api, path: str) -> None:
    got, head = api.get(path), api.ask("HEAD", path)
    assert (head.status, head.body, head.headers) == (200, b"", got.headers)
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
        refused = api.ask(method, path)
        assert (refused.status, refused.headers["allow"]) == (405, "GET, HEAD")
        assert refused.message


@pytest.mark.parametrize("path", WRITES)
def test_what_writes_takes_post_alone(api: Api, path: str) -> None:
    for method in ("GET", "HEAD", "PUT", "DELETE"):
        refused = api.ask(method, path)
        assert (refused.status, refused.headers["allow"]) == (405, "POST")


def test_what_is_not_there_says_where_to_look(api: Api) -> None:
    for path in ("/", "/v1", "/v1/letters/", "/v2/letters", "/docs", "/openapi.json"):
        answered = api.get(path)
        assert (answered.status, "/v1/openapi.json" in answered.message) == (404, True)
    assert "deadbeef" in api.get("letters/deadbeef").message
    assert api.post("discard", {"letters": {"id": ["deadbeef"]}, "why": "x"}).status == 404


class Broken:
    """A store that fails."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __getattr__(self, name: str) -> Any:
        raise self.error


@pytest.mark.parametrize(
    ("error", "status", "told"),
    [
        (TransientError("the database is away"), 503, "the database is away; try again"),
        (MisconfiguredError("set TOPIC: where replays go"), 503, "set TOPIC"),
        (RuntimeError("Ada has 3 seats"), 500, "the service's log says where"),
    ],
)
def test_what_fails_is_told_in_the_one_shape_and_no_value_is_in_the_answer_or_the_log(
    error: Exception, status: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answered = Api(store=Broken(error)).get("stats")
    out, err = capsys.readouterr()

    assert (answered.status, told in answered.message) == (status, True)
    assert "retry-after" not in answered.headers or isinstance(error, TransientError)
    assert b"Ada" not in answered.body
    assert "Ada" not in out + err
    assert status != 500 or "RuntimeError" in out + err


def test_no_answer_is_kept_by_anything_on_its_way(api: Api) -> None:
    for answered in (api.get("letters"), api.get("nothing"), api.get("stats", token="x")):
        assert answered.headers["cache-control"] == "no-store"
        assert answered.headers["x-content-type-options"] == "nosniff"


def test_the_document_names_every_operation_and_what_each_takes() -> None:
    described = Api(Callers(tokens=TOKENS)).get("openapi.json").json
    paths = {(path, method) for path, methods in described["paths"].items() for method in methods}

    assert paths == {
        *((f"/v1/{path}", "get") for path in ("letters", "letters/{letter}", "letters/{letter}/trail", "groups")),
        *((f"/v1/{path}", "get") for path in ("stats", "openapi.json")),
        *((f"/v1/{path}", "post") for path in ("discard", "restore", "letters/{letter}/edit", "replays")),
    }
    for path, methods in described["paths"].items():
        for operation in methods.values():
            assert bool(operation.get("security")) is (path != "/v1/openapi.json")
            assert "422" in operation["responses"]


def test_tokens_are_read_one_alone_or_by_name_a_line() -> None:
    alone = read_tokens(f" {TOKEN}\n", "API_TOKEN")
    named = read_tokens(f"# ours\nada {TOKEN}\n\nbob {TOKEN[::-1]}\n", "API_TOKEN_FILE")

    assert [one.name for one in alone] == [UNNAMED]
    assert Callers(tokens=named).who({"authorization": f"bearer {TOKEN[::-1]}"}) == "bob"
    assert TOKEN not in repr(named)


@pytest.mark.parametrize("text", ["", "# none", "short", "ada short", f"ada of planes {TOKEN}", "ä" * 20])
def test_a_token_that_is_none_is_refused_without_being_said(text: str) -> None:
    with pytest.raises(MisconfiguredError, match="API_TOKEN") as refused:
        read_tokens(text, "API_TOKEN")
    assert TOKEN not in str(refused.value)
    assert "short" not in str(refused.value)
