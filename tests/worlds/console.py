"""The console over dead letters and services on fakes, visited as by a browser: cookies are kept, forms bring values.

The services say much that a hostile writer would like to see on a page.
"""

import html
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any
from urllib.parse import parse_qsl, urlencode

from services.spanner_reader.core.schema.resync import fix_of
from services.spanner_reader.core.schema.shapes import SpannerResyncCause, SpannerResyncKind, SpannerResyncRequest
from shared.contracts.timestamps import parse_timestamp
from tests.fakes.status_pages import FakeStatusPages
from tests.unit.dead_letter.asgi import TOKEN, Answered, Api

CONSUMER, FLIGHTS, TRAFFIC, GONE = (f"http://10.0.0.{n}:8080" for n in range(1, 5))
SERVICES = {"consumer": CONSUMER, "flights": FLIGHTS, "traffic": TRAFFIC, "orders": GONE}
HOSTILE = "</script><img src=x onerror=alert(1)>\" onfocus='alert(2)' autofocus {{7*7}} \u202etxt.exe\x00\x1b[31m"
"""Markup, attributes, a template's own signs, a change of direction, and what a terminal obeys."""
_AT = parse_timestamp("2026-11-27T06:30:00Z")
_RESYNC = SpannerResyncRequest(
    "airports", (SpannerResyncCause("airports", SpannerResyncKind.COLUMN_DEFAULTED, _AT, _AT, ("city",)),)
)
"""As its reader has it; what it says is what that reader says."""
_FORM = re.compile(r'name="form" value="([0-9a-f]+)"')


def statuses(committed: str, lag: float = 2.5) -> dict[str, Any]:
    """Return what three services answer; the fourth does not."""
    return {
        CONSUMER: {
            "service": "cdc_consumer",
            "state": "running",
            "since": committed,
            "tables": [
                {
                    "table": name,
                    "state": state,
                    "troubles": [{"state": state, "since": committed, "why": why}] if why else [],
                    "complete_since": committed,
                    "committed": committed,
                    "applied": committed,
                    "lag_seconds": {"commit_to_published": 0.4, "published_to_applied": 1.9},
                }
                for name, state, why in (
                    ("airlines", "running", ""),
                    ("airports", "running", ""),
                    ("flights", "deferred", "grant bigquery.tables.updateData on table flights to the consumer"),
                    ("planes", "running", ""),
                )
            ],
            "labels": {"read_at": committed, "error": ""},
            "changes": {"seen": 1200, "written": 1000, "superseded": 200, "dead_letters": {}},
            "lag_seconds": {"commit_to_published": 0.4, "published_to_applied": 1.9, "oldest_outstanding": 40.0},
        },
        FLIGHTS: {
            "service": "spanner_reader",
            "state": "reading",
            "paused_tables": [],
            "partitions": {"RUNNING": 3, "CREATED": 0, "FINISHED": 12},
            "low_watermark": committed,
            "lag_seconds": lag,
            "pending_resync": [
                {
                    "table": "airports",
                    "since": committed,
                    "why": [{"kind": cause.kind, "columns": list(cause.columns)} for cause in _RESYNC.findings],
                    "fix": fix_of(_RESYNC, "`"),
                }
            ],
        },
        TRAFFIC: {
            "service": "bigtable_reader",
            "state": "reading",
            "partitions": {"RUNNING": 4, "WAITING": 0},
            "low_watermark": committed,
            "lag_seconds": 0.8,
            "low_watermark_stalled_seconds": 0.0,
            "pending_resync": [],
        },
    }


class _Pressable(HTMLParser):
    """The links and the buttons of a page by what stands on them: where they lead, and what the button's form has."""

    def __init__(self, page: bytes) -> None:
        super().__init__()
        self.pressed: dict[str, tuple[str, dict[str, str] | None]] = {}
        self._form: tuple[str, dict[str, str]] = "", {}
        self._leads: tuple[str, dict[str, str] | None] = "", None
        self._text = ""
        self.feed(page.decode())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        match tag:
            case "form":
                self._form = given["action"], {}
            case "input" if given["type"] == "hidden":
                self._form[1][given["name"]] = given["value"]
            case "a":
                self._leads, self._text = (given["href"], None), ""
            case "button" if given.get("type") != "button":
                own = {given["name"]: given["value"]} if "name" in given else {}
                self._leads, self._text = (self._form[0], self._form[1] | own), ""

    def handle_data(self, data: str) -> None:
        self._text += data

    def handle_endtag(self, tag: str) -> None:
        if tag in ("a", "button"):
            self.pressed.setdefault(" ".join(self._text.split()), self._leads)


@dataclass
class Visit:
    """Somebody's browser."""

    api: Api
    cookies: dict[str, str] = field(default_factory=dict)
    host: str = "127.0.0.1:8083"

    def get(self, path: str, **query: Any) -> Answered:
        return self._kept(self.api.get(path, token=None, host=self.host, headers=self._headers(), **query))

    def post(self, path: str, fields: Mapping[str, str], headers: Mapping[str, str | None] | None = None) -> Answered:
        """Send a form as it is; a header that is None is not sent."""
        own = {"content-type": "application/x-www-form-urlencoded", "sec-fetch-site": "same-origin"}
        sent = {name: value for name, value in (own | dict(headers or {})).items() if value is not None}
        return self._kept(
            self.api.ask(
                "POST",
                path,
                body=urlencode(fields).encode(),
                token=None,
                host=self.host,
                headers=self._headers() | sent,
            )
        )

    def submit(self, path: str, **fields: str) -> Answered:
        """Send a form with the value that pages give forms, and follow where the answer leads."""
        return self._followed(self.post(path, {"form": self.form(), **fields}))

    def press(self, page: Answered, name: str, **filled: str) -> Answered:
        """Press what is so called on a page: follow the link, or send the form with what is filled in."""
        where, hidden = _Pressable(page.body).pressed[name]
        return self._at(where) if hidden is None else self._followed(self.post(where, hidden | filled))

    def _followed(self, answered: Answered) -> Answered:
        while answered.status == 303:
            answered = self._at(answered.headers["location"])
        return answered

    def _at(self, address: str) -> Answered:
        path, _separator, query = address.partition("?")
        return self.get(path, **dict(parse_qsl(query)))

    def form(self) -> str:
        found = _FORM.search(self.get("/sign-in").body.decode())
        assert found is not None
        return found[1]

    def sign_in(self, token: str = TOKEN) -> Answered:
        return self.submit("/sign-in", token=token)

    def _headers(self) -> dict[str, str]:
        return {"cookie": "; ".join(f"{name}={value}" for name, value in self.cookies.items())} if self.cookies else {}

    def _kept(self, answered: Answered) -> Answered:
        if given := answered.headers.get("set-cookie"):
            name, _is, value = given.partition(";")[0].partition("=")
            self.cookies[name] = value.strip('"')
        return answered


def watching(pages: FakeStatusPages, **more: Any) -> Api:
    """Return the API and console over services that were polled once."""
    api = Api(services=SERVICES, pages=pages, **more)
    for name in SERVICES:
        api.tools.console.poller.poll(name)
    return api


def text_of(page: Answered) -> str:
    """Return what is read on a page, without its markup."""
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page.body.decode())).split())
