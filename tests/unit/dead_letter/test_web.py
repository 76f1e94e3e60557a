"""The HTTP API: what it answers, what it does, who may, and what it refuses with which message."""

import json
from datetime import timedelta
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from services.dead_letter.app.metrics import ApiMetrics
from services.dead_letter.core.dead_letters import State
from services.dead_letter.core.plan import Verdict
from services.dead_letter.core.selection import Selection
from services.dead_letter.web.callers import ASSERTION, Callers
from services.dead_letter.web.tools import WebLimits
from shared.contracts.change_batch import decode_batch
from shared.contracts.dead_letter import DeadLetter
from shared.contracts.errors import TransientError
from tests.builders import a_change
from tests.unit.dead_letter.asgi import EVERYTHING, READS, TOKEN, TOKENS, WRITES, Api, with_dead_letters
from tests.unit.dead_letter.dead_letters import JUNK, ONE, TWO, a_dead_letter, at


def ids(api: Api, **filters: Any) -> set[str]:
    answered = api.get("dead-letters", **filters)
    assert answered.status == 200, answered.message
    return {one["id"] for one in answered.json["dead_letters"]}


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
def test_dead_letters_are_listed_by_every_filter(
    api: Api, filters: dict[str, Any], found: tuple[DeadLetter, ...]
) -> None:
    assert ids(api, **filters) == {one.identity for one in found}


def test_a_list_comes_in_pages_that_neither_repeat_nor_leave_out(api: Api) -> None:
    seen: list[str] = []
    after: dict[str, str] = {}
    for _page in range(3):
        page = api.get("dead-letters", limit=1, **after).json
        assert page["matched"] == 3
        seen += [one["id"] for one in page["dead_letters"]]
        after = {"after": page["after"]}

    assert after == {"after": None}
    assert seen == [ONE.identity, TWO.identity, JUNK.identity]


def test_a_dead_letter_is_shown_masked_and_with_values_to_who_is_named_in_the_trail(api: Api) -> None:
    masked = api.get(f"dead-letters/{ONE.identity[:8]}", token=None)
    assert (masked.status, masked.json["masked"]) == (200, True)
    assert b"Ada" not in masked.body
    assert api.actions(ONE.identity) == [("arrived", "collector")]

    shown = api.get(f"dead-letters/{ONE.identity}", values="true")
    assert b'"Ada"' in shown.body
    assert api.actions(ONE.identity)[1:] == [("values_shown", "ada")]
    assert shown.json["trail"][-1]["who"] == "ada"


@pytest.mark.parametrize("callers", [None, Callers(open_reads=True)])
def test_values_are_shown_to_no_visitor_without_a_name_and_nothing_is_written_then(callers: Callers | None) -> None:
    api = with_dead_letters(Api(callers))
    answered = api.get(f"dead-letters/{ONE.identity}", values="true", token=None)

    assert (answered.status, b"Ada" in answered.body) == (403 if callers else 401, False)
    assert ("API_TOKEN" if callers else "Authorization: Bearer") in answered.message
    assert api.actions(ONE.identity) == [("arrived", "collector")]


def test_digits_come_through_as_they_are_in_the_dead_letter_and_in_an_edit(api: Api) -> None:
    exact = '{"price":0.12345678901234567890,"id_of":12345678901234567890123}'
    dead_letter = a_dead_letter(a_change(9))
    data = dead_letter.data.replace(bytes(decode_batch(dead_letter.data).rows[0]), exact.encode())
    (identity,) = api.world.keep(a_dead_letter(a_change(9), data=data))
    assert exact.encode() in api.get(f"dead-letters/{identity}", values="true").body.replace(b" ", b"")

    body = b'{"why": "too long", "set": {"price": 1.000000000000000000009}}'
    edited = api.post(f"dead-letters/{identity}/edit", body)
    assert edited.status == 200, edited.message
    shown = api.get(f"dead-letters/{edited.json['id']}", values="true").body
    assert b"1.000000000000000000009" in shown
    assert b"12345678901234567890123" in shown


