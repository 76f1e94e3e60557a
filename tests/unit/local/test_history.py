"""A history is right only if every change is in it once, and versions of a row follow each other as they held."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from deploy.local.proof.comparison import TableComparison
from deploy.local.proof.history import Version, check_versions, describe_versions

NOON = datetime(2013, 1, 1, 12, tzinfo=UTC)


def version(start: int, end: int | None, **more: Any) -> Version:
    row = {
        "valid_from": NOON + timedelta(seconds=start),
        "valid_to": None if end is None else NOON + timedelta(seconds=end),
        "is_current": end is None,
    }
    return Version({**row, **more})


def found(*versions: Version) -> list[str]:
    result = TableComparison("t")
    check_versions(result, "t[1]", versions)
    return result.named


def test_versions_that_follow_each_other_are_right_gaps_included() -> None:
    assert found(version(0, 1), version(1, 2), version(5, None)) == []
    assert found(version(0, 1)) == [], "deleted"
    assert found() == []


@pytest.mark.parametrize(
    "versions",
    [
        [version(0, 2), version(1, None)],
        [version(0, None), version(1, None)],
        [version(0, None), version(1, 2)],
        [version(0, 1, is_current=True)],
        [version(0, None, is_current=False)],
        [version(1, 1)],
        [version(2, 1)],
    ],
)
def test_versions_that_could_not_have_been_are_named(versions: list[Version]) -> None:
    (named,) = found(*versions)
    assert named.startswith("t[1]: ")


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
