"""Heartbeats of readers as the consumer takes them: shown, acked, and applied to no table."""

from collections.abc import Mapping
from datetime import UTC, datetime

from msgspec import structs
from prometheus_client import CollectorRegistry

from services.cdc_consumer.app.status.metrics import ConsumerMetrics
from services.cdc_consumer.core.stream.counts import MOST_SOURCES, Counts, Report, newest_heartbeats
from shared.contracts.change_batch import Change
from shared.runtime.clock import SystemClock
from tests.builders import a_change, a_header, a_message
from tests.unit.cdc_consumer.world import NOW, World

SOURCE = a_header().source
MICROS = NOW // 1_000
DAY = 86_400_000_000


def a_heartbeat(*changes: Change, until: int, source: str = SOURCE) -> Mapping[str, object]:
    header = structs.replace(a_header(), published_until=until, source=source)
    return {**a_message(*changes, header=header), "publish_time": datetime.fromtimestamp(NOW / 1e9, UTC)}


def test_the_newest_heartbeat_is_reported_and_all_are_acked_and_make_no_table() -> None:
    world = World()

    counts = world.apply(a_heartbeat(until=MICROS - 60), a_heartbeat(until=MICROS), a_heartbeat(until=MICROS - 90))

    assert counts.heartbeats == {SOURCE: MICROS}
    assert (counts.acked, counts.messages, dict(counts.tables)) == (3, 3, {})
    assert world.tables.there == {}
    assert world.dead_letters.kept == {}


def test_a_heartbeat_beside_changes_does_not_hinder_them_and_one_with_changes_is_none() -> None:
    world = World()

    counts = world.apply(a_heartbeat(until=MICROS), a_message(a_change(1)), a_heartbeat(a_change(2), until=MICROS + 1))

    assert counts.heartbeats == {SOURCE: MICROS}
    assert (counts.acked, counts.rows_written) == (3, 2)


def test_a_heartbeat_from_the_future_or_of_an_endless_source_says_nothing() -> None:
    world = World()

    counts = world.apply(a_heartbeat(until=MICROS + 2 * DAY), a_heartbeat(until=MICROS, source="s" * 100_000))

    assert counts.heartbeats == {}
    assert counts.acked == 2


def test_the_gauge_of_a_source_never_goes_back_and_there_are_few_of_them() -> None:
    registry = CollectorRegistry()
    metrics = ConsumerMetrics(registry, SystemClock())

    def shown(source: str) -> float | None:
        name = "millrace_consumer_source_watermark_timestamp_seconds"
        return registry.get_sample_value(name, {"source": source})

    for until in (5_000_000, 9_000_000, 7_000_000):
        metrics.take(Report(counts=Counts(heartbeats={SOURCE: until})))
    assert shown(SOURCE) == 9

    metrics.take(Report(counts=Counts(heartbeats={f"forged {n}": 1_000_000 for n in range(1_000)})))
    assert shown(SOURCE) == 9
    assert shown("forged 0") == 1
    assert shown(f"forged {MOST_SOURCES - 1}") is None
    assert len(newest_heartbeats({}, {f"forged {n}": 1 for n in range(1_000)})) == MOST_SOURCES