def test_groups_numbers_and_trails(api: Api) -> None:
    groups = api.get("groups").json["groups"]
    assert sorted(one["reason"] for one in groups) == ["schema_conflict", "undecodable", "value_does_not_fit"]
    assert len(api.get("groups", table="planes").json["groups"]) == 1
    assert ids(api, group=groups[0]["id"]) == {groups[0]["sample"]}
    assert api.get("stats").json["open_by_table"] == {"planes": 1, "pilots": 1, "": 1}
    (arrived,) = api.get(f"dead-letters/{ONE.identity}/trail").json["trail"]
    assert (arrived["action"], arrived["who"]) == ("arrived", "collector")


def test_dead_letters_are_discarded_and_restored_by_a_person_and_for_a_reason(api: Api) -> None:
    discarded = api.post("discard", {"dead_letters": {"table": ["planes"]}, "why": "not ours"})
    assert discarded.json == {"state": "discarded", "changed": 1, "matched": 1, "more": False}
    assert api.actions(ONE.identity)[1:] == [("discarded", "ada")]
    assert ids(api) == {TWO.identity, JUNK.identity}

    restored = api.post("restore", EVERYTHING)
    assert restored.json == {"state": "open", "changed": 1, "matched": 1, "more": False}
    assert api.world.states() == {State.OPEN: 3}


def test_a_request_changes_no_more_than_its_limit_and_reports_that_there_is_more(api: Api) -> None:
    answers = [api.post("discard", EVERYTHING | {"why": "x", "limit": 2}).json for _again in range(2)]
    assert [(one["changed"], one["more"]) for one in answers] == [(2, True), (1, False)]


@pytest.mark.parametrize("path", ["discard", "restore"])
def test_requests_with_a_limit_come_to_an_end_whatever_states_are_named(api: Api, path: str) -> None:
    if path == "restore":
        api.post("discard", EVERYTHING | {"why": "x"})
    named = {"dead_letters": {"everything": True, "state": ["any"]}, "why": "x", "limit": 2}
    answers = [api.post(path, named).json for _again in range(3)]
    assert [(one["changed"], one["more"]) for one in answers] == [(2, True), (1, False), (0, False)]
    assert api.world.states() == {State.DISCARDED if path == "discard" else State.OPEN: 3}


def test_an_edit_takes_the_dead_letters_place(api: Api) -> None:
    answered = api.post(f"dead-letters/{ONE.identity[:8]}/edit", {"why": "typed wrong", "set": {"seats": 4}})
    copy = api.world.stored(answered.json["id"])

    assert copy.edit_of == ONE.identity == answered.json["edit_of"]
    assert json.loads(bytes(decode_batch(copy.dead_letter.data).rows[0])) == {"name": "Ada", "seats": 4}
    assert api.actions(ONE.identity)[1:] == [("edited", "ada")]
    again = api.post(f"dead-letters/{ONE.identity}/edit", {"why": "x", "row": {"name": "Bob"}})
    assert (again.status, copy.id in again.message) == (409, True)


def test_what_cannot_be_edited_so_reports_what_can_be_done(api: Api) -> None:
    answered = api.post(f"dead-letters/{ONE.identity}/edit", {"set": {"id": 4}, "why": "x"})
    assert (answered.status, "primary key" in answered.message) == (409, True), answered.message


def test_a_replay_is_dry_until_it_is_executed_and_then_answers_at_its_end(api: Api) -> None:
    dry = api.post("replays", EVERYTHING).json
    assert (dry["executed"], dry["verdicts"]["send"], dry["sent"], dry["matched"]) == (False, 3, 0, 3)
    assert api.world.publisher.published == []

    limited = api.post("replays", EVERYTHING | {"execute": True, "limit": 1, "rate": 100}).json
    assert (limited["sent"], limited["left_open"], len(limited["dead_letters"])) == (1, 0, 1)
    rest = api.post("replays", {"dead_letters": {"id": [ONE.identity, TWO.identity]}, "execute": True}).json
    assert (rest["sent"], rest["mirrors_asked"], rest["stopped"]) == (2, True, False)
    assert api.world.states() == {State.REPLAYED: 3}
    assert api.actions(TWO.identity)[1:] == [("replayed", "ada")]


