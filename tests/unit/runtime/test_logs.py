"""Logs are one JSON object a line, in Cloud Logging's fields."""

import io
import json
import logging
import re
import sys
import threading
import uuid
from collections.abc import Iterator

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from shared.contracts.errors import MisconfiguredError
from shared.runtime.log_events import SENTENCES
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
    structlog.get_logger().warning("change_dead_lettered", reason="undecodable", count=2)

    (line,) = lines.getvalue().splitlines()
    event = json.loads(line)
    assert event.pop("time").endswith("Z")
    where = event.pop("logging.googleapis.com/sourceLocation")
    assert where["file"] == "tests/unit/runtime/test_logs.py"
    assert (int(where["line"]) > 0, where["function"]) == (True, _this())
    assert event == {
        "message": SENTENCES["change_dead_lettered"],
        "event": "change_dead_lettered",
        "severity": "WARNING",
        "service": "spanner_reader",
        "reason": "undecodable",
        "count": 2,
    }


@pytest.mark.parametrize("field", ["error", "why"])
def test_the_code_of_an_error_is_a_field_beside_it(lines: io.StringIO, field: str) -> None:
    error = MisconfiguredError("topic-gone", "the topic is gone")
    structlog.get_logger().warning("topic_not_checked", **{field: str(error)})
    structlog.get_logger().warning("topic_not_checked", **{field: "the network is gone"})

    with_code, without = map(json.loads, lines.getvalue().splitlines())
    assert (with_code[field], with_code["error_code"]) == ("the topic is gone [topic-gone]", "topic-gone")
    assert "error_code" not in without


def test_a_fix_without_words_is_left_out(lines: io.StringIO) -> None:
    for fix in ("", "check the network"):
        structlog.get_logger().warning("partitions_not_claimed", error="ABORTED", fix=fix)

    without, with_fix = map(json.loads, lines.getvalue().splitlines())
    assert "fix" not in without
    assert with_fix["fix"] == "check the network"


def test_below_the_level_nothing_is_written(lines: io.StringIO) -> None:
    structlog.get_logger().debug("watermark_advanced")

    assert lines.getvalue() == ""


def test_a_librarys_warning_is_a_line_of_the_same_kind_though_it_would_keep_it_to_itself(lines: io.StringIO) -> None:
    logging.getLogger("google").propagate = False  # as google.api_core does when it is imported
    configure_logs("spanner_reader", "INFO", lines)
    logging.getLogger("google.api_core").warning("retrying %s", "call")

    event = json.loads(lines.getvalue())
    assert (event["severity"], event["message"], event["logger"]) == ("WARNING", "retrying call", "google.api_core")


def test_an_exception_is_reported_on_its_line(lines: io.StringIO) -> None:
    try:
        raise ValueError("boom")
    except ValueError:
        structlog.get_logger().exception("reader_failed")

    (line,) = lines.getvalue().splitlines()
    event = json.loads(line)
    assert event["severity"] == "ERROR"
    trace = event["exception"].splitlines()
    assert (trace[0], trace[-1]) == ("Traceback (most recent call last):", "ValueError: boom")


def test_a_traceback_quotes_no_local_values(lines: io.StringIO) -> None:
    row = uuid.uuid4().hex

    def handle(row: str) -> None:
        raise ValueError("a value does not fit")

    try:
        handle(row)
    except ValueError:
        structlog.get_logger().exception("reader_failed")

    assert "a value does not fit" in lines.getvalue()
    assert row not in lines.getvalue()


def test_the_service_is_named_on_every_line_of_any_thread(lines: io.StringIO) -> None:
    def work() -> None:
        structlog.get_logger().info("taken")
        logging.getLogger("library").warning("slow")

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()

    assert [json.loads(line)["service"] for line in lines.getvalue().splitlines()] == ["spanner_reader"] * 2


@given(st.dictionaries(st.sampled_from(["a", "b", "c"]), st.text() | st.floats() | st.binary() | st.just("\ud800")))
def test_whatever_is_logged_is_one_line_of_json(values: dict[str, object]) -> None:
    stream = io.StringIO()
    configure_logs("spanner_reader", "INFO", stream)
    structlog.get_logger().info("tried", **values)

    (line,) = stream.getvalue().split("\n")[:-1]
    assert json.loads(line, parse_constant=pytest.fail)["message"] == "tried"


@pytest.mark.parametrize("level", ["DEBUG", "INFO", "WARNING", "ERROR"])
def test_a_library_is_heard_from_warning_on_whatever_our_level_is(lines: io.StringIO, level: str) -> None:
    configure_logs("spanner_reader", level, lines)
    logging.getLogger("library").info("a request with a row in it")

    assert lines.getvalue() == ""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("chosen", "stream", "text"),
    [
        ("", Terminal(), True),
        ("auto", Terminal(), True),
        ("json", Terminal(), False),
        ("", io.StringIO(), False),
        ("auto", io.StringIO(), False),
        ("text", io.StringIO(), True),
    ],
)
def test_a_terminal_gets_text_everything_else_json_and_log_format_decides_first(
    lines: io.StringIO, chosen: str, stream: io.StringIO, text: bool
) -> None:
    configure_logs("spanner_reader", "INFO", stream, log_format=chosen)
    structlog.get_logger().info("query_started", tables=["a"], attempt=2)
    logging.getLogger("library").warning("a library's")

    ours, library = stream.getvalue().splitlines()
    assert ours.startswith("{") is library.startswith("{") is not text
    if text:
        assert re.fullmatch(
            r'\d\d:\d\d:\d\d INFO    The streaming query has started  event=query_started  tables=\["a"\]  attempt=2',
            ours,
        )
        assert re.fullmatch(r"\d\d:\d\d:\d\d WARNING a library's  logger=library", library)


def test_text_of_several_lines_and_a_traceback_stand_on_lines_of_their_own(lines: io.StringIO) -> None:
    configure_logs("spanner_reader", "INFO", lines, log_format="text")
    try:
        raise KeyError("k")
    except KeyError:
        structlog.get_logger().exception("service_misconfigured", error="wrong:\n  TOPIC is not set")

    first, *below = lines.getvalue().splitlines()
    assert first.endswith(" ERROR   The service ends, because a person has to act first  event=service_misconfigured")
    assert below[:3] == ["    error: wrong:", "      TOPIC is not set", "    Traceback (most recent call last):"]
    assert below[-1] == "    KeyError: 'k'"


def _this() -> str:
    return sys._getframe(1).f_code.co_name
