"""What BigQuery answers when it is asked for figures: one class for the rows of each query."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

DAYS: Final = 7
"""Of the history of jobs that is read, as in the queries of Google's document."""


@dataclass(frozen=True, slots=True)
class AdviceProblem:
    """Something that needs a person, or ("unread") that could not be asked: what, how it is, and its fix."""

    check: str
    detail: str
    fix: str
    unread: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorFigures:
    """A mirror as it is now. ``size``: bytes of the whole table, None if unknown."""

    name: str
    """``dataset.table``."""
    max_staleness: timedelta = timedelta()
    watermark: datetime | None = None
    """upsert_stream_apply_watermark; None before the first apply, or if unknown."""
    size: int | None = None
    clustered_by: Sequence[str] = ()
    partitioned_by: str = ""


@dataclass(frozen=True, slots=True)
class ApplyDuration:
    """A row of the document's query of background applies: their 95th percentile, and what it makes of it."""

    p95_seconds: float
    recommended_minutes: float


@dataclass(frozen=True, slots=True)
class JobTotals:
    """The jobs of one kind on one table. ``longest`` in seconds; ``size`` in bytes billed, None if no job has any."""

    jobs: int
    slot_milliseconds: int
    size: int | None
    longest: float = 0.0
    failed: int = 0


@dataclass(frozen=True, slots=True)
class Assignment:
    """A row of ASSIGNMENTS, with the edition of its reservation."""

    reservation: str
    job_type: str
    assignee_type: str
    assignee: str
    edition: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionFigures:
    """What one region answers. ``slots_used``: the document's figure, of each second in which an apply ran.

    ``assignments``: None where they cannot be read.
    """

    location: str
    mirrors: Sequence[MirrorFigures] = ()
    applies: Mapping[str, ApplyDuration] = field(default_factory=dict)
    apply_jobs: Mapping[str, JobTotals] = field(default_factory=dict)
    query_jobs: Mapping[str, JobTotals] = field(default_factory=dict)
    slots_used: Sequence[float] = ()
    assignments: Sequence[Assignment] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerFigures:
    """What the running consumer answers. ``unapplied``: since when a change of each mirror waits, at least."""

    connections: int | None = None
    bytes_per_second: float | None = None
    changes_per_second: float | None = None
    unapplied: Mapping[str, datetime] = field(default_factory=dict)
