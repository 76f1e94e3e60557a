"""What waits in the subscriptions of the topics, as Cloud Monitoring counts it: a consumer that is down says nothing.

Pub/Sub itself does not answer that. Cloud Monitoring takes a sample each minute, and shows it two or three minutes
later. An emulator of Pub/Sub has no Cloud Monitoring.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import groupby, islice
from typing import Any, Final

import google.auth
import msgspec
from google.auth.credentials import AnonymousCredentials
from google.auth.exceptions import GoogleAuthError
from google.auth.transport.requests import AuthorizedSession

from shared.contracts.errors import MisconfiguredError, TransientError
from shared.contracts.timestamps import Nanoseconds, format_timestamp
from shared.pubsub.channels import stoppable_channel
from shared.pubsub.credentials import credentials_error
from shared.pubsub.names import project_of, short_name
from shared.pubsub.topology import retentions
from shared.runtime.backlog import DEAD_LETTER_SUBSCRIPTION, SUBSCRIPTION, SubscriptionBacklog
from shared.runtime.clock import SystemClock
from shared.runtime.findings import Finding
from shared.runtime.stop import Stop, in_thread

MONITORING: Final = "https://monitoring.googleapis.com"
MOST_SUBSCRIPTIONS: Final = 20
"""Of each topic, in the order of their names: they are labels, which have a bound."""
_SCOPE: Final = "https://www.googleapis.com/auth/monitoring.read"
_AGE: Final = "pubsub.googleapis.com/subscription/oldest_unacked_message_age"
_MESSAGES: Final = "pubsub.googleapis.com/subscription/num_undelivered_messages"
_RECENT: Final = timedelta(minutes=10)
"""How far back samples are asked for. One that is older says nothing of the present."""
_TIMEOUT: Final = 3.0
"""Seconds. A reader that is asked to stop waits for the request under way, and has ten in all."""
_TOO_MANY: Final = 429
_FORBIDDEN: Final = 403
_NOT_FOUND: Final = 404
_NO_SUCH_METRIC: Final = "Cannot find metric(s)"
"""What a 404 says in a project that has had no sample of the metric yet: its subscriptions are new."""


class MonitoredBacklogs:
    """The backlogs of all subscriptions of the topic, and of the dead-letter topic."""

    def __init__(self, emulator_host: str | None, url: str | None, topics: tuple[str, str]) -> None:
        """``topics`` are the two by full name; ``url`` is where Cloud Monitoring answers, None: Google's."""
        self._emulator_host = emulator_host
        self._url = (url or MONITORING).rstrip("/")
        self._topics = topics
        self._session: AuthorizedSession | None = None

    async def read(self) -> Sequence[SubscriptionBacklog]:
        """Return them as of a few minutes ago; TransientError or MisconfiguredError where they cannot be had."""
        return await in_thread(self._read)

    def _read(self, stop: Stop) -> Sequence[SubscriptionBacklog]:
        stores = dict(zip(self._topics, (SUBSCRIPTION, DEAD_LETTER_SUBSCRIPTION), strict=True))
        with stoppable_channel(self._emulator_host, stop) as channel:
            found = {
                name: (store, retention)
                for topic, store in stores.items()
                for name, retention in islice(retentions(channel, topic, stop), MOST_SUBSCRIPTIONS)
            }
        backlogs: list[SubscriptionBacklog] = []
        for project, names in groupby(sorted(found), key=project_of):
            of_project = list(names)
            ages = self._latest(project, _AGE, of_project, stop)
            messages = self._latest(project, _MESSAGES, of_project, stop)
            for name in of_project:
                store, retention = found[name]
                age = ages.get(short_name(name))
                backlogs.append(
                    SubscriptionBacklog(
                        name=name,
                        store=store,
                        retention=retention,
                        oldest=None if age is None else timedelta(seconds=age),
                        messages=messages.get(short_name(name)),
                    )
                )
        return backlogs

    def _latest(self, project: str, metric: str, subscriptions: Sequence[str], stop: Stop) -> Mapping[str, int]:
        """Return the newest sample of each subscription that has one; a new one has none."""
        if stop.requested:
            raise TransientError("asked to stop before Cloud Monitoring was asked")
        now = SystemClock().now()
        names = ", ".join(f'"{short_name(name)}"' for name in subscriptions)
        asked = {
            "filter": f'metric.type = "{metric}" AND resource.labels.subscription_id = one_of({names})',
            "interval.startTime": format_timestamp(Nanoseconds(now - int(_RECENT.total_seconds()) * 1_000_000_000)),
            "interval.endTime": format_timestamp(now),
        }
        answer = self._get(f"{self._url}/v3/projects/{project}/timeSeries", asked)
        return dict(_newest(answer))

    def _get(self, url: str, parameters: Mapping[str, str]) -> bytes:
        what = f"read the backlog from Cloud Monitoring ({url})"
        try:
            if self._session is None:
                self._session = _session(url)
            response = self._session.get(url, params=parameters, timeout=_TIMEOUT)
        except GoogleAuthError as error:
            raise credentials_error(what, error) from error
        except OSError as error:  # all that `requests` raises
            raise TransientError(f"{what}: {error}") from error
        status, body = int(response.status_code), bytes(response.content)
        if status < 400:
            return body
        message = _message(body)
        if status == _NOT_FOUND and message.startswith(_NO_SUCH_METRIC):
            return b"{}"
        detail = f"{what}: HTTP {status}: {message}"
        if status == _TOO_MANY or status >= 500:
            raise TransientError(detail)
        if status == _FORBIDDEN:
            raise MisconfiguredError(
                "backlog-forbidden",
                f"{detail}: grant this identity roles/monitoring.viewer, and enable monitoring.googleapis.com",
            )
        raise MisconfiguredError("backlog-refused", f"{detail}: check MONITORING_URL")


