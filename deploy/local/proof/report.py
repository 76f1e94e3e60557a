"""The last lines of a run: what was compared and what differs, how long changes took, and what was shown on the way."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain

from rich.console import Console
from rich.table import Table

from deploy.local.demo.added_columns import ColumnStory
from deploy.local.demo.latency import Latencies
from deploy.local.demo.schema import KEYS
from deploy.local.proof.comparison import TableComparison
from deploy.local.proof.dead_letters import DeadLettersFound
from deploy.local.proof.history import HistoryComparison, describe_versions
from deploy.local.proof.missing_rows import MissingRowsProof
from deploy.local.proof.reconciling import Reconciled
from deploy.local.proof.wide_comparison import ChangeLogComparison


@dataclass(frozen=True, slots=True)
class SnapshotTaken:
    """What became of rows that were there before the change stream."""

    before: int
    published: int
    """More than there were: some came again, because a reader was killed."""
    meanwhile: int
    """Changes that were committed before all of them were published."""

    def __str__(self) -> str:
        return (
            f"{self.before:,} rows that were there before the change stream, "
            f"{self.published:,} published while {self.meanwhile:,} changes were committed"
        )


@dataclass(frozen=True)
class Compared:
    """A database of the demo and its tables, or a table of its own, compared."""

    name: str
    kind: str
    """Its dialect, or Bigtable."""
    tables: Sequence[TableComparison]
    split: float
    """How many of its partitions were split, merged, and made whole again after a merge that did not come."""
    merged: float
    reconciled: float = 0
    histories: Sequence[HistoryComparison] = ()
    change_logs: Sequence[ChangeLogComparison] = ()
    snapshot: SnapshotTaken | None = None
    completed_images: int | None = None
    """Updates that its reader has completed by reading their rows; None: its change stream captures whole rows."""

    @property
    def all(self) -> Sequence[TableComparison]:
        """Return every comparison, those of histories and change logs last."""
        return [*self.tables, *(one.result for one in self.histories), *(one.result for one in self.change_logs)]

    @property
    def equal(self) -> bool:
        """Return whether BigQuery equals it, histories and change logs included."""
        return all(one.equal for one in self.all)

    @property
    def reshaped(self) -> str:
        """Say what became of its partitions."""
        reconciled = f", {self.reconciled:.0f} reconciled" if self.reconciled else ""
        return f"{self.name} {self.split:.0f} split, {self.merged:.0f} merged{reconciled}"


@dataclass(frozen=True)
class AddedColumnSeen:
    """An added column in the end: its story, and what BigQuery's rows hold."""

    story: ColumnStory
    began: float
    filled: int
    total: int
    since: datetime | None


@dataclass(frozen=True)
class SideFound:
    """What a run has found out about one kind of source."""

    name: str
    databases: Sequence[Compared]
    changes: Mapping[str, int]
    latencies: Latencies
    columns: Sequence[AddedColumnSeen] = ()


