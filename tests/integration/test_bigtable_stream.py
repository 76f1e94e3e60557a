"""The change stream as the reader sees it, from the front before the real emulator: records, positions, breaks."""

import asyncio
from contextlib import aclosing

import pytest

from services.bigtable_reader.adapters.stream.change_stream import BigtableChangeStream
from services.bigtable_reader.core.stream.records import (
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
    SetCell,
    StreamRecord,
)
from shared.contracts.errors import TransientError
from tests.integration.bigtable_front import (
    CLUSTER,
    Front,
    add_to_cell,
    delete_column,
    delete_family,
    delete_row,
    set_cell,
)
from tests.integration.bigtable_streams import (
    LARGE,
    TIMEOUT,
    after,
    at,
    changes,
    opened,
    query,
    read_until,
    run,
    to_the_end,
)
from tests.integration.bigtable_streams import whole_again as whole_again  # noqa: PLC0414  a fixture

pytestmark = pytest.mark.integration


def test_every_kind_of_entry_is_read_and_garbage_collection_is_distinguished(front: Front) -> None:
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
    bare = to_the_end(table, keep="names")
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
        async with asyncio.timeout(TIMEOUT), opened(table) as stream:
            while len(found) < len(whole):
                try:
                    async with aclosing(stream.read(query(position))) as portions:
                        async for records in portions:
                            for record in records:
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


def test_a_record_of_garbage_collection_has_no_cluster(front: Front) -> None:
    table = front.table("f", rules={"f": {"max_num_versions": 1}})
    table.write(b"k", set_cell("f", b"q", b"old", 1_000))
    table.write(b"k", set_cell("f", b"q", b"new", 2_000))
    assert front.control.collect_garbage(table.name).cells == 1

    *_written, collected = to_the_end(table)

    assert (collected.kind, collected.source_cluster) == ("GARBAGE_COLLECTION", "")
    assert collected.entries == (DeleteCells("f", b"q", Microseconds(1_000), Microseconds(2_000)),)
