"""What `status` shows of the partition table, and what its exit code says."""

from datetime import timedelta
from io import StringIO

import msgspec
import pytest
from msgspec.structs import replace
from prometheus_client import CollectorRegistry

from services.bigtable_reader.app.status.metrics import BigtableReaderMetrics
from services.bigtable_reader.app.status.status import document, exit_code, lines
from services.bigtable_reader.core.schema.resync import (
    BigtableResyncCause,
    BigtableResyncKind,
    BigtableResyncRequest,
)
from services.bigtable_reader.core.stream.partitions import BigtablePartitionSurvey, Saved, StreamRange, StreamRangeId
from services.bigtable_reader.core.stream.records import KeyRange, Microseconds
from services.bigtable_reader.wiring.stores import MicrosecondClock
from shared.runtime.answers import print_answer
from tests.fakes.bigtable_table import EPOCH as NOON
from tests.unit.bigtable_reader.readings import a_stream_range

DAY = timedelta(days=1)
LEFT, MIDDLE, RIGHT = KeyRange(b"", b"b"), KeyRange(b"b", b"d"), KeyRange(b"d", b"")


def a_survey(*stream_ranges: StreamRange, readers: str = "", **saved: Saved) -> BigtablePartitionSurvey:
    return BigtablePartitionSurvey(
        stream_ranges, {StreamRangeId(name): one for name, one in saved.items()}, frozenset(readers.split())
    )


def running(owner: str, *, behind: int = 0) -> Saved:
    return Saved(owner, 1, "RUNNING", Microseconds(NOON - behind * 1_000_000), not owner)


def test_a_stream_that_was_never_begun_is_not_started() -> None:
    shown = document("s", a_survey(), DAY, NOON)
    assert (shown["state"], shown["low_watermark"], shown["unread"]) == ("not started yet", None, [])
    assert exit_code(shown) == 1
    assert list(lines(shown)) == [
        "s: not started yet at 2023-11-14T22:13:20Z",
        "partitions: 0 READY, 0 RUNNING, 0 CLOSING, 0 WAITING",
    ]


def test_each_stream_range_is_in_one_state_and_owners_are_reported() -> None:
    survey = a_survey(
        a_stream_range("a", LEFT),
        a_stream_range("b", MIDDLE, target=KeyRange(b"b", b"")),
        a_stream_range("c", KeyRange(b"d", b"f"), position=None),
        a_stream_range("d", KeyRange(b"f", b"h")),
        a_stream_range("e", KeyRange(b"h", b"")),
        readers="one two",
        a=running("one", behind=60),
        d=running(""),
    )
    shown = document("s", survey, DAY, NOON)
    assert shown["partitions"] == {"READY": 2, "RUNNING": 1, "CLOSING": 0, "WAITING": 2}
    assert shown["readers"] == [{"owner": "one", "partitions": 1}, {"owner": "two", "partitions": 0}]
    assert (shown["state"], shown["lag_seconds"]) == ("reading", 60)
    assert shown["unread"] == ["[b, end)"]
    assert exit_code(shown) == 0
    assert "keys that no reader owns now: [b, end)" in list(lines(shown))
    out = StringIO()
    print_answer(shown, lines(shown), True, out)
    assert msgspec.json.decode(out.getvalue()) == shown


@pytest.mark.parametrize(("readers", "behind", "code"), [("one", 60, 0), ("", 60, 1), ("one", 13 * 3600, 1)])
def test_success_is_a_reader_that_reads_in_time(readers: str, behind: int, code: int) -> None:
    whole = KeyRange(b"", b"")
    survey = a_survey(a_stream_range("a", whole), readers=readers, a=running(readers, behind=behind))
    assert exit_code(document("s", survey, DAY, NOON)) == code


def test_what_a_dead_reader_owns_and_what_has_just_ended_is_unread() -> None:
    survey = a_survey(
        a_stream_range("a", LEFT),
        a_stream_range("b", MIDDLE),
        a_stream_range("c", RIGHT),
        readers="one",
        a=running("dead"),
        b=running("one"),
        c=Saved("one", 1, "CLOSING", NOON, False),
    )
    registry = CollectorRegistry()
    BigtableReaderMetrics(registry, "s", MicrosecondClock()).surveyed(survey, NOON, timedelta(0))

    assert document("s", survey, DAY, NOON)["unread"] == ["[, b)", "[d, end)"]
    assert registry.get_sample_value("millrace_reader_unread_ranges") == 2


@pytest.mark.parametrize(("behind", "code"), [(60, 0), (13 * 3600, 1)])
def test_a_stream_that_is_paused_is_healthy_until_half_of_what_is_kept_is_over(behind: int, code: int) -> None:
    survey = a_survey(a_stream_range("a", KeyRange(b"", b"")), a=running("", behind=behind))
    shown = document("s", replace(survey, paused_since=Microseconds(NOON - behind * 1_000_000)), DAY, NOON)
    assert (shown["state"], exit_code(shown)) == ("paused", code)
    assert shown["paused_since"] == shown["low_watermark"]
    text = "\n".join(lines(shown))
    assert "nothing is read until `resume`" in text
    assert ("resume before it is over" in text) is bool(code)


def test_a_table_that_needs_re_sync_is_shown_with_since_when_why_and_the_fix_and_is_no_success() -> None:
    findings = (
        BigtableResyncCause(
            kind=BigtableResyncKind.FAMILIES_DROPPED,
            found_at=Microseconds(NOON + 1_000_000),
            run=1,
            families=("f", "g"),
        ),
        BigtableResyncCause(kind=BigtableResyncKind.ROUTED_ELSEWHERE, found_at=NOON, run=1),
        BigtableResyncCause(kind=BigtableResyncKind.WATCHED_MORE, found_at=NOON, run=1, options=("families",)),
    )
    survey = a_survey(a_stream_range("a", KeyRange(b"", b"")), readers="one", a=running("one"))
    healthy = document("s", survey, DAY, NOON)
    shown = document("s", replace(survey, resync_request=BigtableResyncRequest("weather", findings)), DAY, NOON)

    assert (healthy["pending_resync"], exit_code(healthy), exit_code(shown)) == ([], 0, 1)
    text = list(lines(shown))
    at = text.index("weather: pending resync since 2023-11-14T22:13:20Z")
    assert text[at + 1] == "  families dropped (f, g), found at 2023-11-14T22:13:21Z"
    assert text[at + 2] == "  routed to another cluster, found at 2023-11-14T22:13:20Z"
    assert text[at + 3] == "  tables file watches more (families), found at 2023-11-14T22:13:20Z"
    assert text[at + 4].startswith("  -> readers have had different tables files")
    assert "`python -m services.bigtable_reader snapshot`" in text[at + 4]
    registry = CollectorRegistry()
    metrics = BigtableReaderMetrics(registry, "s", MicrosecondClock())
    for resync_request, value in ((BigtableResyncRequest("weather", findings), 1), (None, 0)):
        metrics.surveyed(replace(survey, resync_request=resync_request), NOON, timedelta(0))
        name = "millrace_reader_tables_pending_resync"
        assert registry.get_sample_value(name, {"kind": "families_dropped"}) == value
        assert registry.get_sample_value(name, {"kind": "change_stream_disabled"}) == 0
    assert metrics.document()["pending_resync"] == []