@dataclass(frozen=True)
class Report:
    """All that a run has found out."""

    sides: Sequence[SideFound]
    written: Mapping[str, int]
    dead_letters: DeadLettersFound
    reconciled: Sequence[Reconciled]
    missing_rows: MissingRowsProof | None = None
    """None where no database of Spanner runs."""

    @property
    def equal(self) -> bool:
        """Return whether all is equal, the commands did what they should, and no dead letter is open."""
        return not self.failures

    @property
    def failures(self) -> Sequence[str]:
        """Return a text for each thing that is not as it should be."""
        compared = [one for side in self.sides for database in side.databases for one in database.all]
        unequal = [f"{one.table} differs from its source" for one in compared if not one.equal]
        reconciled = [f"reconcile, {one.source}: {one}" for one in self.reconciled if one.differing]
        incomplete = [
            f"no image of {one.name} had to be completed, although its change stream captures only what changed"
            for side in self.sides
            for one in side.databases
            if one.completed_images == 0
        ]
        return [
            *unequal,
            *incomplete,
            *reconciled,
            *(
                [f"delete-missing-rows, {self.missing_rows.source}: {self.missing_rows}"]
                if self.missing_rows is not None and self.missing_rows.wrong
                else []
            ),
            *([] if self.dead_letters.settled else ["dead letters are missing or still open"]),
        ]

    @property
    def _equal(self) -> bool:
        return all(database.equal for side in self.sides for database in side.databases)

    def print(self, console: Console) -> None:
        """Print it, what is most wanted last."""
        table = Table("source", "table", "rows", "differences", "changes", "rows written")
        for column in table.columns[2:]:
            column.justify = "right"
        kind = ""
        for side in self.sides:
            for database in side.databases:
                if database.kind != kind:
                    table.add_section()
                kind = database.kind
                for one in database.tables:
                    differences = f"{one.differing:,}" if one.differing else "none"
                    numbers = (f"{side.changes.get(one.table, 0):,}", f"{self.written.get(one.table, 0):,}")
                    table.add_row(database.kind, one.table, f"{one.rows:,}", differences, *numbers)
        console.print(table)
        databases = [database for side in self.sides for database in side.databases]
        for side in self.sides:
            self._line(console, f"{side.name}, commit to queryable", str(side.latencies))
        self._line(console, "partitions", "; ".join(database.reshaped for database in databases))
        for side in self.sides:
            for seen in side.columns:
                self._line(console, "column added in mid-stream", _added(seen))
        for database in databases:
            if database.snapshot is not None and database.snapshot.before:
                self._line(console, f"snapshot of {database.name}", str(database.snapshot))
        for database in databases:
            if database.completed_images is not None:
                completed = f"{database.completed_images:,} updates that carried only the columns that changed"
                self._line(console, f"images completed of {database.name}", completed)
        for database in databases:
            for history in database.histories:
                self._history(console, history)
            for log in database.change_logs:
                self._line(console, f"change log of {log.table}", _replayed(log))
        for one in chain.from_iterable(database.all for database in databases):
            for named in one.named:
                self._line(console, "  differs", named)
            if one.differing > len(one.named):
                console.print(f"  and {one.differing - len(one.named):,} more in {one.table}")
        for answer in self.reconciled:
            self._line(console, f"reconcile, {answer.source}", str(answer))
        if self.missing_rows is not None:
            self._line(console, f"delete-missing-rows, {self.missing_rows.source}", str(self.missing_rows))
        for line in self.dead_letters.lines():
            console.print(line, markup=False, highlight=False, soft_wrap=True)
        names = " and ".join(side.name for side in self.sides)
        equal, unequal = f"equals {names}, every column of every row", f"does NOT equal {names}"
        console.print(f"BigQuery {equal if self._equal else unequal}")
        if self.failures:
            failures = " ".join("; ".join(self.failures).split())
            console.print(f"FAILED: {failures}", markup=False, highlight=False, soft_wrap=True)

    def _history(self, console: Console, history: HistoryComparison) -> None:
        repeats = history.rows - history.changes
        twice = f" ({repeats:,} of them repeated)" if repeats else ""
        agree = "each as it was written" if history.equal else "they do NOT agree with what was written"
        self._line(
            console,
            f"history of {history.table}",
            f"{history.changes:,} of {history.committed:,} changes{twice}, {history.versions:,} versions; {agree}",
        )
        for versions in history.examples:
            key = KEYS[history.table]
            name = " ".join(str(versions[0].row[column]) for column in key)
            for start, end, what in describe_versions(key, versions):
                until = "now" if end is None else f"{end:%H:%M:%S.%f}"
                line = f"  {name:<25}{start:%H:%M:%S.%f} to {until:<15}  {what}"
                console.print(line, markup=False, highlight=False, soft_wrap=True)
                name = ""

    def _line(self, console: Console, what: str, text: str) -> None:
        console.print(f"{what}: {text}", markup=False, highlight=False, soft_wrap=True)


def _replayed(log: ChangeLogComparison) -> str:
    repeats = log.rows - log.entries
    twice = f" ({repeats:,} of them repeated)" if repeats else ""
    kinds = ", ".join(f"{number:,} {kind}" for kind, number in sorted(log.kinds.items()))
    agree = "replayed, they are Bigtable's cells" if log.equal else "replayed, they are NOT Bigtable's cells"
    return f"{log.entries:,} entries{twice}: {kinds}; {agree}"


def _added(seen: AddedColumnSeen) -> str:
    story = seen.story
    text = f"{story.column.table}.{story.column.name} ({story.dialect}) after {story.added - seen.began:.1f} s"
    if story.seen is None or story.first is None or seen.since is None:
        return f"{text}; BigQuery's table does not have it" if story.seen is None else f"{text}; no change carried it"
    key = " ".join(str(value) for value in story.first[0])
    return (
        f"{text}, in BigQuery {story.seen - story.added:.1f} s later\n"
        f"  {seen.filled:,} of {seen.total:,} rows hold it, changed since {seen.since:%H:%M:%S.%f}; the first was {key}"
    )
