"""What became of a task's messages, to be added up: for the log, the metrics and the balance of leases."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Self


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What became of a task's messages."""

    taken: int = 0
    """Leases that a source has taken; the rest of the fields is a sink's."""
    messages: int = 0
    changes: int = 0
    rows_written: int = 0
    superseded: int = 0
    letters: Mapping[str, int] = field(default_factory=dict)
    """By reason."""
    acked: int = 0
    put_off: int = 0
    given_back: int = 0
    """Only where a task failed; then it is the task itself that reports."""
    tables_in_trouble: tuple[str, ...] = ()
    tables_well: tuple[str, ...] = ()
    """Tables that had messages, and no trouble with any of them."""
    max_commit_timestamp: int | None = None
    """The latest commit timestamp of a change that was written or superseded, in microseconds."""

    def fields(self) -> Mapping[str, object]:
        """Return what is not zero or empty, for a log line."""
        return {name: value for name, value in asdict(self).items() if value and name != "tables_well"}

    def plus(self, other: Self) -> Self:
        """Return the counts of both."""
        latest = [at for at in (self.max_commit_timestamp, other.max_commit_timestamp) if at is not None]
        troubled = {*self.tables_in_trouble, *other.tables_in_trouble}
        return type(self)(
            taken=self.taken + other.taken,
            messages=self.messages + other.messages,
            changes=self.changes + other.changes,
            rows_written=self.rows_written + other.rows_written,
            superseded=self.superseded + other.superseded,
            letters=dict(Counter(self.letters) + Counter(other.letters)),
            acked=self.acked + other.acked,
            put_off=self.put_off + other.put_off,
            given_back=self.given_back + other.given_back,
            tables_in_trouble=tuple(sorted(troubled)),
            tables_well=tuple(sorted({*self.tables_well, *other.tables_well} - troubled)),
            max_commit_timestamp=max(latest, default=None),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a process says of itself: what became of messages, and what it holds now."""

    counts: Counts = field(default_factory=Counts)
    process: str = ""
    """Which process says what it holds; empty where this is nothing but counts."""
    oldest_held: int | None = None
    """When the oldest message that it holds was published, in microseconds; None: it holds none."""
