"""How old the position of any reader is: reported at half of the retention and when little is left, once each."""

from datetime import timedelta

import pytest
from structlog.testing import capture_logs

from shared.reading.position_age import PositionAge
from tests.fakes.reader_metrics import AnyMetrics

WEEK = timedelta(days=7)
LENGTHEN = "ALTER CHANGE STREAM"


@pytest.mark.parametrize(("paused", "fix"), [(True, "`resume`, before"), (False, "find out what holds it up")])
def test_a_position_that_is_half_the_retention_old_is_a_warning_and_soon_an_error_each_reported_once(
    paused: bool, fix: str
) -> None:
    shown = AnyMetrics()
    age = PositionAge(shown, LENGTHEN)
    with capture_logs() as logs:
        age.report(timedelta(days=6), None, paused=paused)
        for days in (1, 3.6, 4, 5.7, 6, 4, 1, 3.6):
            age.report(timedelta(days=days), WEEK, paused=paused)
    assert [(line["event"], line["log_level"], line["behind"], line["paused"]) for line in logs] == [
        ("position_is_ageing", "warning", str(timedelta(days=3.6)), paused),
        ("position_is_ageing", "error", str(timedelta(days=5.7)), paused),
        ("position_is_ageing", "warning", str(timedelta(days=3.6)), paused),
    ]
    assert all(line["fix"].startswith(fix) and LENGTHEN in line["fix"] for line in logs)
    assert shown.value("reader_retention_seconds") == WEEK.total_seconds()
    left = (WEEK - timedelta(days=3.6)).total_seconds()
    assert shown.values("retention_left_seconds")["source_stream"] == pytest.approx(left, abs=60)
