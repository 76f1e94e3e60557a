"""The last lines of a run: what was compared and what differs, how long changes took, and what was shown on the way."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from rich.console import Console
from rich.table import Table

from deploy.local.comparison import TableComparison
from deploy.local.demo.added_columns import ColumnStory
from deploy.local.demo.latency import Latencies
from deploy.local.demo.schema import KEYS
from deploy.local.history import HistoryComparison, told


@dataclass(frozen=True)
class Compared:
    """A database of the demo and its tables, compared."""

    name: str
    dialect: str
    tables: Sequence[TableComparison]
    histories: Sequence[HistoryComparison]
    partitions_split: float
    partitions_merged: float

    @property
    def equal(self) -> bool:
        """Tell whether BigQuery equals it, histories included."""
        return all(one.equal for one in self.tables) and all(one.equal for one in self.histories)


@dataclass(frozen=True)
class AddedColumnSeen:
    """An added column in the end: its story, and what BigQuery's rows hold."""

    story: ColumnStory
    began: float
    held: int
    total: int
    since: datetime | None


@dataclass(frozen=True)
class Report:
    """All that a run has found out."""

    databases: Sequence[Compared]
    changes: Mapping[str, int]
    written: Mapping[str, int]
    latencies: Latencies
    columns: Sequence[AddedColumnSeen]

    @property
    def equal(self) -> bool:
        """Tell whether BigQuery equals Spanner."""
        return all(database.equal for database in self.databases)

    def print(self, console: Console) -> None:
        """Print it, what is most wanted last."""
        table = Table("dialect", "table", "rows", "differences", "changes", "rows written")
        for column in table.columns[2:]:
            column.justify = "right"
        for database in self.databases:
            table.add_section()
            for one in database.tables:
                differences = f"{one.differing:,}" if one.differing else "none"
                numbers = (f"{self.changes.get(one.table, 0):,}", f"{self.written.get(one.table, 0):,}")
                table.add_row(database.dialect, one.table, f"{one.rows:,}", differences, *numbers)
        console.print(table)
        self._line(console, "commit to queryable", str(self.latencies))
        split = ", ".join(
            f"{one.name} {one.partitions_split:.0f} split, {one.partitions_merged:.0f} merged" for one in self.databases
        )
        self._line(console, "partitions", split)
        for seen in self.columns:
            self._line(console, "column added in mid-stream", _added(seen))
        for database in self.databases:
            for history in database.histories:
                self._history(console, history)
        for database in self.databases:
            for one in (*database.tables, *(history.result for history in database.histories)):
                for named in one.named:
                    self._line(console, "  differs", named)
                if one.differing > len(one.named):
                    console.print(f"  and {one.differing - len(one.named):,} more in {one.table}")
        console.print(
            "BigQuery equals Spanner, every column of every row" if self.equal else "BigQuery does NOT equal Spanner"
        )

    def _history(self, console: Console, history: HistoryComparison) -> None:
        repeats = history.rows - history.changes
        twice = f" ({repeats:,} of them repeated)" if repeats else ""
        agree = "the current ones equal the mirror" if history.equal else "they do NOT agree with what happened"
        self._line(
            console,
            f"history of {history.table}",
            f"{history.changes:,} of {history.committed:,} changes{twice}, {history.versions:,} versions; {agree}",
        )
        for versions in history.examples:
            key = KEYS[history.table]
            name = " ".join(str(versions[0].row[column]) for column in key)
            for start, end, what in told(key, versions):
                until = "now" if end is None else f"{end:%H:%M:%S.%f}"
                line = f"  {name:<25}{start:%H:%M:%S.%f} to {until:<15}  {what}"
                console.print(line, markup=False, highlight=False, soft_wrap=True)
                name = ""

    def _line(self, console: Console, what: str, text: str) -> None:
        console.print(f"{what}: {text}", markup=False, highlight=False, soft_wrap=True)


def _added(seen: AddedColumnSeen) -> str:
    story = seen.story
    text = f"{story.column.table}.{story.column.name} ({story.dialect}) after {story.added - seen.began:.1f} s"
    if story.seen is None or story.first is None or seen.since is None:
        return f"{text}; BigQuery's table does not have it" if story.seen is None else f"{text}; no change carried it"
    key = " ".join(str(value) for value in story.first[0])
    return (
        f"{text}, in BigQuery {story.seen - story.added:.1f} s later\n"
        f"  {seen.held:,} of {seen.total:,} rows hold it, changed since {seen.since:%H:%M:%S.%f}; the first was {key}"
    )
