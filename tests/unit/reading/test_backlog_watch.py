"""The readers show what waits for the consumer, and nothing that is wrong with that ends a reader."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from shared.contracts.errors import MisconfiguredError, TransientError
from shared.reading.backlog_watch import BacklogWatch
from shared.runtime.backlog import BacklogMetrics, SubscriptionBacklog

NAME = "projects/p/subscriptions/consumer"
EVERY = timedelta(minutes=2)


def a_backlog(age: int) -> SubscriptionBacklog:
    return SubscriptionBacklog(
        name=NAME, store="subscription", retention=timedelta(days=7), oldest=timedelta(seconds=age), messages=3
    )


class Answers:
    """Answers what a test states, one after the other, the last one for ever."""

    def __init__(self, *answers: int | Exception) -> None:
        self._answers = list(answers)

    async def read(self) -> Sequence[SubscriptionBacklog]:
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return [a_backlog(answer)]


class Shown:
    """What the metrics show."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.metrics = BacklogMetrics(self._registry)

    @property
    def age(self) -> float | None:
        return self._registry.get_sample_value(
            "millrace_subscription_oldest_message_age_seconds", {"subscription": NAME}
        )

    @property
    def failed(self) -> float | None:
        return self._registry.get_sample_value("millrace_subscription_reads_failed_total")


async def watch(answers: Answers | None, shown: Shown, *, minutes: int) -> None:
    async with BacklogWatch(answers, shown.metrics, EVERY).watching():
        await asyncio.sleep(minutes * 60)


async def test_the_newest_answer_is_shown() -> None:
    shown = Shown()

    await watch(Answers(10, 130, 250), shown, minutes=5)

    assert (shown.age, shown.failed) == (250, 0)
    assert shown.metrics.document() == [
        {"subscription": NAME, "retention_seconds": 7 * 86_400, "oldest_seconds": 250, "messages": 3}
    ]


@pytest.mark.parametrize("error", [TransientError("HTTP 503"), MisconfiguredError("backlog-forbidden", "HTTP 403")])
async def test_failures_are_counted_and_logged_once_and_the_last_answer_stays_for_some_minutes(
    error: Exception,
) -> None:
    shown = Shown()
    with capture_logs() as logs:
        await watch(Answers(10, error), shown, minutes=9)

    assert (shown.age, shown.failed) == (10, 4)
    assert [line["event"] for line in logs] == ["backlog_not_read"]


async def test_an_answer_of_long_ago_is_no_longer_shown_until_there_is_another_one() -> None:
    failures, shown, later = [TransientError("HTTP 503")] * 7, Shown(), Shown()
    await watch(Answers(10, *failures), shown, minutes=13)
    assert (shown.age, shown.metrics.document()) == (None, [])

    with capture_logs() as logs:
        await watch(Answers(10, *failures, 20), later, minutes=20)
    assert later.age == 20
    assert [line["event"] for line in logs] == ["backlog_not_read", "backlog_read_again"]


async def test_where_nothing_knows_the_backlog_nothing_is_shown_and_the_log_reports_why() -> None:
    shown = Shown()
    with capture_logs() as logs:
        await watch(None, shown, minutes=5)

    assert (shown.age, shown.failed) == (None, 0)
    assert [(line["event"], "Cloud Monitoring" in line["why"]) for line in logs] == [("backlog_not_shown", True)]
