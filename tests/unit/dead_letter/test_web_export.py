"""An export over HTTP is what the command writes, by the same rules; and what requests are counted as."""

import base64
import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from services.dead_letter.app.metrics import ApiMetrics
from services.dead_letter.core.dead_letters import Arrival, StoredDeadLetter
from services.dead_letter.core.documents import export_document
from services.dead_letter.core.selection import Selection
from services.dead_letter.web.callers import Callers
from services.dead_letter.web.gate import NO_ROUTE
from services.dead_letter.web.tools import EXPORTS_AT_ONCE
from shared.contracts.errors import TransientError
from tests.builders import a_change
from tests.fakes.dead_letter_store import FakeDeadLetterStore
from tests.unit.dead_letter.asgi import Api, with_dead_letters
from tests.unit.dead_letter.dead_letters import JUNK, NOW, ONE, TWO, a_dead_letter


def lines(api: Api, **query: Any) -> list[Any]:
    answered = api.get("export", **query)
    assert (answered.status, answered.headers["content-type"]) == (200, "application/x-ndjson")
    return [json.loads(line) for line in answered.body.splitlines()]


def test_an_export_has_a_dead_letter_a_line_in_replay_order_as_the_command_writes_it(api: Api) -> None:
    stored = api.world.store.in_replay_order(Selection())
    assert lines(api) == [json.loads(msgspec.json.encode(export_document(one, values=False))) for one in stored]
    assert [one["id"] for one in lines(api, table="pilots")] == [TWO.identity]
    assert b"Ada" not in api.get("export").body
    assert [action for action, _who in api.actions(ONE.identity)] == ["arrived"]


def test_an_export_of_more_than_is_read_at_once_is_whole(api: Api) -> None:
    more = api.world.keep(*(a_dead_letter(a_change(number)) for number in range(100, 1_300)))
    assert {one["id"] for one in lines(api)} == {*more, *(one.identity for one in (ONE, TWO, JUNK))}


def test_the_usual_dead_letters_are_the_open_ones(api: Api) -> None:
    api.post("discard", {"dead_letters": {"id": [ONE.identity]}, "why": "of no use"})
    assert {one["id"] for one in lines(api)} == {TWO.identity, JUNK.identity}
    assert [one["id"] for one in lines(api, state="discarded")] == [ONE.identity]
    assert lines(api, state="superseded") == []


def test_with_values_it_has_the_very_bytes_and_the_trail_reports_who_has_them(api: Api) -> None:
    (line,) = lines(api, id=ONE.identity, values=True)
    assert (base64.b64decode(line["data"]), line["masked"]) == (ONE.data, False)
    assert api.actions(ONE.identity)[-1] == ("exported", "ada")
    assert api.get("export", token=None, values=True).status == 401
    assert with_dead_letters(Api(Callers(open_reads=True))).get("export", token=None, values=True).status == 403


def test_the_head_of_an_export_hands_nothing_out_and_writes_nothing_down(api: Api) -> None:
    answered = api.ask("HEAD", "export", values=True)
    assert (answered.status, answered.body) == (200, b"")
    assert [action for action, _who in api.actions(ONE.identity)] == ["arrived"]


class Breaking(FakeDeadLetterStore):
    """Hands out so many dead letters, and is away then."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self._after = after

    def in_replay_order(self, selection: Selection) -> Iterator[StoredDeadLetter]:
        for place, one in enumerate(super().in_replay_order(selection)):
            if place == self._after:
                raise TransientError("the database is away")
            yield one


def breaking(after: int) -> Api:
    """Return the API over a store of more dead letters than are read at once, which is away after so many."""
    store = Breaking(after)
    some = [a_dead_letter(a_change(number, name="Ada")) for number in range(1_200)]
    store.keep([Arrival(dead_letter=one, message_id=one.identity) for one in some], NOW)
    return Api(store=store)


def test_a_store_that_is_unavailable_is_reported_before_anything_is_handed_out() -> None:
    answered = breaking(499).get("export")
    assert (answered.status, "try again" in answered.message) == (503, True)


def test_a_store_that_becomes_unavailable_on_the_way_cuts_the_transfer_short(capfd: pytest.CaptureFixture[str]) -> None:
    api = breaking(1_100)
    with pytest.raises(RuntimeError, match="already started"):  # by which the server closes the connection
        api.get("export")
    output = "".join(capfd.readouterr())
    assert "request_failed" in output
    assert "TransientError" in output
    assert "Ada" not in output
    assert api.tools.limits.exports.acquire(blocking=False)


def test_more_exports_than_the_service_does_at_once_are_asked_to_come_again_and_each_makes_room(api: Api) -> None:
    for _ in range(3 * EXPORTS_AT_ONCE):
        assert len(lines(api)) == 3
    for _ in range(EXPORTS_AT_ONCE):
        assert api.tools.limits.exports.acquire(blocking=False)
    answered = api.get("export")
    assert (answered.status, answered.headers["retry-after"]) == (429, "5")


def test_requests_are_counted_by_route_and_status_and_nothing_that_is_asked_makes_a_label() -> None:
    registry = CollectorRegistry()
    api = with_dead_letters(Api(metrics=ApiMetrics(registry)))
    for path in (
        "dead-letters",
        f"dead-letters/{ONE.identity}",
        f"dead-letters/{TWO.identity}",
        "dead-letters/zzzz",
        "a",
        "b",
        "/else",
    ):
        api.get(path)
    api.ask("HEAD", "stats")
    api.post("stats", {})
    api.get("stats", token="wrong")
    api.post("discard", b"{" * 11_000_000)
    found = {
        (sample.labels["route"], sample.labels["status"]): sample.value
        for family in registry.collect()
        for sample in family.samples
        if sample.name == "millrace_dead_letter_api_requests_total"
    }
    assert found == {
        ("/v1/dead-letters", "200"): 1,
        ("/v1/dead-letters/{dead_letter}", "200"): 2,
        ("/v1/dead-letters/{dead_letter}", "422"): 1,
        ("/v1/stats", "200"): 1,
        ("/v1/stats", "405"): 1,
        ("/v1/stats", "401"): 1,
        (NO_ROUTE, "404"): 3,
        (NO_ROUTE, "413"): 1,
    }
    took = registry.get_sample_value("millrace_dead_letter_api_request_seconds_count", {"route": "/v1/stats"})
    assert took == 3
