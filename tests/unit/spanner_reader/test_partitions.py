from dataclasses import replace

import pytest

from services.spanner_reader.core.stream.partitions import (
    NewPartition,
    PartitionState,
    Reshaping,
    SpannerPartition,
    claimable,
    has_reached,
    low_watermark,
    reshaping,
)
from services.spanner_reader.core.stream.records import PartitionToken
from shared.contracts.timestamps import Nanoseconds

A, B, C = PartitionToken("a"), PartitionToken("b"), PartitionToken("c")
NOW = Nanoseconds(1_000)


def a_partition(token: PartitionToken = A, **values: object) -> SpannerPartition:
    return replace(SpannerPartition(token=token, start=Nanoseconds(10), watermark=Nanoseconds(10)), **values)  # type: ignore[arg-type]


def claims(
    *partitions: SpannerPartition, end: int | None = None, holding: tuple[PartitionToken, ...] = ()
) -> list[str]:
    found = claimable(partitions, owner="me", holding=holding, now=NOW, end=None if end is None else Nanoseconds(end))
    return [partition.token for partition in found]


def test_a_partition_is_due_when_all_its_parents_are_finished() -> None:
    both = frozenset({A, B})
    assert claims(a_partition(C, parents=both, finished_parents=frozenset({A}))) == []
    assert claims(a_partition(C, parents=both, finished_parents=both)) == [C]
    assert claims(a_partition(C)) == [C]  # the first partitions have none
    assert claims(a_partition(C, state=PartitionState.FINISHED)) == []


@pytest.mark.parametrize("state", [PartitionState.CREATED, PartitionState.SCHEDULED, PartitionState.RUNNING])
def test_a_lease_keeps_others_away_until_it_ends(state: PartitionState) -> None:
    leased = a_partition(state=state, owner="other", lease_until=NOW)
    assert claims(leased) == []
    assert claims(replace(leased, lease_until=Nanoseconds(NOW - 1))) == [A]
    assert claims(replace(leased, lease_until=None)) == [A]
    assert claims(replace(leased, owner="me")) == [A]  # a claim of our own whose answer never arrived
    assert claims(replace(leased, owner="me"), holding=(A,)) == []


def test_nothing_is_left_of_a_partition_past_the_end_and_the_end_itself_is_read() -> None:
    assert claims(a_partition(), end=10) == [A]
    assert claims(a_partition(), end=9) == []
    assert not has_reached(a_partition(), None)
    assert has_reached(a_partition(watermark=Nanoseconds(21)), Nanoseconds(20))


def test_the_partition_that_is_furthest_behind_comes_first() -> None:
    assert claims(a_partition(A, watermark=Nanoseconds(30)), a_partition(B, watermark=Nanoseconds(20))) == [B, A]


def test_the_low_watermark_is_the_smallest_and_now_where_there_is_none() -> None:
    assert low_watermark([Nanoseconds(30), Nanoseconds(20)], NOW) == 20
    assert low_watermark([], NOW) == NOW


def test_splits_and_merges_are_counted_once() -> None:
    def child(token: PartitionToken, *parents: PartitionToken) -> NewPartition:
        return NewPartition(token, frozenset(parents), NOW)

    assert reshaping(A, [child(B, A), child(C, A)], {B, C}) == Reshaping(split=1, merged=0)
    assert reshaping(A, [child(C, A, B)], {C}) == Reshaping(split=0, merged=1)
    assert reshaping(B, [child(C, A, B)], set()) == Reshaping(split=0, merged=0)  # the second parent
    assert reshaping(A, [child(B, A)], {B}) == Reshaping(split=0, merged=0)  # moved
    assert reshaping(PartitionToken(""), [child(A), child(B)], {A, B}) == Reshaping(split=0, merged=0)


def test_a_partition_cannot_be_built_wrong() -> None:
    with pytest.raises(ValueError, match="watermark before start"):
        a_partition(watermark=Nanoseconds(9))
    with pytest.raises(ValueError, match="not its parents"):
        a_partition(finished_parents=frozenset({B}))
