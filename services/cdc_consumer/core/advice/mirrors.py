"""Advice on a mirror: which max_staleness, how far it is applied, and what its jobs cost.

Source: BigQuery, "Stream table updates with change data capture", sections "Recommended table max_staleness value",
"Query tables with the max_staleness option set", "Deleted data considerations" and "Estimate BigQuery CDC ingestion
costs".
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from services.cdc_consumer.core.advice.figures import (
    DAYS,
    AdviceProblem,
    ApplyDuration,
    ConsumerFigures,
    JobTotals,
    MirrorFigures,
    RegionFigures,
)
from services.cdc_consumer.core.advice.prices import TIB, Prices
from shared.contracts.durations import format_duration
from shared.contracts.sizes import format_size

_DAY: Final = timedelta(days=1)
_MONTH: Final = timedelta(days=30)
_RESERVE: Final = "give background applies a reservation (the statements that `advise` prints)"


class JobKind(StrEnum):
    """What BigQuery runs for a mirror; each kind is paid for in another way."""

    APPLY = "background apply"
    """Applies what waits, once in max_staleness at least. Reads the whole table."""
    QUERY = "query"
    """Is within max_staleness, and reads what is applied."""
    MERGE = "runtime merge"
    """A query that is not, or of a table without max_staleness: reads the whole table, and merges what waits."""
    QUERY_OR_MERGE = "query or runtime merge"
    """Of a table with max_staleness: the history of jobs does not say which of the two a query was."""


@dataclass(frozen=True, slots=True)
class KindCost:
    """The jobs of a kind in the days that are read, and what they cost by both ways to pay, in dollars."""

    kind: JobKind
    jobs: int
    size: int | None
    """Bytes billed; None where the history has none."""
    slot_hours: float
    on_demand: float | None
    capacity: float
    """At least: autoscaled slots are billed in steps of 50."""


@dataclass(frozen=True, slots=True)
class MonthlyEstimate:
    """What 30 days would cost on demand: queries as runtime merges, or background applies at the recommended pace."""

    merges: float
    applies: float | None


@dataclass(frozen=True, slots=True)
class MirrorAdvice:
    """``recommended`` is None while nothing is known of applies and no staleness is said to be tolerable."""

    mirror: MirrorFigures
    recommended: timedelta | None
    applies: ApplyDuration | None
    jobs: JobTotals | None
    kind_now: JobKind
    age: timedelta | None
    delete_applied: bool | None
    costs: Sequence[KindCost]
    estimate: MonthlyEstimate | None


def recommended(applies: ApplyDuration | None, tolerable: timedelta | None) -> timedelta | None:
    """Return the larger of the tolerable staleness and of twice the 95th percentile of applies, with its buffer."""
    known = [] if applies is None else [timedelta(minutes=applies.recommended_minutes)]
    return max([*known, *([] if tolerable is None else [tolerable])], default=None)


def kind_of_query(mirror: MirrorFigures, at: datetime) -> JobKind:
    """Return what a query is at a time when changes wait."""
    if not mirror.max_staleness or mirror.watermark is None or at - mirror.watermark > mirror.max_staleness:
        return JobKind.MERGE
    return JobKind.QUERY


def delete_is_applied(watermark: datetime | None, streamed: datetime) -> bool:
    """Return whether a delete that was streamed at a time is applied: the watermark has to have passed that time."""
    return watermark is not None and watermark > streamed


def advise_on(
    mirror: MirrorFigures,
    region: RegionFigures,
    prices: Prices,
    at: datetime,
    tolerable: timedelta | None = None,
    streamed: datetime | None = None,
) -> MirrorAdvice:
    """Return what is to be said of a mirror. ``streamed``: when a delete was that is asked for."""
    applies = region.applies.get(mirror.name)
    best = recommended(applies, tolerable)
    queries = region.query_jobs.get(mirror.name)
    apply_jobs = region.apply_jobs.get(mirror.name)
    of_queries = JobKind.QUERY_OR_MERGE if mirror.max_staleness else JobKind.MERGE
    return MirrorAdvice(
        mirror,
        best,
        applies,
        apply_jobs,
        kind_of_query(mirror, at),
        None if mirror.watermark is None else max(timedelta(), at - mirror.watermark),
        None if streamed is None else delete_is_applied(mirror.watermark, streamed),
        [*_costs(JobKind.APPLY, apply_jobs, prices), *_costs(of_queries, queries, prices)],
        _estimate(mirror, queries, best, prices),
    )


def _costs(kind: JobKind, jobs: JobTotals | None, prices: Prices) -> Iterator[KindCost]:
    if jobs is not None:
        hours = jobs.slot_milliseconds / 3_600_000
        on_demand = None if jobs.size is None else jobs.size / TIB * prices.on_demand
        yield KindCost(kind, jobs.jobs, jobs.size, hours, on_demand, hours * prices.slot_hour)


def _estimate(
    mirror: MirrorFigures, queries: JobTotals | None, staleness: timedelta | None, prices: Prices
) -> MonthlyEstimate | None:
    if mirror.size is None:
        return None
    whole = mirror.size / TIB * prices.on_demand
    asked = (queries.jobs if queries is not None else 0) * (_MONTH / timedelta(days=DAYS))
    return MonthlyEstimate(asked * whole, _MONTH / staleness * whole if staleness else None)


def problems_of(advice: MirrorAdvice, consumer: ConsumerFigures, at: datetime) -> Iterator[AdviceProblem]:
    """Yield what a person should change about a mirror."""
    mirror, jobs = advice.mirror, advice.jobs
    current, best = mirror.max_staleness, recommended(advice.applies, None)
    if current and best is not None and current < best:
        yield AdviceProblem(
            f"{mirror.name}: max_staleness",
            f"{format_duration(current)} is less than the recommended {format_duration(best)}: applies may not keep "
            "up, and queries then merge at run time as if it were unset",
            f'set max_staleness = "{format_duration(best)}" in TABLES_FILE, or {_RESERVE}',
        )
    waits_since = consumer.unapplied.get(mirror.name)
    limit = 2 * current if current else _DAY
    if mirror.watermark and waits_since and waits_since > mirror.watermark and at - waits_since > limit:
        yield AdviceProblem(
            f"{mirror.name}: changes are not applied",
            f"a change was written {_rounded(at - waits_since)} ago, and the watermark has not passed it: deletes "
            "among such changes have not removed their data yet",
            f"look for failed jobs of bigquery-adminbot@system.gserviceaccount.com, and {_RESERVE}",
        )
    if jobs is not None and jobs.failed:
        yield AdviceProblem(
            f"{mirror.name}: failed applies",
            f"{jobs.failed} of {jobs.jobs} background applies of {DAYS} days have failed: data that was to be deleted "
            "may be kept meanwhile",
            "read error_result of these jobs in INFORMATION_SCHEMA.JOBS (job_id LIKE '%cdc_background%')",
        )
    if mirror.partitioned_by:
        size = "" if mirror.size is None else f" ({format_size(mirror.size)})"
        yield AdviceProblem(
            f"{mirror.name}: partitioned",
            f"it is partitioned by {mirror.partitioned_by}: background applies and runtime merges read the whole table"
            f"{size} all the same",
            "cluster a mirror by its key instead; partition the history, or a table that a query writes",
        )


def _rounded(length: timedelta) -> str:
    return format_duration(timedelta(minutes=round(length / timedelta(minutes=1))))
