"""Which differences stand: rechecked again and again, a difference counts only if nothing about its mirror row moves.

A row that differs may have a change on its way. So it is inspected for a time: gone is gone; if it still differs when
its mirror row has stood still for all of that time, it differs, whatever its source does meanwhile. If the mirror row
goes on moving cannot be decided, and is called changing: never different, never equal.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from services.cdc_consumer.core.reconcile.comparing import DifferenceKind
from shared.contracts.timestamps import Nanoseconds, nanoseconds

_TIMES: Final = 4
"""How often as long as it has to stand still a row may move before it is called changing."""


@dataclass(frozen=True, slots=True)
class ObservedDifference:
    """How a row was seen to differ, and the sequence of its mirror row: empty without one that has any."""

    kind: DifferenceKind
    applied: str = ""


@dataclass(slots=True)
class _RowState:
    first: Nanoseconds
    seen: ObservedDifference | None = None
    since: int = 0
    read: str = ""
    """The sequence of the source's rows when its mirror row was first seen as it still is."""


class UnsettledRows:
    """Rows that differed, by whatever names them, until each is known to be equal, to differ, or to go on changing."""

    def __init__(self, rows: Iterable[str], settle: timedelta, now: Nanoseconds) -> None:
        """``settle``: for how long a row has to stand still."""
        self._settle = nanoseconds(settle)
        self._open = {row: _RowState(now) for row in rows}
        self.passed = ""
        """What a mirror has to have passed, by its sequences, for what stands to count."""
        self._stood: dict[str, _RowState] = {}
        self.standing: dict[str, ObservedDifference] = {}
        self.changing: dict[str, ObservedDifference] = {}
        self.gone: set[str] = set()

    @property
    def open(self) -> tuple[str, ...]:
        """Return the rows that are to be inspected again."""
        return tuple(self._open)

    def observe(self, differing: Mapping[str, ObservedDifference], read: str, now: Nanoseconds) -> None:
        """Take what an inspection of all open rows, begun at a time, shows: those that differ; the others are equal.

        ``read``: the sequence of the source's rows that were inspected.
        """
        for row, state in list(self._open.items()):
            seen = differing.get(row)
            if seen is None:
                self.gone.add(row)
            elif state.seen is None or seen.applied != state.seen.applied:
                state.seen, state.since, state.read = seen, now, read
                if self._settle == 0:
                    self._stands(row, state)
                elif now - state.first >= _TIMES * self._settle:
                    self.changing[row] = seen
                else:
                    continue
            else:
                state.seen = seen
                if now - state.since < self._settle:
                    continue
                self._stands(row, state)
            del self._open[row]

    def reopen(self) -> None:
        """Recheck what stood: its change may be on its way. It goes on from where it was."""
        self._open |= self._stood
        self._stood.clear()
        self.standing.clear()
        self.passed = ""

    def _stands(self, row: str, state: _RowState) -> None:
        assert state.seen is not None
        self.standing[row] = state.seen
        self._stood[row] = state
        self.passed = max(self.passed, state.read)


def is_behind(newest: str, passed: str, still: Nanoseconds, settle: timedelta) -> bool:
    """Return whether a mirror is still on its way to where its source was when what stands was first seen.

    By the highest sequence that is applied, of those that the source's clock has passed (one row from a time to come
    would look like a mirror that is up to date): it is not there yet, and something was applied to it ``still`` ago,
    be that older than the highest (a repair, or a snapshot, runs ahead of the stream). A mirror in which nothing has
    moved for as long as rows have to stand still is not on its way: it is as it is.
    """
    return newest < passed and still < nanoseconds(settle)
