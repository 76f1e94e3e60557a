"""What a transaction on the reader's own tables sends to Spanner: in which Commit, and how often."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from google.api_core.exceptions import Aborted, ServiceUnavailable
from google.cloud.spanner_v1 import (
    DirectedReadOptions,
    PartialResultSet,
)

from services.spanner_reader.adapters.snapshot.snapshot_table import SpannerSnapshotStore
from services.spanner_reader.adapters.spanner.connection import CallOptions
from services.spanner_reader.adapters.stream.partition_table import SpannerPartitionStore
from services.spanner_reader.core.snapshot.snapshot import RangeState, SnapshotRange
from services.spanner_reader.core.stream.partitions import NewPartition, PartitionState, SpannerPartition
from services.spanner_reader.core.stream.records import PartitionToken
from services.spanner_reader.ports import RangeProgress, SpannerProgress
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.contracts.timestamps import format_timestamp, parse_timestamp
from tests.fakes.spanner_client import FakeAnswer, FakeSpanner

START = parse_timestamp("2026-11-21T09:00:00Z")
TIME = format_timestamp(START)
LEASE = timedelta(seconds=30)
PARENT, CHILD = PartitionToken("parent"), PartitionToken("child")
RUNNING = SpannerPartition(
    token=PARENT,
    start=START,
    watermark=START,
    state=PartitionState.RUNNING,
    owner="reader",
    lease_until=START,
    fencing=1,
)


BEGUN = [PartialResultSet(metadata={"row_type": {"fields": [{"name": "c"}]}, "transaction": {"id": b"begun"}})]


def store_of(
    spanner: FakeSpanner, options: CallOptions | None = None, topic: str | None = None
) -> SpannerPartitionStore:
    database = spanner.database(options)
    return SpannerPartitionStore(database, "partitions", change_stream="s", owner="reader", lease=LEASE, topic=topic)


def a_row(partition: SpannerPartition, topic: str | None = None) -> Sequence[Any]:
    """Return a partition as the partition table's query has it."""
    watermark, state, fencing = format_timestamp(partition.watermark), partition.state.value, str(partition.fencing)
    return [partition.token, [], [], TIME, state, watermark, partition.owner, TIME, fencing, None, TIME, topic]


def a_range(table: str, fencing: str, topic: str | None = None) -> Sequence[Any]:
    """Return a range of keys as the snapshot table's query has it."""
    keys = [None, None, None]
    return [table, "0", "1", *keys, TIME, TIME, "0", RangeState.CUT.value, "reader", TIME, fencing, None, TIME, topic]


async def test_mutations_are_sent_once_however_often_spanner_asks_for_another_commit() -> None:
    spanner = FakeSpanner({"": [[TIME]]}, asks_again=2)
    await store_of(spanner).attend()

    assert [len(one.mutations) for one in spanner.commits] == [1, 0, 0]
    assert [one.precommit_token.precommit_token for one in spanner.commits[1:]] == [b"newer", b"newer"]
    assert {one.transaction_id for one in spanner.commits} == {b"t"}


async def test_no_commit_finishes_a_partition_whose_children_are_not_stored() -> None:
    spanner = FakeSpanner({"": [a_row(RUNNING)]})
    children = [NewPartition(CHILD, frozenset({PARENT}), START)]
    await store_of(spanner).finish(SpannerProgress(RUNNING, START), children)

    finished: set[str] = set()
    stored: set[str] = set()
    for commit in spanner.commits:
        for mutation in commit.mutations:
            finished |= {one[0] for one in mutation.update.values if PartitionState.FINISHED.value in list(one)}
            stored |= {one[0] for one in mutation.insert.values}
        assert not finished or stored == {CHILD}, "a crash after this commit would lose the child"
    assert finished == {PARENT}


async def test_a_renewal_under_an_earlier_claim_of_the_same_reader_writes_nothing() -> None:
    spanner = FakeSpanner({"": [a_row(replace(RUNNING, fencing=2))]})

    assert await store_of(spanner).advance([SpannerProgress(RUNNING, START)]) == {PARENT}
    assert spanner.commits == []


async def test_progress_of_a_snapshot_under_an_earlier_claim_of_the_same_reader_is_not_saved() -> None:
    claimed = SnapshotRange(
        table="Singers", number=0, run=1, read_at=START, first_read_at=START, owner="reader", fencing=1
    )
    spanner = FakeSpanner({"": [a_range("Singers", "2")]})
    store = SpannerSnapshotStore(spanner.database(), "partitions", owner="reader", lease=LEASE)

    assert await store.save([RangeProgress(claimed, None, 0, START)]) == {claimed.place}
    assert spanner.commits == []


