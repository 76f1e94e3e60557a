"""Faults on a small platform fire their alerts, and the dashboard's queries have answers.

Services, emulators and a Prometheus server are real.

Only `make test-all` runs it, because it needs Prometheus. Times in the rules are scaled (`prometheus_server`).
"""

import itertools
import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import pytest

from deploy.local.platform.emulators import ROOT
from deploy.local.platform.processes import Processes
from deploy.local.platform.services import (
    TIMEOUT,
    Service,
    child_environment,
    start_consumer,
    start_dead_letter,
)
from deploy.local.platform.source import SpannerInstance, Write
from shared.pubsub.names import short_name
from tests.e2e.rig import Message, Rig
from tests.e2e.standing import Standing
from tests.exhaustive.prometheus_server import PrometheusServer, scaled
from tests.integration.monitoring_server import MonitoringServer, monitoring_server
from tests.integration.wire import Wire, wire
from tests.worlds.consumer import WITHOUT_SPARK

pytestmark = pytest.mark.timeout(900)

WEEK = 7 * 86_400


@dataclass
class Observed:
    """A small platform that Prometheus observes."""

    rig: Rig
    prometheus: PrometheusServer
    monitoring: MonitoringServer
    spanner: Wire
    readers: int = 0
    dead_letters: Service | None = None

    def reader(self) -> Service:
        """Start a reader that publishes heartbeats and reads backlogs each second, and wait until it is scraped."""
        self.readers += 1
        reader = self.rig.start_reader(
            f"reader_{self.readers}",
            SPANNER_EMULATOR_HOST=self.spanner.address,
            MONITORING_URL=self.monitoring.url,
            CHECK_SUBSCRIPTIONS_EVERY="1s",
            TOPIC_HEARTBEAT_EVERY="1s",
            HEARTBEAT_INTERVAL="1s",
            LEASE_DURATION="6s",
        )
        self.rig.wait_until_ready(reader)
        self.prometheus.scrape("reader", reader.address)
        return reader

    def consumer(self) -> Service:
        """Start the consumer if none runs, and wait until it is scraped."""
        consumer = self.rig.consumer()
        self.rig.wait_until_ready(consumer)
        self.prometheus.scrape("consumer", consumer.address)
        return consumer

    def dead_letter_service(self) -> Service:
        """Start the dead-letter service if none runs, and wait until it is scraped."""
        if self.dead_letters is None:
            self.dead_letters = start_dead_letter(self.rig.processes, self.rig.standing.flow)
            self.rig.wait_until_ready(self.dead_letters)
            self.prometheus.scrape("dead_letter", self.dead_letters.address)
        return self.dead_letters

    def wait_until_healthy(self) -> None:
        """Wait until a heartbeat has come all the way, and no alert of this module fires."""
        heartbeat = "time() - max(millrace_consumer_source_watermark_timestamp_seconds) < 8"
        self.rig.wait(lambda: self.prometheus.value(heartbeat) is not None, "a heartbeat at the consumer")
        self.rig.wait(lambda: not self.prometheus.firing() & ALERTS, "all alerts to end")


ALERTS = {
    "MillraceReaderBehind",
    "MillraceReaderDown",
    "MillraceReaderNearsRetention",
    "MillraceConsumerDown",
    "MillraceNothingIsAcked",
    "MillraceSourceSilent",
    "MillraceSubscriptionNearsRetention",
}
DASHBOARD: Final = json.loads((ROOT / "deploy" / "grafana" / "millrace.json").read_text())
MAY_BE_EMPTY: Final = {
    "Age of the apply watermark: {{table}}": "the consumer asks each five minutes, of mirrors listed before",
    "Versions and starts: {{service}} ended within a day: {{code}}": "no service has to have ended with an error",
}
"""Queries of the dashboard, by panel and legend, that need not have an answer, and why."""


