"""What became of a task's messages, to be added up: for the log, the metrics and the balance of leases."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import islice
from operator import add, sub
from typing import Final, Self

MOST_SOURCES: Final = 20
"""Whose heartbeats are kept: their names come in messages, and are a label, which has a bound."""
APPEND_SECONDS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
"""The buckets of how long BigQuery takes to answer an append request."""
_WORDS: Final = 600  # characters


@dataclass(frozen=True, slots=True, order=True)
class Applied:
    """When a change was committed, published and applied, each in microseconds; None where that is not known."""

    committed: int
    published: int | None = None
    applied: int | None = None


def stages(applied: Applied | None) -> Mapping[str, float | None]:
    """Return how long a change took by each stage, in seconds; None where that is not known."""
    published = applied.published if applied is not None else None
    if applied is None or published is None:
        return {"commit_to_published": None, "published_to_applied": None}
    to_applied = None if applied.applied is None else (applied.applied - published) / 1e6
    return {"commit_to_published": (published - applied.committed) / 1e6, "published_to_applied": to_applied}


def newest_heartbeats(one: Mapping[str, int], other: Mapping[str, int]) -> Mapping[str, int]:
    """Return the newer heartbeat of each source; no more sources than `MOST_SOURCES`, those of ``one`` first."""
    newest = ((source, max(one.get(source, 0), other.get(source, 0))) for source in {**one, **other})
    return dict(islice(newest, MOST_SOURCES))


@dataclass(frozen=True, slots=True, kw_only=True)
class TableNote:
    """What a task says of one table. Words are such as a log may hold: names and codes, no row's values."""

    deferred: str = ""
    """Why its changes wait; empty: they do not."""
    unfit: str = ""
    """Why the changes of a whole column list became dead letters; empty: none did. BigQuery could not hold the table
    that its header asks for, or holds another. That need not be true of the table: a header may be forged or broken."""
    stuck: str = ""
    """Why some rows wait that fail each time they come, while others of the table are taken; empty: none does."""
    again_at: int | None = None
    """When the last of the changes that wait come again, in microseconds."""
    latest: Applied | None = None
    """The latest commit that was written or superseded."""
    failing: frozenset[str] = frozenset()
    """The column lists whose changes wait, by `TableDefinition.column_list`; empty: those of the whole table do."""
    taken: frozenset[str] = frozenset()
    """The column lists whose changes do not wait."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "deferred", self.deferred[:_WORDS])
        object.__setattr__(self, "unfit", self.unfit[:_WORDS])
        object.__setattr__(self, "stuck", self.stuck[:_WORDS])

    def plus(self, other: Self) -> Self:
        """Return what both say: trouble that one of them has is the table's."""
        latest = [one for one in (self.latest, other.latest) if one is not None]
        again = [one for one in (self.again_at, other.again_at) if one is not None]
        return type(self)(
            deferred=self.deferred or other.deferred,
            unfit=self.unfit or other.unfit,
            stuck=self.stuck or other.stuck,
            again_at=max(again, default=None),
            latest=max(latest, key=lambda one: one.committed, default=None),
            failing=self.failing | other.failing,
            taken=(self.taken | other.taken) - self.failing - other.failing,
        )


