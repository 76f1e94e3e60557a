"""What the consumer says of itself when asked: how each table is, what was done, how far behind each stage is."""

import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Final

import msgspec
import structlog

from services.cdc_consumer.app.repeating import repeating
from services.cdc_consumer.app.status.oldest_messages import OldestMessages
from services.cdc_consumer.app.stream.trouble import FORGOTTEN_AFTER
from services.cdc_consumer.core.stream.counts import Applied, Report, TableNote, newest_heartbeats, stages
from services.cdc_consumer.ports import (
    MASKS_CHANGED,
    RECREATED,
    RESYNC,
    ROWS_TOO_OLD,
    DurableBytes,
    Mirror,
    PartlyListedError,
)
from shared.contracts.errors import MisconfiguredError, TransientError, code_of
from shared.contracts.timestamps import Nanoseconds, format_timestamp
from shared.runtime.clock import SteadyClock

RUNNING: Final = "running"
NOT_PULLED: Final = "cannot pull messages"
DEFERRED: Final = "deferred"
REFUSED: Final = "refused"
PENDING_RESYNC: Final = "pending resync"
DROPPED: Final = "dropped"
_DROPPED_WHY: Final = "it is no longer in its dataset, and is made again by its next change, without its rows"

_READ_AGAIN: Final = timedelta(seconds=10)
"""How old, at most, reported labels may be."""
_READ_ANYWAY: Final = timedelta(seconds=30)
_ON_ITS_WAY: Final = timedelta(minutes=1)
"""Until what comes again is certain to be pulled, and outstanding at a process that reports it."""
_REFUSED_FOR: Final = timedelta(days=1)
"""For how long it is called so after the last such header."""
_SEEN: Final = timedelta(minutes=10)
"""How long a process counts that has said nothing more."""


