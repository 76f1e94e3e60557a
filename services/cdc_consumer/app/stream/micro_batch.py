"""One task of a micro-batch: decode, keep the newest of each key, write, dead-letter what cannot be applied, ack.

The order of effects is the promise. Rows are durable and dead letters confirmed before their message is acked, and
mirrors that lack such changes say so; whatever ends the process between two lines, the messages come again, and
applying them twice changes nothing. Trouble has three sizes: a row becomes a dead letter, a table's messages are put
off, and while a service is unavailable everything waits, leases extended. Messages that have come often may
be what ends the process: they are handled last, few at a time, when all others are acked, and alone once a process has
ended over them; one that has ended several becomes a dead letter, undecoded.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from itertools import chain

import numpy as np
import pyarrow as pa
import structlog

from services.cdc_consumer.app.stream.dead_letter_limit import DeadLetterLimit
from services.cdc_consumer.app.stream.decoding import decoded_groups
from services.cdc_consumer.app.stream.suspected_poison import Watch, in_groups
from services.cdc_consumer.app.stream.table_notes import log_notices, mirrors_of, note_dead_letters, table_notes
from services.cdc_consumer.app.stream.trouble import RetryLimits, TablesInTrouble
from services.cdc_consumer.app.stream.writing import ListWrites, Writing, by_table, left_to_write
from services.cdc_consumer.core.schema.destinations import EVERYTHING, Plan, identity_of
from services.cdc_consumer.core.stream.columns import CHANGE, MESSAGE, Decoded, decode_messages
from services.cdc_consumer.core.stream.counts import Counts, TableNote
from services.cdc_consumer.core.stream.poison import Poison, poison_change
from services.cdc_consumer.core.stream.task_totals import TaskTotals
from services.cdc_consumer.ports import (
    CdcWriter,
    CrashCounts,
    DeadLetters,
    DestinationTables,
    MessageLeases,
    PoisonLimit,
    TableTroubleError,
    Waiting,
)
from shared.contracts.change_batch import BUCKET, Header
from shared.contracts.dead_letter import REPLAY_OF, DeadLetter
from shared.contracts.errors import MisconfiguredError
from shared.contracts.reasons import Reason
from shared.contracts.row_id import ordered_table
from shared.contracts.timestamps import microseconds
from shared.runtime.clock import SteadyClock
from shared.runtime.retries import retrying
from shared.runtime.stop import Stop


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """What a micro-batch acts through."""

    leases: MessageLeases
    dead_letters: DeadLetters
    tables: DestinationTables
    writer: CdcWriter
    crash_counts: CrashCounts
    waiting: Waiting = lambda table="", why="": None  # noqa: ARG005  where there is nothing to report to


@dataclass(slots=True)
class Memory:
    """What a process knows from one task to the next."""

    limits: RetryLimits = field(default_factory=RetryLimits)
    dead_letter_limit: PoisonLimit = field(default_factory=DeadLetterLimit)
    plan: Plan = EVERYTHING
    reported: set[tuple[str, ...]] = field(default_factory=set)
    tables: TablesInTrouble = field(init=False)

    def __post_init__(self) -> None:
        self.tables = TablesInTrouble(self.limits)

    def is_first_report(self, *what: str) -> bool:
        """Return whether something has not been said yet; from now on it has."""
        if what in self.reported:
            return False
        self.reported.add(what)
        return True


def apply(messages: pa.Table, ports: Ports, memory: Memory, stop: Stop, clock: SteadyClock) -> Counts:
    """Apply a task's messages (`MESSAGE_SCHEMA`); return when each is acked or deferred.

    What it raises leaves nothing acked that is not durable; what is not acked has been released or deferred.
    MisconfiguredError: the dead-letter limit has tripped; the messages are deferred, because an operator has to act
    first, and every delivery counts against them. TransientError: a service was unavailable until the stop.
    """
    if not len(messages):
        return Counts()
    watch, report_waiting = Watch(ports.crash_counts), ports.waiting

    def waiting(table: str = "", why: str = "") -> None:
        watch.waits()
        report_waiting(table, why)

    def decode(some: pa.Table) -> Decoded:
        return decode_messages(some, clock.now(), memory.plan, newest_only=True)

    ports = replace(ports, waiting=waiting)
    writing = Writing(ports.tables, ports.writer, memory.tables, stop, clock, ports.waiting)
    counts, unsettled = Counts(), set(messages["ack_id"].to_pylist())
    with ports.leases.keeping(list(unsettled)):
        try:
            groups = in_groups(messages, clock.now(), memory.limits, ports.crash_counts)
            for group, decoded in decoded_groups(groups, decode, watch, memory.dead_letter_limit):
                with watch.handling(group) as deferred:
                    task = _Task(group.messages, decoded, unsettled, ports, memory, writing)
                    counts = counts.plus(task.run())
                    deferred.update(task.deferred)
        except BaseException as error:
            leave(messages, unsettled, ports.leases, memory.limits, stop, isinstance(error, MisconfiguredError))
            raise
    return counts


class _Task:
    def __init__(
        self, messages: pa.Table, decoded: Decoded, unsettled: set[str], ports: Ports, memory: Memory, writing: Writing
    ) -> None:
        self._messages = messages
        self._decoded = decoded
        self._ack_ids: Sequence[str] = messages["ack_id"].to_pylist()
        self._unsettled = unsettled  # leases of all of the task's messages that are neither acked nor deferred
        self._open = set(range(len(messages)))  # messages of ours of which the same is true
        self._ports = ports
        self._memory = memory
        self._limits = memory.limits
        self._known = memory.tables
        self._dead_letter_limit = memory.dead_letter_limit
        self._writing = writing
        self._stop = writing.stop
        self._clock = writing.clock
        self._dead_letters: Counter[str] = Counter()
        self.deferred: Mapping[int, timedelta] = {}  # messages, and for how long
        self._unnoted: dict[str, str] = {}  # mirrors that do not say yet that they lack dead letters, and why
        self._not_kept: dict[str, str] = {}  # tables of which dead letters may not be kept, and why
        self._not_to_ack: set[int] = set()  # messages whose dead letters are not kept, or not noted on their mirror
        self._dead_letters_not_kept = 0
        self._deliveries = np.maximum(messages["delivery_attempt"].fill_null(0).to_numpy(), 1)
        self._lists: Sequence[ListWrites] = ()

    def run(self) -> Counts:
        """Do it all, in the order that loses nothing, and what may have to wait last."""
        self._dead_letter_limit.judge(TaskTotals.of(self._open, self._decoded, self._decoded.poison))
        log_notices(self._messages, self._decoded, self._memory.is_first_report, self._clock.now())
        self._recheck_replayed_tables()
        self._lists = self._writing.begin(self._decoded.tables, self._deliveries)
        known = [one for one in self._lists if one.trouble is not None]
        self._write()
        self._write([one for one in known if self._known.probe_due(one.definition, self._clock.monotonic())])
        self._retry_new_trouble()
        self._defer_the_rest()
        return self._counts()

    def _recheck_replayed_tables(self) -> None:
        """Recheck tables that changes are replayed for: a replay follows a fix."""
        if not self._known.knows_conflicts:
            return
        attributes = self._messages["attributes"].to_pylist()
        replayed = {message for message, each in enumerate(attributes) if REPLAY_OF in dict(each or ())}
        for one in self._decoded.tables:
            if not replayed.isdisjoint(one.messages):
                self._known.forget_conflict(one.definition)

    def _write(self, again: Sequence[ListWrites] | None = None) -> None:
        """Write, or try those lists once more, and settle what is done: what is still in trouble is left."""
        if again is None or again:
            for _ in self._writing.write(self._lists, again or ()):
                self._settle()

    def _retry_new_trouble(self) -> None:
        """Retry tables newly in trouble for a while: most often a table or column has just been made."""
        new = [one for one in self._lists if one.trouble is not None and not self._known.known(one.definition)]
        if not new:
            return
        began = self._clock.monotonic()
        attempts = retrying(self._stop, self._limits.table, min(self._limits.between_calls, self._limits.table / 5))
        try:
            for attempt in attempts:
                with attempt:
                    self._write(new)
                    for one in new:
                        if one.trouble is not None:
                            raise one.trouble
        except TableTroubleError:
            for one in new:
                if one.trouble is not None:
                    self._known.began(one.definition, began, self._clock.monotonic(), one.trouble)

    def _settle(self) -> None:
        """Keep the dead letters of each open message whose changes are all accepted, superseded or poison; ack it.

        While a row of a table is left to write, no message of that table is done: that row may be the next newest of
        any key. A message that waits for an operator is never done.
        """
        waiting: set[int] = set(self._decoded.waiting)
        for lists in by_table(self._lists).values():
            unwritten = bool(left_to_write(lists))
            for one in lists:
                waiting |= set(one.messages if unwritten or one.trouble is not None else one.stuck_messages)
        done = self._open - waiting - self._not_to_ack
        if not done:
            return
        unique: dict[tuple[int, int | None], Poison] = {}
        for each in chain(self._decoded.poison, *map(self._poison_of, self._lists)):
            if each.message in done:  # a change that goes to two tables and is refused by both is one dead letter
                unique.setdefault((each.message, each.change), each)
        poison = list(unique.values())
        seen = TaskTotals.of(done, self._decoded, poison)
        self._dead_letter_limit.judge(seen)
        try:
            self._keep_dead_letters(poison)
        except MisconfiguredError as error:
            self._defer_poison(poison, error)
        else:
            self._note_dead_letters(poison)
        if not done.isdisjoint(self._not_to_ack):
            done -= self._not_to_ack
            seen = TaskTotals.of(done, self._decoded, [each for each in poison if each.message in done])
        self._dead_letter_limit.remember(seen)
        self._ack(done)

    def _ack(self, messages: Collection[int]) -> None:
        if not messages:
            return
        ack_ids = [self._ack_ids[message] for message in sorted(messages)]
        self._until_back(lambda: self._ports.leases.ack(ack_ids))
        self._unsettled.difference_update(ack_ids)
        self._open.difference_update(messages)

    def _poison_of(self, one: ListWrites) -> Sequence[Poison]:
        """Return the rows of a list that BigQuery, or its table, does not take."""
        message_of = one.changes.rows[MESSAGE]
        change_of = one.changes.rows[CHANGE]
        batches = self._decoded.batches
        errors: Mapping[int, tuple[Reason, str]]
        if one.conflict is not None:
            reason_and_detail = one.conflict.reason, one.conflict.detail
            errors = dict.fromkeys(range(one.changes.rows.num_rows), reason_and_detail)
        else:
            errors = {row: (error.reason, error.detail) for row, error in one.refused.items()}
        poison = [*one.poison]
        for row, (reason, detail) in errors.items():
            message, change = message_of[row].as_py(), change_of[row].as_py()
            poison.append(poison_change(message, batches[message], change, reason, detail))
        if one.conflict is not None:  # an announcement has no change to dead-letter, so it is dead-lettered itself
            poison += [
                Poison(message, None, *reason_and_detail, table=batches[message].header.table)
                for message in one.messages
                if not len(batches[message])
            ]
        return poison

    def _keep_dead_letters(self, poison: Sequence[Poison]) -> None:
        if not poison:
            return
        dead_letters = [self._dead_letter(one) for one in poison]
        self._until_back(lambda: self._ports.dead_letters.keep(dead_letters))
        reasons = Counter(dead_letter.reason.value for dead_letter in dead_letters)
        self._dead_letters += reasons
        structlog.get_logger().warning("records_dead_lettered", reasons=dict(reasons), first=dead_letters[0].identity)

    def _defer_poison(self, poison: Sequence[Poison], why: MisconfiguredError) -> None:
        """Defer the messages of dead letters that Pub/Sub refuses; all others are acked."""
        fix = (
            "do what the error names; these messages are delivered again until then. If that takes more than two days, "
            "a row that was deleted meanwhile may come back: take a snapshot, and delete missing rows"
        )
        structlog.get_logger().error("dead_letters_not_kept", dead_letters=len(poison), error=str(why), fix=fix)
        self._not_to_ack.update(each.message for each in poison)
        self._dead_letters_not_kept += len(poison)
        for each in poison:
            table = each.table or ordered_table(self._ordering_key(each.message))
            name = identity_of(Header("", table, (), ()), self._memory.plan) if table else "(unknown)"
            self._not_kept[name] = f"its dead letters are not kept: {why}"

    def _note_dead_letters(self, poison: Sequence[Poison]) -> None:
        """Let the mirrors say that they lack these; the messages of one that cannot are deferred with this task's rest.

        One try is enough: a mirror whose label fails for long must not hold up the others, and the dead letters are
        kept.
        """
        mirrors = mirrors_of(poison, self._ordering_key, self._memory.plan)
        for (name, dataset), messages in sorted(mirrors.items()):
            why = note_dead_letters(self._ports.tables, (name, dataset), self._clock.now())
            if why:
                identity = f"{dataset}.{name}" if dataset else name
                self._unnoted[identity] = f"its dead letters could not be noted on it: {why}"
                self._not_to_ack.update(messages)

    def _ordering_key(self, message: int) -> str:
        return self._messages["ordering_key"][message].as_py() or ""

    def _dead_letter(self, poison: Poison) -> DeadLetter:
        """Return a message exactly as it came, or one change of it cut out under the same header and attributes."""
        if poison.change is None:
            data = self._messages["data"][poison.message].as_py()
        else:
            data = self._decoded.batches[poison.message].cut(poison.change)
        attributes = dict(self._messages["attributes"][poison.message].as_py() or ())
        return DeadLetter(
            data=data,
            attributes=attributes,
            ordering_key="" if BUCKET in attributes else self._ordering_key(poison.message),
            reason=poison.reason,
            detail=poison.detail,
            failed_at=self._clock.now(),
            failed_in="cdc_consumer",
            table=poison.table,
            key=poison.key,
            sequence=poison.sequence,
            commit_timestamp=poison.commit_timestamp,
        )

    def _defer_the_rest(self) -> None:
        suspected = {
            message for one in self._lists if one.trouble and one.trouble.suspected for message in one.messages
        }
        self.deferred = {
            message: self._limits.longest_deferral
            if message in suspected or message in self._decoded.waiting
            else self._limits.deferral_at(int(self._deliveries[message]))
            for message in sorted(self._open)
        }
        delays = {self._ack_ids[message]: delay for message, delay in self.deferred.items()}
        for delay, ack_ids in _by_delay(delays).items():
            self._until_back(lambda delay=delay, ack_ids=ack_ids: self._ports.leases.defer(ack_ids, delay))  # type: ignore[misc]
            self._unsettled.difference_update(ack_ids)
        self._open.clear()

    def _until_back(self, call: Callable[[], None]) -> None:
        """Call until Pub/Sub is back, leases extended meanwhile; TransientError only when asked to stop."""
        for attempt in retrying(self._stop, longest_wait=self._limits.between_calls):
            with attempt:
                if attempt.retry_state.attempt_number > 1:
                    self._ports.waiting()
                call()

    def _counts(self) -> Counts:
        done = [one for one in self._lists if one.writable]
        written = sum(int(one.accepted.sum()) for one in done)
        failed = sum(len(one.refused) + len(one.stuck) for one in done)
        rows = sum(one.count for one in done if one.conflict is None)
        now, plan = self._clock.now(), self._memory.plan
        tables = dict(table_notes(self._lists, self._decoded, self._messages, self.deferred, now, plan))
        longest = max(self.deferred.values(), default=None)
        again_at = microseconds(now) + (longest or timedelta(0)) // timedelta(microseconds=1)
        for table, why in self._unnoted.items():
            tables[table] = tables.get(table, TableNote()).plus(TableNote(deferred=why, stuck=why, again_at=again_at))
        for table, why in self._not_kept.items():
            tables[table] = tables.get(table, TableNote()).plus(TableNote(stuck=why, again_at=again_at))
        latest = [note.latest.committed for note in tables.values() if note.latest is not None]
        return Counts(
            messages=len(self._ack_ids),
            changes=sum(len(batch) for batch in self._decoded.batches.values()),
            rows_written=written,
            superseded=rows - written - failed,
            left_out=sum(self._decoded.left_out.values()),
            outdated=sum(self._decoded.outdated.values()),
            dead_letters=dict(self._dead_letters),
            not_kept=self._dead_letters_not_kept,
            acked=len(self._ack_ids) - len(self.deferred),
            deferred=len(self.deferred),
            deferred_until=again_at if longest else 0,
            tables=tables,
            max_commit_timestamp=max(latest, default=None),
            heartbeats=self._decoded.heartbeats,
        )


def _by_delay(delays: Mapping[str, timedelta]) -> Mapping[timedelta, Sequence[str]]:
    by_delay: dict[timedelta, list[str]] = {}
    for ack_id, delay in delays.items():
        by_delay.setdefault(delay, []).append(ack_id)
    return by_delay


def leave(
    messages: pa.Table, unsettled: set[str], leases: MessageLeases, limits: RetryLimits, stop: Stop, for_later: bool
) -> None:
    """Let everything that is not acked be delivered again; if that fails too, the leases run out by themselves."""
    pairs = zip(messages["ack_id"].to_pylist(), messages["delivery_attempt"].to_pylist(), strict=True)
    delays = {
        ack_id: limits.deferral_at(deliveries or 1) if for_later else timedelta(0)
        for ack_id, deliveries in pairs
        if ack_id in unsettled
    }
    try:
        for delay, ack_ids in _by_delay(delays).items():
            nack = partial(leases.defer, ack_ids, delay) if for_later else partial(leases.release, ack_ids)
            retrying(stop, limits.leaving, limits.between_calls)(nack)
    except Exception as error:  # noqa: BLE001 - what led here is about to be raised, and tells more
        structlog.get_logger().warning("messages_not_nacked", messages=len(delays), error=str(error))