def _only(index: int) -> tuple[int, ...]:
    return tuple(int(index == each) for each in range(len(APPEND_SECONDS)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Appends:
    """What went over connections to BigQuery."""

    requests: int = 0
    """Those that have been answered, whatever the answer."""
    bytes: int = 0
    """Of those requests."""
    seconds: float = 0.0
    """From each request's sending to its answer, added up."""
    within: tuple[int, ...] = (0,) * len(APPEND_SECONDS)
    """How many took longer than the bound before, and no longer than each of `APPEND_SECONDS`."""

    @classmethod
    def of_one(cls, size: int, seconds: float) -> Self:
        """Return what one request was."""
        return cls(requests=1, bytes=size, seconds=seconds, within=_only(bisect_left(APPEND_SECONDS, seconds)))

    def plus(self, other: Self) -> Self:
        """Return both."""
        return type(self)(
            requests=self.requests + other.requests,
            bytes=self.bytes + other.bytes,
            seconds=self.seconds + other.seconds,
            within=tuple(map(add, self.within, other.within)),
        )

    def since(self, before: Self) -> Self:
        """Return what has come since ``before``."""
        return type(self)(
            requests=self.requests - before.requests,
            bytes=self.bytes - before.bytes,
            seconds=self.seconds - before.seconds,
            within=tuple(map(sub, self.within, before.within)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What became of a task's messages."""

    taken: int = 0
    """Leases that a source has taken; the rest of the fields is a sink's."""
    messages: int = 0
    changes: int = 0
    rows_written: int = 0
    superseded: int = 0
    left_out: int = 0
    """Changes of tables that the tables file leaves out."""
    outdated: int = 0
    """Rows of snapshots that were too old to be applied; their tables are pending resync."""
    dead_letters: Mapping[str, int] = field(default_factory=dict)
    """By reason."""
    not_kept: int = 0
    """Dead letters that may not be published: what they would be made of is deferred."""
    acked: int = 0
    deferred: int = 0
    deferred_until: int = 0
    """By when the last of those comes again, in microseconds; 0: none is deferred. A task that failed may name a time
    that its process has reported before."""
    released: int = 0
    """Only where a task failed; then it is the task itself that reports."""
    tables: Mapping[str, TableNote] = field(default_factory=dict)
    """The tables that had messages, by BigQuery name."""
    max_commit_timestamp: int | None = None
    """The latest commit timestamp of a change that was written or superseded, in microseconds."""

    heartbeats: Mapping[str, int] = field(default_factory=dict)
    """Sources, and the time up to which each has published all its changes, in microseconds."""

    @property
    def tables_in_trouble(self) -> tuple[str, ...]:
        """Return the tables of which some messages wait."""
        return tuple(sorted(name for name, note in self.tables.items() if note.deferred))

    def fields(self) -> Mapping[str, object]:
        """Return what is not zero or empty, for a log line."""
        values = asdict(self) | {"tables": (), "tables_in_trouble": self.tables_in_trouble}
        return {name: value for name, value in values.items() if value}

    def plus(self, other: Self) -> Self:
        """Return the counts of both."""
        latest = [at for at in (self.max_commit_timestamp, other.max_commit_timestamp) if at is not None]
        tables = dict(self.tables)
        for name, note in other.tables.items():
            tables[name] = tables[name].plus(note) if name in tables else note
        return type(self)(
            taken=self.taken + other.taken,
            messages=self.messages + other.messages,
            changes=self.changes + other.changes,
            rows_written=self.rows_written + other.rows_written,
            superseded=self.superseded + other.superseded,
            left_out=self.left_out + other.left_out,
            outdated=self.outdated + other.outdated,
            dead_letters=dict(Counter(self.dead_letters) + Counter(other.dead_letters)),
            not_kept=self.not_kept + other.not_kept,
            acked=self.acked + other.acked,
            deferred=self.deferred + other.deferred,
            deferred_until=max(self.deferred_until, other.deferred_until),
            released=self.released + other.released,
            tables=tables,
            max_commit_timestamp=max(latest, default=None),
            heartbeats=newest_heartbeats(self.heartbeats, other.heartbeats),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a process says of itself: what became of messages, and what it holds now."""

    counts: Counts = field(default_factory=Counts)
    process: str = ""
    """Which process says what it holds; empty where this is nothing but counts."""
    appends: Appends = field(default_factory=Appends)
    """What it has appended since its last report that had any."""
    retries: Mapping[str, int] = field(default_factory=dict)
    """Calls that it has made again since its last report that had any, by code."""
    not_pulled: str | None = None
    """Why the subscription cannot be pulled from; empty: it can again; None: nothing new."""
    connections: int | None = None
    """How many connections to BigQuery it has open; None: it does not say."""
    oldest_outstanding: int | None = None
    """When the oldest message that it holds was published, in microseconds; None: it holds none."""
