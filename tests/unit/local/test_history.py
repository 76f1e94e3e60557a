"""What a history has to hold follows from what was written, and what it holds is told in words."""

from datetime import UTC, datetime, timedelta
from typing import Any

from deploy.local.proof.history import Version, describe_versions, versions_of
from shared.contracts.timestamps import Nanoseconds

NOON = datetime(2013, 1, 1, 12, tzinfo=UTC)
SNAPSHOT = NOON


def at(second: int) -> datetime:
    return NOON + timedelta(seconds=second)


def nanoseconds(second: int) -> Nanoseconds:
    return Nanoseconds(int(at(second).timestamp()) * 1_000_000_000)


def version(start: int, end: int | None, **more: Any) -> Version:
    row = {
        "valid_from": NOON + timedelta(seconds=start),
        "valid_to": None if end is None else NOON + timedelta(seconds=end),
        "is_current": end is None,
    }
    return Version({**row, **more})


def written(*writes: tuple[int, str | None]) -> list[tuple[datetime, datetime | None, str, bool]]:
    """Return the versions of one row that is written, or deleted, so many seconds after noon."""
    of_row = [(nanoseconds(second), None if name is None else {"k": 1, "name": name}) for second, name in writes]
    return [
        (one["valid_from"], one["valid_to"], one["name"], one["is_current"])
        for one in versions_of({(1,): of_row}, ["k"], SNAPSHOT)
    ]


def test_each_version_holds_until_the_next_write_and_a_delete_leaves_a_gap() -> None:
    assert written((1, "a"), (2, "b"), (3, None), (5, "b")) == [
        (at(1), at(2), "a", False),
        (at(2), at(3), "b", False),
        (at(5), None, "b", True),
    ]
    assert written((1, "a"), (2, None)) == [(at(1), at(2), "a", False)]
    assert written((1, None)) == []


def test_what_was_written_before_the_snapshot_is_one_version_from_its_time_on() -> None:
    assert written((-9, "a"), (-8, "b"), (4, "c")) == [(NOON, at(4), "b", False), (at(4), None, "c", True)]
    assert written((-9, "a"), (0, "b")) == [(NOON, None, "b", True)], "it includes what was committed at its time"
    assert written((-9, "a"), (-8, None)) == []


def test_what_happened_to_a_row_is_told_in_words() -> None:
    versions = [
        version(0, 1, k=1, name="a", _metadata_x=1, doc=None, more=None),
        version(1, 2, k=1, name="b", _metadata_x=2, doc={"a": None}, more=None),
        version(2, 3, k=1, name="b", _metadata_x=3, doc={"a": None}, more=None),
        version(5, 6, k=1, name="c", _metadata_x=4, doc=None, more=None),
        version(6, 7, k=1, name="d", _metadata_x=5, doc={}, more=1),
    ]

    whats = [
        ((start - NOON).seconds, end and (end - NOON).seconds, what)
        for start, end, what in describe_versions(["k"], versions)
    ]

    assert whats == [
        (0, 1, "inserted"),
        (1, 2, 'name b, doc {"a": null}'),
        (2, 3, "updated to the same"),
        (3, 5, "deleted"),
        (5, 6, "inserted again"),
        (6, 7, "name d, doc {} and 1 more"),
        (7, None, "deleted"),
    ]
