"""The metrics of the consumer, and what several processes add to them."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from services.cdc_consumer.app.status.apply_watermarks import ApplyWatermarks
from services.cdc_consumer.app.status.metrics import ConsumerMetrics
from services.cdc_consumer.core.stream.counts import (
    MOST_SOURCES,
    Appends,
    Applied,
    Counts,
    Report,
    TableNote,
    newest_heartbeats,
)
from shared.contracts.errors import TransientError
from shared.runtime.metrics import MOST_TABLES
from tests.unit.cdc_consumer.world import NOW, SetClock

T20 = datetime(2022, 9, 15, 4, 17, 19, 909_000, tzinfo=UTC)
COUNTS = Counts(
    messages=5,
    changes=9,
    rows_written=6,
    superseded=2,
    dead_letters={"undecodable": 1},
    acked=4,
    deferred=1,
    max_commit_timestamp=1_700_000_000_000_000,
)


class Metrics:
    """The consumer's metrics, on a clock that a test sets."""

    def __init__(self) -> None:
        self.registry, self.clock = CollectorRegistry(), SetClock()
        self.consumer = ConsumerMetrics(self.registry, self.clock)

    def take(self, counts: Counts | None = None, **report: Any) -> None:
        self.consumer.take(Report(counts=counts or Counts(), **report))

    def shown(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"millrace_{name}", labels)

    def watermark(self, table: str) -> float | None:
        return self.shown("consumer_apply_watermark_timestamp_seconds", table=table)


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


def test_each_mirror_shows_its_watermark_until_it_is_gone(metrics: Metrics) -> None:
    found = {"Orders": T20, "Plain": T20}
    watermarks = ApplyWatermarks(metrics.registry, lambda: found)

    watermarks.show()
    assert metrics.watermark("Orders") == pytest.approx(T20.timestamp())
    del found["Plain"]
    watermarks.show()
    assert metrics.watermark("Plain") is None
    assert metrics.watermark("Orders") is not None


def test_no_more_than_a_hundred_mirrors_are_shown(metrics: Metrics) -> None:
    ApplyWatermarks(metrics.registry, lambda: {f"t{n:03}": T20 for n in range(MOST_TABLES + 5)}).show()

    assert metrics.watermark(f"t{MOST_TABLES - 1:03}") is not None
    assert metrics.watermark(f"t{MOST_TABLES:03}") is None


def test_what_cannot_be_read_stays_and_is_logged_once(metrics: Metrics) -> None:
    answers = [{"Orders": T20}]

    def read() -> dict[str, datetime]:
        if not answers:
            raise TransientError("may not be queried")
        return answers.pop()

    watermarks = ApplyWatermarks(metrics.registry, read)
    watermarks.show()
    with capture_logs() as logs:
        watermarks.show()
        watermarks.show()

    assert [one["event"] for one in logs] == ["apply_watermarks_not_read"]
    assert "roles/bigquery.jobUser" in logs[0]["fix"]
    assert metrics.watermark("Orders") is not None


def test_metrics_add_up_the_counts(metrics: Metrics) -> None:
    for _ in range(2):
        metrics.take(Counts(taken=5))
        metrics.take(COUNTS)

    assert metrics.shown("consumer_micro_batches_total") == 2
    assert metrics.shown("consumer_messages_total") == 10
    assert metrics.shown("consumer_changes_total") == 18
    assert metrics.shown("consumer_written_rows_total") == 12
    assert metrics.shown("consumer_superseded_changes_total") == 4
    assert metrics.shown("dead_letters_total", reason="undecodable") == 2
    leases = [metrics.shown(f"leases_{what}_total") for what in ("acquired", "acked", "nacked", "released")]
    assert leases == [10, 8, 2, 0]
    assert metrics.shown("consumer_latest_commit_timestamp_seconds") == 1_700_000_000
    assert metrics.consumer.left() == {"taken": 10, "acked": 8, "deferred": 2, "released": 0, "left": 0}


def test_what_processes_append_is_added_up_and_so_are_the_connections_they_have(metrics: Metrics) -> None:
    for process, connections in (("a", 3), ("b", 2), ("a", 1)):
        appends = Appends.of_one(400, 0.2).plus(Appends.of_one(600, 0.05))
        metrics.take(process=process, appends=appends, connections=connections)
    metrics.take(process="b")

    added = [metrics.shown(f"consumer_append{what}") for what in ("s_total", "ed_bytes_total", "_seconds_sum")]
    assert added == pytest.approx([6, 3_000, 0.75])
    within = {"0.025": 0, "0.05": 3, "0.1": 3, "0.25": 6, "+Inf": 6}
    assert {bound: metrics.shown("consumer_append_seconds_bucket", le=bound) for bound in within} == within
    assert metrics.shown("consumer_append_connections") == 3
    metrics.clock.pass_time(timedelta(minutes=9))
    metrics.take(process="a", connections=2)
    metrics.clock.pass_time(timedelta(minutes=2))
    connections_left = metrics.shown("consumer_append_connections")
    assert connections_left == 2, "b has not been heard of for longer than an idle connection lives"


def test_how_long_changes_take_is_counted_by_table_and_stage(metrics: Metrics) -> None:
    older, newer = Applied(1_000_000, 1_100_000, 9_000_000), Applied(2_000_000, 2_500_000, 3_750_000)
    metrics.take(Counts(tables={"a": TableNote(latest=older), "b": TableNote(latest=newer)}))

    def took(table: str, stage: str) -> float | None:
        return metrics.shown("consumer_stage_seconds_sum", table=table, stage=stage)

    assert (took("a", "commit_to_published"), took("a", "published_to_applied")) == (0.1, 7.9)
    assert (took("b", "commit_to_published"), took("b", "published_to_applied")) == (0.5, 1.25)


def test_the_age_of_the_oldest_message_held_is_that_of_any_process_and_goes_on_by_itself(metrics: Metrics) -> None:
    name = "consumer_oldest_outstanding_message_age_seconds"

    assert metrics.shown(name) == 0
    metrics.take(process="a", oldest_outstanding=NOW // 1000 - 5_000_000)
    metrics.take(process="b", oldest_outstanding=NOW // 1000 - 60_000_000)
    metrics.clock.pass_time(timedelta(seconds=1))
    assert metrics.shown(name) == pytest.approx(61)
    metrics.take(process="b")
    assert metrics.shown(name) == pytest.approx(6)


def test_the_gauge_of_a_source_never_goes_back_and_there_are_few_of_them(metrics: Metrics) -> None:
    def watermark(source: str) -> float | None:
        return metrics.shown("consumer_source_watermark_timestamp_seconds", source=source)

    for until in (5_000_000, 9_000_000, 7_000_000):
        metrics.take(Counts(heartbeats={"s": until}))
    assert watermark("s") == 9

    metrics.take(Counts(heartbeats={f"forged {n}": 1_000_000 for n in range(1_000)}))
    assert watermark("s") == 9
    assert watermark("forged 0") == 1
    assert watermark(f"forged {MOST_SOURCES - 1}") is None
    assert len(newest_heartbeats({}, {f"forged {n}": 1 for n in range(1_000)})) == MOST_SOURCES
