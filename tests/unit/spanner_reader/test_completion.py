"""What waits for what, and what follows from a row and its changes: the pure part of completing updates."""

import json
from dataclasses import replace
from datetime import timedelta

import msgspec

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
    return QueuedChange(f"{key}".encode(), commit, transaction, whole or row is None, HEADER, "k", change)


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
    assert [one.row_id for one in taken] == [b"1", b"2", b"2"]
    assert base_of(taken) == TEN - 1_000
    assert queue.waits([b"2"])
    queue.done()
    assert not queue.waits([b"1", b"2"])
