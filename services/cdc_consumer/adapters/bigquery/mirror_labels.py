"""Labels of mirrors: of which source table, since when they are complete, and until when rows are deleted.

Labels hold lower-case letters, digits, ``_`` and ``-``; times in them are microseconds of Unix time. A label is changed
as it is found: what another program changes of the table meanwhile stays.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Final

import structlog
from google.api_core import exceptions
from google.cloud import bigquery

from services.cdc_consumer.adapters.bigquery.errors import ONE_CALL, rest_errors, update_fields
from services.cdc_consumer.adapters.bigquery.unanswered import TableClient
from services.cdc_consumer.core.schema.masked_columns import MASKS
from services.cdc_consumer.ports import LEFT_OUT, MASKS_CHANGED, RECREATED, ROWS_TOO_OLD, TableTroubleError
from shared.contracts.mirrors import MIRROR_OF

_ATTEMPTS: Final = 5  # others may alter the table at the same time, but not for ever


class NoTableError(TableTroubleError):
    """There is no such table, at least not yet."""


def change_labels(
    client: TableClient,
    path: str,
    change: Callable[[bigquery.Table], Mapping[str, str | None] | None],
) -> bool:
    """Give a table the labels that ``change`` makes of it as it is, and return whether it has new ones.

    None is to leave it as it is; a label that is None goes. TransientError, TableTroubleError or
    NoTableError where that cannot be done now. Where labels may not be written at all, that is said in the log.
    """
    for _attempt in range(_ATTEMPTS):
        with rest_errors(f"table {path}"):
            try:
                found = client.get_table(path, **ONE_CALL)
            except exceptions.NotFound as error:
                raise NoTableError(f"there is no table {path}") from error
            labels = change(found)
            if labels is None:
                return False
            with suppress(exceptions.Conflict, exceptions.PreconditionFailed):
                return labelled(client, found, labels) is not None
    raise TableTroubleError(f"table {path}: altered by others all the time")


def labelled(client: TableClient, found: bigquery.Table, labels: Mapping[str, str | None]) -> bigquery.Table | None:
    """Give a table labels, and return it with them; None, which is said in the log, where they may not be written.

    The client's errors, as `update_fields`.
    """
    found.labels = labels
    changed = update_fields(client, found, ["labels"])
    if isinstance(changed, str):
        structlog.get_logger().warning("table_not_labelled", table=str(found.reference), error=changed)
        return None
    return changed


NEEDS_RESYNC: Final = "millrace_needs_resync"
"""The label by which a table says that rows are missing in it, and why; whatever resyncs it removes it."""
COMPLETE_SINCE: Final = "millrace_complete_since"
"""The label by which a mirror says that each row that its source had then is in it, or on its way into it, as of then
or later: what is older in it is no longer in the source."""
COMPLETE_TOLD: Final = "millrace_complete_told"
"""The label by which a mirror says when it came to say that."""
READ_SINCE: Final = "millrace_read_since"
"""The label by which a mirror says when the reading of that snapshot may have begun, at the earliest: of Bigtable, what
it is complete since is a number that may be ahead of all clocks. Without it, what it is complete since is a time."""
MISSING_ROWS_DELETED: Final = "millrace_swept"
"""The label of a mirror: nothing that is older was left in it at the last check."""
LEFT_OUT_UNTIL: Final = "millrace_left_out_until"
"""The label by which a mirror that was left out for a while says by when its changes were written again."""
DEAD_LETTERS: Final = "millrace_letters"
"""The label by which a mirror says until when changes of its source table may have become dead letters: what is in it
from before then need not be gone from the source."""

RESYNC_AFTER: Final = "millrace_resync_after"
"""The label that holds the end of the hour in which the latest of the missing snapshot rows was read, or when masks
were changed: a snapshot that was read before it does not make the mirror complete."""

_UNTIL_DELETION: Final = (RECREATED, LEFT_OUT)
"""The reasons that a snapshot and a deletion of missing rows after it take away."""
_COMPLETE: Final = frozenset({COMPLETE_SINCE, COMPLETE_TOLD, READ_SINCE, MISSING_ROWS_DELETED})

_HOUR: Final = timedelta(hours=1) // timedelta(microseconds=1)

CLOCK_MARGIN: Final = timedelta(minutes=5)
"""How far ahead of BigQuery's clock a source's times may be. Bigtable's versions are no times: see `READ_SINCE`."""


