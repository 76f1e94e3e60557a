"""The end of a snapshot: said once all of it is published, never of less; it heals a mark, or a mark asks for it."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from services.spanner_reader.app.snapshot.snapshot_source import SpannerSnapshots
from services.spanner_reader.core.schema.shapes import SpannerResyncKind
from services.spanner_reader.core.snapshot.snapshot import (
    CompleteSnapshot,
    RangeState,
    SnapshotRange,
    by_run,
    complete_snapshots,
    merged,
)
from shared.contracts.change_sequence import four_sections
from shared.contracts.safe_age import SAFE_AGE, SNAPSHOT_END_AGE
from shared.contracts.timestamps import Nanoseconds, microseconds
from tests.fakes.snapshots import FakeSnapshotStore
from tests.fakes.spanner_reader import FakePublisher
from tests.worlds.changing_table import (
    LEASE,
    SECOND,
    START,
    World,
    a_range,
    a_request,
    cut,
    half_read_and_lost,
    read_and_not_announced,
    until_over,
)
from tests.worlds.snapshot_reading import reading

_MICROSECOND = 1_000


async def a_minute_of(*readers: SpannerSnapshots) -> None:
    """Let readers read for a minute, in which all that is known is announced."""
    async with reading(*readers):
        await asyncio.sleep(60)


@given(st.permutations(cut("a", "b", "c")))
def test_a_table_whose_parts_are_all_read_is_complete_since_the_first_of_them(parts: list[SnapshotRange]) -> None:
    (complete,) = complete_snapshots(parts)

    assert (complete.table, complete.run, complete.since) == ("Planes", 1, START)


LEAVING_OUT_A_KEY = pytest.mark.parametrize(
    "parts",
    [
        pytest.param([a_range(0, None, "a")], id="no end"),
        pytest.param([a_range(0, "a", None)], id="no beginning"),
        pytest.param([a_range(0, "a", "b")], id="a part in the middle"),
        pytest.param([a_range(0, None, "a"), a_range(1, "b", None)], id="a gap"),
        pytest.param([*cut("a"), a_range(2, "x", "y")], id="something else beside it"),
        pytest.param([replace(one, state=RangeState.CUT) if one.number else one for one in cut("a")], id="one is left"),
        pytest.param([replace(one, state=RangeState.CANCELLED) for one in cut()], id="given up"),
        pytest.param([replace(one, run=one.number) for one in cut("a")], id="of two snapshots"),
        pytest.param([a_range(0, None, "a"), a_range(1, "a", "a")], id="for ever"),
    ],
)


@LEAVING_OUT_A_KEY
def test_what_leaves_out_a_key_is_not_complete(parts: list[SnapshotRange]) -> None:
    assert list(complete_snapshots(parts)) == []


@LEAVING_OUT_A_KEY
def test_ranges_that_leave_out_a_key_are_not_merged_into_a_complete_one(parts: list[SnapshotRange]) -> None:
    for one in by_run(parts).values():
        assert (whole := merged(one)) is None or not complete_snapshots([whole])


def test_the_ranges_of_a_complete_snapshot_are_merged_into_one_that_is_complete_since_the_same_time() -> None:
    parts = cut("a", "b", "c")
    whole = merged(parts)
    assert whole is not None
    assert [one.since for one in complete_snapshots([whole])] == [one.since for one in complete_snapshots(parts)]


async def test_it_is_announced_after_all_rows_are_confirmed_and_again_by_a_reader_that_starts_later() -> None:
    world = await World.requested(range(10))
    at = world.clock.now()
    await until_over(world, *(world.reader(owner, cuts=[4])[0] for owner in ("one", "another")))
    assert 1 <= len(world.announced) <= 2
    await until_over(world, world.reader("third")[0])
    assert set(world.announced) == {str(four_sections(microseconds(at)))}
    assert 2 <= len(world.announced) <= 3
    ends = [n for n, (header, _changes) in enumerate(world.topic.batches) if isinstance(header.complete_since, str)]
    assert sum(len(changes) for _header, changes in world.topic.batches[: ends[0]]) == 10
    assert all(not world.topic.batches[end][1] for end in ends)


@pytest.mark.parametrize(("hours", "times"), [(23, 2), (25, 1)])
async def test_one_of_long_ago_is_not_announced_again_at_a_start_and_heals_no_resync_request(
    hours: int, times: int
) -> None:
    world = await World.requested()
    await until_over(world, world.reader()[0])
    world.clock.step(timedelta(hours=hours))
    world.shapes.requests = a_request(START)
    await a_minute_of(world.reader("later")[0])
    assert (len(world.announced), world.shapes.requests == {}) == (times, times == 2)


@pytest.mark.parametrize("automatic", [False, True])
async def test_one_that_was_not_announced_in_time_leaves_the_resync_request_and_is_taken_again_if_set_so(
    automatic: bool,
) -> None:
    world = await World.requested()
    world.shapes.requests = a_request(START)
    with capture_logs() as logs:
        await read_and_not_announced(world)
        world.clock.step(timedelta(hours=25))
        await a_minute_of(world.reader(automatic=automatic)[0])
    assert [line["table"] for line in logs if line["event"] == "snapshot_too_old_to_heal"] == ["Planes"]
    assert (len(world.announced), world.shapes.requests == {}) == ((1, True) if automatic else (0, False))
    assert {one.run for one in world.snapshots.rows.values()} == {2 if automatic else 1}


@pytest.mark.parametrize(("automatic", "brought"), [(False, range(5, 10)), (True, range(10))])
async def test_one_whose_first_half_the_topic_has_lost_is_never_announced_and_another_one_heals(
    automatic: bool, brought: Sequence[int]
) -> None:
    world = await half_read_and_lost()
    with capture_logs() as logs:
        for owner in ("one", "started later"):
            reader, _rows = world.reader(owner, automatic=automatic)
            async with reading(reader):
                await asyncio.sleep(60)
                assert world.over
                assert await reader.over()
    assert "snapshot_end_withheld" in [line["event"] for line in logs]
    assert set(world.mirrored()) == set(brought)
    assert (world.shapes.requests == {}, world.announced != []) == (automatic, automatic)
    assert {one.run for one in world.snapshots.rows.values()} == {2 if automatic else 1}


async def test_one_that_the_topic_has_lost_rows_of_is_announced_once_synced_reports_that_all_rows_came_again() -> None:
    world = await half_read_and_lost()
    async with reading(world.reader()[0]):
        await asyncio.sleep(60)
        assert world.announced == []
        world.shapes.requests = {}  # by `synced`
        await asyncio.sleep(60)
        assert len(world.announced) == 1


@pytest.mark.parametrize(("later", "announced_again"), [(-_MICROSECOND, True), (0, False), (_MICROSECOND, False)])
async def test_one_that_ended_before_the_topic_lost_messages_is_not_announced_again(
    later: int, announced_again: bool
) -> None:
    world = await World.requested()
    at = world.clock.now()
    await until_over(world, world.reader()[0])
    announced = len(world.announced)
    world.shapes.requests = a_request(at + later, SpannerResyncKind.TABLE_LOST)
    await a_minute_of(world.reader("later")[0])
    assert (len(world.announced) > announced) is announced_again


async def test_a_reader_that_leaves_a_table_out_announces_nothing_of_it_and_heals_no_resync_request() -> None:
    world = await World.requested()
    world.shapes.requests = a_request(START)
    await read_and_not_announced(world)
    for included in (False, True):
        reader, _rows = world.reader(included=lambda _table, is_included=included: is_included)  # type: ignore[misc]
        await a_minute_of(reader)
        assert (len(world.announced), world.shapes.requests == {}) == (int(included), included)


@given(
    took=st.timedeltas(timedelta(0), timedelta(days=9)),
    ago=st.timedeltas(timedelta(0), timedelta(days=3)),
    heard_after=st.timedeltas(timedelta(0), SNAPSHOT_END_AGE),
)
def test_it_is_announced_at_once_and_believed_only_while_its_last_rows_cannot_have_been_refused(
    took: timedelta, ago: timedelta, heard_after: timedelta
) -> None:
    finished = Nanoseconds(START + took // timedelta(microseconds=1) * 1_000)
    one = CompleteSnapshot("Planes", 1, START, finished)
    assert one.may_be_announced(finished)
    if one.may_be_announced(Nanoseconds(finished + ago // timedelta(microseconds=1) * 1_000)):
        assert ago + heard_after + min(took, timedelta(days=1)) < SAFE_AGE


@pytest.mark.parametrize(("later", "healed"), [(-_MICROSECOND, True), (0, False), (_MICROSECOND, False)])
async def test_it_heals_a_resync_request_of_before_and_no_other(later: int, healed: bool) -> None:
    world = await World.requested()
    world.shapes.requests = a_request(world.clock.now() + later)
    await a_minute_of(world.reader()[0])
    assert world.announced != []
    assert (world.shapes.requests == {}) is healed


async def test_a_later_resync_request_of_what_was_before_is_healed_by_the_snapshot_that_is_there() -> None:
    world = await World.requested()
    async with reading(world.reader()[0]):
        await asyncio.sleep(60)
        world.shapes.requests = a_request(START)
        await asyncio.sleep(60)
    assert world.shapes.requests == {}


@pytest.mark.parametrize("automatic", [False, True])
async def test_a_table_that_needs_re_sync_is_snapshot_again_by_itself_only_if_set_so(automatic: bool) -> None:
    world = await World.requested()
    async with reading(*(world.reader(owner, automatic=automatic)[0] for owner in ("one", "another"))):
        await asyncio.sleep(60)
        world.clock.step(SECOND)
        world.write(2, "b")
        world.shapes.requests = a_request(world.clock.now())
        world.clock.step(SECOND)
        await asyncio.sleep(60)
    assert (world.shapes.requests == {}) is automatic
    assert {one.run for one in world.snapshots.rows.values()} == ({2} if automatic else {1})
    assert world.mirrored() == ({1: "a", 2: "b"} if automatic else {1: "a"})


async def test_one_that_was_given_up_is_not_begun_again_by_itself() -> None:
    world = await World.requested()
    world.shapes.requests = a_request(START)
    await FakeSnapshotStore(world.snapshots, "gives up", LEASE).cancel(["Planes"])
    await a_minute_of(world.reader(automatic=True)[0])
    assert world.announced == []
    assert "Planes" in world.shapes.requests
    assert {one.state for one in world.snapshots.rows.values()} == {RangeState.CANCELLED}


async def test_nothing_is_announced_on_a_topic_that_keeps_nothing() -> None:
    world = await World.requested()
    world.trusted = False
    async with reading(world.reader(publisher=FakePublisher(world.topic))[0]):
        await asyncio.sleep(60)
        assert world.announced == []
        world.trusted = True
        await asyncio.sleep(60)
        assert world.announced != []
