"""The metric of apply watermarks."""

from datetime import UTC, datetime

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from services.cdc_consumer.app.status.apply_watermarks import ApplyWatermarks
from shared.contracts.errors import TransientError
from shared.runtime.metrics import MOST_TABLES

T20 = datetime(2022, 9, 15, 4, 17, 19, 909_000, tzinfo=UTC)
NAME = "millrace_consumer_apply_watermark_timestamp_seconds"


def shown(registry: CollectorRegistry, table: str) -> float | None:
    return registry.get_sample_value(NAME, {"table": table})


def test_each_mirror_shows_its_watermark_until_it_is_gone() -> None:
    registry, found = CollectorRegistry(), {"Orders": T20, "Plain": T20}
    watermarks = ApplyWatermarks(registry, lambda: found)

    watermarks.show()
    assert shown(registry, "Orders") == pytest.approx(T20.timestamp())
    del found["Plain"]
    watermarks.show()
    assert shown(registry, "Plain") is None
    assert shown(registry, "Orders") is not None


def test_no_more_than_a_hundred_mirrors_are_shown() -> None:
    registry = CollectorRegistry()
    ApplyWatermarks(registry, lambda: {f"t{n:03}": T20 for n in range(MOST_TABLES + 5)}).show()

    assert shown(registry, f"t{MOST_TABLES - 1:03}") is not None
    assert shown(registry, f"t{MOST_TABLES:03}") is None


def test_what_cannot_be_read_stays_and_is_logged_once() -> None:
    registry, answers = CollectorRegistry(), [{"Orders": T20}]

    def read() -> dict[str, datetime]:
        if not answers:
            raise TransientError("may not be queried")
        return answers.pop()

    watermarks = ApplyWatermarks(registry, read)
    watermarks.show()
    with capture_logs() as logs:
        watermarks.show()
        watermarks.show()

    assert [one["event"] for one in logs] == ["apply_watermarks_not_read"]
    assert "roles/bigquery.jobUser" in logs[0]["fix"]
    assert shown(registry, "Orders") is not None
