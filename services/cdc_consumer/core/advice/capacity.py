"""Advice on slots: how many background applies used, who pays for them now, and the statements of a reservation.

Sources: BigQuery, "Stream table updates with change data capture", section "Configure a BigQuery reservation for use
with CDC"; "Understand reservations", section "Reservation assignments" (types of jobs, and which comes first);
"JOBS_TIMELINE view" (a row is one second).
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from services.cdc_consumer.core.advice.figures import DAYS, AdviceProblem, Assignment, RegionFigures
from shared.contracts.errors import MisconfiguredError

CDC: Final = "BACKGROUND_CHANGE_DATA_CAPTURE"
BACKGROUND: Final = "BACKGROUND"
ON_DEMAND: Final = "on demand"
_BY_JOB_TYPE: Final = (CDC, BACKGROUND)
_NONE: Final = "none"
_STEP: Final = 50
"""Autoscaled slots come in multiples of it."""
_ID: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,62}[a-z0-9])?", re.ASCII)
_PROJECT: Final = re.compile(r"[a-z0-9.:-]+", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservationNames:
    """What statements name. MisconfiguredError for an id that BigQuery would refuse."""

    admin_project: str
    reservation: str = "millrace"
    assignment: str = "millrace-cdc"
    edition: str = "ENTERPRISE"

    def __post_init__(self) -> None:
        """Check the ids."""
        for option, value in (("--reservation", self.reservation), ("--assignment", self.assignment)):
            if _ID.fullmatch(value) is None:
                raise MisconfiguredError(
                    "advise-id-invalid",
                    f"{option} {value!r} is no id: lower-case letters, digits and dashes, the first and the last of "
                    "them a letter or a digit, 64 at most",
                )
        if _PROJECT.fullmatch(self.admin_project) is None:
            raise MisconfiguredError(
                "admin-project-invalid", f"--admin-project {self.admin_project!r} is no project id"
            )
        if self.edition not in ("ENTERPRISE", "ENTERPRISE_PLUS"):
            raise MisconfiguredError(
                "edition-unsuitable",
                f"--edition {self.edition}: only ENTERPRISE and ENTERPRISE_PLUS have reservations for background jobs; "
                "with STANDARD applies run on demand",
            )


@dataclass(frozen=True, slots=True)
class SlotUse:
    """Slots of background applies. ``per_query``: the largest ``slots_used`` of Google's query.

    That query divides the slot milliseconds of a second by 60,000, which makes slot minutes of them; ``busiest`` is how
    many slots were at work in that second, and ``average`` over all days.
    """

    per_query: float
    busiest: float
    average: float


@dataclass(frozen=True, slots=True)
class CapacityAdvice:
    """``applies`` and ``merges``: who pays for background applies and for queries, None where that cannot be read."""

    location: str
    slots: SlotUse | None
    applies: str | None
    merges: str | None
    statements: Sequence[str]


def slot_use(slots_used: Sequence[float]) -> SlotUse | None:
    """Return how many slots were used; None where no apply is in the history."""
    if not slots_used:
        return None
    most = max(slots_used)
    return SlotUse(most, most * 60, sum(slots_used) * 60 / (DAYS * 86_400))


def statements(names: ReservationNames, location: str, project: str, use: SlotUse | None) -> Sequence[str]:
    """Return the statements that give background applies slots of their own: the reservation, then its assignment."""
    slots = max(_STEP, math.ceil((use.busiest if use else 0) / _STEP) * _STEP)
    reservation = f"{names.admin_project}.region-{location.lower()}.{names.reservation}"
    size = f"edition = '{names.edition}',\n  slot_capacity = 0,\n  autoscale_max_slots = {slots}"
    assign = (
        f"CREATE ASSIGNMENT\n  `{reservation}.{names.assignment}%s`\nOPTIONS (\n  assignee = 'projects/{project}',\n"
    )
    return [
        f"CREATE RESERVATION\n  `{reservation}`\nOPTIONS (\n  {size});",
        assign % "" + f"  job_type = '{CDC}');",
        assign % "-background" + f"  job_type = '{BACKGROUND}');",
    ]


def advise_on_capacity(region: RegionFigures, project: str, names: ReservationNames) -> CapacityAdvice:
    """Return what is to be said of a region's slots."""
    use = slot_use(region.slots_used)
    found = region.assignments
    return CapacityAdvice(
        region.location,
        use,
        None if found is None else _payer(found, project, _BY_JOB_TYPE),
        None if found is None else _payer(found, project, ("QUERY",)),
        statements(names, region.location, project, use),
    )


def _payer(assignments: Sequence[Assignment], project: str, job_types: Sequence[str]) -> str:
    """Return whose slots jobs of a project use: those of the first of the types that has an assignment."""
    for job_type in job_types:
        for one in assignments:
            if one.job_type == job_type and _is_of(one, project):
                if one.reservation.lower() == _NONE:
                    return f"{ON_DEMAND} (assigned to none, {job_type})"
                return f"reservation {one.reservation} ({job_type}, {one.edition.lower() or 'edition unknown'})"
    above = [one for one in assignments if one.job_type in job_types and one.assignee_type.lower() != "project"]
    if above:
        inherited = ", ".join(f"{one.assignee_type.lower()} {one.assignee} ({one.reservation})" for one in above)
        return f"{ON_DEMAND}, unless the project is in {inherited}"
    return ON_DEMAND


def _is_of(assignment: Assignment, project: str) -> bool:
    return assignment.assignee_type.lower() == "project" and assignment.assignee == project


def problems_of_assignments(region: RegionFigures, project: str) -> Iterator[AdviceProblem]:
    """Yield which assignments of background jobs have no effect."""
    for one in region.assignments or ():
        if one.job_type in _BY_JOB_TYPE and one.edition.upper() == "STANDARD" and _is_of(one, project):
            yield AdviceProblem(
                f"assignment of {one.job_type}",
                f"reservation {one.reservation} is of Standard edition, which has no background reservations: applies "
                "run on demand",
                "assign a reservation of Enterprise or Enterprise Plus edition",
            )
