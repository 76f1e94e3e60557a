"""Whether a history holds what happened: every change once, every version as it was written and for its time.

A history is a table `<name>_changelog` with one row for every change (a redelivered one may be there again) and a view
`<name>_history` of the versions of each row with `valid_from`, `valid_to` and `is_current`.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise, zip_longest
from typing import Any, Final

from google.api_core.exceptions import NotFound

from deploy.local.platform.target import COMMIT_TIMESTAMP, SEQUENCE, BigQueryDataset
from deploy.local.proof.comparison import TableComparison, TableShape, compare
from shared.contracts.timestamps import Nanoseconds

CHANGELOG: Final = "_changelog"
HISTORY: Final = "_history"
MOD_TYPE: Final = "_metadata_spanner_mod_type"
SNAPSHOT: Final = "SNAPSHOT"
_TIMES: Final = {"valid_from": "TIMESTAMP", "valid_to": "TIMESTAMP", "is_current": "BOOL"}
_MOST_VERSIONS: Final = 5
_MOST_SHOWN: Final = 2

Key = tuple[Any, ...]
Written = Mapping[Key, Sequence[tuple[Nanoseconds, Mapping[str, Any] | None]]]
"""By key, when a row was written, in the order of time, and how that left it; None: deleted."""


@dataclass(frozen=True, slots=True)
class Version:
    """A row as it was for a time; without an end, as it is."""

    row: Mapping[str, Any]

    @property
    def valid_from(self) -> datetime:
        """Return since when."""
        valid_from = self.row["valid_from"]
        assert isinstance(valid_from, datetime)
        return valid_from

    @property
    def valid_to(self) -> datetime | None:
        """Return until when, None: it still is."""
        valid_to: datetime | None = self.row["valid_to"]
        return valid_to


@dataclass(slots=True)
class HistoryComparison:
    """What comparing a history with what happened came to."""

    table: str
    committed: int
    """Changes of the table that were committed."""
    changes: int = 0
    """Of these, how many the changelog has: different pairs of key and sequence."""
    rows: int = 0
    """Rows of the changelog, repeats included."""
    versions: int = 0
    result: TableComparison = field(default_factory=lambda: TableComparison(""))
    examples: Sequence[Sequence[Version]] = ()
    """The versions of a few rows, in the order of time."""

    @property
    def equal(self) -> bool:
        """Return whether nothing differs."""
        return self.result.equal


def compare_history(shape: TableShape, written: Written, dataset: BigQueryDataset, committed: int) -> HistoryComparison:
    """Compare a table's history version by version with what was written, and with how many changes were committed."""
    found = HistoryComparison(shape.name, committed)
    changelog, view = shape.name + CHANGELOG, shape.name + HISTORY
    key = ", ".join(f"`{column}`" for column in shape.key)
    try:
        (counted,) = dataset.query(
            f"SELECT (SELECT COUNT(*) FROM `{changelog}`) AS total, "
            f"(SELECT COUNT(*) FROM (SELECT DISTINCT {key}, {SEQUENCE} FROM `{changelog}`)) AS different"
        )
        rows = dataset.query(f"SELECT * FROM `{view}`")
    except NotFound:
        found.result = TableComparison(view)
        found.result.differs(f"{view}: no such view in BigQuery")
        return found
    found.changes, found.rows, found.versions = int(counted["different"]), int(counted["total"]), len(rows)
    versions = TableShape(view, {**shape.columns, **_TIMES}, [*shape.key, "valid_from"], "what was written")
    wanted = [
        {column: version.get(column) for column in versions.columns}
        for version in versions_of(written, shape.key, _snapshot(rows))
    ]
    kept = {*versions.columns, SEQUENCE}
    found.result = compare(versions, wanted, [{name: row[name] for name in row if name in kept} for row in rows])
    if found.changes != committed:
        found.result.differs(f"{changelog}: {found.changes:,} different changes, and {committed:,} were committed")
    applied = {_key(shape, row): row[COMMIT_TIMESTAMP] for row in dataset.rows(shape.name) or ()}
    by_key: defaultdict[Key, list[Version]] = defaultdict(list)
    for row in rows:
        by_key[_key(shape, row)].append(Version(row))
        if row["is_current"] and applied.get(_key(shape, row)) != row["valid_from"]:
            found.result.differs(f"{view}{list(_key(shape, row))}: current since another commit than the mirror's")
    for each in by_key.values():
        each.sort(key=lambda version: version.valid_from)
    found.examples = _examples(list(by_key.values()))
    return found


def versions_of(written: Written, key: Sequence[str], snapshot: datetime | None) -> Iterator[Mapping[str, Any]]:
    """Yield the versions of each row that follow from what was written.

    What was written up to the time of a ``snapshot`` is one version from then on.
    """
    for name, writes in written.items():
        named = dict(zip(key, name, strict=True))
        states = {max(_at(commit), snapshot or _at(commit)): row for commit, row in writes}
        for (since, row), until in zip_longest(states.items(), [*states][1:]):
            if row is not None:
                yield {**row, **named, "valid_from": since, "valid_to": until, "is_current": until is None}


def _snapshot(rows: Iterable[Mapping[str, Any]]) -> datetime | None:
    """Return the time of the rows that were there before the change stream; None where there are none."""
    return min((row["valid_from"] for row in rows if row.get(MOD_TYPE) == SNAPSHOT), default=None)


def _at(commit: Nanoseconds) -> datetime:
    return datetime.fromtimestamp(commit // 1_000_000_000, UTC) + timedelta(microseconds=commit // 1_000 % 1_000_000)


def _examples(histories: Sequence[Sequence[Version]]) -> list[Sequence[Version]]:
    """Return two short histories: of a row that was deleted for a while, and of one that was changed."""
    short = [versions for versions in histories if 2 <= len(versions) <= _MOST_VERSIONS]
    with_gaps = [versions for versions in short if _gaps(versions)]
    changed = [versions for versions in short if not _gaps(versions)]
    return [max(some, key=len) for some in (with_gaps, changed) if some]


def _gaps(versions: Sequence[Version]) -> int:
    """Return how often the row was not there between two versions."""
    return sum(version.valid_to != following.valid_from for version, following in pairwise(versions))


def describe_versions(
    shape_key: Sequence[str], versions: Sequence[Version]
) -> Iterator[tuple[datetime, datetime | None, str]]:
    """Yield what happened to a row: from when to when it was so, and what that was."""
    ours = {"valid_from", "valid_to", "is_current", SEQUENCE, *shape_key}
    before: Version | None = None
    for version in versions:
        if before is None:
            what = "there before" if version.row.get(MOD_TYPE) == SNAPSHOT else "inserted"
        elif before.valid_to != version.valid_from:
            assert before.valid_to is not None
            yield before.valid_to, version.valid_from, "deleted"
            what = "inserted again"
        else:
            was = before.row
            changed = [
                f"{name} {_shown(value)}"
                for name, value in version.row.items()
                if name not in ours and not name.startswith("_metadata") and value != was[name]
            ]
            more = f" and {len(changed) - _MOST_SHOWN} more" if len(changed) > _MOST_SHOWN else ""
            what = ", ".join(changed[:_MOST_SHOWN]) + more or "updated to the same"
        yield version.valid_from, version.valid_to, what
        before = version
    if before is not None and before.valid_to is not None:
        yield before.valid_to, None, "deleted"


def _shown(value: Any) -> str:
    return json.dumps(value) if isinstance(value, dict) else str(value)


def _key(shape: TableShape, row: Mapping[str, Any]) -> Key:
    return tuple(row[column] for column in shape.key)
