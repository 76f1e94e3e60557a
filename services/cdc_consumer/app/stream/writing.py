"""Writes the changes of a task: every table's appends at once, and each trouble its size.

Of a mirror the newest change of each key is written, of a history every one.

What fails retryably is tried again until it is known whose trouble it is. It is the table's if others were accepted
meanwhile; if nothing at all is accepted, it is the service's, and then everything waits. Where nothing else has been
sent since, a row that was accepted before is sent once more, to see: repeats are harmless. Where there is none, single
rows of what fails are sent after a while: one bad row fails all that are sent with it.

A table that gives no answer holds up others no longer than the retry time of a table. Then what is done is settled, and
a row that was accepted is sent once more. If BigQuery accepts it, the table is in trouble. If BigQuery does not answer
that either, it may be the service, or everything is slow: all wait. An answer that comes late is found when the table
is tried again: it is slow, then, and is waited for from now on.

A table that BigQuery refuses is in trouble by itself as long as this identity may write to another table of the
dataset. Else the dataset is refused, and is waited for like a service: its messages keep their leases and spend no
delivery attempts.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import structlog

from services.cdc_consumer.app.stream.trouble import NEVER, CanaryRow, RetryLimits, TablesInTrouble, later
from services.cdc_consumer.core.schema.tables import TableDefinition, together
from services.cdc_consumer.core.stream.columns import MESSAGE, TableChanges, in_table, with_superseded
from services.cdc_consumer.core.stream.poison import Poison
from services.cdc_consumer.core.stream.sequencing import rows_to_write
from services.cdc_consumer.ports import (
    CdcWriter,
    DatasetRefusedError,
    DestinationTables,
    Heard,
    PendingAppend,
    RowError,
    TableTroubleError,
    UnansweredError,
    Waiting,
)
from shared.contracts.errors import PoisonRecordError, TransientError
from shared.contracts.reasons import Reason
from shared.runtime.clock import Monotonic, SteadyClock
from shared.runtime.retries import retrying
from shared.runtime.stop import Stop

_FRUITLESS: Final = 32
"""Failures without anything accepted between them, after which it is not the rows but the table."""

_EARLIER: Final = 2
"""How many rows of earlier tasks are sent again, at most, where no table of this task is accepted."""

_ALONE: Final = 3
"""How many rows of what fails are sent alone, at most, before the next retry."""

_TURN: Final = timedelta(seconds=0.1)
"""For how long all lists that have no answer yet are waited for in turn, before the first has its turn again."""

_BESIDE: Final = timedelta(seconds=0.5)
"""How long to wait for the other tables once one is answered: after an outage, answers come in any order."""

_PROOFS: Final = 3
"""How many rows of other tables are sent again, at most, where some give no answer."""

_RECHECKS: Final = 3
"""How often a row has to fail, each time between two others that are accepted, before it is to blame."""

Rows = npt.NDArray[np.int64]


class _NoAnswerError(TransientError):
    """BigQuery has given no answer to an append for as long as a table is retried."""

    def __init__(self, table: str) -> None:
        super().__init__(f"table {table}: BigQuery gives no answer to an append")


class ListWrites:
    """The changes of one table and column list, and what has become of each row. Only `Writing` changes it."""

    def __init__(self, changes: TableChanges, deliveries: npt.NDArray[np.int64]) -> None:
        self.changes = changes
        self.deliveries = deliveries
        self.messages = changes.messages
        self.target = changes.definition
        """The definition with the names that its columns have in the table, once that has been inspected."""
        self.rows = changes.rows
        """The rows with the same names."""
        self.poison: Sequence[Poison] = ()
        """What of the superseded changes can never be applied, once they are parsed."""
        self.accepted = np.zeros(changes.rows.num_rows, dtype=bool)
        self.refused: dict[int, RowError] = {}
        self.stuck: dict[int, str] = {}
        """Rows that fail retryably every time while others of their table are accepted, and what was said of them."""
        self.conflict: PoisonRecordError | None = None
        self.trouble: TableTroubleError | None = None
        self.ensured = self.ensured_once_more = False
        self.under_way: tuple[Rows, PendingAppend] | None = None
        self.heard_at = Monotonic(0)
        """When BigQuery last said anything of what is under way, or when that was sent."""
        self.tried_alone = 0
        """How many of the rows that fail together have been sent alone, to see whether BigQuery takes any."""
        self.failing: TransientError | None = None
        self.failing_since: Monotonic | None = None

    @property
    def definition(self) -> TableDefinition:
        """Return the table and column list."""
        return self.changes.definition

    @property
    def table(self) -> str:
        """Return the table's identity."""
        return self.changes.definition.identity

    def place(self, there: TableDefinition) -> None:
        """Take the names that the columns have in the table as it is."""
        self.target, self.rows = in_table(self.changes, there)

    def parse_superseded(self) -> None:
        """Have the rows of the superseded changes behind the others: what supersedes them may not be written."""
        self.changes, poison = with_superseded(self.changes)
        self.poison = [*self.poison, *poison]
        self.rows = self.changes.rows.rename_columns(self.rows.schema.names)
        more = self.changes.rows.num_rows - len(self.accepted)
        self.accepted = np.concatenate((self.accepted, np.zeros(more, dtype=bool)))

    @property
    def count(self) -> int:
        """Return how many changes there are, the superseded among them."""
        superseded = self.changes.superseded
        return len(self.accepted) + (0 if superseded is None else superseded.count)

    @property
    def writable(self) -> bool:
        """Return whether rows are to be written: there is neither a conflict nor trouble."""
        return self.conflict is None and self.trouble is None

    @property
    def stuck_messages(self) -> Iterable[int]:
        """Return the messages that wait for a row that fails."""
        return self.changes.rows[MESSAGE].take(pa.array(list(self.stuck), pa.int64())).to_pylist() if self.stuck else ()

    def excluded(self) -> pa.Array | None:
        """Return the rows that BigQuery does not take; None if there are none."""
        rows = sorted({*self.refused, *self.stuck})
        return pa.array(rows, pa.int64()) if rows else None

    def take_in(self, rows: Rows, errors: Sequence[RowError]) -> None:
        """Remember what BigQuery has said of rows that were handed to it."""
        self.accepted[rows] = True
        for error in errors:
            row = int(rows[error.index])
            self.refused[row] = error
            self.accepted[row] = False

    def in_trouble(self, trouble: TableTroubleError) -> None:
        """Give up for now; what is under way is left to itself, for it may as well be repeated later."""
        self.trouble = trouble
        if self.under_way is not None:
            self.under_way[1].leave()
        self.failing = self.under_way = None
        self.ensured = False

    def try_again(self) -> None:
        """Forget the trouble."""
        self.trouble = self.failing_since = None


