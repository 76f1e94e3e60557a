"""What waits for what, and what follows from a row and its changes: the pure part of completing updates.

Of what waits, also by random streams: nothing is lost or overtaken, and what is remembered is counted.
"""

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from services.spanner_reader.core.stream.completion import (
    LONGEST_BATCH,
    Before,
    Completeness,
    CompletionQueue,
    QueuedChange,
    base_of,
    versions,
)
from shared.contracts.change_batch import Change, Column, Header
from shared.contracts.change_sequence import four_sections
from shared.contracts.timestamps import Nanoseconds, format_timestamp, microseconds
from tests.seeds import examples
from tests.unit.spanner_reader.scripts import a_record, at

TEN = at("10:00:00")
HEADER = Header(
    "s", "Singers", ("Id",), (Column("Id", "INT64"), Column("a", "STRING"), Column("b", "STRING")), "NEW_VALUES"
)


def later(seconds: float) -> Nanoseconds:
    """Return a time so long after ten o'clock."""
    return Nanoseconds(TEN + int(seconds * 1_000_000) * 1_000)


def a_change(
    row: object,
    commit: Nanoseconds = TEN,
    *,
    key: int = 1,
    record: int = 0,
    transaction: str = "t",
    whole: bool = False,
    table: str = "Singers",
) -> QueuedChange:
    """Return an update, or what is whole; ``row`` None: a delete."""
    change = Change(
        "UPSERT" if row is not None else "DELETE",
        "UPDATE",
        str(four_sections(microseconds(commit), record)),
        format_timestamp(commit),
        "{}",
        json.dumps({"Id": str(key)}),
        None if row is None else json.dumps(row),
    )
    row_id, header = f"{table}/{key}".encode(), msgspec.structs.replace(HEADER, table=table)
    return QueuedChange(row_id, commit, transaction, whole or row is None, header, "k", change)


def rows(*changes: QueuedChange, before: Before | None = None) -> list[object]:
    """Return the rows of changes."""
    found = versions(changes, before, frozenset({"a", "b"}))
    return [None if one.values is None else msgspec.json.decode(msgspec.json.encode(one.values)) for one in found]


def a_queue(*changes: QueuedChange) -> CompletionQueue:
    """Return a queue to which records of these changes have come, one of each."""
    queue = CompletionQueue()
    for one in changes:
        arrive(queue, one)
    return queue


def arrive(queue: CompletionQueue, change: QueuedChange, *, last: bool = True) -> None:
    record = replace(
        a_record(change.commit),
        server_transaction_id=change.transaction,
        is_last_record_in_transaction_in_partition=last,
    )
    queue.arrived(record)
    queue.add([change])


def test_each_change_has_the_row_that_it_made_of_the_one_before() -> None:
    changes = [a_change({"a": "1"}), a_change({"b": "2"}, later(1)), a_change({"a": None}, later(2))]
    assert rows(*changes, before=Before({"a": "0", "b": "0"})) == [
        {"a": "1", "b": "0"},
        {"a": "1", "b": "2"},
        {"a": None, "b": "2"},
    ]


def test_two_transactions_of_one_time_that_change_other_columns_of_a_row_have_one_sequence_and_one_row() -> None:
    one, other = a_change({"a": "1"}, transaction="x"), a_change({"b": "2"}, transaction="y")
    both = {"a": "1", "b": "2"}
    assert rows(one, other, before=Before({"a": "0", "b": "0"})) == [both, both]
    assert rows(replace(one, published=True), other, before=Before({"a": "0", "b": "0"})) == [both, both]
    every = a_change({"a": "1", "b": "0"}, transaction="x")
    assert rows(every, other, before=None) == [both, both]


def test_an_update_of_a_row_that_was_not_there_is_not_known_until_the_row_is_made_again() -> None:
    changes = [a_change({"a": "1"}), a_change({"a": "2"}, later(1), whole=True), a_change({"b": "3"}, later(2))]
    for before in (None, Before(None)):
        found = [one.outcome for one in versions(changes, before, None)]
        assert found == [Completeness.UNKNOWN, Completeness.AS_IT_IS, Completeness.COMPLETED]


def test_a_transaction_of_which_more_is_to_come_waits_until_a_later_time_has_come() -> None:
    queue = CompletionQueue()
    arrive(queue, a_change({"a": "1"}), last=False)
    assert queue.take(10) == ()
    queue.passed(TEN)
    assert len(queue.take(10)) == 1


def test_of_the_newest_commit_changes_stay_for_what_may_still_come_of_it() -> None:
    queue = a_queue(a_change({"a": "1"}))
    queue.take(10)
    queue.done()
    arrive(queue, a_change({"b": "2"}, record=1, transaction="other"))
    taken = queue.take(10)
    assert [one.published for one in taken] == [True, False]
    queue.done()
    queue.passed(TEN)
    assert (queue.is_empty, queue.size) == (True, 0)


def test_a_batch_ends_with_a_commit_of_so_many_changes_or_so_long_after_its_first() -> None:
    changes = [a_change({"a": "1"}, key=n) for n in range(3)] + [
        a_change({"a": "1"}, later(1), key=n) for n in range(3)
    ]
    assert len(a_queue(*changes).take(2)) == 3
    assert len(a_queue(*changes).take(4)) == 6
    last = a_change({"a": "1"}, later((LONGEST_BATCH + timedelta(seconds=1)).total_seconds()))
    assert a_queue(a_change({"a": "1"}), last).take(10)[-1].commit == TEN


