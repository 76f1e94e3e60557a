"""Which tables are in trouble, and how long to retry what: remembered for the process, not for a micro-batch.

A table that cannot be written delays the others once, for the retry time. After that its messages are deferred as
they come, and an attempt at intervals finds out whether it has recovered. Where BigQuery gives no answer, each attempt
takes the retry time, so the intervals are longer.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import pyarrow as pa
import structlog

from services.cdc_consumer.core.schema.tables import TableDefinition
from services.cdc_consumer.ports import Heard, PendingAppend, TableTroubleError
from shared.contracts.errors import PoisonRecordError, TransientError
from shared.contracts.timestamps import Nanoseconds, nanoseconds
from shared.runtime.clock import Monotonic

FORGOTTEN_AFTER: Final = timedelta(minutes=30)  # three times the longest deferral: its messages come no more
NEVER: Final = Monotonic(-(1 << 62))
_LATE: Final = 3  # appends that are kept without an answer: each has a connection
_CANARIES: Final = 1_000  # tables of which a row is kept
_CANARY_BYTES: Final = 16 << 20  # of all those rows
_CANARY_FOR: Final = timedelta(hours=1)
_CANARY_AGE: Final = timedelta(hours=24)
"""How old a row may be that is sent once more: BigQuery still remembers any delete that is newer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryLimits:
    """How long to retry what."""

    table: timedelta = timedelta(seconds=5)
    """How long a table in trouble is tried again before its messages are deferred. Once; then it is known."""
    alone: timedelta = timedelta(minutes=5)
    """The same where the service itself may be unavailable: the table is alone in its micro-batch, and nothing tells.

    Its messages are then deferred for `longest_deferral`. So a service that stays unavailable costs them an attempt
    every 900 seconds, 96 a day, of the 100 after which Pub/Sub forwards them to the dead-letter topic.
    """
    first_deferral: timedelta = timedelta(seconds=30)
    """For how long at a message's first delivery; twice as long at each further one."""
    longest_deferral: timedelta = timedelta(seconds=600)  # Pub/Sub's longest ack deadline
    between_calls: timedelta = timedelta(seconds=10)
    between_probes: timedelta = timedelta(seconds=10)
    """How often, at most, a table that is known to be in trouble is tried, and a conflicting one inspected again."""
    between_waits: timedelta = timedelta(minutes=1)
    """The same for a table that gives no answer: each time, everything else waits for it as long as `table`."""
    slow: timedelta = timedelta(minutes=1)
    """How long an answer of a table is waited for that has answered late."""
    stuck_deliveries: int = 10
    """At which delivery a row that fails retryably, alone in its table, is dead-lettered: after about an hour."""
    fatal_crashes: int = 3
    """How many processes have to crash in a row over a message, before it is dead-lettered undecoded.

    The first while they handle it among others that have come often, all further ones while they handle it alone.
    """
    fatal_deliveries: int = 20
    """At which delivery one that was not deferred so often is, where crashes cannot be counted."""
    leaving: timedelta = timedelta(seconds=10)
    """How long a task that fails tries to let its messages go."""

    def deferral_at(self, deliveries: int) -> timedelta:
        """Return for how long a message is deferred: longer the more often it has come, for every delivery counts."""
        return min(self.first_deferral * (1 << min(deliveries - 1, 10)), self.longest_deferral)


@dataclass(slots=True)
class _Trouble:
    since: Monotonic
    probe_at: Monotonic
    seen: Monotonic
    certain: bool
    why: str
    """What was said last, in words fit for a log."""
    late: PendingAppend | None = None
    """What has had no answer when it was given up."""


@dataclass(frozen=True, slots=True)
class CanaryRow:
    """A row of a mirror that BigQuery has taken: whether it takes it again tells whether it is there at all."""

    definition: TableDefinition
    target: TableDefinition
    """The same with the names that the row's columns have in the table."""
    row: pa.Table
    committed: int
    """In microseconds."""
    accepted_at: Nanoseconds


