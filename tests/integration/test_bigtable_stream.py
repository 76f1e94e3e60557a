"""The change stream as the reader sees it, from the front before the real emulator: records, positions, breaks."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any, TypeVar

import grpc
import pytest

from services.bigtable_reader.adapters import change_stream
from services.bigtable_reader.adapters.change_stream import BigtableChangeStream
from services.bigtable_reader.adapters.connection import Channels, Table
from services.bigtable_reader.core.records import (
    ALL_KEYS,
    Aggregated,
    Child,
    CloseStream,
    DataChange,
    DeleteCells,
    DeleteFamily,
    Heartbeat,
    KeyRange,
    Microseconds,
    Position,
    RangeToken,
    SetCell,
    StreamQuery,
    StreamRecord,
)
from services.bigtable_reader.ports import PositionLostError
from shared.contracts.errors import MisconfiguredError, TransientError
from tests.integration.bigtable_front import (
    CLUSTER,
    INSTANCE,
    Front,
    FrontTable,
    add_to_cell,
    delete_column,
    delete_family,
    delete_row,
    set_cell,
)

pytestmark = pytest.mark.integration

HEARTBEAT = 100  # milliseconds
PATIENCE = 30.0
LARGE = 1_000_000

T = TypeVar("T")


@pytest.fixture(scope="module")
def front(bigtable_front: str) -> Iterator[Front]:
    with Front(bigtable_front) as front:
        yield front


@pytest.fixture
def whole_again(front: Front) -> Iterator[Front]:
    """Return the front; how it serves streams, and what goes wrong, ends with the test."""
    yield front
    front.control.serve_streams(
        held=False, seconds_per_change=0.0, value_bytes=LARGE, message_bytes=LARGE, message_chunks=1_000
    )
    front.control.clear_faults()


@asynccontextmanager
async def opened(
    table: FrontTable, profile: str = "", *, keep_values: bool = True
) -> AsyncIterator[BigtableChangeStream]:
    channels = Channels(table.front.address)
    try:
        yield BigtableChangeStream(
            channels, Table(INSTANCE, table.name.rpartition("/")[2], profile), keep_values=keep_values
        )
    finally:
        await channels.close()


def at(start: int) -> Position:
    return Position(start=Microseconds(start))


def after(token: str, key_range: KeyRange = ALL_KEYS) -> Position:
    return Position((RangeToken(key_range, token),))


def query(position: Position, key_range: KeyRange = ALL_KEYS, end: int | None = None) -> StreamQuery:
    return StreamQuery(key_range, position, None if end is None else Microseconds(end), HEARTBEAT)


async def read_until(
    stream: BigtableChangeStream, asked: StreamQuery, enough: Callable[[Sequence[StreamRecord]], bool]
) -> list[StreamRecord]:
    found: list[StreamRecord] = []
    async with asyncio.timeout(PATIENCE), aclosing(stream.read(asked)) as records:
        async for record in records:
            found.append(record)
            if enough(found):
                break
    return found


def to_the_end(table: FrontTable, *, keep_values: bool = True) -> list[DataChange]:
    """Return every change that there is by now, of a table of one partition."""

    async def read() -> list[StreamRecord]:
        async with opened(table, keep_values=keep_values) as stream:
            end = table.front.control.describe(table.name).now
            return await read_until(stream, query(at(table.since), end=end), lambda _found: False)

    *records, last = run(read())
    assert last == CloseStream(0, last.message if isinstance(last, CloseStream) else "")
    return [record for record in records if isinstance(record, DataChange)]


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(coroutine)


def changes(found: Sequence[StreamRecord]) -> list[DataChange]:
    return [record for record in found if isinstance(record, DataChange)]


def test_every_kind_of_entry_is_told_and_garbage_collection_is_told_apart(front: Front) -> None:
    table = front.table("f", "g", aggregates=["sums"])
    table.write(b"\xffkey", set_cell("f", b"\0q", b"\xff\0", 5_000), set_cell("g", b"", b"", 0))
    table.write(b"\xffkey", delete_column("f", b"\0q", 1_000, 9_000), delete_family("g"))
    table.write(b"k", add_to_cell("sums", b"n", 0, 41))
    table.write(b"k", delete_row())

    found = to_the_end(table)

    assert [(change.row_key, change.entries) for change in found] == [
        (
            b"\xffkey",
            (SetCell("f", b"\0q", Microseconds(5_000), b"\xff\0"), SetCell("g", b"", Microseconds(0), b"")),
        ),
        (b"\xffkey", (DeleteCells("f", b"\0q", Microseconds(1_000), Microseconds(9_000)), DeleteFamily("g"))),
        (b"k", (Aggregated("ADD_TO_CELL", "sums", b"n", Microseconds(0), (41).to_bytes(8, "big")),)),
        (b"k", (DeleteFamily("sums"),)),
    ]
    assert {(change.kind, change.source_cluster) for change in found} == {("USER", CLUSTER)}
    assert [change.commit for change in found] == sorted({change.commit for change in found})


def test_a_late_change_of_another_cluster_keeps_its_commit_time_and_cluster(front: Front) -> None:
    table = front.table("f")
    table.write(b"k", set_cell("f", b"q", b"here", 1_000))
    commit = table.since + 1
    front.control.replicate(
        table.name, b"k", [set_cell("f", b"q", b"there", 1_000)], commit=commit, cluster="front-c2", tiebreaker=9
    )

    first, second = to_the_end(table)

    assert (second.source_cluster, second.commit, second.tiebreaker) == ("front-c2", commit, 9)
    assert second.commit < first.commit


@pytest.mark.parametrize(
    ("value_bytes", "message_bytes", "message_chunks"),
    [(7, LARGE, LARGE), (64, 100, LARGE), (3, LARGE, 1), (LARGE, LARGE, 1), (1, LARGE, 2)],
)
def test_changes_are_the_same_however_finely_they_are_cut(
    whole_again: Front, value_bytes: int, message_bytes: int, message_chunks: int
) -> None:
    table = whole_again.table("f", "g")
    for size in (0, 1, 100, 300):
        table.write(b"k", set_cell("f", b"a", b"x" * size, 0), delete_column("f", b"b"), set_cell("g", b"", b"\0", 0))
    whole = to_the_end(table)
    assert [len(change.entries) for change in whole] == [3] * 4

    whole_again.control.serve_streams(
        value_bytes=value_bytes, message_bytes=message_bytes, message_chunks=message_chunks
    )

    assert [change.entries for change in to_the_end(table)] == [change.entries for change in whole]
    bare = to_the_end(table, keep_values=False)
    assert [len(change.entries) for change in bare] == [3] * 4
    assert {entry.value for change in bare for entry in change.entries if isinstance(entry, SetCell)} == {b""}


def test_reading_goes_on_behind_every_token(front: Front) -> None:
    table = front.table("f")
    for index in range(6):
        table.write(b"k", set_cell("f", b"q", b"%d" % index, 0))
    whole = to_the_end(table)

    async def behind(token: str) -> list[StreamRecord]:
        async with opened(table) as stream:
            end = front.control.describe(table.name).now
            return await read_until(stream, query(after(token), end=end), lambda _found: False)

    for index, change in enumerate(whole):
        assert [each.entries for each in changes(run(behind(change.token)))] == [
            each.entries for each in whole[index + 1 :]
        ]


def test_a_quiet_partition_gives_heartbeats_whose_token_reads_on(front: Front) -> None:
    table = front.table("f")

    async def heartbeats() -> list[StreamRecord]:
        async with opened(table) as stream:
            return await read_until(stream, query(at(table.since)), lambda found: len(found) == 2)

    async def behind(token: str) -> list[StreamRecord]:
        async with opened(table) as stream:
            return await read_until(stream, query(after(token)), lambda found: bool(changes(found)))

    first, last = run(heartbeats())
    assert isinstance(first, Heartbeat)
    assert isinstance(last, Heartbeat)
    table.write(b"k", set_cell("f", b"q", b"later", 0))

    (change,) = changes(run(behind(last.token)))
    assert change.entries == (SetCell("f", b"q", Microseconds(0), b"later"),)
    assert change.low_watermark >= first.low_watermark


def test_partitions_are_as_they_are_now_and_a_split_names_children_that_read_on(front: Front) -> None:
    table = front.table("f", splits=[b"p"])

    async def scenario() -> None:
        async with opened(table) as stream:
            left, right = KeyRange(b"", b"p"), KeyRange(b"p", b"")
            assert await stream.initial_partitions() == [left, right]
            table.write(b"a", set_cell("f", b"q", b"1", 0))
            asked = query(at(table.since), left)
            reading = asyncio.ensure_future(read_until(stream, asked, lambda found: isinstance(found[-1], CloseStream)))
            await asyncio.sleep(0.2)
            front.control.split(table.name, b"g")
            *found, close = await reading
            assert [change.row_key for change in changes(found)] == [b"a"]
            assert isinstance(close, CloseStream)
            assert [(child.token.range, child.partition) for child in close.children] == [
                (KeyRange(b"", b"g"), KeyRange(b"", b"g")),
                (KeyRange(b"g", b"p"), KeyRange(b"g", b"p")),
            ]
            assert await stream.initial_partitions() == [KeyRange(b"", b"g"), KeyRange(b"g", b"p"), right]
            table.write(b"h", set_cell("f", b"q", b"2", 0))
            for child, expected in zip(close.children, ([], [b"h"]), strict=True):
                now = front.control.describe(table.name).now
                asked = query(Position((child.token,)), child.partition, end=now)
                found = await read_until(stream, asked, lambda _found: False)
                assert [change.row_key for change in changes(found)] == expected

    run(scenario())


def test_a_merged_partition_is_larger_than_its_tokens_and_reads_on_from_all_of_them(front: Front) -> None:
    table = front.table("f", splits=[b"p"])

    async def closes(stream: BigtableChangeStream, key_range: KeyRange) -> Child:
        asked = query(at(table.since), key_range)
        close = (await read_until(stream, asked, lambda found: isinstance(found[-1], CloseStream)))[-1]
        assert isinstance(close, CloseStream)
        (child,) = close.children
        return child

    async def scenario() -> None:
        async with opened(table) as stream:
            reading = asyncio.gather(closes(stream, KeyRange(b"", b"p")), closes(stream, KeyRange(b"p", b"")))
            await asyncio.sleep(0.2)
            front.control.merge(table.name, b"p")
            left, right = await reading
            assert (left.partition, right.partition) == (ALL_KEYS, ALL_KEYS)
            assert (left.token.range, right.token.range) == (KeyRange(b"", b"p"), KeyRange(b"p", b""))
            for key in (b"a", b"z"):
                table.write(key, set_cell("f", b"q", b"v", 0))
            asked = query(Position((left.token, right.token)), end=front.control.describe(table.name).now)
            found = await read_until(stream, asked, lambda _found: False)
            assert [change.row_key for change in changes(found)] == [b"a", b"z"]

    run(scenario())


def test_a_stream_that_breaks_off_within_a_change_is_read_on_without_loss_or_repetition(whole_again: Front) -> None:
    table = whole_again.table("f")
    for index in range(20):
        table.write(b"k", set_cell("f", b"q", b"%03d" % index, 0), set_cell("f", b"r", b"%03d" % index, 0))
    whole = to_the_end(table)
    whole_again.control.serve_streams(value_bytes=1, message_chunks=1, seconds_per_change=0.01)

    async def scenario() -> list[DataChange]:
        found: list[DataChange] = []
        position = at(table.since)
        breaks = 0
        async with asyncio.timeout(PATIENCE), opened(table) as stream:
            while len(found) < len(whole):
                try:
                    async with aclosing(stream.read(query(position))) as records:
                        async for record in records:
                            assert not isinstance(record, CloseStream)
                            position = after(record.token)
                            if isinstance(record, DataChange):
                                found.append(record)
                                if len(found) % 5 == 1 and breaks < 3:
                                    status = ("UNAVAILABLE", "INTERNAL", "OUT_OF_RANGE")[breaks]
                                    breaks += await asyncio.to_thread(
                                        whole_again.control.cut_streams, table.name, 3, status
                                    )
                            if len(found) == len(whole):
                                break
                except TransientError:
                    pass
        assert breaks == 3
        return found

    assert [change.entries for change in run(scenario())] == [change.entries for change in whole]


async def _first(table: FrontTable, asked: StreamQuery, profile: str = "") -> StreamRecord:
    async with opened(table, profile) as stream:
        return (await read_until(stream, asked, bool))[0]


def test_a_position_that_is_not_kept_any_more_stops_with_the_choices(front: Front) -> None:
    table = front.table("f")
    table.write(b"k", set_cell("f", b"q", b"v", 0))
    (change,) = to_the_end(table)
    table.write(b"k", set_cell("f", b"q", b"w", 0))
    front.control.trim(table.name)

    for position in (after(change.token), at(table.since - 10_000_000), after("not a token of anyone's")):
        with pytest.raises(PositionLostError, match=r"The choices: \(1\)"):
            run(_first(table, query(position)))


def test_a_start_in_the_future_is_refused_with_the_choices(front: Front) -> None:
    table = front.table("f")

    with pytest.raises(PositionLostError, match="not in the future"):
        run(_first(table, query(at(front.control.describe(table.name).now + 3_600_000_000))))


def test_tokens_that_do_not_cover_the_range_are_a_lost_position(front: Front) -> None:
    table = front.table("f", splits=[b"p"])
    left = KeyRange(b"", b"p")
    beat = run(_first(table, query(at(table.since), left)))
    assert isinstance(beat, Heartbeat)

    with pytest.raises(PositionLostError):
        run(_first(table, query(after(beat.token, left), ALL_KEYS)))


def test_a_table_without_a_stream_is_refused_with_how_to_enable_it(front: Front) -> None:
    table = front.table("f", retention=None)
    for call in (lambda: _first(table, query(at(1))), lambda: _partitions(table)):
        with pytest.raises(MisconfiguredError, match="--change-stream-retention-period=7d") as raised:
            run(call())
        assert not isinstance(raised.value, PositionLostError)


async def _partitions(table: FrontTable, profile: str = "") -> Sequence[KeyRange]:
    async with opened(table, profile) as stream:
        return await stream.initial_partitions()


def test_a_profile_of_many_clusters_is_refused_with_how_to_make_another(front: Front) -> None:
    table = front.table("f")
    front.instances.create_app_profile(
        {
            "parent": INSTANCE,
            "app_profile_id": f"any-{table.name[-8:]}",
            "app_profile": {"multi_cluster_routing_use_any": {}},
        }
    )
    for call in (
        lambda: _first(table, query(at(table.since)), f"any-{table.name[-8:]}"),
        lambda: _partitions(table, f"any-{table.name[-8:]}"),
    ):
        with pytest.raises(MisconfiguredError, match=r"app-profiles create .*--route-to=") as raised:
            run(call())
        assert not isinstance(raised.value, PositionLostError)


@pytest.mark.parametrize("status", ["INVALID_ARGUMENT", "OUT_OF_RANGE", "FAILED_PRECONDITION"])
@pytest.mark.parametrize(
    ("message", "cure"),
    [
        ("The app profile must use single-cluster routing", r"app-profiles create .*--route-to="),
        ("Change stream is not enabled on the table", "--change-stream-retention-period=7d"),
    ],
)
def test_a_profile_or_a_stream_that_is_refused_is_no_lost_position_whatever_the_code(
    whole_again: Front, status: str, message: str, cure: str
) -> None:
    table = whole_again.table("f")
    whole_again.control.add_fault(
        method="ReadChangeStream", status=status, message=message, containing=table.name.encode()
    )

    with pytest.raises(MisconfiguredError, match=cure) as raised:
        run(_first(table, query(at(table.since))))
    assert not isinstance(raised.value, PositionLostError)


@pytest.mark.parametrize(
    ("status", "cure"),
    [
        ("PERMISSION_DENIED", "roles/bigtable.reader"),
        ("NOT_FOUND", "there is no table .*t-"),
        ("UNIMPLEMENTED", "an emulator needs a front"),
    ],
)
def test_what_someone_has_to_act_on_names_the_cure(whole_again: Front, status: str, cure: str) -> None:
    table = whole_again.table("f")
    for method in ("ReadChangeStream", "GenerateInitialChangeStreamPartitions"):
        whole_again.control.add_fault(method=method, status=status, containing=table.name.encode())

    for call in (lambda: _first(table, query(at(table.since))), lambda: _partitions(table)):
        with pytest.raises(MisconfiguredError, match=cure):
            run(call())


@pytest.mark.parametrize("code", ["UNAVAILABLE", "ABORTED", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED", "UNKNOWN"])
def test_what_may_work_again_is_transient(whole_again: Front, code: str) -> None:
    assert code in grpc.StatusCode.__members__
    table = whole_again.table("f")
    for method in ("ReadChangeStream", "GenerateInitialChangeStreamPartitions"):
        whole_again.control.add_fault(method=method, status=code, containing=table.name.encode())

    for call in (lambda: _first(table, query(at(table.since))), lambda: _partitions(table)):
        with pytest.raises(TransientError, match=code):
            run(call())


def test_a_stream_that_says_nothing_for_three_heartbeats_is_given_up(
    whole_again: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change_stream, "_OPENING_SECONDS", 0.1)
    table = whole_again.table("f")
    whole_again.control.add_fault(method="ReadChangeStream", action="stall", containing=table.name.encode())

    with pytest.raises(TransientError, match="no record and no heartbeat in time"):
        run(_first(table, query(at(table.since))))


def test_garbage_collection_is_told_without_a_cluster(front: Front) -> None:
    table = front.table("f", rules={"f": {"max_num_versions": 1}})
    table.write(b"k", set_cell("f", b"q", b"old", 1_000))
    table.write(b"k", set_cell("f", b"q", b"new", 2_000))
    assert front.control.collect_garbage(table.name).cells == 1

    *_written, collected = to_the_end(table)

    assert (collected.kind, collected.source_cluster) == ("GARBAGE_COLLECTION", "")
    assert collected.entries == (DeleteCells("f", b"q", Microseconds(1_000), Microseconds(2_000)),)
