"""Backlogs of the topics' subscriptions: names and retentions from Pub/Sub's emulator, numbers from an HTTP server."""

import asyncio
import threading
from collections.abc import Iterator
from datetime import timedelta

import grpc
import pytest
from prometheus_client import CollectorRegistry

from shared.contracts.errors import MisconfiguredError, TransientError
from shared.pubsub.backlogs import MonitoredBacklogs, inspect_backlogs, monitored_backlogs
from shared.pubsub.names import short_name
from shared.pubsub.topology import PubsubTopology
from shared.runtime.backlog import BacklogMetrics, SubscriptionBacklog
from shared.runtime.findings import Finding, Level
from tests.integration.monitoring_server import MonitoringServer, monitoring_server
from tests.integration.pubsub_topics import subscribe

pytestmark = pytest.mark.integration

DAYS = timedelta(days=7)


@pytest.fixture
def monitoring() -> Iterator[MonitoringServer]:
    with monitoring_server() as server:
        yield server


@pytest.fixture
def backlogs(pubsub_emulator: str, topology: PubsubTopology, monitoring: MonitoringServer) -> MonitoredBacklogs:
    found = monitored_backlogs(pubsub_emulator, monitoring.url, topology.topic, topology.dead_letter_topic)
    assert found is not None
    return found


def test_each_subscription_of_both_topics_has_its_newest_sample_and_its_retention(
    backlogs: MonitoredBacklogs, topology: PubsubTopology, monitoring: MonitoringServer
) -> None:
    monitoring.states(short_name(topology.subscription), age=500_000, messages=1_234)

    found = {one.name: one for one in asyncio.run(backlogs.read())}

    assert found == {
        topology.subscription: SubscriptionBacklog(
            name=topology.subscription,
            store="subscription",
            retention=DAYS,
            oldest=timedelta(seconds=500_000),
            messages=1_234,
        ),
        topology.dead_letter_subscription: SubscriptionBacklog(
            name=topology.dead_letter_subscription,
            store="dead_letter_subscription",
            retention=DAYS,
            oldest=None,
            messages=None,
        ),
    }
    assert monitoring.projects == {topology.topic.split("/")[1]}
    assert monitoring.asked == 2, "one request for each metric, however many subscriptions"


def test_retention_left_is_that_of_the_subscription_that_loses_messages_first(
    backlogs: MonitoredBacklogs, topology: PubsubTopology, monitoring: MonitoringServer, channel: grpc.Channel
) -> None:
    another = subscribe(channel, topology)
    monitoring.states(short_name(topology.subscription), age=10, messages=1)
    monitoring.states(short_name(another), age=100_000, messages=7)
    registry = CollectorRegistry()
    metrics = BacklogMetrics(registry)

    metrics.show(asyncio.run(backlogs.read()))

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"millrace_{name}", labels)

    assert value("retention_left_seconds", store="subscription") == DAYS.total_seconds() - 100_000
    assert value("retention_left_seconds", store="dead_letter_subscription") is None
    assert value("subscription_backlog_messages", subscription=another) == 7
    assert value("subscription_oldest_message_age_seconds", subscription=topology.subscription) == 10
    metrics.show(())
    assert value("subscription_backlog_messages", subscription=another) is None


@pytest.mark.parametrize(
    ("status", "error", "message"),
    [
        (403, MisconfiguredError, "roles/monitoring.viewer"),
        (429, TransientError, "HTTP 429"),
        (503, TransientError, "said by the test"),
        (400, MisconfiguredError, "HTTP 400"),
        (404, MisconfiguredError, "HTTP 404"),
    ],
)
def test_an_answer_that_is_an_error_reports_whether_the_next_one_may_be_none(
    backlogs: MonitoredBacklogs, monitoring: MonitoringServer, status: int, error: type[Exception], message: str
) -> None:
    monitoring.error = status

    with pytest.raises(error, match=message):
        asyncio.run(backlogs.read())

    monitoring.error = 0
    assert len(asyncio.run(backlogs.read())) == 2


@pytest.mark.parametrize("unknown", [set(), {"oldest_unacked_message_age", "num_undelivered_messages"}])
def test_new_subscriptions_have_no_samples_which_is_no_failure_and_their_retentions_are_shown(
    backlogs: MonitoredBacklogs, topology: PubsubTopology, monitoring: MonitoringServer, unknown: set[str]
) -> None:
    monitoring.unknown = unknown

    found = asyncio.run(backlogs.read())

    assert {(one.name, one.retention, one.oldest, one.messages) for one in found} == {
        (topology.subscription, DAYS, None, None),
        (topology.dead_letter_subscription, DAYS, None, None),
    }
    assert inspect_backlogs(backlogs).level is Level.OK


def test_a_server_that_does_not_answer_is_a_failure_of_the_moment(
    pubsub_emulator: str, topology: PubsubTopology
) -> None:
    with monitoring_server() as gone:
        url = gone.url
    backlogs = monitored_backlogs(pubsub_emulator, url, topology.topic, topology.dead_letter_topic)
    assert backlogs is not None

    with pytest.raises(TransientError, match="Cloud Monitoring"):
        asyncio.run(backlogs.read())


def test_beside_an_emulator_nothing_is_asked_unless_a_server_is_named(pubsub_emulator: str) -> None:
    assert monitored_backlogs(pubsub_emulator, None, "projects/p/topics/t", "projects/p/topics/d") is None
    assert monitored_backlogs(None, None, "projects/p/topics/t", "projects/p/topics/d") is not None


def test_a_doctor_reports_whether_they_can_be_read_and_the_role_that_is_missing(
    backlogs: MonitoredBacklogs, topology: PubsubTopology, monitoring: MonitoringServer
) -> None:
    monitoring.states(short_name(topology.subscription), age=10, messages=1_234)
    read = inspect_backlogs(backlogs)
    assert read.level is Level.OK
    assert set(read.detail.splitlines()) == {
        f"{short_name(topology.subscription)}: 1234 messages",
        f"{short_name(topology.dead_letter_subscription)}: no sample yet",
    }

    monitoring.error = 403
    forbidden = inspect_backlogs(backlogs)
    assert forbidden.level is Level.WARNING, "a reader runs without it"
    assert "roles/monitoring.viewer" in forbidden.detail
    assert forbidden.detail.endswith("[backlog-forbidden]")

    monitoring.error = 503
    assert "HTTP 503" in inspect_backlogs(backlogs).detail
    assert inspect_backlogs(None) == Finding(
        Level.OK, "backlogs", "not known here: an emulator of Pub/Sub has no Cloud Monitoring"
    )


def test_a_reader_that_stops_asks_no_further(backlogs: MonitoredBacklogs, monitoring: MonitoringServer) -> None:
    asked, stopped = threading.Event(), threading.Event()

    def wait_for_the_stop() -> None:
        asked.set()
        stopped.wait()

    async def stop_while_it_reads() -> None:
        reading = asyncio.create_task(backlogs.read())
        await asyncio.to_thread(asked.wait)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        stopped.set()

    monitoring.before_answer = wait_for_the_stop
    asyncio.run(stop_while_it_reads())
    assert monitoring.asked == 1
