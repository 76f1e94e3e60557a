"""What the HTTP API refuses, with which message, and what it lets nobody see."""

import json
from typing import Any

import pytest

from services.dead_letter.core.dead_letters import State
from services.dead_letter.web.callers import UNNAMED, Callers, read_tokens
from services.dead_letter.web.gate import LARGEST_BODY
from shared.contracts.errors import MisconfiguredError, TransientError
from tests.unit.dead_letter.asgi import EVERYTHING, READS, TOKEN, TOKENS, WRITES, Api
from tests.unit.dead_letter.dead_letters import ONE


@pytest.mark.parametrize(
    ("path", "query", "message"),
    [
        ("dead-letters", {"tabel": "x"}, "tabel: unknown here; known are id, group, table"),
        ("dead-letters", {"access_token": TOKEN}, "access_token: unknown"),
        ("stats", {"limit": 3}, "known are none"),
        ("openapi.json", {"limit": 3}, "known are none"),
        ("dead-letters", {"limit": 0}, "query.limit"),
        ("dead-letters", {"limit": 501}, "query.limit"),
        ("dead-letters", {"after": "1"}, "query.after"),
        ("dead-letters", {"since": "yesterday"}, "write an age"),
        ("dead-letters", {"since": "2026-02-30"}, "write an age"),
        ("dead-letters", {"state": "closed"}, "query.state"),
        ("dead-letters", {"reason": "bad"}, "query.reason"),
        ("dead-letters", {"sequence_from": "x"}, "query.sequence_from"),
        ("dead-letters", {"id": "abc"}, "query.id"),
        ("dead-letters", {"table": "a\0"}, "query.table"),
        ("dead-letters/zzzzzzzz", {}, "path.dead_letter"),
        (f"dead-letters/{ONE.identity}", {"values": "maybe"}, "query.values"),
        ("export", {"limit": 3}, "limit: unknown here"),
    ],
)
def test_a_wrong_parameter_is_refused_by_its_name_and_its_value_is_not_said_again(
    api: Api, path: str, query: dict[str, Any], message: str
) -> None:
    answered = api.get(path, **query)
    assert (answered.status, message in answered.message) == (422, True), answered.message
    assert answered.json["error"]["problems"]
    assert TOKEN not in answered.message


@pytest.mark.parametrize(
    "dead_letters",
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
def test_no_empty_filter_means_every_dead_letter(api: Api, path: str, dead_letters: Any) -> None:
    why = {} if path == "replays" else {"why": "x"}
    answered = api.post(path, {"dead_letters": dead_letters} | why)
    assert (answered.status, "everything" in answered.message) == (422, True)


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("discard", b"{", "JSON"),
        ("discard", [], "body"),
        ("discard", EVERYTHING, "why"),
        ("discard", EVERYTHING | {"why": " "}, "why"),
        ("discard", EVERYTHING | {"why": "x", "force": True}, "force: unknown here"),
        ("discard", {"dead_letters": {"tabel": ["x"]}, "why": "x"}, "tabel: unknown here"),
        ("discard", EVERYTHING | {"why": "x", "limit": True}, "limit"),
        ("discard", EVERYTHING | {"why": "x", "limit": 10_001}, "limit"),
        ("discard", EVERYTHING | {"why": "\ud800"}, "why"),
        ("replays", EVERYTHING | {"execute": "yes"}, "execute"),
        ("replays", EVERYTHING | {"rate": 0}, "rate"),
        ("replays", EVERYTHING | {"rate": float("inf")}, "rate"),
        (f"dead-letters/{ONE.identity}/edit", {"why": "x"}, "set"),
        (f"dead-letters/{ONE.identity}/edit", {"why": "x", "set": {}, "row": {}}, "set"),
        (f"dead-letters/{ONE.identity}/edit", {"why": "x", "row": {"seats": float("nan")}}, "JSON"),
    ],
)
def test_a_wrong_body_is_refused_and_changes_nothing(api: Api, path: str, body: Any, message: str) -> None:
    answered = api.post(path, body)
    assert (answered.status, message in answered.message) == (422, True), answered.message
    assert api.world.states() == {State.OPEN: 3}
    assert api.world.publisher.published == []


