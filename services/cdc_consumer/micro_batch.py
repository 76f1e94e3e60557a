"""One task of a micro-batch: decode, keep the newest of each key, write, set aside what cannot be applied, ack.

The order of effects is the promise. Rows are durable and dead letters confirmed before their message is acked, so
whatever ends the process between two lines, the messages come again, and applying them twice changes nothing.
Trouble has three sizes: a row becomes a dead letter, a table's messages are put off, and when a service is away
everything waits, leases extended, until it is back.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from itertools import chain
from typing import Final, Self, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import structlog

from services.cdc_consumer.core.columns import CHANGE, MESSAGE, Decoded, TableChanges, decode_messages
from services.cdc_consumer.core.poison import Poison, poison_change
from services.cdc_consumer.core.sequencing import newest_per_key
from services.cdc_consumer.core.tables import COMMIT_TIMESTAMP_COLUMN, TableDefinition, table_definition
from services.cdc_consumer.ports import CdcWriter, DeadLetters, Leases, RowError, Tables, TableTroubleError
from shared.contracts.change_batch import Header
from shared.contracts.dead_letter import DeadLetter
from shared.contracts.errors import MisconfiguredError, PoisonRecordError
from shared.contracts.reasons import Reason
from shared.runtime.clock import Clock
from shared.runtime.retries import retrying
from shared.runtime.stop import Stop

_UNREADABLE: Final = frozenset({Reason.UNDECODABLE, Reason.TRAILING_BYTES, Reason.UNEQUAL_LISTS})

T = TypeVar("T")
Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """What a micro-batch acts through."""

    leases: Leases
    letters: DeadLetters
    tables: Tables
    writer: CdcWriter


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long to bear with what."""

    table: timedelta = timedelta(seconds=5)
    """How long a table in trouble is tried again before its messages are put off."""
    put_off: timedelta = timedelta(seconds=30)
    """For how long at a message's first delivery; twice as long at each further one."""
    longest_put_off: timedelta = timedelta(seconds=600)  # Pub/Sub's longest ack deadline
    between_calls: timedelta = timedelta(seconds=10)
    unreadable_messages: int = 100
    """From so many messages on, a majority that cannot be decoded is a bad deploy and not bad records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What became of a task's messages."""

    messages: int = 0
    changes: int = 0
    rows_written: int = 0
    superseded: int = 0
    letters: Mapping[str, int] = field(default_factory=dict)
    """By reason."""
    acked: int = 0
    put_off: int = 0
    given_back: int = 0
    """Only where a task failed; then it is the task itself that reports."""
    tables_in_trouble: Sequence[str] = ()
    max_commit_timestamp: int | None = None
    """The latest commit timestamp of a change that was written or superseded, in microseconds."""

    def fields(self) -> Mapping[str, object]:
        """Return what is not zero or empty, for a log line."""
        return {name: value for name, value in asdict(self).items() if value}

    def plus(self, other: Self) -> Self:
        """Return the counts of both."""
        latest = [at for at in (self.max_commit_timestamp, other.max_commit_timestamp) if at is not None]
        return type(self)(
            messages=self.messages + other.messages,
            changes=self.changes + other.changes,
            rows_written=self.rows_written + other.rows_written,
            superseded=self.superseded + other.superseded,
            letters=dict(Counter(self.letters) + Counter(other.letters)),
            acked=self.acked + other.acked,
            put_off=self.put_off + other.put_off,
            given_back=self.given_back + other.given_back,
            tables_in_trouble=tuple(sorted({*self.tables_in_trouble, *other.tables_in_trouble})),
            max_commit_timestamp=max(latest, default=None),
        )


def apply(messages: pa.Table, ports: Ports, stop: Stop, clock: Clock, patience: Patience | None = None) -> Counts:
    """Apply a task's messages (`MESSAGE_SCHEMA`); return when each is acked or put off.

    What it raises leaves nothing acked that is not durable; what is not acked has been given back or put off.
    MisconfiguredError: a newer wire format, or a majority that cannot be decoded; the messages are put off, since
    somebody has to act first, and every delivery counts against them. TransientError: a service was away until the
    process was asked to stop.
    """
    ack_ids = messages["ack_id"].to_pylist()
    if not ack_ids:
        return Counts()
    with ports.leases.keeping(ack_ids):
        task = _Task(messages, ack_ids, ports, stop, clock, patience or Patience())
        try:
            return task.run()
        except BaseException as error:
            task.leave_the_rest(for_later=isinstance(error, MisconfiguredError))
            raise


class _ListWrites:
    """The changes of one table and column list, and what has become of each row."""

    def __init__(self, changes: TableChanges) -> None:
        self.changes = changes
        self.messages: list[int] = []
        self.accepted = np.zeros(changes.rows.num_rows, dtype=bool)
        self.refused: dict[int, RowError] = {}
        self.conflict: PoisonRecordError | None = None
        self.trouble: TableTroubleError | None = None

    @property
    def writable(self) -> bool:
        return self.conflict is None and self.trouble is None

    def excluded(self) -> pa.Array | None:
        return pa.array(sorted(self.refused), pa.int64()) if self.refused else None

    def take_in(self, rows: Rows, errors: Sequence[RowError]) -> None:
        """Remember what BigQuery has said of rows that were handed to it."""
        self.accepted[rows] = True
        for error in errors:
            row = int(rows[error.index])
            self.refused[row] = error
            self.accepted[row] = False


