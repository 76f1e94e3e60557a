"""Rows read in key order from the real emulator, through the front, page by page: what a snapshot reads."""

import asyncio
import base64
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import grpc
import pytest
from google.cloud.bigtable_v2.types import FeatureFlags, ReadRowsResponse

from services.bigtable_reader.adapters.bigtable.connection import BigtableChannels, Table
from services.bigtable_reader.adapters.bigtable.row_chunks import READ_ROWS
from services.bigtable_reader.adapters.snapshot.scan import BigtableScan
from services.bigtable_reader.adapters.stream.rows import BigtableRows
from services.bigtable_reader.core.changes.filters import Watched
from services.bigtable_reader.core.changes.images import CellVersion, TooLargeRow
from services.bigtable_reader.core.snapshot.snapshot import behind
from services.bigtable_reader.core.stream.records import ALL_KEYS, KeyRange
from shared.contracts.bigtable_options import BigtableOptions
from shared.contracts.errors import MisconfiguredError
from tests.integration.bigtable_front import INSTANCE, Front, FrontTable, set_cell

pytestmark = pytest.mark.integration
T = TypeVar("T")


def scanning(
    table: FrontTable,
    call: Callable[[BigtableScan], Awaitable[T]],
    *,
    families: Sequence[str] = ("*",),
    most_bytes: int = 1 << 20,
) -> T:
    async def asked() -> T:
        channels = BigtableChannels(table.front.address)
        try:
            named = Table(INSTANCE, table.name.rpartition("/")[2])
            return await call(
                BigtableScan(
                    channels,
                    named,
                    Watched(BigtableOptions(families=tuple(families), versions=2)),
                    most_bytes=most_bytes,
                    largest_row=900_000,
                )
            )
        finally:
            await channels.close()

    return asyncio.run(asked())


async def pages(scan: BigtableScan, keys: KeyRange, most: int) -> list[list[bytes]]:
    found = []
    left: KeyRange | None = keys
    while left is not None:
        page = await scan.page(left, most)
        found.append([key for key, _cells in page.rows])
        left = None if page.read_to is None else behind(left, page.read_to)
    return found


def test_pages_have_all_rows_of_a_range_in_order_and_none_twice(front: Front) -> None:
    table = front.table("f", "g")
    keys = [b"", b"a", b"a\0", b"b", b"\xff", b"\xff\xff\0"][1:]
    for key in keys:
        table.write(key, set_cell("f", b"q", key, 2_000), set_cell("f", b"q", b"older", 1_000), set_cell("g", b"", b""))

    assert scanning(table, lambda scan: pages(scan, ALL_KEYS, 2)) == [keys[:2], keys[2:4], keys[4:]]
    assert scanning(table, lambda scan: pages(scan, KeyRange(b"a\0", b"\xff"), 9)) == [[b"a\0", b"b"]]
    assert scanning(table, lambda scan: pages(scan, KeyRange(b"b\0", b"c"), 9)) == [[]]
    one = scanning(table, lambda scan: scan.page(ALL_KEYS, 1))
    assert one.read_to == b"a"
    ((key, cells),) = one.rows
    assert isinstance(cells, dict)
    assert (key, cells["f"]) == (b"a", {b"q": [CellVersion(2_000, b"a"), CellVersion(1_000, b"older")]})


def test_a_page_has_no_more_bytes_than_there_is_room_for_and_rows_of_other_families_are_not_there(front: Front) -> None:
    table = front.table("f", "g")
    for number in range(30):
        family = "g" if 10 <= number < 20 else "f"
        table.write(b"%02d" % number, set_cell(family, b"q", bytes(100_000)))

    found = scanning(table, lambda scan: pages(scan, ALL_KEYS, 500), families="f", most_bytes=300_000)
    assert [key for page in found for key in page] == [b"%02d" % number for number in [*range(10), *range(20, 30)]]
    assert len(found) > 3
    assert scanning(table, lambda scan: scan.first_key(KeyRange(b"1", b"")), families="f") == b"10"
    assert scanning(table, lambda scan: scan.first_key(KeyRange(b"3", b"")), families="f") is None