def completed(
    labels: Mapping[str, str],
    made_at: datetime,
    since: int,
    read_since: int,
    now: int,
    margin: timedelta = CLOCK_MARGIN,
) -> dict[str, str | None] | None:
    """Return a mirror's labels once a snapshot of its source table is at its end; None where that changes nothing.

    A table that was made after the snapshot was begun may have been made in place of another, and rows of the snapshot
    have gone into that one: of such a table nothing can be said. The time it was made is of another clock: ``margin``.
    What is compared with it is ``read_since``, for ``since`` may be a number that is ahead of all clocks: every row of
    the snapshot was read later than that, and published later still. Nothing can be said either of a mirror that is
    left out, or was when the snapshot was begun. One that lacks rows of a snapshot has them by one that was read later.
    """
    read = min(since, read_since)
    if lacks_its_rows(labels, since, read_since):
        return None
    if read <= (made_at + margin).timestamp() * 1e6 or since <= label_time(labels, COMPLETE_SINCE):
        return None
    if labels.get(NEEDS_RESYNC) == LEFT_OUT:
        again = label_time(labels, LEFT_OUT_UNTIL)
        if not again or read <= until(again, margin):
            return None
    changed: dict[str, str | None] = {READ_SINCE: str(read)} if read < since or READ_SINCE in labels else {}
    changed |= dict.fromkeys({RESYNC_AFTER} & labels.keys())
    if labels.get(NEEDS_RESYNC) in (ROWS_TOO_OLD, MASKS_CHANGED):
        changed[NEEDS_RESYNC] = None
    return {**labels, **changed, COMPLETE_SINCE: str(since), COMPLETE_TOLD: str(now)}


def lacks_its_rows(labels: Mapping[str, str], since: int, read_since: int) -> bool:
    """Return whether a mirror may lack rows of a snapshot: they came too late to be applied, or with other masks."""
    return min(since, read_since) <= label_time(labels, RESYNC_AFTER)


