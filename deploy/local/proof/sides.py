"""One kind of source in a run: what is loaded into it, how it is changed, and whether BigQuery equals it."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Protocol, TypeVar

from deploy.local.platform.stack import PrintLine
from deploy.local.proof.report import Compared, SideFound
from shared.runtime.stop import Stop

T = TypeVar("T")
_SAMPLES_A_SECOND: Final = 5
_OVERTIME: Final = 1.0
"""Seconds by which changes may be late before the rest of them is given up."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How many changes are made a second, for how many seconds."""

    rate: int
    seconds: int

    @property
    def changes(self) -> int:
        """Return how many that is together."""
        return self.rate * self.seconds

    def sampled(self, changes_a_call: int) -> int:
        """Return of how many calls one is measured, so that there are a few samples a second."""
        return max(1, self.rate // changes_a_call // _SAMPLES_A_SECOND)

    def paced(self, calls: Iterable[tuple[T, int]], stop: Stop, print_line: PrintLine, slow: str) -> Iterator[T]:
        """Yield calls, each with its number of changes, when they are due; ``slow`` is who cannot keep up with them."""
        began, done = time.monotonic(), 0
        for call, changes in calls:
            if time.monotonic() - began > self.seconds + _OVERTIME:
                print_line(f"{slow} takes fewer than {self.rate} changes a second: {done:,} are made")
                return
            due = began + done / self.rate
            if stop.wait(timedelta(seconds=max(0.0, due - time.monotonic()))):
                return
            yield call
            done += changes


@dataclass(frozen=True, slots=True)
class Figures:
    """How far the changes of one database or table have come."""

    name: str
    committed: int
    published: int
    behind: float | None
    """Seconds that its reader is behind; None or NaN: not known."""
    before: int = 0
    """Rows that were there before the change stream."""
    snapshot: int = 0
    """Rows that its reader has published of a snapshot."""


class Side(Protocol):
    """One kind of source. Each method is called by one thread at a time, `figures` and `to_apply` by any."""

    @property
    def name(self) -> str:
        """Return what the source is called."""

    def load(self, stop: Stop) -> int:
        """Write the rows that are there from the start; return how many."""

    def loaded(self) -> bool:
        """Return whether all that was loaded is seen to be on its way or applied."""

    def change(self, pace: Pace, timeout: timedelta, stop: Stop, print_line: PrintLine) -> None:
        """Change rows, and find out how long that takes to be seen."""

    def beside(self, changes: Mapping[str, int]) -> None:
        """Take note of changes, by table, that others have made to this source: their tables are compared, too."""

    def compare(self) -> Sequence[Compared]:
        """Read everything on both sides and compare it, when all writes are done."""

    def found(self, databases: Sequence[Compared]) -> SideFound:
        """Return all that is to be reported, with what was compared last."""

    def to_apply(self) -> int:
        """Return how many changes are known of that BigQuery is to have; one that goes to two tables counts twice."""

    def figures(self) -> Sequence[Figures]:
        """Return how far each database or table has come."""
