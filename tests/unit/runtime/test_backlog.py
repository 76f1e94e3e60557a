"""How long a store still keeps what waits in it, as a metric."""

from datetime import timedelta

from prometheus_client import CollectorRegistry

from shared.runtime.backlog import BacklogMetrics


def test_what_the_stream_still_keeps_falls_while_the_source_does_not_answer() -> None:
    registry, now = CollectorRegistry(), [1_000.0]
    metrics = BacklogMetrics(registry, lambda: now[0])

    def left() -> float | None:
        return registry.get_sample_value("millrace_retention_left_seconds", {"store": "source_stream"})

    assert left() is None
    metrics.stream_keeps(timedelta(hours=1))
    now[0] += 600
    assert left() == 3_000
    metrics.stream_keeps(timedelta(hours=2))
    assert left() == 7_200