class TablesInTrouble:
    """What one process knows of its tables. A table's column lists are in trouble each for itself.

    That is because a new column that is not visible yet concerns only the rows that have it.
    """

    def __init__(self, limits: RetryLimits) -> None:
        self.limits = limits
        self._troubles: dict[TableDefinition, _Trouble] = {}
        self._slow: dict[TableDefinition, Monotonic] = {}
        self._accepted: dict[str, Monotonic] = {}
        self._conflicts: dict[TableDefinition, tuple[PoisonRecordError, Monotonic]] = {}
        self._canaries: dict[str, CanaryRow] = {}  # the latest last
        self._canary_bytes = 0

    def known(self, definition: TableDefinition) -> bool:
        """Return whether the retry time with a column list has been spent."""
        return definition in self._troubles

    def certain(self, definition: TableDefinition) -> bool:
        """Return whether it is known, and known not to be the service: others have been accepted since it began."""
        trouble = self._troubles.get(definition)
        if trouble is None:
            return False
        trouble.certain = trouble.certain or self.others_accepted_since(definition.identity, trouble.since)
        return trouble.certain

    def latest_error(self, definition: TableDefinition) -> TableTroubleError | None:
        """Return a column list's latest error text; None if none is known."""
        certain = self.certain(definition)
        trouble = self._troubles.get(definition)
        return None if trouble is None else TableTroubleError(trouble.why, suspected=not certain)

    def probe_due(self, definition: TableDefinition, now: Monotonic) -> bool:
        """Return whether a column list in trouble is to be tried now; if so, not again for a while."""
        trouble = self._troubles.get(definition)
        if trouble is None:
            return True
        trouble.seen = now
        if now < trouble.probe_at:
            return False
        trouble.probe_at = later(now, self.limits.between_probes)
        return True

    def began(
        self,
        definition: TableDefinition,
        since: Monotonic,
        now: Monotonic,
        why: TableTroubleError,
        *,
        waits: bool = False,
    ) -> None:
        """Remember that the retry time of a column list has run out; ``waits``: because BigQuery gave no answer."""
        probe_at = later(now, self.limits.between_waits if waits else self.limits.between_probes)
        if definition not in self._troubles:
            self._troubles[definition] = _Trouble(since, probe_at, now, not why.suspected, why.shown)
            structlog.get_logger().warning("table_in_trouble", table=definition.identity, why=why.shown)
        trouble = self._troubles[definition]
        trouble.certain = trouble.certain or not why.suspected
        trouble.probe_at, trouble.seen, trouble.why = probe_at, now, why.shown
        for other, each in list(self._troubles.items()):
            if now > later(each.seen, FORGOTTEN_AFTER):
                self._forget(other)

    def recovered(self, definition: TableDefinition) -> None:
        """Forget a column list's trouble."""
        if self._forget(definition):
            structlog.get_logger().info("table_recovered", table=definition.identity)

    def keep_late(self, definition: TableDefinition, appending: PendingAppend) -> None:
        """Keep an append that has had no answer: one that comes later tells that the table is slow and not silent."""
        if definition in self._troubles and sum(each.late is not None for each in self._troubles.values()) < _LATE:
            self._troubles[definition].late = appending
        else:
            appending.leave()

    def take_late_answer(self, definition: TableDefinition, now: Monotonic) -> None:
        """Find out whether the append that was kept has been answered, whatever the answer is, and leave it."""
        trouble = self._troubles.get(definition)
        if trouble is None or trouble.late is None:
            return
        appending, trouble.late = trouble.late, None
        try:
            answered = appending.hear(timedelta(0)) is not Heard.NOTHING
        except TableTroubleError:
            answered = True
        except TransientError:
            answered = False
        if answered:
            self._slow[definition] = now
            structlog.get_logger().warning(
                "table_answers_late", table=definition.identity, timeout=str(self.limits.slow)
            )
        appending.leave()

    def answer_timeout(self, definition: TableDefinition, now: Monotonic) -> timedelta:
        """Return how long an answer is waited for: longer if one has come late in the last half an hour."""
        answered_at = self._slow.get(definition)
        if answered_at is None or now > later(answered_at, FORGOTTEN_AFTER):
            return self.limits.table
        return self.limits.slow

    def _forget(self, definition: TableDefinition) -> bool:
        trouble = self._troubles.pop(definition, None)
        if trouble is not None and trouble.late is not None:
            trouble.late.leave()
        return trouble is not None

    def accepted(self, table: str, now: Monotonic) -> None:
        """Remember that BigQuery has taken rows of a table."""
        self._accepted[table] = now

    def accepted_since(self, table: str, since: Monotonic) -> bool:
        """Return whether BigQuery has taken rows of this table since then."""
        return self._accepted.get(table, NEVER) >= since

    def others_accepted_since(self, table: str, since: Monotonic) -> bool:
        """Return whether BigQuery has taken rows of any other table since then."""
        return any(at >= since for name, at in self._accepted.items() if name != table)

    def remember(self, canary: CanaryRow) -> None:
        """Keep a row that has just been accepted, in place of the one of its table that was kept before."""
        self._forget_canary(canary.definition.identity)
        self._canaries[canary.definition.identity] = canary
        self._canary_bytes += canary.row.nbytes
        while len(self._canaries) > _CANARIES or self._canary_bytes > _CANARY_BYTES:
            self._forget_canary(next(iter(self._canaries)))

    def _forget_canary(self, table: str) -> None:
        before = self._canaries.pop(table, None)
        if before is not None:
            self._canary_bytes -= before.row.nbytes

    def canary(self, definition: TableDefinition, now: Nanoseconds) -> CanaryRow | None:
        """Return a row of this very column list that may be sent once more without harm.

        One of another column list would prove nothing: a new column may be what fails.
        """
        found = self._canaries.get(definition.identity)
        return found if found is not None and found.definition == definition and _harmless(found, now) else None

    def canaries(self, but_not: Collection[str], now: Nanoseconds) -> Sequence[CanaryRow]:
        """Return rows of other tables that may be sent once more without harm, the latest first."""
        return [one for name, one in reversed(self._canaries.items()) if name not in but_not and _harmless(one, now)]

    def conflict(self, definition: TableDefinition, now: Monotonic) -> PoisonRecordError | None:
        """Return the conflict of a column list with its table, unless it is time to inspect the table again."""
        found, at = self._conflicts.get(definition, (None, NEVER))
        return found if now < later(at, self.limits.between_probes) else None

    def forget_conflict(self, definition: TableDefinition) -> None:
        """Forget a conflict: a column list fits its table again, or a replay suggests that it does."""
        self._conflicts.pop(definition, None)

    @property
    def knows_conflicts(self) -> bool:
        """Return whether any conflict is remembered."""
        return bool(self._conflicts)

    def conflicting(self, definition: TableDefinition, conflict: PoisonRecordError, now: Monotonic) -> None:
        """Remember a conflict that has just been inspected."""
        self._conflicts[definition] = conflict, now


def _harmless(canary: CanaryRow, now: Nanoseconds) -> bool:
    accepted_for, age = now - canary.accepted_at, now - canary.committed * 1000
    return accepted_for < nanoseconds(_CANARY_FOR) and age < nanoseconds(_CANARY_AGE)


def later(when: Monotonic, by: timedelta) -> Monotonic:
    """Return a time later by a duration."""
    return Monotonic(when + nanoseconds(by))
