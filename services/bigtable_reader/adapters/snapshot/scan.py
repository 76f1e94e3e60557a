"""Rows in key order, a page at a time: what a snapshot reads."""

from collections.abc import Sequence
from contextlib import AsyncExitStack, aclosing
from typing import Any, Final

import grpc
from google.cloud.bigtable_v2.types import SampleRowKeysRequest, SampleRowKeysResponse

from services.bigtable_reader.adapters.bigtable.connection import BigtableChannels, Method, Table
from services.bigtable_reader.adapters.bigtable.plain_rows import plain_rows
from services.bigtable_reader.adapters.bigtable.row_chunks import READ_ROWS, BrokenRowError, RowChunks
from services.bigtable_reader.adapters.stream.rows import CELL_BYTES, ArrivingRows, filter_instead, rows_filter
from services.bigtable_reader.core.changes.filters import Watched
from services.bigtable_reader.core.changes.images import ImageMaker, Row
from services.bigtable_reader.core.stream.records import KeyRange
from services.bigtable_reader.ports import ReadRefusedError, Sample, ScannedPage
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.pubsub.errors import status_of
from shared.pubsub.packer import REQUEST_BYTES

_SAMPLE: Final = Method("SampleRowKeys", SampleRowKeysRequest.pb(), SampleRowKeysResponse.pb())
_TIMEOUT: Final = 60.0
_BYTES: Final = 16 * 1024 * 1024
_FULL: Final = 0.75
"""The part of a page's bytes that its rows take if they are like those before."""


class BigtableScan:
    """The rows of one table, through the app profile of its change stream: the same cluster, which has the change."""

    def __init__(
        self,
        channels: BigtableChannels,
        table: Table,
        watched: Watched | None = None,
        images: ImageMaker | None = None,
        *,
        most_bytes: int = _BYTES,
        largest_row: int = REQUEST_BYTES,
    ) -> None:
        """``watched`` and ``images``: as of `BigtableRows`. ``largest_row``: bytes of an image.

        ``most_bytes``: of a page, less the message that goes beyond it.
        """
        self._channels = channels
        self._table = table
        self._watched = watched
        self._plain = plain_rows(images)
        self._filter = rows_filter(watched)
        self._most_bytes = most_bytes
        self._row_bytes = 0.0
        """Of a row of the last page, on average: the next page asks for as many rows as fit, and is not cancelled."""
        self._largest_row = largest_row

    async def page(self, keys: KeyRange, most: int) -> ScannedPage:
        """Return the first rows of a range that exist, so many at most."""
        most = max(1, min(most, int(self._most_bytes * _FULL / max(1.0, self._row_bytes))))
        request, asked = self._request(keys, most), self._filter
        request.filter.CopyFrom(asked)
        rows: list[tuple[bytes, Row]] = []
        last: bytes | None = None
        room = self._most_bytes
        arriving = ArrivingRows(self._watched, self._largest_row, self._plain)
        answers = self._channels.stream(READ_ROWS, self._table, request, timeout=_TIMEOUT)
        try:
            async with AsyncExitStack() as resources:
                await resources.enter_async_context(aclosing(answers))
                async for answer in answers:
                    rows += await arriving.take(answer)
                    last = rows[-1][0] if rows else last
                    if arriving.stopped:
                        return ScannedPage(rows, last)
                    had_room = room > 0
                    room -= arriving.bytes_taken + CELL_BYTES * len(answer.chunks)
                    if rows:
                        self._row_bytes = (self._most_bytes - room) / len(rows)
                    # Without a row too it reports how far it is, where rows are many that have none of the families.
                    last = max(last or b"", bytes(answer.last_scanned_row_key)) or None
                    if room <= 0 and last is not None:
                        return ScannedPage(rows, last)
                    if room <= 0 and had_room:  # the first row is not whole
                        await resources.enter_async_context(self._channels.large_row)
            arriving.end()
        except BrokenRowError as error:
            if last is None:
                raise TransientError(f"ReadRows on {self._table.name}: {error}") from error
            return ScannedPage(rows, last)
        except TransientError:
            if last is None:
                raise
            return ScannedPage(rows, last)  # what has come has come: the rest is asked for again
        except MisconfiguredError as error:
            if (instead := filter_instead(asked, error)) is not None:
                self._filter = instead
                return await self.page(keys, most)
            if status_of(error.__cause__)[0] is not grpc.StatusCode.FAILED_PRECONDITION:
                raise
            if last is None:
                raise ReadRefusedError(error.code, error.message) from error
            return ScannedPage(rows, last)
        return ScannedPage(rows, last if len(rows) == most else None)

    async def first_key(self, keys: KeyRange) -> bytes | None:
        """Return the key of the first row of a range, however large it is; None where there is none."""
        request = self._request(keys, 1)
        filters = request.filter.chain.filters
        filters.add(cells_per_row_limit_filter=1)
        filters.add(strip_value_transformer=True)
        chunks = RowChunks()
        async with aclosing(self._channels.stream(READ_ROWS, self._table, request, timeout=_TIMEOUT)) as answers:
            async for answer in answers:
                for row_key, _cells in chunks.take(answer.chunks):
                    return row_key
        return None

    async def samples(self) -> Sequence[Sample]:
        """Return keys that cut the table into parts of about the same size, in order."""
        request = _SAMPLE.request(table_name=self._table.name, app_profile_id=self._table.app_profile)
        async with aclosing(self._channels.stream(_SAMPLE, self._table, request, timeout=_TIMEOUT)) as answers:
            return [Sample(bytes(answer.row_key), answer.offset_bytes) async for answer in answers]

    def _request(self, keys: KeyRange, most: int) -> Any:
        request = READ_ROWS.request(
            table_name=self._table.name, app_profile_id=self._table.app_profile, rows_limit=most
        )
        rows = request.rows.row_ranges.add(start_key_closed=keys.start)
        if keys.end:
            rows.end_key_open = keys.end
        return request
