"""What is shown of a snapshot: how far it is, and why it waits, with the fix."""

from datetime import timedelta

import pytest
from msgspec.structs import replace

from services.bigtable_reader.app.snapshot.snapshot_status import hindrance, summaries, summary_lines
from services.bigtable_reader.app.status.status import document, exit_code, lines
from services.bigtable_reader.core.snapshot.snapshot import PartState, Snapshot, SnapshotPart
from services.bigtable_reader.core.stream.partitions import BigtablePartitionSurvey, Saved
from services.bigtable_reader.core.stream.records import ALL_KEYS, KeyRange, Microseconds
from tests.fakes.bigtable_table import EPOCH as NOON
from tests.unit.bigtable_reader.readings import a_stream_range

LEFT, RIGHT = KeyRange(b"", b"m"), KeyRange(b"m", b"")


def a_part(number: int, keys: KeyRange, **more: object) -> SnapshotPart:
    fields = {"number": number, "range": keys, "above": NOON, "again": True, "state": PartState.CUT, **more}
    return SnapshotPart(**fields)  # type: ignore[arg-type]


def a_snapshot(*parts: SnapshotPart, whole: bool = True) -> Snapshot:
    return Snapshot(run=3, requested_at=NOON, parts=parts, whole=whole)


def a_survey(left: Saved, right: Saved, readers: str = "one two") -> BigtablePartitionSurvey:
    stream_ranges = (a_stream_range("left", LEFT), a_stream_range("right", RIGHT))
    saved = dict(zip((one.id for one in stream_ranges), (left, right), strict=True))
    return BigtablePartitionSurvey(stream_ranges, saved, frozenset(readers.split()), NOON)


def read_by(owner: str, *, above: int = 1, reached: int = 0) -> Saved:
    """Return what is saved of a key range: a minimum so far above noon, read up to so many microseconds after it."""
    return Saved(
        owner,
        1,
        "RUNNING",
        Microseconds(NOON + reached),
        not owner,
        min_version=NOON + above,
        reserved_up_to=NOON + above,
    )


BOTH = (a_part(0, LEFT, owner="one"), a_part(1, RIGHT))
UNREAD = "no reader reads the stream of keys [m, end)"


def test_it_waits_for_nothing_while_a_reader_reads_it_or_nothing_is_left() -> None:
    survey = a_survey(read_by("one"), read_by("two"))
    assert hindrance(a_snapshot(*BOTH), survey, None) is None
    done = [replace(part, state=PartState.DONE) for part in BOTH]
    assert hindrance(a_snapshot(*done), replace(survey, readers=frozenset()), None) is None
    confirmed = replace(BOTH[0], range=KeyRange(b"", b"a\0"), last=b"a")  # and not saved as done yet
    assert hindrance(a_snapshot(confirmed), replace(survey, readers=frozenset()), None) is None


@pytest.mark.parametrize(
    ("survey", "end", "why", "fix"),
    [
        (replace(a_survey(read_by("one"), read_by("two")), paused_since=NOON), None, "is paused", "`resume` it"),
        (a_survey(read_by(""), read_by(""), readers=""), None, "no reader is there", "start one"),
        (a_survey(read_by("one"), read_by("", above=-9)), None, UNREAD, "without"),
        (a_survey(read_by("one"), read_by("dead", above=-9)), None, UNREAD, "star"),
        (a_survey(read_by("one"), read_by("", above=-9, reached=5)), 4, "over at END_TIMESTAMP", "with a later one"),
        (a_survey(read_by("one"), read_by("", above=-9, reached=4)), 4, UNREAD, "`snapshot --can"),
        (a_survey(read_by("one"), read_by("two", above=-9)), None, "not above that yet", "that takes seconds"),
    ],
)
def test_why_it_waits_is_reported_with_the_fix(
    survey: BigtablePartitionSurvey, end: int | None, why: str, fix: str
) -> None:
    at = None if end is None else Microseconds(NOON + end)
    found = hindrance(a_snapshot(*BOTH), survey, at)
    assert found is not None
    assert (why in found.why, fix in found.fix) == (True, True), found