@dataclass
class Writing:
    """What a task writes with."""

    tables: DestinationTables
    writer: CdcWriter
    known: TablesInTrouble
    stop: Stop
    clock: SteadyClock
    waiting: Waiting
    _canaries: dict[str, tuple[TableDefinition, pa.Table]] = field(default_factory=dict, init=False)
    _proofs: tuple[Monotonic, Mapping[str, PendingAppend]] | None = field(default=None, init=False)
    """Rows of other tables that were sent once more while some gave no answer, and when: an answer proves that it is
    those."""
    _waited: bool = field(default=False, init=False)
    """Whether calls that still run were given time to be answered."""

    @property
    def limits(self) -> RetryLimits:
        """Return how long to retry what."""
        return self.known.limits

    def begin(self, changes: Iterable[TableChanges], deliveries: npt.NDArray[np.int64]) -> Sequence[ListWrites]:
        """Return the lists of a task; one whose table is known to be in trouble is written only when tried again.

        ``deliveries``: of each message.
        """
        lists = [ListWrites(each, deliveries) for each in changes]
        for one in lists:
            if (trouble := self.known.latest_error(one.definition)) is not None:
                one.in_trouble(trouble)
        return lists

    def write(self, lists: Sequence[ListWrites], again: Iterable[ListWrites] = ()) -> Iterator[None]:
        """Write until every row of a list that is in no trouble is accepted, refused, or superseded by an accepted one.

        Yields when the caller is to settle what is done: before anything waits while others are accepted, once some
        have not been answered for the retry time of a table, and at the end. ``again``: lists in trouble that are tried
        once more. TransientError: the service was unavailable until the process was asked to stop.
        """
        for one in again:
            self.known.take_late_answer(one.definition, self.clock.monotonic())
            one.try_again()
        going_on = True
        while going_on:
            for attempt in retrying(self.stop, longest_wait=partial(self._longest_wait, lists)):
                with attempt:
                    going_on = self._go_round(lists)
                outcome = attempt.retry_state.outcome
                fails = outcome is not None and isinstance(outcome.exception(), TransientError)
                if fails and self._canaries:  # else the service is unavailable, and nothing is settled
                    yield
            if going_on:
                yield
        yield

    def _longest_wait(self, lists: Iterable[ListWrites]) -> timedelta:
        """Return how long to wait for the next round: no longer than until a table has failed for its retry time."""
        now = self.clock.monotonic()
        ends = [later(_beginning(one), self.limits.table) for one in lists if one.failing is not None]
        left = min((timedelta(microseconds=(end - now) // 1000 + 1) for end in ends if end > now), default=None)
        return self.limits.between_calls if left is None else min(left, self.limits.between_calls)

    def _go_round(self, lists: Sequence[ListWrites]) -> bool:
        """Write all that can be written, and try what fails once; return whether there is more to do at once.

        All appends are on their way before the first answer is awaited. A refused row, or a list that gets into
        trouble, lets the next newest of its keys be chosen. Some may have no answer yet when it returns that there is
        more to do. TransientError: some of it has to wait.
        """
        self._put_off_outdated(lists)
        tried: set[int] = set()
        turn: Sequence[ListWrites] = lists
        while turn:
            if to_ensure := [one for one in lists if one.writable and not one.ensured and id(one) not in tried]:
                self._ensure_all(to_ensure, tried)
            self._start(lists)
            turn = [one for one in lists if one.under_way is not None and id(one) not in tried]
            if self._take_answers(turn, tried):
                return True
        failing = [one for one in lists if one.failing is not None]
        if not failing:
            return False
        self._attribute_failures(failing)
        for one in failing:
            if one.failing is not None:
                raise one.failing
        return True

    def _put_off_outdated(self, lists: Iterable[ListWrites]) -> None:
        """Defer what has waited so long that BigQuery may have forgotten a newer delete: its age is checked again."""
        for one in lists:
            before = one.changes.write_before
            if before is not None and self.clock.now() >= before and one.writable and not one.accepted.all():
                why = "rows of a snapshot or a replay have waited for long: their age is checked when they come again"
                self._in_trouble(one, TableTroubleError(f"table {one.table}: {why}"))

    def _ensure_all(self, lists: Sequence[ListWrites], tried: set[int]) -> None:
        """Ensure the tables of lists. All are asked for ahead but those whose conflict is remembered."""
        asked = self.clock.monotonic()
        to_ask = [one.definition for one in lists if self.known.conflict(one.definition, asked) is None]
        with self.tables.asked_ahead(to_ask):
            for group in by_table(lists).values():
                if len(group) > 1:
                    self._attempt(group[0], partial(self._ensure_together, group, asked), tried)
                for one in group:
                    if one.writable and id(one) not in tried:
                        self._attempt(one, partial(self._ensure, asked), tried)

    def _attempt(self, one: ListWrites, step: Callable[[ListWrites], None], tried: set[int]) -> None:
        try:
            step(one)
        except TableTroubleError as trouble:
            error = self._wider_trouble(one, trouble)
            if error is None:
                self._in_trouble(one, trouble)
            else:
                self._fails(one, error, tried)
        except TransientError as error:
            self._fails(one, error, tried)

    def _fails(self, one: ListWrites, error: TransientError, tried: set[int]) -> None:
        one.failing = error
        one.failing_since = self.clock.monotonic() if one.failing_since is None else one.failing_since
        tried.add(id(one))
        self.waiting(one.table, str(error))

    def _wider_trouble(self, one: ListWrites, trouble: TableTroubleError) -> TransientError | None:
        """Return why all tables wait if it is the dataset that is refused, or BigQuery does not answer that."""
        if not trouble.denied:
            return None
        try:
            self.tables.check_rights(one.definition)
        except TransientError as error:
            self.tables.forget(one.table)
            one.ensured, one.under_way = False, None
            return error
        return None

    def _ensure_together(self, group: Sequence[ListWrites], asked: Monotonic, first: ListWrites) -> None:
        """Give a table the columns of all its lists by one change, if they go together; else each is a change.

        BigQuery takes five changes of a table in ten seconds, and a backlog may hold a column list for each of many
        changes of the source's schema.
        """
        now = self.clock.monotonic()
        definitions = [one.definition for one in group if self.known.conflict(one.definition, now) is None]
        if definitions:
            with suppress(PoisonRecordError), _failing_since(first, asked):
                self.tables.ensure(together(definitions))

    def _ensure(self, asked: Monotonic, one: ListWrites) -> None:
        now = self.clock.monotonic()
        found = self.known.conflict(one.definition, now)
        with _failing_since(one, asked):
            try:
                if found is None:
                    self._inspect_table(one)
                    self.known.forget_conflict(one.definition)
                    if one.changes.end is not None:
                        self.tables.complete(one.definition, *one.changes.end)
            except PoisonRecordError as conflict:
                self.known.conflicting(one.definition, conflict, now)
                found = conflict
            if one.changes.outdated is not None:
                self.tables.set_pending_resync(one.definition, one.changes.outdated)
        one.conflict, one.ensured = found, True
        one.failing = one.failing_since = None
        if not one.count:
            self.known.recovered(one.definition)

    def _inspect_table(self, one: ListWrites) -> None:
        try:
            there = self.tables.ensure(one.definition)
        except PoisonRecordError:  # perhaps from memory, and fixed since
            self.tables.forget(one.table)
            there = self.tables.ensure(one.definition)
        one.place(there)

    def _start(self, lists: Iterable[ListWrites]) -> None:
        for group in by_table(lists).values():
            for one, rows in left_to_write(group):
                if one.ensured and one.under_way is None:
                    one.under_way = rows, self.writer.append(one.target, one.rows.take(rows))
                    one.heard_at = self.clock.monotonic()

    def _take_answers(self, turn: Sequence[ListWrites], tried: set[int]) -> bool:
        """Take answers as they come, until no list waits for any; return whether to settle what is done before that.

        A list without any answer for the retry time of a table, while rows of others are accepted, is in trouble.
        """
        left, began = turn, self.clock.monotonic()
        for one in turn:
            if one.failing is not None and not isinstance(one.failing, _NoAnswerError):
                one.heard_at = began  # it is sent once more
        while left:
            for one in left:
                self._attempt(one, partial(self._hear, _TURN / len(left)), tried)
            left = [one for one in left if one.under_way is not None and id(one) not in tried]
            silent = [one for one in left if self._gives_no_answer(one)]
            unanswered = [one for one in turn if one.under_way is not None]
            waits_long = left and self.clock.monotonic() >= later(began, self.limits.table)
            if (silent or waits_long) and len(unanswered) < len(turn):
                return True
            if silent:
                self._judge_silence(silent, unanswered, tried)
                left = [one for one in left if one.under_way is not None and id(one) not in tried]
            else:
                self._proofs = None
        return False

    def _hear(self, within: timedelta, one: ListWrites) -> None:
        assert one.under_way is not None
        rows, appending = one.under_way
        heard = appending.hear(within)
        if heard is Heard.ALL:
            one.take_in(rows, appending.refused())
            self._settled(one)
        elif heard is Heard.SOME:
            one.heard_at = self.clock.monotonic()
            if isinstance(one.failing, _NoAnswerError):
                one.failing = one.failing_since = None

    def _gives_no_answer(self, one: ListWrites) -> bool:
        now = self.clock.monotonic()
        if now < later(one.heard_at, self.known.answer_timeout(one.definition, now)):
            return False
        if not isinstance(one.failing, _NoAnswerError):
            one.failing = _NoAnswerError(one.table)
            one.failing_since = now if one.failing_since is None else one.failing_since
            self.waiting(one.table, str(one.failing))
        return True

    def _judge_silence(self, silent: Sequence[ListWrites], unanswered: Sequence[ListWrites], tried: set[int]) -> None:
        """Find out whether it is the tables that give no answer, or the service; as `_attribute_failures`."""
        now = self.clock.monotonic()
        alone = len({one.definition.mirror_of for one in unanswered}) == 1
        proven_since = self._proven_since({one.table for one in unanswered})
        if proven_since != NEVER:
            self._hear_others(silent, tried)
        for one in silent:
            if one.failing is None or id(one) in tried:  # there was an answer after all
                continue
            if self.known.certain(one.definition) or one.heard_at <= proven_since:
                self._in_trouble(one, TableTroubleError(str(one.failing)))
            elif alone and now >= later(_beginning(one), self.limits.alone):
                self._in_trouble(one, TableTroubleError(f"{one.failing} (or BigQuery is unavailable)", suspected=True))

    def _hear_others(self, silent: Sequence[ListWrites], tried: set[int]) -> None:
        left, until = silent, later(self.clock.monotonic(), _BESIDE)
        while left and self.clock.monotonic() < until:
            for one in left:
                self._attempt(one, partial(self._hear, _TURN / len(left)), tried)
            left = [one for one in left if one.failing is not None and id(one) not in tried]

    def _proven_since(self, unanswered: Collection[str]) -> Monotonic:
        """Return when a row of another table was sent once more that is accepted by now; long ago if there is none.

        Nothing is waited for: where all tables are slow, so is that one. Others are sent after the retry time.
        """
        now = self.clock.monotonic()
        if self._proofs is None or now >= later(self._proofs[0], self.limits.table):
            ours = [canary for table, canary in reversed(self._canaries.items()) if table not in unanswered]
            rows = ours or [(one.target, one.row) for one in self.known.canaries(unanswered, self.clock.now())]
            self._proofs = now, {to.identity: self.writer.append(to, row) for to, row in rows[:_PROOFS]}
        sent, proofs = self._proofs
        for table, appending in list(proofs.items()):
            try:
                proven = appending.hear(timedelta(0)) is Heard.ALL and not appending.refused()
            except TransientError:
                self._proofs = sent, {name: each for name, each in self._proofs[1].items() if name != table}
            else:
                if proven:
                    self.known.accepted(table, self.clock.monotonic())
                    self._proofs = None
                    return sent
        return NEVER

    def _attribute_failures(self, failing: Sequence[ListWrites]) -> None:
        tables = {one.table for one in failing}
        alone = len({one.definition.mirror_of for one in failing}) == 1  # a history fails with its mirror
        unanswered: dict[str, Monotonic] = {}  # since when; all column lists of a table wait for the same call
        for one in failing:
            if isinstance(one.failing, UnansweredError):
                unanswered[one.table] = min(_beginning(one), unanswered.get(one.table, _beginning(one)))
        any_accepted: bool | None = None
        for one in failing:
            now, since = self.clock.monotonic(), _beginning(one)
            if isinstance(one.failing, UnansweredError):
                since = unanswered[one.table]
            if isinstance(one.failing, DatasetRefusedError):
                if not self._others_accepted(since, tables):
                    continue
                if self.known.known(one.definition):  # and they are of another dataset
                    self._in_trouble(one, TableTroubleError(str(one.failing)))
                else:  # or the right is back
                    self._ensure_once_more(one)
            elif self.known.certain(one.definition):
                if self._earlier_accepted(one):  # the table has recovered, and it is a row that fails
                    self._bisect(one)
                else:
                    self._in_trouble(one, TableTroubleError(str(one.failing)))
            elif now < later(since, self.limits.table):
                continue
            elif any_accepted or self._others_accepted(since, tables) or self._earlier_accepted(one):
                self._bisect(one)
            elif now < later(since, self.limits.alone):
                continue
            else:
                if any_accepted is None:
                    # A table that fails may have another column list that does not: BigQuery is there, then.
                    any_accepted = any(self._accepted_again(table) for table in self._canaries) or any(
                        self._one_of_those_accepted(failing) for _ in range(_ALONE)
                    )
                if any_accepted:
                    self._bisect(one)
                elif alone:
                    self._in_trouble(
                        one, TableTroubleError(f"{one.failing} (or BigQuery is unavailable)", suspected=True)
                    )

    def _others_accepted(self, since: Monotonic, failing: Collection[str]) -> bool:
        """Return whether BigQuery takes rows of tables that do not fail; if that is not known, send one such row again.

        What was accepted before the failing began proves nothing: the service may have failed in between. Where all
        tables of the task fail, a row of an earlier one's is sent again: several that always fail and always come
        together would hold up everything behind them.
        """
        if any(self.known.accepted_since(table, since) for table in self._canaries if table not in failing):
            return True
        ours = [table for table in self._canaries if table not in failing]
        if ours:
            return any(self._accepted_again(table) for table in ours)
        earlier = self.known.canaries(failing, self.clock.now())
        return any(self._taken_again(one.target, one.row) for one in earlier[:_EARLIER])

    def _one_of_those_accepted(self, failing: Iterable[ListWrites]) -> bool:
        """Send a row of lists that fail, alone, another each time; return whether it is accepted.

        Few small appends between two retries: where the service is unavailable, that costs nothing to speak of.
        """
        several = [(one, one.under_way[0]) for one in failing if one.under_way and len(one.under_way[0]) > 1]
        if not several:
            return False
        one, rows = min(several, key=lambda each: each[0].tried_alone)
        row = int(rows[-one.tried_alone % len(rows)])
        one.tried_alone += 1
        return self._taken_again(one.target, one.rows.slice(row, 1))

    def _accepted_again(self, table: str) -> bool:
        """Send a row that was accepted a moment ago once more; return whether it is accepted now."""
        return self._taken_again(*self._canaries[table])

    def _one_of_its_table_accepted(self, one: ListWrites) -> bool:
        """Send a row of the list's table that was accepted, in this task or an earlier one, once more; tell the same.

        A row may come again and again without another of its table beside it, where little else happens to that.
        """
        if one.table in self._canaries:
            return self._accepted_again(one.table)
        return self._earlier_accepted(one)

    def _earlier_accepted(self, one: ListWrites) -> bool:
        """Send a row of the list that an earlier task wrote once more; return whether it is accepted now."""
        earlier = self.known.canary(one.definition, self.clock.now())
        if earlier is None or not self._taken_again(earlier.target, earlier.row):
            return False
        self.known.remember(replace(earlier, accepted_at=self.clock.now()))
        return True

    def _taken_again(self, definition: TableDefinition, row: pa.Table) -> bool:
        try:
            accepted = not self._refused(definition, row)
        except TransientError:
            return False
        if accepted:
            self.known.accepted(definition.identity, self.clock.monotonic())
        return accepted

    def _refused(self, definition: TableDefinition, rows: pa.Table) -> Sequence[RowError]:
        """Append rows and return those refused; _NoAnswerError where no answer comes for the retry time of a table."""
        appending = self.writer.append(definition, rows)
        while (heard := appending.hear(self.limits.table)) is not Heard.ALL:
            if heard is Heard.NOTHING:
                appending.leave()
                raise _NoAnswerError(definition.identity)
        return appending.refused()

    def _bisect(self, one: ListWrites) -> None:
        """Halve what fails while others are accepted, down to the rows that fail alone; if all do, it is the table."""
        if one.under_way is None:  # the table itself cannot be had
            return self._ensure_once_more(one)
        parts, stuck, any_accepted, fruitless = [one.under_way[0]], [], False, 0
        while parts and fruitless < _FRUITLESS:
            rows = parts.pop()
            try:
                errors = self._refused(one.target, one.rows.take(rows))
            except TableTroubleError as trouble:
                return self._in_trouble(one, trouble)
            except _NoAnswerError as error:
                return self._leave_unanswered(one, error)
            except TransientError as error:
                self.waiting()
                fruitless += 1
                if len(rows) == 1:
                    stuck.append((int(rows[0]), error))
                else:
                    parts += reversed(np.array_split(rows, 2))
            else:
                fruitless = 0
                any_accepted = any_accepted or len(errors) < len(rows)
                one.take_in(rows, errors)
        if parts or not (any_accepted or self._one_of_its_table_accepted(one)):
            return self._in_trouble(one, TableTroubleError(str(one.failing)))
        blamed = {}
        for row, failure in stuck:
            fails_always = self._fails_always(one, row)
            if fails_always is None:
                return self._in_trouble(one, TableTroubleError(str(one.failing)))
            if fails_always:
                blamed[row] = str(failure)
        for row, why in blamed.items():
            if one.deliveries[one.changes.rows[MESSAGE][row].as_py()] >= self.limits.stuck_deliveries:
                one.refused[row] = RowError(row, Reason.RETRIES_EXHAUSTED, why)
            else:
                one.stuck[row] = why
        self._settled(one)
        if shown := one.stuck | blamed:
            why = next(iter(shown.values()))
            structlog.get_logger().warning("rows_stuck", table=one.table, rows=len(shown), why=why)
        return None

    def _ensure_once_more(self, one: ListWrites) -> None:
        """Ensure a table again, because others are accepted now: BigQuery may have been unavailable when it failed."""
        if not one.ensured_once_more:
            one.ensured_once_more = True
            if isinstance(one.failing, UnansweredError) and not self._waited:
                self._waited = True  # once for all tables: their calls still run, and are answered about the same time
                self.stop.wait(_BESIDE)
            self._attempt(one, partial(self._ensure, self.clock.monotonic()), set())
        if one.failing is not None:
            self._in_trouble(one, TableTroubleError(str(one.failing)))

    def _leave_unanswered(self, one: ListWrites, error: _NoAnswerError) -> None:
        one.failing = error
        self._in_trouble(one, TableTroubleError(str(error)))

    def _fails_always(self, one: ListWrites, row: int) -> bool | None:
        """Return whether a row fails each time while another of its table is taken each time; None if that one is not.

        A row that failed once, as trouble of its table came or went, is no bad row.
        """
        for _check in range(_RECHECKS):
            if not self._another_accepted(one):
                return None
            try:
                errors = self._refused(one.target, one.rows.slice(row, 1))
            except (TableTroubleError, _NoAnswerError):
                return None
            except TransientError:
                self.waiting()
            else:
                one.take_in(np.array([row], np.int64), errors)
                return False
        return True if self._another_accepted(one) else None

    def _another_accepted(self, one: ListWrites) -> bool:
        """Send a row of the list that was accepted once more, or one of its table; return whether it is accepted."""
        accepted = np.flatnonzero(one.accepted)
        if not len(accepted):
            return self._one_of_its_table_accepted(one)
        try:
            return not self._refused(one.target, one.rows.slice(int(accepted[0]), 1))
        except TransientError:
            return False

    def _settled(self, one: ListWrites) -> None:
        """Record that nothing of a list is under way."""
        one.under_way = one.failing = one.failing_since = None
        accepted = np.flatnonzero(one.accepted)
        if len(accepted):
            self.known.recovered(one.definition)
            self.known.accepted(one.table, self.clock.monotonic())
            row = int(accepted[0])
            self._canaries[one.table] = one.target, one.rows.slice(row, 1)
            committed = one.changes.rows[one.definition.commit_timestamp][row].as_py()
            if committed is not None and not one.definition.append_only:  # of a history it would be a repeat that stays
                alone = one.rows.take([row])  # and not a view of all the others
                self.known.remember(CanaryRow(one.definition, one.target, alone, committed, self.clock.now()))

    def _in_trouble(self, one: ListWrites, trouble: TableTroubleError) -> None:
        now = self.clock.monotonic()
        if one.failing is not None or self.known.known(one.definition):  # its retry time is spent already
            since = now if one.failing_since is None else one.failing_since
            self.known.began(one.definition, since, now, trouble, waits=isinstance(one.failing, _NoAnswerError))
        self.tables.forget(one.table)
        if isinstance(one.failing, _NoAnswerError) and one.under_way is not None:
            self.known.keep_late(one.definition, one.under_way[1])
            one.under_way = None
        one.in_trouble(trouble)


@contextmanager
def _failing_since(one: ListWrites, asked: Monotonic) -> Iterator[None]:
    """Count a call without an answer from its start: it has used up the retry time of the table by itself."""
    try:
        yield
    except UnansweredError:
        one.failing_since = asked if one.failing_since is None else one.failing_since
        raise


def _beginning(one: ListWrites) -> Monotonic:
    assert one.failing_since is not None
    return one.failing_since


def left_to_write(lists: Sequence[ListWrites]) -> Sequence[tuple[ListWrites, Rows]]:
    """Return what is left to do for the writable column lists of one table: a list, and its rows to write.

    Those are the newest of their key, across the lists, that BigQuery takes, as long as they are not accepted. A list
    without any is returned until its table has been inspected. Once nothing is returned, each row of these lists is
    accepted, older than an accepted one of its key, or excluded.

    The rows of superseded changes are there as soon as not all rows of the table can be written.
    """
    writable = [one for one in lists if one.writable]
    if len(writable) < len(lists) or any(one.refused or one.stuck for one in lists):
        for one in lists:
            if one.trouble is None:
                one.parse_superseded()
    if all(one.ensured and one.accepted.all() for one in writable):
        return []
    chosen = rows_to_write([one.changes for one in writable], [one.excluded() for one in writable])
    left = []
    for one, newest in zip(writable, chosen, strict=True):
        rows = newest.to_numpy()
        rows = rows[~one.accepted[rows]]
        if len(rows) or not one.ensured:
            left.append((one, rows))
    return left


def by_table(lists: Iterable[ListWrites]) -> Mapping[str, Sequence[ListWrites]]:
    """Group column lists by their table."""
    tables: dict[str, list[ListWrites]] = {}
    for one in lists:
        tables.setdefault(one.table, []).append(one)
    return tables
