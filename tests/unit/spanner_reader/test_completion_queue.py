"""What waits to be completed, by random streams: nothing is lost or overtaken, and what is remembered is counted."""

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from services.spanner_reader.core.stream.completion import CompletionQueue, QueuedChange, base_of
from shared.contracts.change_batch import Change, Column, Header
from shared.contracts.change_sequence import four_sections
from shared.contracts.timestamps import Nanoseconds, format_timestamp, microseconds
from tests.seeds import examples
from tests.unit.spanner_reader.scripts import a_record, at

TEN = at("10:00:00")
TABLES = ("Singers", "Albums")
HEADERS = {
    name: Header("s", name, ("Id",), (Column("Id", "INT64"), Column("a", "STRING")), "NEW_VALUES") for name in TABLES
}
KINDS = ("update", "insert", "left out")


@dataclass(frozen=True)
class Part:
    """One change of a transaction: its table, row and kind."""

    table: str
    key: int
    kind: str


parts = st.builds(Part, st.sampled_from(TABLES), st.integers(0, 3), st.sampled_from(KINDS))
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
        self.queue.arrived(
            replace(
                a_record(commit),
                server_transaction_id=f"{transaction}",
                is_last_record_in_transaction_in_partition=last,
            )
        )
        row_id = f"{part.table}/{part.key}".encode()
        whole = part.kind == "insert"
        change = Change(
            "UPSERT",
            "INSERT" if whole else "UPDATE",
            str(four_sections(microseconds(commit), record)),
            format_timestamp(commit),
            "{}",
            json.dumps({"Id": str(part.key)}),
            "{}",
        )
        published = part.kind == "left out" or (whole and not self.queue.waits([row_id]))
        entry = QueuedChange(
            row_id, commit, f"{transaction}", whole, HEADERS[part.table], "k", change, published=published
        )
        self.queue.add([entry])
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