def test_what_is_published_stays_for_as_long_as_something_earlier_waits() -> None:
    known = replace(a_change({"a": "1"}, later(1), key=2, whole=True), published=True)
    queue = a_queue(a_change({"a": "1"}), known, a_change({"b": "1"}, later(2), key=2))
    taken = queue.take(10)
    assert [one.row_id for one in taken] == [b"Singers/1", b"Singers/2", b"Singers/2"]
    assert base_of(taken) == TEN - 1_000
    assert queue.waits([b"Singers/2"])
    queue.done()
    assert not queue.waits([b"Singers/1", b"Singers/2"])


@dataclass(frozen=True)
class Part:
    """One change of a transaction: its table, row and kind."""

    table: str
    key: int
    kind: str


parts = st.builds(
    Part, st.sampled_from(["Singers", "Albums"]), st.integers(0, 3), st.sampled_from(["update", "insert", "left out"])
)
transactions = st.lists(
    st.tuples(st.sampled_from([0, 1, 1, 1, 12_000_000]), st.lists(parts, min_size=1, max_size=4)), max_size=12
)
"""How many microseconds after the one before each is committed, and what it changes; 0: at the same time."""


@dataclass
class Reading:
    """A queue as a partition's reader uses it, and what came and what was taken."""

    queue: CompletionQueue = field(default_factory=CompletionQueue)
    arrived: list[QueuedChange] = field(default_factory=list)
    taken: list[QueuedChange] = field(default_factory=list)

    def arrive(self, part: Part, commit: Nanoseconds, transaction: int, record: int, *, last: bool) -> None:
        """Let a record of one change come."""
        whole = part.kind == "insert"
        change = a_change(
            {}, commit, key=part.key, record=record, transaction=f"{transaction}", whole=whole, table=part.table
        )
        published = part.kind == "left out" or (whole and not self.queue.waits([change.row_id]))
        entry = replace(change, published=published)
        arrive(self.queue, entry, last=last)
        self.arrived.append(entry)
        self.check_size()

    def take(self, most: int) -> None:
        """Take a batch, and publish it."""
        batch = self.queue.take(most)
        if not batch:
            assert not self.queue.can_take
            return
        assert self.queue.can_take
        assert self.queue.take(most) == (), "there is one batch at a time"
        assert {one.header.table for one in batch} == {batch[0].header.table}
        waiting = [one for one in batch if not one.published]
        assert waiting
        self.check_what_it_rests_on(batch, waiting)
        assert all(self.queue.waits([one.row_id]) for one in waiting)
        self.taken += waiting
        self.queue.done()
        self.check_size()

    def check_what_it_rests_on(self, batch: Sequence[QueuedChange], waiting: Sequence[QueuedChange]) -> None:
        """Check that a batch has every change of its rows since the time that these are read at.

        But for another transaction of the same time that still waits: it rests on this one later.
        """
        base, orders = base_of(batch), {(one.row_id, one.order) for one in batch}
        taken = {id(one.change) for one in self.taken}
        for one in waiting:
            before = [each for each in self.arrived if each.row_id == one.row_id and base < each.commit <= one.commit]
            needed = {
                (each.row_id, each.order)
                for each in before
                if each.order < one.order
                and (each.commit < one.commit or each.transaction == one.transaction or id(each.change) in taken)
            }
            assert needed <= orders

    def check_size(self) -> None:
        """Check that what is remembered is counted, and what waits is remembered."""
        waiting = {id(one.change) for one in self.arrived if not one.published} - {id(one.change) for one in self.taken}
        assert self.queue.is_idle == (not waiting)
        assert self.queue.size >= sum(one.change.size() for one in self.arrived if id(one.change) in waiting)


@settings(max_examples=examples(150))
@given(transactions, st.data())
def test_every_change_that_waits_is_taken_once_in_the_order_of_its_row_with_all_that_it_rests_on(
    made: Sequence[tuple[int, Sequence[Part]]], data: st.DataObject
) -> None:
    reading, commit = Reading(), TEN
    for number, (later, changes) in enumerate(made):
        commit = Nanoseconds(commit + later * 1_000)
        order = data.draw(st.permutations(range(len(changes))))
        for place, record in enumerate(order):
            reading.arrive(changes[record], commit, number, record, last=place == len(order) - 1)
            if data.draw(st.booleans()):
                reading.take(data.draw(st.integers(1, 5)))
        more_of_it = number + 1 < len(made) and made[number + 1][0] == 0
        if not more_of_it and data.draw(st.booleans()):
            reading.queue.passed(commit)
    reading.queue.passed(Nanoseconds(commit + 1_000))
    while reading.queue.can_take:
        reading.take(3)

    waited = [one for one in reading.arrived if not one.published]
    assert sorted(map(id, (one.change for one in waited))) == sorted(map(id, (one.change for one in reading.taken)))
    by_row = defaultdict(list)
    for one in reading.taken:
        by_row[one.row_id].append(one)
    for each in by_row.values():
        commits = [one.commit for one in each]
        assert commits == sorted(commits)
        for transaction in {one.transaction for one in each}:
            orders = [one.order for one in each if one.transaction == transaction]
            assert orders == sorted(orders)
    assert (reading.queue.is_empty, reading.queue.size) == (True, 0)