@pytest.fixture(scope="module")
def observed(
    tmp_path_factory: pytest.TempPathFactory,
    pubsub_emulator: str,
    bigquery_stand_in: tuple[str, str],
    spanner_instance: SpannerInstance,
) -> Iterator[Observed]:
    """Return a platform of one reader and one consumer, without Spark, and Prometheus beside it."""
    directory = tmp_path_factory.mktemp("observed")
    with (
        Processes(directory / "processes", child_environment(os.environ)) as processes,
        monitoring_server() as monitoring,
        wire(spanner_instance.address) as spanner,
    ):
        standing = Standing(processes, pubsub_emulator, bigquery_stand_in, WITHOUT_SPARK)
        rig = Rig(standing, spanner_instance, processes)
        yield Observed(rig, PrometheusServer(processes, directory), monitoring, spanner)
        processes.end_all()
        rig.drop()
        standing.close()


def report(request: pytest.FixtureRequest, seconds: float) -> None:
    """Print how long it took from the fault to the alert, as the rules are scaled."""
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print(f"\n{request.node.name}: {seconds:.0f} s from fault to alert, of rules scaled by 1:60")  # noqa: T201


def test_a_subscription_at_80_percent_of_its_retention_alerts_though_its_consumer_is_healthy(
    observed: Observed, request: pytest.FixtureRequest
) -> None:
    subscription = short_name(observed.rig.pipeline.topology.subscription)
    observed.monitoring.states(subscription, age=60, messages=1)
    observed.consumer()
    observed.reader()
    observed.rig.commit(Write("insert", "Tags", {"Tag": "one"}))
    observed.wait_until_healthy()

    observed.monitoring.states(subscription, age=int(0.81 * WEEK), messages=1_000)
    report(request, observed.prometheus.seconds_until("MillraceSubscriptionNearsRetention"))
    left = observed.prometheus.value('min(millrace_retention_left_seconds{store="subscription"})')
    assert left == WEEK - int(0.81 * WEEK)
    observed.monitoring.states(subscription, age=60, messages=1)
    observed.prometheus.wait_until_silent("MillraceSubscriptionNearsRetention")


def test_a_source_that_does_not_answer_alerts_at_the_consumer_though_its_reader_runs(
    observed: Observed, request: pytest.FixtureRequest
) -> None:
    observed.wait_until_healthy()
    observed.spanner.cut()
    report(request, observed.prometheus.seconds_until("MillraceSourceSilent"))
    assert "MillraceReaderDown" not in observed.prometheus.firing()
    observed.spanner.fix()
    observed.wait_until_healthy()


def test_a_partition_that_its_owner_does_not_read_alerts_at_the_reader_and_at_the_consumer(
    observed: Observed, request: pytest.FixtureRequest
) -> None:
    observed.wait_until_healthy()
    partitions = observed.rig.partitions
    stuck, _at = partitions.execute(
        "UPDATE millrace_partitions SET owner = 'stuck', fencing = fencing + 1, "
        "lease_until = TIMESTAMP_ADD(CURRENT_TIMESTAMP(), INTERVAL 1 HOUR) "
        "WHERE token = (SELECT MIN(token) FROM millrace_partitions WHERE owner IS NOT NULL AND state != 'FINISHED')"
    )
    assert stuck == 1
    report(request, observed.prometheus.seconds_until("MillraceReaderBehind"))
    observed.prometheus.seconds_until("MillraceSourceSilent")
    assert "MillraceReaderDown" not in observed.prometheus.firing()
    partitions.execute("UPDATE millrace_partitions SET owner = NULL, lease_until = NULL WHERE owner = 'stuck'")
    observed.wait_until_healthy()


def test_a_reader_that_is_killed_alerts_and_its_consumer_does_not_look_healthy(
    observed: Observed, request: pytest.FixtureRequest
) -> None:
    observed.wait_until_healthy()
    for process in observed.rig.processes.running:
        if process.name.startswith("reader_"):
            process.kill()
    report(request, observed.prometheus.seconds_until("MillraceReaderDown"))
    observed.prometheus.seconds_until("MillraceSourceSilent")
    assert "MillraceConsumerDown" not in observed.prometheus.firing()
    observed.reader()
    observed.wait_until_healthy()


def test_a_consumer_that_is_killed_alerts_and_the_readers_go_on_showing_its_backlog(
    observed: Observed, request: pytest.FixtureRequest
) -> None:
    observed.wait_until_healthy()
    observed.consumer().process.kill()
    observed.monitoring.states(short_name(observed.rig.pipeline.topology.subscription), age=90, messages=77)
    report(request, observed.prometheus.seconds_until("MillraceConsumerDown"))
    assert "MillraceReaderDown" not in observed.prometheus.firing()
    assert observed.prometheus.value("max(millrace_subscription_backlog_messages)") == 77
    observed.prometheus.seconds_until("MillraceNothingIsAcked")
    observed.consumer()
    observed.wait_until_healthy()