def test_a_row_that_no_message_can_hold_is_named_and_the_next_page_goes_on_behind_it(front: Front) -> None:
    table = front.table("f")
    for number, size in enumerate((10, 2_000_000, 10)):
        table.write(b"%d" % number, set_cell("f", b"q", bytes(size)))

    found = scanning(table, lambda scan: pages(scan, ALL_KEYS, 9))
    assert [key for page in found for key in page] == [b"0", b"1", b"2"]
    page = scanning(table, lambda scan: scan.page(KeyRange(b"1", b"2"), 1))
    assert [type(row) for _key, row in page.rows] == [TooLargeRow]


def test_samples_end_with_the_size_of_the_table(front: Front) -> None:
    table = front.table("f")
    for number in range(200):
        table.write(b"%03d" % number, set_cell("f", b"q", bytes(1_000)))

    samples = scanning(table, lambda scan: scan.samples())
    assert [one.row_key for one in samples] == sorted(one.row_key for one in samples if one.row_key) + [
        one.row_key for one in samples if not one.row_key
    ]
    assert samples[-1].bytes_before > 0


def test_a_table_that_is_not_there_is_a_mistake(front: Front) -> None:
    with pytest.raises(MisconfiguredError, match="NOT_FOUND"):
        scanning(FrontTable(front, f"{INSTANCE}/tables/nothing"), lambda scan: scan.page(ALL_KEYS, 1))


@asynccontextmanager
async def served(answer: Callable[[Any, Any], AsyncIterator[Any]]) -> AsyncIterator[BigtableChannels]:
    """Give connections to a server whose ReadRows answers so."""
    server = grpc.aio.server()
    method = grpc.unary_stream_rpc_method_handler(
        answer, READ_ROWS.request.FromString, ReadRowsResponse.pb().SerializeToString
    )
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("google.bigtable.v2.Bigtable", {"ReadRows": method}),)
    )
    channels = BigtableChannels(f"localhost:{server.add_insecure_port('localhost:0')}")
    await server.start()
    try:
        yield channels
    finally:
        await channels.close()
        await server.stop(None)


async def test_a_page_of_rows_that_have_none_of_the_families_ends_where_the_service_says_that_it_is() -> None:
    """google/bigtable/v2/feature_flags.proto: only a client that asks for it gets a last scanned row."""

    async def answer(request: Any, context: Any) -> AsyncIterator[Any]:
        metadata = dict(context.invocation_metadata())
        flags = FeatureFlags.deserialize(base64.urlsafe_b64decode(metadata.get("bigtable-features", "")))
        if flags.last_scanned_row_responses:
            yield ReadRowsResponse.pb()(last_scanned_row_key=b"k07")
        await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "")

    async with served(answer) as channels:
        page = await BigtableScan(channels, Table(INSTANCE, "t")).page(KeyRange(b"k", b"l"), 100)

    assert (page.rows, page.read_to) == ([], b"k07")


async def test_rows_are_read_although_a_watched_family_is_not_in_the_table() -> None:
    """googleapis/java-bigtable #32: Bigtable refuses a filter that names a family which is not there."""
    asked = []

    async def answer(request: Any, context: Any) -> AsyncIterator[Any]:
        asked.append(request.filter)
        if request.filter.HasField("chain"):
            words = f"Error while reading table '{request.table_name}' : Requested column family not found"
            await context.abort(grpc.StatusCode.NOT_FOUND, words)
        place = {"family_name": {"value": "g"}, "qualifier": {"value": b"q"}}
        yield ReadRowsResponse.pb()(chunks=[{"row_key": b"k", **place, "value": b"v", "commit_row": True}])

    async with served(answer) as channels:
        watched, table = Watched(BigtableOptions(families=("f",))), Table(INSTANCE, "t")
        rows, scan = BigtableRows(channels, table, watched), BigtableScan(channels, table, watched)
        found = await asyncio.gather(rows.read([b"k"]), rows.read([b"k"]))
        page = await scan.page(ALL_KEYS, 1)
        again = await scan.page(ALL_KEYS, 1), await rows.read([b"k"])

    assert [found[0], found[1], page] == [again[1], again[1], again[0]]
    assert [(key, cells) for key, cells in page.rows] == [(b"k", {"g": {b"q": []}})]
    assert [one.HasField("chain") for one in asked].count(True) == 3
    assert not any(one.HasField("chain") for one in asked[-2:])
