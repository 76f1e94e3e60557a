"""All that `advise` prints, as a function of what was asked."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from services.cdc_consumer.core.advice.capacity import (
    CapacityAdvice,
    ReservationNames,
    advise_on_capacity,
    problems_of_assignments,
)
from services.cdc_consumer.core.advice.figures import DAYS, AdviceProblem, ConsumerFigures, RegionFigures
from services.cdc_consumer.core.advice.mirrors import MirrorAdvice, advise_on, problems_of
from services.cdc_consumer.core.advice.pipeline import (
    OUTAGES,
    RULES,
    OutageCost,
    PipelineAdvice,
    Quotas,
    StreamStorage,
    advise_on_pipeline,
    outage,
    quotas_of,
)
from services.cdc_consumer.core.advice.prices import Prices

DRAINED: Final = 50_000
"""Changes a second: about half of what two cores were measured to apply (docs/how-to/size.md)."""
SOURCE_KEPT: Final = timedelta(days=1)
"""What a change stream of Spanner keeps by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked, and what only the person who asks can know.

    ``kept`` and ``source_kept``: for how long the subscription and the change stream keep what is not read;
    ``source_kept_by`` says where the latter is from. ``changes_per_second`` of ``change_bytes``: expected, instead of
    what the consumer measures. ``drained``: changes a second that the consumer applies while it catches up.
    """

    project: str
    at: datetime
    names: ReservationNames
    prices: Prices = field(default_factory=Prices)
    tolerable: timedelta | None = None
    streamed: datetime | None = None
    kept: timedelta = timedelta(days=7)
    source_kept: timedelta = SOURCE_KEPT
    source_kept_by: str = "assumed"
    changes_per_second: float | None = None
    change_bytes: float = 0
    drained: float = DRAINED
    stream_storage: StreamStorage | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """The answer; ``--json`` prints its fields."""

    asked: Question
    mirrors: Sequence[MirrorAdvice]
    capacity: Sequence[CapacityAdvice]
    pipeline: PipelineAdvice
    quotas: Sequence[Quotas]
    outages: Sequence[OutageCost]
    problems: Sequence[AdviceProblem]
    rules: Sequence[str] = field(default=RULES)


def advise(
    regions: Sequence[RegionFigures],
    consumer: ConsumerFigures,
    question: Question,
    unread: Sequence[AdviceProblem] = (),
) -> Advice:
    """Return the advice that follows from the figures. ``unread``: what could not be asked."""
    mirrors = [
        advise_on(mirror, region, question.prices, question.at, question.tolerable, question.streamed)
        for region in regions
        for mirror in region.mirrors
    ]
    rate, changes = consumer.bytes_per_second, consumer.changes_per_second
    if question.changes_per_second is not None:
        rate, changes = question.changes_per_second * question.change_bytes, question.changes_per_second
    drained = question.drained * rate / changes if rate and changes else None
    problems = [problem for one in mirrors for problem in problems_of(one, consumer, question.at)]
    problems += [problem for region in regions for problem in problems_of_assignments(region, question.project)]
    if mirrors and not any(region.applies for region in regions) and not unread:
        problems.append(
            AdviceProblem(
                "background applies",
                f"no job of the last {DAYS} days: nothing can be said of their length",
                "set a max_staleness that you tolerate (--tolerable), and ask again after some hours",
                unread=True,
            )
        )
    return Advice(
        asked=question,
        mirrors=mirrors,
        capacity=[advise_on_capacity(region, question.project, question.names) for region in regions],
        pipeline=advise_on_pipeline(consumer.connections, rate, question.prices),
        quotas=quotas_of([one.location for one in regions]),
        outages=[
            outage(
                length,
                kept=question.kept,
                source_kept=question.source_kept,
                bytes_per_second=rate,
                drained_per_second=drained,
                prices=question.prices,
            )
            for length in OUTAGES
        ],
        problems=[*unread, *problems],
    )
