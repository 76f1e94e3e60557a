"""What is paused, since when, and what that means for a change: a matter of commit timestamps alone.

A paused table's changes are dropped, so a resync request has to cover each of them. The pause is that request: one
row, which is there before the first change that it covers is committed. Which changes it covers follows from when
they were committed, not by when a reader hears of it: from the pause's own commit to the resumption's. A reader
drops a change only if what it knows is at least as new as the change. So a resumption that it has not heard of drops
nothing, and a snapshot that begins after the resumption covers all that was dropped.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from services.spanner_reader.core.schema.shapes import (
    NEVER,
    SpannerResyncCause,
    SpannerResyncKind,
    SpannerResyncRequest,
    with_findings,
)
from shared.contracts.timestamps import Nanoseconds


@dataclass(frozen=True, slots=True)
class Pause:
    """A pause of the stream or of one table; all times are commit timestamps.

    ``since``: of the first pause whose changes are not known to have come again. ``resumed_at``: None while it lasts.
    """

    since: Nanoseconds
    paused_at: Nanoseconds
    resumed_at: Nanoseconds | None = None

    @property
    def lasts(self) -> bool:
        """Return whether it has not ended."""
        return self.resumed_at is None

    def covers(self, at: Nanoseconds) -> bool:
        """Return whether a change that was committed then is dropped."""
        return self.paused_at <= at and (self.resumed_at is None or at < self.resumed_at)

    def finding(self, table: str) -> SpannerResyncCause:
        """Return what the resync request of a table says of it."""
        return SpannerResyncCause(
            table, SpannerResyncKind.TABLE_PAUSED, self.since, NEVER if self.resumed_at is None else self.resumed_at
        )


@dataclass(frozen=True, slots=True)
class Pauses:
    """All that is paused, or was and has not come again; ``at``: every change of that up to then is in it."""

    at: Nanoseconds
    stream: Pause | None = None
    tables: Mapping[str, Pause] = field(default_factory=dict)

    @property
    def paused_tables(self) -> Mapping[str, Pause]:
        """Return those tables whose pause lasts."""
        return {name: pause for name, pause in self.tables.items() if pause.lasts}


def with_pauses(
    requests: Mapping[str, SpannerResyncRequest], pauses: Mapping[str, Pause]
) -> Mapping[str, SpannerResyncRequest]:
    """Return the resync requests of all tables, with what their pauses add to them."""
    return with_findings(requests, [pause.finding(table) for table, pause in sorted(pauses.items())])
