"""The console over letters and services on fakes, visited as a browser does: cookies are kept, forms bring their value.

The services say much that a hostile writer would like to see on a page.
"""

import html
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

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
        answered = self.post(path, {"form": self.form(), **fields})
        while answered.status == 303:
            where, _mark, query = answered.headers["location"].partition("?")
            answered = self.get(where, **dict(part.split("=") for part in query.split("&") if part))
        return answered

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
