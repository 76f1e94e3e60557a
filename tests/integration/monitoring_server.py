"""An HTTP server that answers `timeSeries.list` as Cloud Monitoring does, from the backlogs that a test states."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from tests.fakes.http_answers import answering

_FILTER: Final = re.compile(
    r'metric\.type = "pubsub\.googleapis\.com/subscription/(\w+)" '
    r"AND resource\.labels\.subscription_id = one_of\((.*)\)"
)
_STATUS: Final = {
    400: "INVALID_ARGUMENT",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
}


class MonitoringServer:
    """What the server answers: samples by metric and subscription, or an error."""

    def __init__(self) -> None:
        self.url = ""
        self.error = 0
        """The HTTP status of every answer; 0: it answers."""
        self.samples: dict[str, dict[str, int]] = {"oldest_unacked_message_age": {}, "num_undelivered_messages": {}}
        self.unknown: set[str] = set()
        """Metrics that the project has had no sample of yet: for Cloud Monitoring they do not exist."""
        self.asked = 0
        self.before_answer: Callable[[], None] = lambda: None
        self.projects: set[str] = set()

    def states(self, subscription: str, *, age: int, messages: int) -> None:
        """State what waits in a subscription, by its short name; the age in seconds."""
        self.samples["oldest_unacked_message_age"][subscription] = age
        self.samples["num_undelivered_messages"][subscription] = messages

    def answer(self, path: str) -> tuple[int, dict[str, Any]]:
        """Return status and document; the newest point comes first, as Cloud Monitoring has it."""
        self.asked += 1
        self.before_answer()
        if self.error:
            return self.error, _failure(self.error, "said by the test")
        parts, query = urlsplit(path), parse_qs(urlsplit(path).query)
        of_project = re.fullmatch(r"/v3/projects/([^/]+)/timeSeries", parts.path)
        wanted = _FILTER.fullmatch(query["filter"][0])
        if of_project is None or wanted is None or wanted[1] not in self.samples:
            return 400, _failure(400, f"a filter must name one metric: {query['filter'][0]}")
        if wanted[1] in self.unknown:
            metric = f"pubsub.googleapis.com/subscription/{wanted[1]}"
            return 404, _failure(404, f'Cannot find metric(s) that match type = "{metric}". If it is new ...')
        project = of_project[1]
        self.projects.add(project)
        start, end = (datetime.fromisoformat(query[f"interval.{at}Time"][0]) for at in ("start", "end"))
        if not start < end <= datetime.now(UTC) + timedelta(minutes=1):
            return 400, _failure(400, "the interval is not one")
        samples = self.samples[wanted[1]]
        series = [
            _series(project, wanted[1], name, samples[name], end)
            for name in json.loads(f"[{wanted[2]}]")
            if name in samples
        ]
        return 200, {"timeSeries": series, "unit": "1"} if series else {}


@contextmanager
def monitoring_server() -> Iterator[MonitoringServer]:
    """Serve until the block ends."""
    state = MonitoringServer()

    def answer(path: str) -> tuple[int, bytes]:
        status, document = state.answer(path)
        return status, json.dumps(document).encode()

    with answering(answer) as address:
        state.url = f"http://{address}"
        yield state


def _failure(code: int, message: str) -> dict[str, Any]:
    return {"error": {"code": code, "message": message, "status": _STATUS.get(code, "UNKNOWN")}}


def _series(project: str, metric: str, subscription: str, value: int, end: datetime) -> dict[str, Any]:
    return {
        "metric": {"type": f"pubsub.googleapis.com/subscription/{metric}"},
        "resource": {
            "type": "pubsub_subscription",
            "labels": {"project_id": project, "subscription_id": subscription},
        },
        "metricKind": "GAUGE",
        "valueType": "INT64",
        "points": [
            _point(end - timedelta(minutes=3), value),
            _point(end - timedelta(minutes=4), value + 1_000_000),
        ],
    }


def _point(at: datetime, value: int) -> dict[str, Any]:
    timestamp = at.isoformat().replace("+00:00", "Z")
    return {"interval": {"startTime": timestamp, "endTime": timestamp}, "value": {"int64Value": str(value)}}