def monitored_backlogs(
    emulator_host: str | None, url: str | None, topic: str, dead_letter_topic: str
) -> MonitoredBacklogs | None:
    """Return what reads them; None beside an emulator of Pub/Sub, unless ``url`` says who answers in its place."""
    return None if emulator_host and not url else MonitoredBacklogs(emulator_host, url, (topic, dead_letter_topic))


def inspect_backlogs(backlogs: MonitoredBacklogs | None) -> Finding:
    """Check whether a reader can export the backlogs. It runs without them, so that nothing here is an error."""
    what = "backlogs"
    if backlogs is None:
        return Finding.ok(what, "not known here: an emulator of Pub/Sub has no Cloud Monitoring")
    try:
        found = asyncio.run(backlogs.read())
    except MisconfiguredError as error:
        fix = "do what is named there: without it nothing warns before a subscription's retention is over"
        return Finding.warning(what, str(error), fix)
    except TransientError as error:
        return Finding.warning(what, str(error), "check the network and MONITORING_URL; then ask again")
    return Finding.ok(what, "\n".join(map(_counted, found)) or "no subscription has any")


def _counted(backlog: SubscriptionBacklog) -> str:
    messages = "no sample yet" if backlog.messages is None else f"{backlog.messages} messages"
    return f"{short_name(backlog.name)}: {messages}"


def _session(url: str) -> AuthorizedSession:
    if url.startswith("http://"):  # no token goes over a connection that is not encrypted
        credentials: Any = AnonymousCredentials()  # type: ignore[no-untyped-call]
    else:
        credentials, _project = google.auth.default(scopes=[_SCOPE])
    return AuthorizedSession(credentials)  # type: ignore[no-untyped-call]


class _Interval(msgspec.Struct, rename="camel"):
    end_time: datetime


class _Value(msgspec.Struct, rename="camel"):
    int64_value: str


class _Point(msgspec.Struct):
    interval: _Interval
    value: _Value


class _Labels(msgspec.Struct):
    subscription_id: str


class _Resource(msgspec.Struct):
    labels: _Labels


class _Series(msgspec.Struct):
    resource: _Resource
    points: list[_Point] = []


class _Answer(msgspec.Struct, rename="camel"):
    time_series: list[_Series] = []


def _newest(body: bytes) -> Iterator[tuple[str, int]]:
    try:
        answer = msgspec.json.decode(body, type=_Answer)
        for series in answer.time_series:
            if series.points:
                newest = max(series.points, key=lambda point: point.interval.end_time)
                yield series.resource.labels.subscription_id, int(newest.value.int64_value)
    except (msgspec.MsgspecError, ValueError) as error:
        raise TransientError(f"Cloud Monitoring's answer cannot be read: {error}") from error


def _message(body: bytes) -> str:
    """Return what an error answer says, shortened; other servers than Google's answer otherwise."""
    try:
        document: Any = msgspec.json.decode(body)
        return str(document["error"]["message"])[:300]
    except (msgspec.MsgspecError, TypeError, KeyError):
        return body[:300].decode(errors="replace")
