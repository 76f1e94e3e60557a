"""A message is acked only when its changes are there, whatever trouble its tables are in and wherever a process ends.

There means, for each change: its row, or a newer one of its key, is accepted, or a dead letter of it is confirmed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal

import pyarrow as pa
from hypothesis import example, given, settings
from hypothesis import strategies as st

from services.cdc_consumer.app.stream.trouble import RetryLimits
from services.cdc_consumer.core.schema.tables import TableDefinition
from services.cdc_consumer.ports import TableTroubleError
from shared.contracts.change_sequence import parse_sequence
from shared.contracts.errors import TransientError
from shared.runtime.stop import Stop
from tests.builders import PLANE_COLUMNS, a_change, a_header, a_message
from tests.fakes.cdc_writer import FakeAppending
from tests.fakes.effects import CrashError, Effects
from tests.seeds import examples
from tests.unit.cdc_consumer.world import AT_ONCE, World

TABLES = ("planes", "airports", "pilots")
DELIVERIES = 6
"""By then every row that always fails is a dead letter, and every other message applied."""

KINDS = ("good", "good", "refused", "stuck")
OUTCOMES = ("transient", "well", "table trouble")


@dataclass(frozen=True)
class Row:
    key: int
    sequence: int
    kind: str
    deletes: bool = False


@dataclass(frozen=True)
class Message:
    table: str
    wide: bool
    rows: Sequence[Row]

    def delivered(self, attempt: int) -> Mapping[str, object]:
        columns = (*PLANE_COLUMNS, ("colour", "STRING")) if self.wide else PLANE_COLUMNS
        changes = [
            a_change(one.key, one.sequence, "DELETE" if one.deletes else "UPSERT", name=one.kind) for one in self.rows
        ]
        return a_message(*changes, header=a_header(self.table, columns), delivery_attempt=attempt)


@dataclass(frozen=True)
class Run:
    """One task: what its messages are, what BigQuery answers in turn for each table, and how the process ends."""

    messages: Sequence[Message]
    answers: Mapping[str, Sequence[tuple[str, int]]]
    """What each call for a table comes to, and after how many seconds. All further calls succeed."""
    ends: Literal["kill", "stop"]
    ends_after: int
    late: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """After how many seconds each append to a table is answered, in turn; all further ones at once."""


@dataclass
class Ending(Effects):
    """Effects, at one of which, or at a wait between two, the process is killed or asked to stop."""

    ends: str = ""
    ends_after: int = 0
    events: int = 0
    stop: Stop = field(default_factory=Stop)

    def note(self, effect: str) -> None:
        self.event()
        super().note(effect)

    def event(self) -> None:
        self.events += 1
        if self.events > self.ends_after and self.ends == "kill":
            self.dead = True
            raise CrashError
        if self.events > self.ends_after and self.ends == "stop":
            self.stop.request()


@st.composite
def runs(draw: st.DrawFn) -> Run:
    sequences = draw(st.permutations(range(1, 25)))
    messages = []
    for table in TABLES:
        for _ in range(draw(st.integers(1, 3))):
            kinds = draw(st.lists(st.sampled_from(KINDS), max_size=2))
            rows = [Row(draw(st.integers(1, 2)), sequences.pop(), kind, draw(st.integers(0, 9)) == 9) for kind in kinds]
            messages.append(Message(table, draw(st.booleans()), rows))
    answer = st.tuples(st.sampled_from(OUTCOMES), st.sampled_from((0, 1, 61)))
    answers = {table: draw(st.lists(answer, max_size=8)) for table in TABLES}
    late = {table: draw(st.lists(st.sampled_from((0, 0, 3, 7, 200)), max_size=8)) for table in TABLES}
    order = draw(st.permutations(messages))
    return Run(order, answers, draw(st.sampled_from(("stop", "kill"))), draw(st.integers(0, 40)), late)


class Subscription:
    """The messages that are not acked, and one process after the other that takes them."""

    def __init__(self, run: Run) -> None:
        self.world = World()
        self.world.clock.ticks = timedelta(seconds=0.2)
        self.world.writer.stuck = lambda _table, row: row["name"] == "stuck"
        self.world.writer.refuses = lambda _table, row: row["name"] == "refused"
        self.world.writer.interrupted = self._answer
        self.world.tables.interrupted = self._answer
        self.world.meanwhile = self._meanwhile
        self.ack = self.world.leases.ack
        self.world.leases.ack = self._ack  # type: ignore[method-assign]
        self.append = self.world.writer.append
        self.world.writer.append = self._append  # type: ignore[method-assign]
        self.answers = {table: list(answers) for table, answers in run.answers.items()}
        self.late = {table: list(late) for table, late in run.late.items()}
        self.pending = list(run.messages)
        self.leased: Sequence[Message] = ()
        self.attempt = 0

    def deliver(self, ends: str = "", ends_after: int = 0) -> None:
        """Let a new process take what was not acked."""
        world, self.attempt = self.world, self.attempt + 1
        world.restart(RetryLimits(between_calls=AT_ONCE, alone=timedelta(seconds=10), stuck_deliveries=3))
        world.stop = Stop()
        world.effects = Ending(ends=ends, ends_after=ends_after, stop=world.stop)
        for port in (world.tables, world.writer, world.dead_letters, world.leases):
            port.effects = world.effects
        world.writer.answer_late()  # of what another process has sent, and perhaps sent again
        if self.attempt > 2:
            self.answers.clear()
            self.late.clear()
        if self.attempt > 1:  # other changes come, too: of rows that all fail nobody can tell whose fault it is
            self.pending += [
                Message(table, wide, [Row(9, 100 + 2 * self.attempt + wide, "good")])
                for table in TABLES
                for wide in (False, True)
            ]
        self.leased = tuple(self.pending)
        try:
            world.apply(*[one.delivered(self.attempt) for one in self.leased])
        except CrashError:
            pass
        except TransientError:
            assert world.stop.requested
        world.clock.pass_time(timedelta(minutes=10))

    def there(self, table: str, row: Row) -> bool:
        """Return whether BigQuery has accepted a row or a newer one of its key, or there is a dead letter of it."""
        applied = self.world.writer.applied(table, (row.key,))
        dead_letters = {(one.table, one.key, one.sequence) for one in self.world.dead_letters.kept.values()}
        sequence = a_change(row.key, row.sequence).sequence
        return (applied is not None and applied >= parse_sequence(sequence)) or (
            table,
            f"[{row.key}]",
            sequence,
        ) in dead_letters

    def _meanwhile(self) -> None:
        assert isinstance(self.world.effects, Ending)
        self.world.effects.event()

    def _answer(self, table: str) -> bool:
        if not self.answers.get(table):
            return False
        outcome, seconds = self.answers[table].pop(0)
        self.world.clock.pass_time(timedelta(seconds=seconds))
        if outcome == "table trouble":
            raise TableTroubleError(f"table {table}: PERMISSION_DENIED")
        if outcome == "transient":
            raise TransientError(f"table {table}: UNAVAILABLE")
        return False

    def _append(self, definition: TableDefinition, rows: pa.Table) -> FakeAppending:
        late = self.late.get(definition.identity)
        self.world.writer.answers_after = {definition.identity: timedelta(seconds=late.pop(0))} if late else {}
        return self.append(definition, rows)

    def _ack(self, ack_ids: Sequence[str]) -> None:
        self.ack(ack_ids)
        acked = [self.leased[int(ack_id[1:])] for ack_id in ack_ids]
        for message in acked:
            assert message.table in self.world.tables.there
            for row in message.rows:
                assert self.there(message.table, row), f"acked, and nowhere: {message.table} {row}"
            self.pending.remove(message)


NEXT_NEWEST_NOT_CHOSEN_YET = Run(
    [
        Message("planes", False, [Row(1, 1, "good")]),
        Message("planes", False, [Row(1, 2, "stuck")]),
        Message("planes", False, [Row(2, 3, "good")]),
        Message("airports", False, [Row(1, 4, "good")]),
        Message("pilots", False, [Row(1, 5, "good")]),
    ],
    {"airports": [("well", 0), ("transient", 61)]},
    "stop",
    40,
)
"""The bad row of planes is found while airports are still waited for, and the row that it hid is not written yet."""

NO_ANSWER_TO_ONE_OF_TWO_COLUMN_LISTS = Run(
    [
        Message("planes", False, [Row(1, 1, "good")]),
        Message("planes", True, [Row(1, 2, "good"), Row(2, 3, "good")]),
        Message("airports", False, [Row(1, 4, "good")]),
        Message("pilots", False, [Row(1, 5, "good")]),
    ],
    {},
    "stop",
    40,
    {"planes": [200, 0, 0]},
)
"""What is answered is settled while the list with the older row of key 1, or that with the newer, is waited for."""

A_BAD_ROW_IN_EVERY_TABLE = Run(
    [Message(table, False, [Row(1, sequence, "stuck")]) for sequence, table in enumerate(TABLES, 1)], {}, "stop", 0
)
"""Every table fails by one column list, and another list of each is accepted: that must not be waited for for ever."""


@settings(max_examples=examples(40))
@given(runs())
@example(NEXT_NEWEST_NOT_CHOSEN_YET)
@example(NO_ANSWER_TO_ONE_OF_TWO_COLUMN_LISTS)
@example(A_BAD_ROW_IN_EVERY_TABLE)
def test_no_message_is_acked_before_its_changes_are_there_and_none_is_left(run: Run) -> None:
    subscription = Subscription(run)
    subscription.deliver(run.ends, run.ends_after)
    while subscription.pending and subscription.attempt < DELIVERIES:
        subscription.deliver()

    assert subscription.pending == []
