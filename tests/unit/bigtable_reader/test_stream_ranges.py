"""Key ranges of a survey: what none covers, what overlaps, what may be read; and what a start may do."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.bigtable_reader.adapters.stream.partition_cells import PartitionContent
from services.bigtable_reader.core.stream.partitions import (
    BigtablePartitionSurvey,
    Resume,
    Saved,
    StreamRange,
    StreamRangeId,
    begins,
    check_known,
    overlapping,
    uncovered,
)
from services.bigtable_reader.core.stream.records import KeyRange
from shared.contracts.errors import MisconfiguredError
from tests.fakes.bigtable_table import EPOCH as NOON
from tests.unit.bigtable_reader.readings import a_stream_range

KEYS = [b"", b"a", b"b", b"c", b"d", b"e"]


@st.composite
def ranges(draw: st.DrawFn) -> KeyRange:
    first, last = sorted(draw(st.lists(st.integers(0, len(KEYS)), min_size=2, max_size=2, unique=True)))
    return KeyRange(KEYS[first], KEYS[last] if last < len(KEYS) else b"")


def test_what_earlier_versions_saved_is_read() -> None:
    saved = b'{"id":"p","range":{"start":"","end":""},"position":{"tokens":[],"start":1},"floor":7,"low_watermark":9}'

    found = msgspec.json.decode(saved, type=StreamRange)

    assert (found.min_version, found.low_watermark) == (7, 9)
    assert b'"floor":7' in msgspec.json.encode(found), "an older reader reads it as well"


def test_the_reserved_upper_limit_that_earlier_versions_saved_is_read() -> None:
    saved = (
        b'{"owner":"o","position":{"tokens":[],"start":1},"low_watermark":9,"ceiling":8,'
        b'"ending":{"successors":[],"ceiling":8,"low_watermark":9},"floor":7,"load":0}'
    )

    found = msgspec.json.decode(saved, type=PartitionContent)

    assert found.ending is not None
    assert (found.min_version, found.reserved_up_to, found.ending.reserved_up_to) == (7, 8, 8)
    assert msgspec.json.encode(found) == saved, "an older reader reads it as well"


@given(st.lists(ranges(), max_size=6), ranges())
def test_uncovered_is_what_no_range_holds(some: list[KeyRange], whole: KeyRange) -> None:
    holes = uncovered(some, whole)
    for key in KEYS:
        in_holes = sum(key in hole for hole in holes)
        assert in_holes == (key in whole and not any(key in one for one in some))
    assert holes == sorted(holes)


@given(st.lists(ranges(), max_size=6))
def test_ranges_overlap_where_one_key_is_in_two(some: list[KeyRange]) -> None:
    twice = [key for key in KEYS if sum(key in one for one in some) > 1]
    found = overlapping(some)
    assert bool(found) == bool(twice)
    for one, other in found:
        assert any(key in one and key in other for key in KEYS)


def test_what_touches_neither_overlaps_nor_leaves_a_hole() -> None:
    some = [KeyRange(b"b", b""), KeyRange(b"", b"a"), KeyRange(b"a", b"b")]
    assert (uncovered(some), overlapping(some)) == ([], [])


@pytest.mark.parametrize(
    ("stream_range", "readable"),
    [
        (a_stream_range(), True),
        (a_stream_range(position=None), False),
        (a_stream_range(keys=KeyRange(b"", b"a"), target=KeyRange(b"", b"b")), False),
    ],
)
def test_a_stream_range_is_read_once_it_has_a_position_and_waits_for_nothing(
    stream_range: StreamRange, readable: bool
) -> None:
    assert stream_range.is_readable == readable


KNOWN, UNKNOWN = (BigtablePartitionSurvey(ranges, {}, frozenset()) for ranges in ((a_stream_range(),), ()))


@pytest.mark.parametrize(
    ("resume", "survey", "first"),
    [
        ("resume-or-new", UNKNOWN, True),
        ("resume-or-new", KNOWN, False),
        ("new", UNKNOWN, True),
        ("resume-or-fail", KNOWN, False),
    ],
)
def test_a_start_begins_or_goes_on(resume: Resume, survey: BigtablePartitionSurvey, first: bool) -> None:
    assert begins(resume, survey, "s") == first


@pytest.mark.parametrize(
    ("resume", "survey", "fix"),
    [
        ("new", KNOWN, "s is known already, .* another CHANGE_STREAM_NAME, or .*RESUME=resume-or-new"),
        ("resume-or-fail", UNKNOWN, "nothing is known of change stream s, .* fix CHANGE_STREAM_NAME"),
    ],
)
def test_a_start_that_is_not_what_was_asked_for_is_refused_with_the_choices(
    resume: Resume, survey: BigtablePartitionSurvey, fix: str
) -> None:
    with pytest.raises(MisconfiguredError, match=fix):
        begins(resume, survey, "s")


SAVED = {StreamRangeId("p"): Saved("reader", 1, "RUNNING", NOON, free=False)}


@pytest.mark.parametrize("saved", [{}, SAVED])
def test_a_command_may_speak_to_the_readers_of_a_stream_that_was_begun(saved: dict[StreamRangeId, Saved]) -> None:
    check_known("weather", "s", BigtablePartitionSurvey((a_stream_range(),), saved, frozenset()))


@pytest.mark.parametrize("readers", [frozenset[str](), frozenset({"begins just now"})])
def test_a_command_on_a_table_that_no_reader_has_begun_names_the_settings_to_look_at(readers: frozenset[str]) -> None:
    with pytest.raises(
        MisconfiguredError, match=r"BIGTABLE_TABLE and CHANGE_STREAM_NAME right\?.* start the reader"
    ) as error:
        check_known("weathre", "s", BigtablePartitionSurvey((), {}, readers))
    assert "weathre" in str(error.value)
    assert "Stop every reader" not in str(error.value)


def test_only_where_readers_were_is_it_said_that_the_row_was_deleted() -> None:
    with pytest.raises(MisconfiguredError, match=r"row was deleted\. Stop every reader"):
        check_known("weather", "s", BigtablePartitionSurvey((), SAVED, frozenset()))