@dataclass(slots=True)
class _Due:
    """A time at which something is over; later, where nothing was pulled at that time."""

    at: int = 0
    until: int = 0

    def rise(self, at: int) -> None:
        """Be over then at the earliest."""
        self.at, self.until = max(self.at, at), max(self.until, at)

    def expect_after(self, since: int, now: int, within: timedelta) -> None:
        """Expect it ``within`` a time from now, as nothing has been pulled since before it was due.

        What the next pull takes is expected until that micro-batch has ended, and no longer.
        """
        if self.at > since:
            self.until = max(self.until, now + within // timedelta(microseconds=1))
        elif self.until > since:
            self.until = max(self.until, now)


@dataclass(slots=True)
class _Deferred:
    """Why changes are deferred, and since when. If they have not come again for long, they are not.

    Another consumer has applied them then, or they are dead letters. Time in which this consumer pulls nothing does not
    count: `_Due.expect_after`.
    """

    why: str
    since: int
    until: _Due = field(default_factory=_Due)


@dataclass(slots=True)
class _Table:
    deferred: dict[str, _Deferred] = field(default_factory=dict)
    """By column list; empty: all changes of the table."""
    unfit: str = ""
    unfit_since: int = 0
    unfit_until: int = 0
    """When the first and the last header came that does not fit, without a change in between that fits."""
    stuck: str = ""
    stuck_since: int = 0
    stuck_until: _Due = field(default_factory=_Due)
    again_at: _Due = field(default_factory=_Due)
    """When the last of what was deferred comes again, whatever the table has been since."""
    latest: Applied | None = None
    unapplied_since: int = 0
    """When a change was written that BigQuery was not known to have applied since; others may have waited longer."""

    def refusal(self, now: int, refused_after: timedelta, *, mirrored: bool) -> tuple[str, int] | None:
        """Return why its changes become dead letters, and since when; None: they do not.

        Any publisher may forge or break a header. So a table that has had changes, or has a mirror, is refused by
        headers only where they keep coming and nothing else does.
        """
        once_healthy = mirrored or self.latest is not None
        repeated = _micros_between(self.unfit_since, self.unfit_until) >= refused_after
        of_late = _micros_between(self.unfit_until, now) <= _REFUSED_FOR
        if not self.unfit or (once_healthy and not (repeated and of_late)):
            return None
        return self.unfit, self.unfit_since

    def deferred_now(self, now: int) -> _Deferred | None:
        """Return, of what is deferred now, what has been for longest; None: nothing is."""
        waiting = (one for one in self.deferred.values() if now < one.until.until)
        return min(waiting, key=attrgetter("since"), default=None)

    def expect_after(self, since: int, now: int) -> None:
        """Expect again, from now on, what was to come again at a time since which nothing has been pulled."""
        for one in self.deferred.values():
            one.until.expect_after(since, now, FORGOTTEN_AFTER)
        self.stuck_until.expect_after(since, now, _ON_ITS_WAY)
        self.again_at.expect_after(since, now, _ON_ITS_WAY)

    def waits_for(self, now: int) -> str:
        """Return why some of its changes wait now; empty: none does. Rows that are stuck do until they come again."""
        deferred = self.deferred_now(now)
        return deferred.why if deferred is not None else self.stuck if now < self.stuck_until.until else ""


@dataclass(slots=True)
class _Labels:
    """The mirrors as they were last listed."""

    mirrors: Sequence[Mirror] = ()
    read_at: Nanoseconds | None = None
    asked_at: Nanoseconds | None = None
    error: str = ""
    reading: threading.Lock = field(default_factory=threading.Lock)


class ConsumerStatus:
    """Takes the reports of all processes; safe to use from any thread.

    ``read_mirrors`` lists the tables there are, in these datasets too: what a table says by its labels outlives this
    process. One that was recreated between two listings is labelled: a worker that has not seen the old one cannot
    know. When each was made is ``kept`` for the process after this one. One that this process has seen, and that
    is no longer there, is in trouble until it is recreated. ``refused_after``: over what time a table
    that had changes is refused by headers alone, to be called refused.
    """

    def __init__(
        self,
        clock: SteadyClock,
        read_mirrors: Callable[[Collection[str]], Sequence[Mirror]],
        label_recreated: Callable[[Mirror], None],
        kept: DurableBytes | None = None,
        oldest_messages: OldestMessages | None = None,
        refused_after: timedelta = timedelta(minutes=1),
    ) -> None:
        self._clock = clock
        self._read_mirrors = read_mirrors
        self._label_recreated = label_recreated
        self._kept = kept
        self._made_at: dict[str, int] = _restored(kept)
        self._made_at_kept = {**self._made_at}
        self._listed: set[str] = set()
        self._dropped: Mapping[str, int] = {}
        self._lock = threading.Lock()
        self._tables: dict[str, _Table] = {}
        self._seen: dict[str, int] = {}
        self._oldest_messages = oldest_messages or OldestMessages(clock)
        self._refused_after = refused_after
        self._counted: Counter[str] = Counter()
        self._dead_letters: Counter[str] = Counter()
        self._heartbeats: Mapping[str, int] = {}
        self._labels = _Labels()
        self._deletion_refused: dict[str, str] = {}
        self._not_pulled = ""
        self._nothing_pulled_since: int | None = None
        """Since when pulls fail, or a micro-batch is under way, during which no other messages come."""
        self._started = clock.now()

    def take(self, report: Report) -> None:
        """Add what a process reports."""
        counts, now = report.counts, self._micros()
        with self._lock:
            self._expect_again(now)
            if report.process:
                self._seen = {process: at for process, at in self._seen.items() if self._still_seen(at, now)}
                self._seen[report.process] = now
            self._oldest_messages.take(report)
            if report.not_pulled is not None or counts.taken:  # a source that was started again says nothing of before
                self._not_pulled = report.not_pulled or ""
            if counts.taken:
                self._nothing_pulled_since = now
            elif report.not_pulled:
                self._nothing_pulled_since = self._nothing_pulled_since or now
            elif report.not_pulled is not None or (counts.messages and not report.process):  # or it is committed
                self._nothing_pulled_since = None
            for name in ("messages", "changes", "rows_written", "superseded", "acked", "deferred", "released"):
                self._counted[name] += getattr(counts, name)
            self._dead_letters.update(counts.dead_letters)
            self._heartbeats = newest_heartbeats(self._heartbeats, counts.heartbeats)
            for name, note in counts.tables.items():
                _note(self._tables.setdefault(name, _Table()), note, now)

    def applied_up_to(self, watermarks: Mapping[str, datetime]) -> None:
        """Take note of what BigQuery has applied. What was written between its watermark and the last write is not
        known: such a change is taken to be as young as that write."""
        with self._lock:
            for name, at in watermarks.items():
                table, until = self._tables.get(name), round(at.timestamp() * 1e6)
                if table is not None and table.unapplied_since <= until:
                    last = table.latest.applied or 0 if table.latest is not None else 0
                    table.unapplied_since = last if last > until else 0

    def polling_labels(self) -> AbstractContextManager[None]:
        """Poll the tables while the block runs, whether a client asks for the status or not."""
        return repeating("labels", self._read_labels, _READ_ANYWAY)

    def document(self, *, ready: bool, alive: bool) -> Mapping[str, object]:
        """Return the answer, ready for JSON: names, codes, counts and times, no row's values."""
        self._read_labels()
        with self._lock:
            labels, now = self._labels, self._expect_again(self._micros())
            mirrors = {one.table: one for one in labels.mirrors}
            dropped = self._dropped
            tables = [
                {
                    **_shown(name, table, mirrors.get(name), dropped.get(name), now, self._refused_after),
                    "deletion_refused": self._deletion_refused.get(name, ""),
                }
                for name in sorted({*self._tables, *mirrors, *dropped})
                for table in [self._tables.get(name) or _Table()]
            ]
            return {
                "service": "cdc_consumer",
                "state": self._state(ready) if alive else "makes no progress",
                "since": format_timestamp(self._started),
                "tables": tables,
                "labels": {
                    "read_at": _time(None if labels.read_at is None else labels.read_at // 1000),
                    "error": labels.error,
                    "error_code": code_of(labels.error),
                },
                "changes": {
                    "seen": self._counted["changes"],
                    "written": self._counted["rows_written"],
                    "superseded": self._counted["superseded"],
                    "dead_letters": dict(self._dead_letters),
                },
                "messages": {name: self._counted[name] for name in ("messages", "acked", "deferred", "released")},
                "lag_seconds": self._lag(now),
                "sources": {source: _time(until) for source, until in sorted(self._heartbeats.items())},
                "processes": self._processes(now),
            }

    def not_pulled(self) -> str:
        """Return why the subscription cannot be pulled from; empty: it can, as far as is known."""
        return self._not_pulled

    def _state(self, ready: bool) -> str:
        return NOT_PULLED if self._not_pulled else "running" if ready else "starting"

    def mirrors(self) -> Sequence[Mirror]:
        """Return the mirrors as they were last listed."""
        return self._labels.mirrors

    def troubled(self) -> Collection[str]:
        """Return the tables whose changes wait, or are refused, and those that are gone.

        What was deferred waits until it has come again, also where the table has recovered meanwhile.
        """
        with self._lock:
            now = self._expect_again(self._micros())
            waiting = {
                name for name, table in self._tables.items() if now < table.again_at.until or table.waits_for(now)
            }
            return waiting | {*self._refused(now)} | {*self._dropped}

    def refused(self) -> Collection[str]:
        """Return the tables whose changes become dead letters."""
        with self._lock:
            return self._refused(self._micros())

    def pending_resync(self) -> Collection[str]:
        """Return the tables that lack rows, or may: those that are pending resync, and those that are gone."""
        return {one.table for one in self._labels.mirrors if one.pending_resync} | {*self._dropped}

    def _refused(self, now: int) -> Collection[str]:
        mirrors = {one.table for one in self._labels.mirrors}
        after = self._refused_after
        return [name for name, one in self._tables.items() if one.refusal(now, after, mirrored=name in mirrors)]

    def oldest_outstanding_lately(self) -> int | None:
        """Return when the oldest message was published that is outstanding or was lately, in microseconds."""
        return self._oldest_messages.oldest_lately()

    def deletion_refused(self, table: str, why: str) -> None:
        """Store why missing rows of a table are not deleted; empty: they are."""
        with self._lock:
            self._deletion_refused[table] = why

    def deferred(self) -> Mapping[str, str]:
        """Return the tables whose messages are deferred, and why."""
        with self._lock:
            now = self._expect_again(self._micros())
            return {name: why for name, table in sorted(self._tables.items()) if (why := table.waits_for(now))}

    def failing(self) -> Mapping[str, int]:
        """Return the tables whose messages are deferred, and since when in microseconds, the longest first."""
        with self._lock:
            now = self._expect_again(self._micros())
            found = ((name, one.deferred_now(now)) for name, one in self._tables.items())
            since = ((name, one.since) for name, one in found if one is not None)
            return dict(sorted(since, key=lambda each: (each[1], each[0])))

    def _expect_again(self, now: int) -> int:
        """Expect again what cannot have come, as nothing has been pulled for longer than that takes; return the time.

        What is to come again has a minute to be pulled, so shorter micro-batches change nothing.
        """
        since = self._nothing_pulled_since
        if since is not None and _micros_between(since, now) > _ON_ITS_WAY:
            for table in self._tables.values():
                table.expect_after(since, now)
        return now

    def _processes(self, now: int) -> Mapping[str, int]:
        seen = sum(self._still_seen(at, now) for at in self._seen.values())
        return {"seen": seen, "holding": self._oldest_messages.processes()}

    def _lag(self, now: int) -> Mapping[str, float | None]:
        applied = [one.latest for one in self._tables.values() if one.latest is not None]
        last = max(applied, key=lambda one: one.applied or 0, default=None)
        oldest = self._oldest_messages.oldest()
        return {**stages(last), "oldest_outstanding": None if oldest is None else max(0.0, (now - oldest) / 1e6)}

    def _read_labels(self) -> None:
        """List the mirrors again if it is time; while that takes long, other requests get the last list."""
        labels = self._labels
        if not labels.reading.acquire(blocking=False):
            return
        try:
            now = self._clock.now()
            if labels.asked_at is not None and 0 <= now - labels.asked_at < _READ_AGAIN.total_seconds() * 1e9:
                return
            labels.asked_at = now
            try:
                errors: list[str] = []
                listed, kept = self._list_mirrors(errors)
                labels.mirrors = [*(self._compared(one, errors) for one in listed), *kept]
                self._report_dropped({one.table for one in labels.mirrors})
                labels.read_at, labels.error = now, "; ".join(errors)
            except (TransientError, MisconfiguredError) as error:
                labels.error = str(error)
                structlog.get_logger().warning("labels_not_read", error=str(error))
            self._keep_what_is_known()
        finally:
            labels.reading.release()

    def _list_mirrors(self, errors: list[str]) -> tuple[Sequence[Mirror], Sequence[Mirror]]:
        """Return the mirrors that there are, and as they were those of datasets that cannot be listed now."""
        try:
            return self._read_mirrors(self._datasets()), ()
        except PartlyListedError as error:
            errors.append(str(error))
            structlog.get_logger().warning("labels_not_read", error=str(error))
            before = (one for one in self._labels.mirrors if "." in one.table)
            return error.mirrors, [one for one in before if one.table.partition(".")[0] in error.not_listed]

    def _datasets(self) -> Collection[str]:
        """Return the datasets of tables that were reported or seen with one, which need not be named in any setting."""
        with self._lock:
            names = {*self._tables, *self._listed}
        return {dataset for dataset, dot, _table in (name.partition(".") for name in names) if dot}

    def _report_dropped(self, listed: Collection[str]) -> None:
        """Say of each mirror that this process has seen, and that is no longer there, that it is gone: once."""
        gone, now = self._listed.difference(listed), self._micros()
        for table in sorted(gone - self._dropped.keys()):
            fix = (
                "if that was not meant: it is made again by its next change; take a snapshot five minutes "
                "(CLOCK_MARGIN) after that, and delete missing rows"
            )
            structlog.get_logger().error("table_dropped", table=table, fix=fix)
        self._dropped = {table: self._dropped.get(table, now) for table in gone}
        self._listed.update(listed)

    def _keep_what_is_known(self) -> None:
        if self._kept is not None and self._made_at != self._made_at_kept:
            self._kept.write(msgspec.json.encode(self._made_at))
            self._made_at_kept = {**self._made_at}

    def _compared(self, mirror: Mirror, errors: list[str]) -> Mirror:
        """Label a mirror that is another one than it was, and return it as it is then.

        Not one that has been complete since it was made: while no process polled it was healed. One that cannot be
        labelled now is among the ``errors``, and holds up no other: it is tried again at the next inspection.
        """
        if self._made_at.setdefault(mirror.table, mirror.made_at) != mirror.made_at:
            if not mirror.pending_resync and mirror.complete_since <= mirror.made_at:
                fix = (
                    "it holds new changes only: take a snapshot five minutes (CLOCK_MARGIN) after it was made, "
                    "and delete missing rows"
                )
                structlog.get_logger().error("table_recreated", table=mirror.table, fix=fix)
                recreated = replace(mirror, pending_resync=RECREATED, complete_since=0, deleted_before=0)
                try:
                    self._label_recreated(mirror)
                except (TransientError, MisconfiguredError) as error:
                    errors.append(str(error))
                    structlog.get_logger().warning("resync_label_not_written", table=mirror.table, error=str(error))
                    return recreated
                mirror = recreated
            self._made_at[mirror.table] = mirror.made_at
        return mirror

    @staticmethod
    def _still_seen(at: int, now: int) -> bool:
        return now - at <= _SEEN // timedelta(microseconds=1)

    def _micros(self) -> int:
        return self._clock.now() // 1000


def _note(table: _Table, note: TableNote, now: int) -> None:
    before = {name: one for name, one in table.deferred.items() if now < one.until.until}
    table.deferred = {name: one for name, one in before.items() if name and name not in note.taken}
    for name in (note.failing or {""}) if note.deferred else ():
        one = table.deferred[name] = before.get(name) or _Deferred(note.deferred, now)
        one.why = note.deferred
        # a task still attempts it, or messages come again
        again_at = (note.again_at or 0) + _ON_ITS_WAY // timedelta(microseconds=1)
        one.until.rise(max(now, again_at) + FORGOTTEN_AFTER // timedelta(microseconds=1))
    if note.latest is not None or not note.unfit:
        table.unfit = ""
    else:
        if not table.unfit or _micros_between(table.unfit_until, now) > _REFUSED_FOR:
            table.unfit_since = now
        table.unfit, table.unfit_until = note.unfit, now
    if note.again_at is not None:
        again_at = note.again_at + _ON_ITS_WAY // timedelta(microseconds=1)
        table.again_at.rise(again_at)
        if note.stuck:
            table.stuck_since = table.stuck_since if now < table.stuck_until.until else now
            table.stuck = note.stuck
            table.stuck_until.rise(again_at)
    if note.latest is not None and (table.latest is None or note.latest.committed >= table.latest.committed):
        table.latest = note.latest
        table.unapplied_since = table.unapplied_since or note.latest.applied or 0


def _restored(kept: DurableBytes | None) -> dict[str, int]:
    data = None if kept is None else kept.read()
    try:
        return {} if data is None else msgspec.json.decode(data, type=dict[str, int])
    except msgspec.MsgspecError:
        return {}


def _shown(
    name: str, table: _Table, mirror: Mirror | None, dropped_at: int | None, now: int, refused_after: timedelta
) -> Mapping[str, object]:
    """Return one table; its state is the first of its troubles: what holds it up before what it lacks."""
    troubles = []
    if why := table.waits_for(now):
        deferred = table.deferred_now(now)
        since = deferred.since if deferred is not None else table.stuck_since
        troubles.append({"state": DEFERRED, "since": _time(since), "why": why})
    if refusal := table.refusal(now, refused_after, mirrored=mirror is not None):
        troubles.append({"state": REFUSED, "since": _time(refusal[1]), "why": refusal[0]})
    if dropped_at is not None:
        troubles.append({"state": DROPPED, "since": _time(dropped_at), "why": _DROPPED_WHY})
    if mirror is not None and mirror.pending_resync:
        recreated_at = _time(mirror.made_at if mirror.pending_resync == RECREATED else None)
        by_snapshot = mirror.pending_resync in (ROWS_TOO_OLD, MASKS_CHANGED)
        fix = f": take another snapshot of its source table ({RESYNC})" if by_snapshot else ""
        troubles.append({"state": PENDING_RESYNC, "since": recreated_at, "why": mirror.pending_resync + fix})
    return {
        "table": name,
        "state": troubles[0]["state"] if troubles else RUNNING,
        "troubles": troubles,
        "complete_since": _time(mirror.complete_since or None if mirror is not None else None),
        "delete_missing_rows_before": _time(mirror.delete_before or None if mirror is not None else None),
        "committed": _time(table.latest.committed if table.latest is not None else None),
        "applied": _time(table.latest.applied if table.latest is not None else None),
        "unapplied_since": _time(table.unapplied_since or None if mirror is not None else None),
        "lag_seconds": stages(table.latest),
    }


def _micros_between(earlier: int, later: int) -> timedelta:
    return timedelta(microseconds=later - earlier)


def _time(micros: int | None) -> str | None:
    return None if micros is None else format_timestamp(Nanoseconds(micros * 1000))
