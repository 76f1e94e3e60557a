"""Deletes missing rows without being asked to (DELETE_MISSING_ROWS=automatic), where nothing speaks against it.

A table has to be complete for a while, and nothing of it may be in trouble meanwhile, so that its snapshot rows have
had the time to arrive. Where the source can be asked, it is. Where not, nothing is deleted once changes of the table
have become dead letters since the snapshot began, which the mirror says by a label whichever process saw them; and no
more than a small part of it: what would delete more may be a snapshot whose rows are not there, and a person has to
check.

Rows that were on their way then may arrive from before then, for as long as the subscription keeps
messages; so it is inspected again until that time is over.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import structlog

from services.cdc_consumer.app.delete_missing_rows.deletion import Deletion, DeletionRefusedError, shown_time
from services.cdc_consumer.app.repeating import repeating
from services.cdc_consumer.ports import Mirror, MirrorStates, MirrorTable, RowCount
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.contracts.timestamps import Nanoseconds, nanoseconds
from shared.runtime.clock import Monotonic, SteadyClock

_ROUND: Final = timedelta(seconds=30)
_SHORTEST_ROUND: Final = timedelta(seconds=0.1)
_AGAIN: Final = timedelta(hours=6)
_DOUBLED: Final = 20
"""How often the wait for the next inspection is doubled at most: it is longer than `_AGAIN` by then."""
_ALWAYS_FEW: Final = 1_000
"""Rows that may be deleted of any table without asking its source."""
_SMALL_PART: Final = 100
"""One row of so many may be."""


@dataclass(slots=True)
class _Completeness:
    """What is known of a mirror that is complete since a time."""

    seen_at: Nanoseconds
    """When it was first seen to be, by the clock that messages are published by."""
    seen: Monotonic
    checked: Monotonic | None = None
    in_vain: int = 0
    """How often it was inspected since anything was deleted last."""


class AutomaticDeletion:
    """Knows for how long each mirror has been complete, and deletes the missing rows of those that are due."""

    def __init__(
        self,
        known: MirrorStates,
        delete: Callable[[Mirror], Deletion],
        clock: SteadyClock,
        *,
        after: timedelta,
        keep_messages_for: timedelta,
    ) -> None:
        self._known = known
        self._delete = delete
        self._clock = clock
        self._after = nanoseconds(after)
        self._keep = nanoseconds(keep_messages_for)
        self._known_of: dict[tuple[str, int], _Completeness] = {}
        self._refused: set[str] = set()

    def deleting(self) -> AbstractContextManager[None]:
        """Delete missing rows every now and then while the block runs."""
        every = min(_ROUND, max(_SHORTEST_ROUND, timedelta(seconds=self._after / 1e9)))
        return repeating("delete-missing-rows", self.go_round, every)

    def go_round(self) -> None:
        """Delete missing rows of what is due."""
        for mirror in self.due():
            if not self._is_due(mirror):  # by now: those before it may have taken long
                continue
            known = self._completeness(mirror)
            log = structlog.get_logger().bind(table=mirror.table, before=shown_time(mirror.complete_since))
            why = ""
            try:
                found = self._delete(mirror)
            except TransientError as error:
                log.warning("missing_rows_deletion_failed", error=str(error))
                continue
            except MisconfiguredError as error:
                why = str(error)
                if mirror.table not in self._refused:
                    if isinstance(error, DeletionRefusedError):
                        log.warning("missing_rows_deletion_refused", error=why)
                    else:
                        log.error("missing_rows_deletion_refused", error=why)  # noqa: TRY400
            except Exception as error:  # an unforeseen error of one table does not stop the others
                why = f"{type(error).__name__}: the log says where"
                log.exception("missing_rows_deletion_failed")
            else:
                known.in_vain = 0 if found.deleted else known.in_vain + 1
                log.info(
                    "missing_rows_deletion_finished",
                    older=found.older,
                    in_source=found.living,
                    deleted=found.deleted,
                    left=found.left,
                )
            known.checked = self._clock.monotonic()
            self._known.deletion_refused(mirror.table, why)
            (self._refused.add if why else self._refused.discard)(mirror.table)

    def due(self) -> Sequence[Mirror]:
        """Return the mirrors whose missing rows are to be deleted now."""
        return [mirror for mirror in self._known.mirrors() if self._is_due(mirror)]

    def _is_due(self, mirror: Mirror) -> bool:
        if not mirror.complete_since:
            return False
        known, monotonic = self._completeness(mirror), self._clock.monotonic()
        if monotonic - known.seen < self._after or mirror.table in self._known.troubled():
            return False
        outstanding = self._known.oldest_outstanding_lately()
        if outstanding is not None and outstanding * 1_000 < known.seen_at:
            return False
        rest: int = nanoseconds(_AGAIN)
        if mirror.delete_before and mirror.table not in self._refused:  # soon; later each time that deletes nothing
            rest = min(rest, self._after << max(0, min(known.in_vain, _DOUBLED) - 2))
        rested = known.checked is None or monotonic - known.checked >= rest
        may_come = self._clock.now() - mirror.complete_since * 1_000 < self._keep
        return rested and (bool(mirror.delete_before) or may_come)

    def _completeness(self, mirror: Mirror) -> _Completeness:
        at = mirror.table, mirror.complete_since
        if at not in self._known_of:
            self._known_of[at] = _Completeness(self._clock.now(), self._clock.monotonic())
        return self._known_of[at]


def check_unchanged(listed: Mirror, found: MirrorTable) -> None:
    """Raise TransientError for a mirror that is complete since another time by now, which has a wait of its own."""
    if found.complete_since != listed.complete_since:
        raise TransientError(f"table {listed.table} is complete since another time by now: its wait begins again")


def check_part(table: str, count: RowCount, before: int) -> None:
    """Refuse to delete more than a small part of a table whose source cannot be asked."""
    if count.older > max(_ALWAYS_FEW, count.rows // _SMALL_PART) or (count.older and count.older == count.rows):
        raise DeletionRefusedError(
            "delete-missing-rows-needs-the-source",
            f"{count.older} of the {count.rows} rows of table {table} are from before {shown_time(before)}, and its "
            "source cannot be asked for them: set SOURCE_ROWS, or delete them by command: "
            f"python -m services.cdc_consumer delete-missing-rows TABLE --before {shown_time(before)}",
        )


def check_dead_letters(mirror: MirrorTable, count: RowCount, before: int) -> None:
    """Refuse to delete what may be older only because its snapshot row is a dead letter, if no source can be asked.

    Dead letters are noted by a clock: what is compared with them is when the snapshot was read, not the number of its
    rows.
    """
    read_since = min(before, mirror.read_since or before)
    if count.older and mirror.dead_letters_until >= read_since:
        raise DeletionRefusedError(
            "delete-missing-rows-after-dead-letters",
            f"changes of the source table of {mirror.definition.identity} have become dead letters since "
            f"{shown_time(read_since)}: some of its {count.older} older rows may be there only for that, and its "
            "source cannot be asked for them: set SOURCE_ROWS; or fix what made them dead letters, and take a snapshot "
            "ten minutes after the last of them; or delete by command: "
            f"python -m services.cdc_consumer delete-missing-rows TABLE --before {shown_time(before)}",
        )
