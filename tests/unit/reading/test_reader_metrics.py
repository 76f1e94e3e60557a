"""What a reader does not know yet is NaN, which fires no alert and stands for no other reader's value."""

import math
from datetime import timedelta

import pytest
from prometheus_client import CollectorRegistry

from services.spanner_reader.app.status.metrics import SpannerReaderMetrics
from services.spanner_reader.core.pauses import Pauses
from shared.contracts.timestamps import Nanoseconds

SOURCE = {"source": "//spanner/everything"}
NOW = Nanoseconds(1_700_000_000_000_000_000)


@pytest.mark.parametrize(
    ("metric", "labels", "known"),
    [
        ("lag_seconds", {}, 60),
        ("low_watermark_timestamp_seconds", {}, 1_699_999_940),
        ("retention_seconds", {}, 86_400),
        ("paused", SOURCE, 0),
    ],
)
def test_what_is_not_known_yet_is_no_number(metric: str, labels: dict[str, str], known: float) -> None:
    registry = CollectorRegistry()
    metrics = SpannerReaderMetrics(registry, SOURCE["source"])

    def value() -> float:
        found = registry.get_sample_value(f"millrace_reader_{metric}", labels)
        assert found is not None, "without a series, an alert would say that the reader is down"
        return found

    assert math.isnan(value())

    metrics.paused(Pauses(NOW))
    metrics.surveyed({}, Nanoseconds(NOW - 60_000_000_000), NOW)
    metrics.kept_for(timedelta(days=1), timedelta(hours=23))
    assert value() == pytest.approx(known, abs=1)
