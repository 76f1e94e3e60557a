"""What a comparison of a table with its mirror has come to, and how the rows that differ are spoken of."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from fractions import Fraction

from services.cdc_consumer.core.reconcile.comparing import DifferenceKind
from services.cdc_consumer.ports import QuerySpend
from shared.contracts.source_rows import Key


@dataclass(frozen=True, slots=True)
class Candidate:
    """A row to recheck: its key as the source writes it, and as the mirror holds it."""

    key: Key | None
    """None: no key of the source's. Only a row of the mirror has such a one."""
    columns: Mapping[str, object] | None
    """None: the mirror can hold no such key."""

    @property
    def askable(self) -> bool:
        """Return whether the mirror can be asked for it: a parameter of a query holds no NULL."""
        return self.columns is not None and None not in self.columns.values()


@dataclass(frozen=True, slots=True)
class Difference:
    """A row that differs."""

    key: str
    """The one JSON text of its key."""
    kind: DifferenceKind
    row: Candidate
    applied: str = ""
    """The sequence of its mirror row."""
    why: str = ""


@dataclass(slots=True)
class TableDifferences:
    """What comparing a table came to."""

    table: str
    mirror: str = ""
    read_at: str = ""
    """The time of the first reading of the source."""
    source_rows: int = 0
    mirror_rows: int = 0
    rows: int = 0
    """How many keys either side had at the first inspection."""
    matched: int = 0
    """How many keys both had at the first inspection."""
    differences: list[Difference] = field(default_factory=list)
    """Those that stand."""
    changing: list[Difference] = field(default_factory=list)
    behind: list[Difference] = field(default_factory=list)
    """Those that stood while the mirror was still on its way to where its source was."""
    not_rechecked: int = 0
    """Rows that differed at the first inspection, and were too many to recheck."""
    settle: timedelta = timedelta()
    newest_applied: str = ""
    lacking: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    repaired: int = 0
    not_repaired: list[str] = field(default_factory=list)
    """Why rows were not repaired."""
    stopped: str = ""
    """Why it was ended before all rows that seemed to differ were inspected again; empty: it was not."""
    cost: QuerySpend = field(default_factory=QuerySpend)

    @property
    def undecided(self) -> int:
        """Return how many rows are neither known to be equal nor to be different."""
        return len(self.changing) + len(self.behind) + self.not_rechecked

    @property
    def compared(self) -> int:
        """Return how many rows are known to be equal or to be different."""
        return max(0, self.rows - self.undecided)

    @property
    def coverage(self) -> Fraction:
        """Return the part of the rows that are compared: 1 are all of them."""
        return Fraction(self.compared, self.rows) if self.rows else Fraction(1)

    @property
    def equal(self) -> bool:
        """Return whether all rows are equal, for certain."""
        return not self.differences and not self.undecided
