"""Logs are one JSON object a line, in Cloud Logging's fields."""

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from shared.runtime.logs import configure_logs


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    root, before = logging.getLogger(), (logging.getLogger().handlers[:], logging.getLogger().level)
    stream = io.StringIO()
    configure_logs("spanner_reader", "INFO", stream)
    yield stream
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()
    root.handlers[:], root.level = before


def test_an_event_is_one_line_with_its_fields_beside_it(lines: io.StringIO) -> None:
    structlog.get_logger().warning("record_set_aside", reason="undecodable", count=2)

    (line,) = lines.getvalue().splitlines()
    event = json.loads(line)
    assert event.pop("time").endswith("Z")
    assert event == {
        "message": "record_set_aside",
        "severity": "WARNING",
        "service": "spanner_reader",
        "reason": "undecodable",
        "count": 2,
    }


def test_below_the_level_nothing_is_written(lines: io.StringIO) -> None:
    structlog.get_logger().debug("watermark_advanced")

    assert lines.getvalue() == ""


def test_a_librarys_warning_is_a_line_of_the_same_kind_though_it_would_keep_it_to_itself(lines: io.StringIO) -> None:
    logging.getLogger("google").propagate = False  # as google.api_core does when it is imported
    configure_logs("spanner_reader", "INFO", lines)
    logging.getLogger("google.api_core").warning("retrying %s", "call")

    event = json.loads(lines.getvalue())
    assert (event["severity"], event["message"], event["logger"]) == ("WARNING", "retrying call", "google.api_core")


def test_an_exception_is_told_on_its_line(lines: io.StringIO) -> None:
    try:
        raise ValueError("boom")
    except ValueError:
        structlog.get_logger().exception("reader_failed")

    (line,) = lines.getvalue().splitlines()
    event = json.loads(line)
    assert event["severity"] == "ERROR"
    assert event["exception"][0]["exc_type"] == "ValueError"


def test_a_traceback_quotes_no_local_values(lines: io.StringIO) -> None:
    def handle(row: str) -> None:
        raise ValueError("a value does not fit")

    try:
        handle("secret-of-a-row")
    except ValueError:
        structlog.get_logger().exception("reader_failed")

    assert "secret-of-a-row" not in lines.getvalue()