def test_a_body_that_no_page_of_another_site_can_send_is_json_by_its_name(api: Api) -> None:
    body = json.dumps(EVERYTHING | {"why": "x"}).encode()
    assert api.post("discard", body, headers={"content-type": "text/plain"}).status == 422
    assert api.world.states() == {State.OPEN: 3}


def test_a_body_is_bounded_whether_or_not_it_declares_its_length(api: Api) -> None:
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


def test_what_is_not_there_reports_where_to_look(api: Api) -> None:
    for path in ("/v1", "/v1/dead-letters/", "/v2/dead-letters", "/docs", "/openapi.json"):
        answered = api.get(path)
        assert (answered.status, "/v1/openapi.json" in answered.message) == (404, True)
    assert "deadbeef" in api.get("dead-letters/deadbeef").message
    assert api.post("discard", {"dead_letters": {"id": ["deadbeef"]}, "why": "x"}).status == 404


class Broken:
    """A store that fails."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __getattr__(self, name: str) -> Any:
        raise self.error


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (TransientError("the database is away"), 503, "the database is away; try again"),
        (MisconfiguredError("made-up", "set TOPIC: where replays go"), 503, "set TOPIC"),
        (RuntimeError("Ada has 3 seats"), 500, "the service's log says where"),
    ],
)
def test_what_fails_is_reported_in_the_one_shape_and_no_value_is_in_the_answer_or_the_log(
    error: Exception, status: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answered = Api(store=Broken(error)).get("stats")
    out, err = capsys.readouterr()

    assert (answered.status, message in answered.message) == (status, True)
    assert "retry-after" not in answered.headers or isinstance(error, TransientError)
    assert b"Ada" not in answered.body
    assert "Ada" not in out + err
    assert status != 500 or "RuntimeError" in out + err


def test_no_answer_is_kept_by_anything_on_its_way(api: Api) -> None:
    for answered in (api.get("dead-letters"), api.get("nothing"), api.get("stats", token="x")):
        assert answered.headers["cache-control"] == "no-store"
        assert answered.headers["x-content-type-options"] == "nosniff"


def test_the_document_names_every_operation_and_what_each_takes() -> None:
    described = Api(Callers(tokens=lambda: TOKENS)).get("openapi.json").json
    paths = {(path, method) for path, methods in described["paths"].items() for method in methods}

    assert paths == {
        *(
            (f"/v1/{path}", "get")
            for path in ("dead-letters", "dead-letters/{dead_letter}", "dead-letters/{dead_letter}/trail", "groups")
        ),
        *((f"/v1/{path}", "get") for path in ("stats", "export", "openapi.json")),
        *((f"/v1/{path}", "post") for path in ("discard", "restore", "dead-letters/{dead_letter}/edit", "replays")),
    }
    for path, methods in described["paths"].items():
        for operation in methods.values():
            assert bool(operation.get("security")) is (path != "/v1/openapi.json")
            assert "422" in operation["responses"]


def test_tokens_are_read_one_alone_or_by_name_a_line() -> None:
    alone = read_tokens(f" {TOKEN}\n", "API_TOKEN")
    named = read_tokens(f"# ours\nada {TOKEN}\n\nbob {TOKEN[::-1]}\n", "API_TOKEN_FILE")

    assert [one.name for one in alone] == [UNNAMED]
    assert Callers(tokens=lambda: named).who({"authorization": f"bearer {TOKEN[::-1]}"}) == "bob"
    assert TOKEN not in repr(named)


@pytest.mark.parametrize("text", ["", "# none", "short", "ada short", f"ada of planes {TOKEN}", "ä" * 20])
def test_a_token_that_is_none_is_refused_without_being_reported(text: str) -> None:
    with pytest.raises(MisconfiguredError, match="API_TOKEN") as refused:
        read_tokens(text, "API_TOKEN")
    assert TOKEN not in str(refused.value)
    assert "short" not in str(refused.value)
