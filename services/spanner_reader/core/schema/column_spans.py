"""When a table had which watched columns, as far as looks at the schema have shown.

Two inspections one after the other that show the same say so of the time between them: a column that was dropped and
added again has another place in the table, unless it was its last one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

from services.spanner_reader.core.stream.records import SpannerColumnType
from shared.contracts.timestamps import Nanoseconds

_MOST: Final = 16
"""Spans that are remembered of a table: what is asked for is recent."""


class Columns(Protocol):
    """What a table's columns are known by."""

    @property
    def primary_key(self) -> Sequence[str]:
        """Return the key columns, in key order."""

    @property
    def column_types(self) -> Sequence[SpannerColumnType]:
        """Return the watched columns."""


ColumnsT = TypeVar("ColumnsT", bound=Columns)


@dataclass(slots=True)
class _Span(Generic[ColumnsT]):
    since: Nanoseconds
    until: Nanoseconds
    table: ColumnsT | None


class ColumnSpans(Generic[ColumnsT]):
    """What looks have shown of one table; None stands for a table that was not there, or was not watched."""

    def __init__(self) -> None:
        self._spans: list[_Span[ColumnsT]] = []

    @property
    def newest(self) -> Nanoseconds | None:
        """Return the time of the latest inspection; None if there was none."""
        return self._spans[-1].until if self._spans else None

    def covers(self, since: Nanoseconds, until: Nanoseconds) -> bool:
        """Return whether the table is known to have stayed as it was from one time to another."""
        return any(span.since <= since and until <= span.until for span in self._spans)

    def knows(self, at: Nanoseconds) -> bool:
        """Return whether it is known what the table was at a time."""
        return self.covers(at, at)

    def at(self, time: Nanoseconds) -> ColumnsT | None:
        """Return the table as it was at a time; LookupError where that is not known."""
        for span in self._spans:
            if span.since <= time <= span.until:
                return span.table
        raise LookupError("no look has shown the table at that time")

    def saw(self, time: Nanoseconds, table: ColumnsT | None) -> bool:
        """Take what an inspection has shown; return whether that is not what those around it have shown."""
        if self.knows(time):
            return False
        place = next((number for number, span in enumerate(self._spans) if span.since > time), len(self._spans))
        if place < len(self._spans) and _same(self._spans[place].table, table):
            self._spans[place].since = time
        elif place and _same(self._spans[place - 1].table, table):
            self._spans[place - 1].until, self._spans[place - 1].table = time, table
        else:
            self._spans.insert(place, _Span(time, time, table))
            if len(self._spans) > _MOST:
                del self._spans[1 if place == 0 else 0]
            return True
        return False


def _same(one: Columns | None, other: Columns | None) -> bool:
    if one is None or other is None:
        return one is other
    return tuple(one.primary_key) == tuple(other.primary_key) and set(one.column_types) == set(other.column_types)
