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
from datetime import timedelta
from typing import Final

import structlog

from services.cdc_consumer.app.delete_missing_rows.deletion import Deletion, DeletionRefusedError, shown_time
from services.cdc_consumer.app.repeating import repeating
from services.cdc_consumer.ports import Mirror, MirrorStates, MirrorTable, RowCount
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.contracts.timestamps import Nanoseconds, nanoseconds
from shared.runtime.clock import Clock

_ROUND: Final = timedelta(seconds=30)
_SHORTEST_ROUND: Final = timedelta(seconds=0.1)
_AGAIN: Final = timedelta(hours=6)
_ALWAYS_FEW: Final = 1_000
"""Rows that may be deleted of any table without asking its source."""
_SMALL_PART: Final = 100
"""One row of so many may be."""


class AutomaticDeletion:
    """Knows for how long each mirror has been complete, and deletes the missing rows of those that are due."""

    def __init__(
        self,
        known: MirrorStates,
        delete: Callable[[Mirror], Deletion],
        clock: Clock,
        *,
        after: timedelta,
        keep_messages_for: timedelta,
    ) -> None:
        self._known = known
        self._delete = delete
        self._clock = clock
        self._after = nanoseconds(after)
        self._keep = nanoseconds(keep_messages_for)
        self._seen: dict[tuple[str, int], Nanoseconds] = {}
        self._checked: dict[tuple[str, int], Nanoseconds] = {}
        self._refused: set[str] = set()

    def deleting(self) -> AbstractContextManager[None]:
        """Delete missing rows every now and then while the block runs."""
        every = min(_ROUND, max(_SHORTEST_ROUND, timedelta(seconds=self._after / 1e9)))
        return repeating("delete-missing-rows", self.go_round, every)

    def go_round(self) -> None:
        """Delete missing rows of what is due."""
        for mirror in self.due():
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
                log.info(
                    "missing_rows_deletion_finished",
                    older=found.older,
                    in_source=found.living,
                    deleted=found.deleted,
                    left=found.left,
                )
            self._checked[mirror.table, mirror.complete_since] = self._clock.now()
            self._known.deletion_refused(mirror.table, why)
            (self._refused.add if why else self._refused.discard)(mirror.table)

    def due(self) -> Sequence[Mirror]:
        """Return the mirrors whose missing rows are to be deleted now."""
        now, troubled, outstanding = self._clock.now(), self._known.troubled(), self._known.oldest_outstanding_lately()
        found = []
        for mirror in self._known.mirrors():
            at = mirror.table, mirror.complete_since
            if not mirror.complete_since:
                continue
            seen = self._seen.setdefault(at, now)
            on_its_way = outstanding is not None and outstanding * 1_000 < seen
            if now - seen < self._after or mirror.table in troubled or on_its_way:
                continue
            rest = self._after if mirror.delete_before and mirror.table not in self._refused else nanoseconds(_AGAIN)
            rested = at not in self._checked or now - self._checked[at] >= rest
            if rested and (mirror.delete_before or now - mirror.complete_since * 1_000 < self._keep):
                found.append(mirror)
        return found


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
