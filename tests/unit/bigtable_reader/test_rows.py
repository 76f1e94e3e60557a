"""Rows that the service refuses to read are told from every other call that somebody has to fix."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, cast

import grpc
import pytest
from google.cloud.bigtable_v2.types import ReadRowsResponse
from grpc.aio import AioRpcError, Metadata

from services.bigtable_reader.adapters.bigtable.connection import BigtableChannels, Table
from services.bigtable_reader.adapters.bigtable.errors import bigtable_errors
from services.bigtable_reader.adapters.bigtable.row_chunks import READ_ROWS
from services.bigtable_reader.adapters.snapshot.scan import BigtableScan
from services.bigtable_reader.adapters.stream.rows import BigtableRows
from services.bigtable_reader.core.snapshot.snapshot import behind
from services.bigtable_reader.core.stream.records import ALL_KEYS, KeyRange
from services.bigtable_reader.ports import ReadRefusedError
from shared.contracts.errors import MisconfiguredError


class Refusing:
    """A connection on which every call fails with one status."""

    def __init__(self, code: grpc.StatusCode) -> None:
        self._code = code

    async def stream(self, *_call: object, **_options: object) -> AsyncGenerator[Any, None]:
        """Fail."""
        yield READ_ROWS.response()
        with bigtable_errors("ReadRows"):
            raise AioRpcError(self._code, Metadata(), Metadata(), "the row is too large", "")


@pytest.mark.parametrize(
    ("code", "is_of_the_rows"),
    [(grpc.StatusCode.FAILED_PRECONDITION, True), (grpc.StatusCode.PERMISSION_DENIED, False)],
)
def test_only_a_precondition_may_be_of_the_rows_that_were_asked_for(
    code: grpc.StatusCode, is_of_the_rows: bool
) -> None:
    rows = BigtableRows(cast("BigtableChannels", Refusing(code)), Table("projects/p/instances/i", "t"))
    with pytest.raises(MisconfiguredError, match="the row is too large") as raised:
        asyncio.run(rows.read([b"a"]))
    assert isinstance(raised.value, ReadRefusedError) is is_of_the_rows


class Streaming:
    """A connection on which every call reads one row of many answers; ``most`` of them were open at once."""

    def __init__(self) -> None:
        self.large_row = asyncio.Lock()
        self.reading = self.most = 0

    async def stream(self, *_call: Any, **_options: object) -> AsyncGenerator[Any, None]:
        """Yield the row, in answers that together are larger than a reading may be."""
        request = _call[2]
        large = False
        try:
            for number in range(6):
                await asyncio.sleep(0)
                answer = ReadRowsResponse.pb()()
                cell = answer.chunks.add(timestamp_micros=1, value=bytes(600), commit_row=number == 5)
                cell.row_key = b"" if number else request.rows.row_keys[0]
                cell.family_name.value, cell.qualifier.value = "f", b"%d" % number
                yield READ_ROWS.response.FromString(answer.SerializeToString())
                if number == 2:  # what was read is more than there is room for
                    large = True
                    self.reading += 1
                    self.most = max(self.most, self.reading)
        finally:
            self.reading -= large


async def test_rows_that_take_more_memory_than_a_reading_may_are_read_one_at_a_time() -> None:
    channels = Streaming()
    rows = BigtableRows(cast("BigtableChannels", channels), Table("projects/p/instances/i", "t"), most_bytes=2_000)
    found = await asyncio.gather(*(rows.read([b"row %d" % number]) for number in range(5)))
    assert [len(cast("Any", one.found)[b"row %d" % number]["f"]) for number, one in enumerate(found)] == [6] * 5
    assert channels.most == 1


class Scanned:
    """A connection to a table of 100 rows, each an answer of its own; counts calls that are not read to their end."""

    def __init__(self) -> None:
        self.large_row = asyncio.Lock()
        self.calls = self.cancelled = 0

    async def stream(self, *_call: Any, **_options: object) -> AsyncGenerator[Any, None]:
        """Yield rows from the first key that is asked for, as many as are asked for."""
        request = _call[2]
        self.calls += 1
        first = next(n for n in range(101) if b"%03d" % n >= request.rows.row_ranges[0].start_key_closed)
        try:
            for number in range(first, min(100, first + request.rows_limit)):
                answer = ReadRowsResponse.pb()()
                cell = answer.chunks.add(timestamp_micros=1, value=bytes(1_000), commit_row=True)
                cell.row_key, cell.family_name.value, cell.qualifier.value = b"%03d" % number, "f", b"q"
                yield READ_ROWS.response.FromString(answer.SerializeToString())
        except GeneratorExit:
            self.cancelled += 1
            raise


async def test_a_scan_learns_how_many_rows_fill_a_page_and_cancels_no_call_after_the_first() -> None:
    channels = Scanned()
    scan = BigtableScan(cast("BigtableChannels", channels), Table("projects/p/instances/i", "t"), most_bytes=10_000)
    found: list[bytes] = []
    left: KeyRange | None = ALL_KEYS
    while left is not None:
        page = await scan.page(left, 2_000)
        found += [key for key, _row in page.rows]
        left = None if page.read_to is None else behind(left, page.read_to)
    assert found == [b"%03d" % number for number in range(100)]
    assert (channels.cancelled, channels.calls < 20) == (1, True)