def test_a_range_that_no_reader_has_claimed_is_reported() -> None:
    survey = a_survey(read_by("one"), read_by("two"))
    untaken = a_snapshot(*(replace(part, owner="dead") for part in BOTH))
    found = hindrance(untaken, survey, None)
    assert found is not None
    assert "no reader has taken any of it yet" in found.why
    assert "(key_prefixes, families, mode)" in found.fix


def test_a_first_snapshot_waits_for_no_min_versions() -> None:
    first = a_snapshot(*(replace(part, above=0) for part in BOTH))
    assert hindrance(first, a_survey(read_by(""), read_by(""), readers="one"), None) is None


def test_status_shows_how_far_it_is_since_when_and_why_it_waits() -> None:
    survey = a_survey(read_by("one"), read_by("", above=-9))
    part = replace(BOTH[0], state=PartState.DONE, rows=7, min_version=NOON + 1)
    shown = document("s", survey, timedelta(days=1), NOON, summaries("weather", a_snapshot(part, BOTH[1]), survey))

    (one,) = shown["snapshots"]
    assert (one["state"], one["rows"], one["ranges"], one["ranges_left"]) == ("READING", 7, 2, 1)
    assert (one["complete_since"], one["announced"], one["keys"]) == (None, False, None)
    first, why, fix = list(lines(shown))[-3:]
    assert first == (
        "snapshot of weather as of 2023-11-14T22:13:20.000001Z: reading, 7 rows, 1 of 2 key ranges left; asked for at "
        "2023-11-14T22:13:20Z"
    )
    assert why.startswith("  it waits: no reader reads the stream of keys [m, end)")
    assert fix.startswith("  -> start readers")
    assert exit_code(shown) == 0


@pytest.mark.parametrize(
    ("announced", "words"), [(True, "Z; asked for"), (False, "Z, which is not announced yet; asked for")]
)
def test_a_complete_one_is_shown_since_when_it_is_and_whether_that_is_announced(announced: bool, words: str) -> None:
    survey = a_survey(read_by("one"), read_by("two"))
    parts = [replace(part, state=PartState.DONE, rows=2, min_version=NOON) for part in BOTH]
    shown = summaries("weather", replace(a_snapshot(*parts), announced=announced), survey)
    assert [(one["state"], one["complete_since"], one["waits"]) for one in shown] == [
        ("DONE", "2023-11-14T22:13:20Z", None)
    ]
    (line,) = list(lines(document("s", survey, None, NOON, shown)))[-1:]
    assert f"4 rows, complete since 2023-11-14T22:13:20{words}" in line


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (PartState.DONE, "done, 0 rows: there was none to read, complete since"),
        (PartState.CUT, "reading, 0 rows, 2 of 2"),
    ],
)
def test_one_that_found_no_row_is_shown_as_such_once_it_is_done(state: PartState, words: str) -> None:
    survey = a_survey(read_by("one"), read_by("two"))
    parts = [replace(part, state=state, min_version=NOON) for part in BOTH]
    (shown,) = summaries("weather", a_snapshot(*parts), survey)
    assert f": {words}" in next(summary_lines(shown))


def test_keys_that_were_asked_for_alone_are_named_as_one_range_where_they_follow_on_each_other() -> None:
    parts = [a_part(0, KeyRange(b"a", b"c")), a_part(1, KeyRange(b"c", b"e")), a_part(2, KeyRange(b"x", b""))]
    survey = a_survey(read_by("one"), read_by("two"))
    (some,) = summaries("weather", a_snapshot(*parts, whole=False), survey)
    assert some["keys"] == ["[a, e)", "[x, end)"]
    (everything,) = summaries("weather", a_snapshot(a_part(0, ALL_KEYS), whole=False), survey)
    assert everything["keys"] == ["[, end)"]
    assert summaries("weather", None, survey) == []
