"""When a table had which watched columns, as far as inspections of the schema have shown.

Two inspections one after the other that show the same say so of the time between them if that is short. A column that
was dropped and added again has another place in the table, unless it was its last one: then it looks the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Generic, Protocol, TypeVar

from services.spanner_reader.core.stream.records import SpannerColumnType
from shared.contracts.timestamps import Nanoseconds, nanoseconds

_APART: Final = nanoseconds(timedelta(seconds=15))
"""How far apart two inspections may be that say something of the time between: a batch of changes, and some more."""
_MOST: Final = 64
"""Spans that are remembered of a table: what is asked for is recent, or is what partitions are behind by."""


class Columns(Protocol):
    """What a table's columns are known by."""

    @property
    def primary_key(self) -> Sequence[str]:
        """Return the key columns, in key order."""

    @property
    def column_types(self) -> Sequence[SpannerColumnType]:
        """Return the watched columns."""


ColumnsT = TypeVar("ColumnsT", bound=Columns)


@dataclass(slots=True, eq=False)
class _Span(Generic[ColumnsT]):
    since: Nanoseconds
    until: Nanoseconds
    table: ColumnsT | None


class ColumnSpans(Generic[ColumnsT]):
    """What inspections have shown of one table; None stands for a table that was not there, or was not watched."""

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
        raise LookupError("no inspection has shown the table at that time")

    def saw(self, time: Nanoseconds, table: ColumnsT | None) -> bool:
        """Take what an inspection has shown; return whether that is not what those around it have shown."""
        if self.knows(time):
            return False
        spans = self._spans
        place = next((number for number, span in enumerate(spans) if span.since > time), len(spans))
        same = [span for span in spans[max(0, place - 1) : place + 1] if _same(span.table, table)]
        near = [span for span in same if max(span.since - time, time - span.until) <= _APART]
        if near:
            last = near[-1]
            last.since = min(near[0].since, time)
            if time > last.until:
                last.until, last.table = time, table
            spans[:] = [span for span in spans if span is last or span not in near]
        else:
            spans.insert(place, _Span(time, time, table))
            if len(spans) > _MOST:
                del spans[1 if place == 0 else 0]
        return not same


def _same(one: Columns | None, other: Columns | None) -> bool:
    if one is None or other is None:
        return one is other
    return tuple(one.primary_key) == tuple(other.primary_key) and set(one.column_types) == set(other.column_types)