def test_what_replays_come_to_is_counted_once_by_result_and_dry_runs_are_not() -> None:
    registry = CollectorRegistry()
    api = with_dead_letters(Api(metrics=ApiMetrics(registry)))

    def counted() -> dict[str, float]:
        results = (verdict.value for verdict in Verdict if verdict is not Verdict.SEND)
        found = {
            result: registry.get_sample_value("millrace_dead_letter_replayed_total", {"result": result}) or 0
            for result in ("sent", *results)
        }
        return {result: count for result, count in found.items() if count}

    api.post("replays", EVERYTHING)
    assert counted() == {}
    api.post("replays", EVERYTHING | {"execute": True, "limit": 1})
    assert counted() == {"sent": 1}
    api.post("replays", {"dead_letters": {"everything": True, "state": ["any"]}, "execute": True})
    assert counted() == {"sent": 3, "not_open": 1}


def test_a_replay_that_takes_too_long_ends_where_it_is_and_goes_on_when_asked_again() -> None:
    slow = with_dead_letters(Api(limits=WebLimits(longest=timedelta(milliseconds=50))))
    order = EVERYTHING | {"execute": True, "rate": 0.1}
    stopped = slow.post("replays", order).json
    assert (stopped["stopped"], stopped["sent"], stopped["left_open"]) == (True, 1, 2)
    assert all(one.claimed_by is None for one in slow.world.store.in_replay_order(Selection()))
    assert slow.post("replays", order).json["sent"] == 1


def test_a_replay_ends_when_the_service_is_asked_to_stop(api: Api) -> None:
    api.stop.request()
    stopped = api.post("replays", EVERYTHING | {"execute": True}).json
    assert (stopped["stopped"], stopped["sent"]) == (True, 0)


def test_more_replays_than_the_service_takes_at_once_are_asked_to_come_again(api: Api) -> None:
    while api.tools.limits.replays.acquire(blocking=False):
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
def test_where_no_token_is_set_writing_is_refused_and_the_setting_is_named(path: str) -> None:
    answered = with_dead_letters(Api(Callers(open_reads=True))).post(path, EVERYTHING)
    assert answered.status == 403
    for setting in ("API_TOKEN", "API_TOKEN_FILE", "IAP_AUDIENCE"):
        assert setting in answered.message


@pytest.mark.parametrize("path", READS)
def test_reads_are_open_to_this_machine_alone(path: str) -> None:
    api, closed = with_dead_letters(Api()), with_dead_letters(Api(Callers(tokens=lambda: TOKENS)))
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
    api = with_dead_letters(Api(Callers(proxy=Proxy())))
    good, bad = {ASSERTION: "ada's word"}, {ASSERTION: "eve's word"}
    body = EVERYTHING | {"why": "x"}

    assert api.post("discard", body, headers=good, token=None).status == 200
    assert api.actions(ONE.identity)[1:] == [("discarded", "ada@example.com")]
    refused = api.post("restore", body, headers=bad, token=None)
    assert (refused.status, "expired" in refused.message) == (401, True)
    assert "eve" not in refused.message
    assert api.post("restore", body, token=None).status == 401
    unavailable = Api(Callers(proxy=Proxy(TransientError("the keys cannot be had"))))
    assert unavailable.get("stats", headers=good).status == 503


def test_a_header_of_a_proxy_that_is_not_set_up_means_nothing(api: Api) -> None:
    assert api.post("discard", EVERYTHING, headers={ASSERTION: "ada's word"}, token=None).status == 401