async def test_a_reader_that_stood_still_while_the_topic_was_changed_claims_and_saves_nothing() -> None:
    """What it publishes goes to the former topic, so readers of the new one must not go on behind it."""
    answers: dict[str, Sequence[Sequence[Any]]] = {
        "present_until": [[TIME, []]],
        "partitions_snapshots": [a_range("Singers", "1", "new")],
        "": [a_row(RUNNING, "new")],
    }
    spanner = FakeSpanner(answers)
    store, progress = store_of(spanner, topic="former"), SpannerProgress(RUNNING, START)
    snapshots = SpannerSnapshotStore(spanner.database(), "partitions", owner="reader", lease=LEASE, topic="former")
    ours = SnapshotRange(
        table="Singers", number=0, run=1, read_at=START, first_read_at=START, owner="reader", fencing=1
    )
    for call in (
        store.survey(),
        store.claim([PARENT], None),
        store.advance([progress]),
        store.advance([progress], release=True),
        store.finish(progress, []),
        snapshots.claim([ours.place]),
        snapshots.save([RangeProgress(ours, None, 0, START)]),
        snapshots.cut(ours, []),
    ):
        with pytest.raises(MisconfiguredError, match="publish to new, and this one would to former"):
            await call
    assert spanner.commits == []


async def test_a_transaction_whose_read_fails_after_its_first_response_is_rolled_back() -> None:
    spanner = FakeSpanner({"": [[TIME]]})
    broken: Exception = ServiceUnavailable("GOAWAY")  # type: ignore[no-untyped-call]
    spanner.answers = [FakeAnswer(BEGUN, broken)]
    with pytest.raises(TransientError, match="GOAWAY"):
        await store_of(spanner).attend()

    assert spanner.rolled_back == [b"begun"]


async def test_a_transaction_whose_caller_is_cancelled_while_it_reads_is_rolled_back() -> None:
    spanner = FakeSpanner({"": [[TIME]]})
    spanner.answers = [FakeAnswer(BEGUN, ends=False)]
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(store_of(spanner).attend(), 1)

    assert spanner.rolled_back == [b"begun"]


async def test_the_priority_of_an_aborted_transaction_outlasts_an_attempt_that_is_aborted_in_its_read() -> None:
    spanner = FakeSpanner({"": [[TIME]]})
    store = store_of(spanner)
    aborted: Exception = Aborted("another transaction has the locks")  # type: ignore[no-untyped-call]

    for answer in (FakeAnswer(BEGUN, aborted), FakeAnswer([], aborted)):
        spanner.answers = [answer]
        with pytest.raises(TransientError):
            await store.attend()
    await store.attend()
    await store.attend()

    assert spanner.begun_after == [b"", b"begun", b"begun", b""]


async def test_the_priority_of_an_aborted_transaction_outlasts_others_that_come_between() -> None:
    spanner = FakeSpanner({"UNNEST": [a_row(RUNNING)], "": [[TIME]]})
    store = store_of(spanner)
    aborted: Exception = Aborted("another transaction has the locks")  # type: ignore[no-untyped-call]

    spanner.answers = [FakeAnswer(BEGUN, aborted)]
    with pytest.raises(TransientError):
        await store.attend()
    assert await store.advance([SpannerProgress(RUNNING, START)]) == frozenset()
    await store.attend()

    assert spanner.begun_after == [b"", b"", b"begun"]


async def test_an_answer_without_any_response_is_no_empty_result() -> None:
    spanner = FakeSpanner({"": [[TIME]]})
    spanner.answers = [FakeAnswer([])]
    with pytest.raises(TransientError, match="before its first response"):
        await store_of(spanner).attend()

    assert (spanner.commits, spanner.rolled_back) == ([], [])


async def test_a_commit_that_spanner_asks_for_again_and_again_is_given_up_and_rolled_back() -> None:
    spanner = FakeSpanner({"": [[TIME]]}, asks_again=10)
    with pytest.raises(TransientError, match="asked for another Commit after each of 4"):
        await store_of(spanner).attend()

    assert len(spanner.commits) == 4
    assert spanner.rolled_back == [b"t"]


async def test_a_transaction_goes_to_the_leader_with_the_priority_and_without_a_querys_directed_reads() -> None:
    spanner = FakeSpanner({"": [[TIME]]})
    directed = DirectedReadOptions(include_replicas={"replica_selections": [{"location": "us-east1"}]})
    store = store_of(spanner, CallOptions(role="mirror", priority="low", directed_reads=directed))

    await store.attend()
    with suppress(MisconfiguredError):  # the rows are of no change stream
        await store.is_empty()

    (session, begun, commit, query) = spanner.calls
    assert [(name, to_leader) for name, _request, to_leader in spanner.calls] == [
        ("create_session", True),
        ("execute_streaming_sql", True),
        ("commit", True),
        ("execute_streaming_sql", False),
    ]
    assert session[1]["session"].creator_role == "mirror"
    assert {one[1].request_options.priority.name for one in (begun, commit, query)} == {"PRIORITY_LOW"}
    assert not begun[1].directed_read_options
    assert query[1].directed_read_options == directed