def rows_too_old(labels: Mapping[str, str], newest: int) -> dict[str, str | None] | None:
    """Return the labels of a mirror that lacks rows of a snapshot, read at ``newest`` (µs) at the latest.

    None where that changes nothing: a snapshot that was read later is complete, or the mirror says so already. Another
    reason why it is pending resync stays, for what takes that away is more.

    The label holds the end of the hour: each row of a Bigtable snapshot has its own read time, and BigQuery allows few
    changes of a table. A new snapshot is read later than that, since these rows are nearly two days old.
    """
    read = label_time(labels, READ_SINCE) or label_time(labels, COMPLETE_SINCE)
    if read > newest:
        return None
    stale = dict.fromkeys(_COMPLETE & labels.keys())
    end_of_hour = -(-newest // _HOUR) * _HOUR
    after = str(max(end_of_hour, label_time(labels, RESYNC_AFTER)))
    changed = {**labels, **stale, NEEDS_RESYNC: labels.get(NEEDS_RESYNC) or ROWS_TOO_OLD, RESYNC_AFTER: after}
    return changed if changed != labels else None


def remasked(labels: Mapping[str, str], masks: str, at: int) -> dict[str, str | None]:
    """Return the labels of a mirror whose rows are masked or named in another way from a time (µs) on.

    Those of before have their old values until they come again: by a snapshot that was read later. Another reason why
    it is pending resync stays, for what takes that away is more.
    """
    stale = dict.fromkeys(_COMPLETE & labels.keys())
    after = str(max(at, label_time(labels, RESYNC_AFTER)))
    needed = {NEEDS_RESYNC: labels.get(NEEDS_RESYNC) or MASKS_CHANGED, RESYNC_AFTER: after}
    return {**labels, **stale, **needed, **mask_label(labels, masks)}


def mask_label(labels: Mapping[str, str], masks: str) -> dict[str, str | None]:
    """Return the label for masks; without masks, what removes it."""
    return {MASKS: masks} if masks else dict.fromkeys({MASKS} & labels.keys())


def dead_lettered(labels: Mapping[str, str], needed: int, beyond: int) -> dict[str, str] | None:
    """Return a mirror's labels once changes have become dead letters; None where they say so until ``needed`` at least.

    Else they come to say so until ``beyond``, for all whose turn is next: of many processes one changes the table.
    """
    if MIRROR_OF not in labels or needed <= label_time(labels, DEAD_LETTERS):
        return None
    return {**labels, DEAD_LETTERS: str(beyond)}


def until(at: int, margin: timedelta) -> int:
    """Return a time in microseconds so much later: until then a snapshot may have begun before, by its own clock."""
    return at + margin // timedelta(microseconds=1)


def recreated(labels: Mapping[str, str]) -> dict[str, str | None]:
    """Return the labels of a mirror that was made in place of another: whatever it says, that one was complete."""
    stale = dict.fromkeys(_COMPLETE & labels.keys())  # None takes a label off
    return {**labels, **stale, NEEDS_RESYNC: RECREATED}


def left_out(labels: Mapping[str, str], of_what: str) -> dict[str, str | None] | None:
    """Return a mirror's labels while its changes go to a history alone; None where that changes nothing.

    Or where it is no mirror of that source table: ``of_what`` is its label.
    """
    if labels.get(MIRROR_OF) != of_what:
        return None
    stale = dict.fromkeys((_COMPLETE | {LEFT_OUT_UNTIL}) & labels.keys())
    return {**labels, **stale, NEEDS_RESYNC: LEFT_OUT} if stale or labels.get(NEEDS_RESYNC) != LEFT_OUT else None


def taken_up(labels: Mapping[str, str], at: int) -> dict[str, str] | None:
    """Return the labels of a mirror once its changes are written; None where it was not left out before."""
    if labels.get(NEEDS_RESYNC) != LEFT_OUT or LEFT_OUT_UNTIL in labels:
        return None
    return {**labels, LEFT_OUT_UNTIL: str(at)}


def too_early(labels: Mapping[str, str], announced_by: int) -> bool:
    """Return whether a mirror with a hole may lack rows of the snapshot by which it is complete.

    What fills the hole need not be in place of anything older, so that there is nothing older says nothing; the rows
    need time to arrive. ``announced_by``: by when it has to be said that they are on their way.
    """
    return labels.get(NEEDS_RESYNC) in _UNTIL_DELETION and label_time(labels, COMPLETE_TOLD) > announced_by


def stays_pending(labels: Mapping[str, str], before: int) -> bool:
    """Return whether a deletion before this time leaves a resync request: the mirror is complete since another one."""
    return labels.get(NEEDS_RESYNC) in _UNTIL_DELETION and before != label_time(labels, COMPLETE_SINCE)


def without_missing_rows(labels: Mapping[str, str], since: int) -> dict[str, str | None] | None:
    """Return a mirror's labels once nothing older is left in it; None where that changes nothing.

    That ends a resync request for a mirror that was recreated or left out, if ``since`` is the time that it is complete
    since. With an earlier time the request stays: rows deleted at the source between the two are still there.
    """
    changed: dict[str, str | None] = dict(labels)
    if since > label_time(labels, MISSING_ROWS_DELETED):
        changed[MISSING_ROWS_DELETED] = str(since)
    if labels.get(NEEDS_RESYNC) in _UNTIL_DELETION and not stays_pending(labels, since):
        changed |= dict.fromkeys({NEEDS_RESYNC, LEFT_OUT_UNTIL} & labels.keys())  # which takes the labels off
    return changed if changed != dict(labels) else None


def label_time(labels: Mapping[str, str], name: str) -> int:
    """Return a time in microseconds that a label holds; 0 where it holds none."""
    text = labels.get(name, "")
    return int(text) if text.isdecimal() else 0