def test_a_table_that_bigquery_denies_alerts_by_its_name(observed: Observed, request: pytest.FixtureRequest) -> None:
    observed.consumer()
    observed.wait_until_healthy()
    with observed.rig.fault(action="close", status="PERMISSION_DENIED", table=observed.rig.in_bigquery("Tags")):
        observed.rig.commit(Write("insert", "Tags", {"Tag": "denied"}))
        report(request, observed.prometheus.seconds_until("MillraceTableFails"))
        name = observed.rig.named("Tags")
        assert observed.prometheus.value(f'ALERTS{{alertname="MillraceTableFails", table="{name}"}}') == 1
        assert "MillraceConsumerDown" not in observed.prometheus.firing()
    observed.prometheus.wait_until_silent("MillraceTableFails")


def test_a_consumer_whose_dead_letter_limit_trips_alerts(observed: Observed, request: pytest.FixtureRequest) -> None:
    observed.wait_until_healthy()
    observed.consumer().process.kill()
    limited = start_consumer(
        observed.rig.processes, observed.rig.standing.flow, "limited", module=WITHOUT_SPARK, POISON_LIMIT="1"
    )
    observed.rig.wait_until_ready(limited)
    observed.prometheus.scrape("consumer", limited.address)
    observed.prometheus.wait_until_silent("MillraceConsumerDown")
    limited.process.expected_to_end = True
    observed.rig.publish([Message(b"no change batch", {}, f"forged/{number}") for number in range(50)])
    report(request, observed.prometheus.seconds_until("MillraceConsumerDown"))
    assert limited.process.wait(TIMEOUT) not in (0, None)
    assert "cannot be applied (" in limited.process.log.read_text()


def test_each_query_of_the_dashboard_has_an_answer(observed: Observed) -> None:
    """Of a pipeline that runs, which has had a dead letter and a source that did not answer for a while."""
    prometheus, rig = observed.prometheus, observed.rig
    observed.monitoring.states(short_name(rig.pipeline.topology.subscription), age=60, messages=1)
    observed.consumer()
    observed.dead_letter_service()
    if not observed.readers:
        observed.reader()
    topology = rig.pipeline.topology
    of_pipeline = f'{{topic="{topology.topic}", dead_letter_topic="{topology.dead_letter_topic}"}}'
    rig.wait(lambda: len(prometheus.values(f"group by (job) (millrace_topics_info{of_pipeline})")) == 3, "all topics")
    queries = {
        f"{panel['title']}: {target['legendFormat']}": target["expr"]
        for panel in DASHBOARD["panels"]
        for target in panel["targets"]
    }
    assert queries.keys() >= MAY_BE_EMPTY.keys()

    observed.spanner.cut()
    rig.wait(lambda: prometheus.value("sum(millrace_retries_total)"), "calls that are made again")
    observed.spanner.fix()
    rig.publish([Message(b"no change batch", {}, "forged/dashboard")])
    empty, numbers = set(queries), itertools.count()

    def answered() -> bool:
        rig.commit(Write("insert", "Tags", {"Tag": f"dashboard {next(numbers)}"}))
        empty.difference_update([one for one in empty if any(map(math.isfinite, prometheus.values(queries[one])))])
        return empty <= MAY_BE_EMPTY.keys()

    try:
        rig.wait(answered, "answers", timedelta(seconds=90), timedelta(seconds=1))
    except Exception as error:
        raise AssertionError(f"without an answer: {sorted(empty - MAY_BE_EMPTY.keys())}") from error


def test_times_are_scaled_and_nothing_else() -> None:
    rule = "expr: time() - max(a[1d]) > 600 and b > 0.8 and increase(c[30m]) > 50\nfor: 5m"
    expected = "expr: time() - max(a[1440000ms]) > 10 and b > 0.8 and increase(c[30000ms]) > 50\nfor: 5000ms"

    assert scaled(rule) == expected