class _Task:
    def __init__(
        self, messages: pa.Table, ack_ids: Sequence[str], ports: Ports, stop: Stop, clock: Clock, patience: Patience
    ) -> None:
        self._messages = messages
        self._ack_ids = ack_ids
        self._ports = ports
        self._stop = stop
        self._clock = clock
        self._patience = patience
        self._open = set(range(len(ack_ids)))  # messages neither acked nor put off
        self._letters: Counter[str] = Counter()
        self._put_off = 0
        self._decoded: Decoded
        self._lists: list[_ListWrites]

    def run(self) -> Counts:
        """Do it all, in the order that loses nothing."""
        self._decoded = decode_messages(self._messages, self._clock.now())
        self._refuse_a_bad_deploy()
        self._lists = self._column_lists()
        self._write()
        self._settle()
        self._try_tables_in_trouble_again()
        self._put_off_the_rest()
        return self._counts()

    def leave_the_rest(self, *, for_later: bool) -> None:
        """Let everything that is not acked be delivered again; if that fails too, the leases run out by themselves."""
        if not self._open:
            return
        try:
            if for_later:
                self._put_off_the_rest()
            else:
                self._ports.leases.give_back([self._ack_ids[message] for message in sorted(self._open)])
        except Exception as error:  # noqa: BLE001 - what led here is about to be raised, and tells more
            structlog.get_logger().warning("messages_not_given_back", messages=len(self._open), error=str(error))

    def _refuse_a_bad_deploy(self) -> None:
        unreadable = [p for p in self._decoded.poison if p.change is None and p.reason in _UNREADABLE]
        total = len(self._ack_ids)
        if total >= self._patience.unreadable_messages and 2 * len(unreadable) > total:
            raise MisconfiguredError(
                f"{len(unreadable)} of {total} messages cannot be decoded (the first: {unreadable[0].detail}): nothing "
                "was acked or set aside; check that the subscription carries change batches of this version"
            )

    def _column_lists(self) -> list[_ListWrites]:
        """Return the column lists with their messages: a message belongs to one, even if it has no change at all."""
        lists = [_ListWrites(changes) for changes in self._decoded.tables]
        by_definition: dict[TableDefinition, list[_ListWrites]] = {}
        for one in lists:
            by_definition.setdefault(one.changes.definition, []).append(one)
        by_header: dict[Header, Sequence[_ListWrites]] = {}
        for message, batch in self._decoded.batches.items():
            if batch.header not in by_header:
                try:
                    by_header[batch.header] = by_definition.get(table_definition(batch.header), ())
                except PoisonRecordError:  # its changes are all among the poison
                    by_header[batch.header] = ()
            for one in by_header[batch.header]:
                one.messages.append(message)
        return lists

    def _write(self) -> None:
        """Write until every row of a list that is in no trouble is accepted, refused, or superseded by an accepted one.

        All appends of a round are on their way before the first answer is awaited. A refused row, or a list that gets
        into trouble, lets the next newest of its keys be chosen in the next round.
        """
        tables: dict[str, list[_ListWrites]] = {}
        for one in self._lists:
            self._ensure(one)
            tables.setdefault(one.changes.definition.name, []).append(one)
        while True:
            started = []
            for lists in tables.values():
                writable = [one for one in lists if one.writable]
                chosen = newest_per_key([one.changes for one in writable], [one.excluded() for one in writable])
                for one, newest in zip(writable, chosen, strict=True):
                    rows = newest.to_numpy()
                    rows = rows[~one.accepted[rows]]
                    if len(rows):
                        appending = self._ports.writer.append(one.changes.definition, one.changes.rows.take(rows))
                        started.append((one, rows, appending))
            if not started:
                return
            for one, rows, appending in started:
                outcome = self._until_back(appending.refused)
                if isinstance(outcome, TableTroubleError):
                    self._in_trouble(one, outcome)
                else:
                    one.take_in(rows, outcome)

    def _ensure(self, one: _ListWrites) -> None:
        if not one.writable:
            return
        try:
            outcome = self._until_back(lambda: self._ports.tables.ensure(one.changes.definition))
        except PoisonRecordError as conflict:
            one.conflict = conflict
        else:
            if isinstance(outcome, TableTroubleError):
                self._in_trouble(one, outcome)

    def _in_trouble(self, one: _ListWrites, trouble: TableTroubleError) -> None:
        table = one.changes.definition.name
        one.trouble = trouble
        self._ports.tables.forget(table)
        structlog.get_logger().warning("table_in_trouble", table=table, messages=len(one.messages), error=str(trouble))

    def _until_back(self, call: Callable[[], T]) -> T | TableTroubleError:
        """Call until the service is back, leases extended meanwhile; TransientError only when asked to stop."""
        for attempt in retrying(self._stop, longest_wait=self._patience.between_calls):
            with attempt:
                try:
                    return call()
                except TableTroubleError as trouble:
                    return trouble
        raise AssertionError("a retry ends with a value or an error")

    def _settle(self) -> None:
        """Keep the letters of, and then ack, every open message that is not in a list in trouble."""
        waiting = {message for one in self._lists if one.trouble is not None for message in one.messages}
        done = self._open - waiting
        if not done:
            return
        poison = [*self._decoded.poison, *chain.from_iterable(self._poison_of(one) for one in self._lists)]
        self._keep_letters([one for one in poison if one.message in done])
        self._ports.leases.ack([self._ack_ids[message] for message in sorted(done)])
        self._open -= done

    def _poison_of(self, one: _ListWrites) -> Sequence[Poison]:
        """Return the rows of a list that BigQuery, or its table, does not take."""
        message_of = one.changes.rows[MESSAGE]
        change_of = one.changes.rows[CHANGE]
        batches = self._decoded.batches
        errors: Mapping[int, tuple[Reason, str]]
        if one.conflict is not None:
            told = one.conflict.reason, one.conflict.detail
            errors = dict.fromkeys(range(one.changes.rows.num_rows), told)
        else:
            errors = {row: (error.reason, error.detail) for row, error in one.refused.items()}
        poison = []
        for row, (reason, detail) in errors.items():
            message, change = message_of[row].as_py(), change_of[row].as_py()
            poison.append(poison_change(message, batches[message], change, reason, detail))
        if one.conflict is not None:  # an announcement has no change to set aside, so it is set aside itself
            poison += [
                Poison(message, None, *told, table=batches[message].header.table)
                for message in one.messages
                if not len(batches[message])
            ]
        return poison

    def _keep_letters(self, poison: Sequence[Poison]) -> None:
        if not poison:
            return
        letters = [self._letter(one) for one in poison]
        self._ports.letters.keep(letters)
        reasons = Counter(letter.reason.value for letter in letters)
        self._letters += reasons
        structlog.get_logger().warning("records_set_aside", reasons=dict(reasons), first=letters[0].identity)

    def _letter(self, poison: Poison) -> DeadLetter:
        """Return a message exactly as it came, or one change of it cut out under the same header and attributes."""
        data = self._messages["data"][poison.message].as_py()
        return DeadLetter(
            data=data if poison.change is None else self._decoded.batches[poison.message].cut(poison.change),
            attributes=dict(self._messages["attributes"][poison.message].as_py() or ()),
            ordering_key=self._messages["ordering_key"][poison.message].as_py() or "",
            reason=poison.reason,
            detail=poison.detail,
            failed_at=self._clock.now(),
            failed_in="cdc_consumer",
            table=poison.table,
            key=poison.key,
            sequence=poison.sequence,
            commit_timestamp=poison.commit_timestamp,
        )

    def _try_tables_in_trouble_again(self) -> None:
        """Bear with tables in trouble for a while: most often a table or column has just been made."""
        if not any(one.trouble for one in self._lists):
            return
        attempts = retrying(self._stop, self._patience.table, self._patience.between_calls)
        try:
            for attempt in attempts:
                with attempt:
                    for one in self._lists:
                        one.trouble = None
                    self._write()
                    self._settle()
                    for one in self._lists:
                        if one.trouble is not None:
                            raise one.trouble
        except TableTroubleError:
            return

    def _put_off_the_rest(self) -> None:
        """Put off what is left, each message for longer the more often it has come: every delivery counts."""
        by_delay: dict[timedelta, list[str]] = {}
        for message in sorted(self._open):
            attempt = self._messages["delivery_attempt"][message].as_py() or 1
            delay = min(self._patience.put_off * 2 ** min(attempt - 1, 10), self._patience.longest_put_off)
            by_delay.setdefault(delay, []).append(self._ack_ids[message])
        for delay, ack_ids in by_delay.items():
            self._ports.leases.put_off(ack_ids, delay)
            self._put_off += len(ack_ids)
        self._open.clear()

    def _counts(self) -> Counts:
        done = [one for one in self._lists if one.writable]
        written = sum(int(one.accepted.sum()) for one in done)
        refused = sum(len(one.refused) for one in done)
        latest = [pc.max(one.changes.rows[COMMIT_TIMESTAMP_COLUMN]).as_py() for one in done]
        return Counts(
            messages=len(self._ack_ids),
            changes=sum(len(batch) for batch in self._decoded.batches.values()),
            rows_written=written,
            superseded=sum(one.changes.rows.num_rows for one in done) - written - refused,
            letters=dict(self._letters),
            acked=len(self._ack_ids) - self._put_off,
            put_off=self._put_off,
            tables_in_trouble=tuple(
                sorted({one.changes.definition.name for one in self._lists if one.trouble is not None})
            ),
            max_commit_timestamp=max((at for at in latest if at is not None), default=None),
        )
