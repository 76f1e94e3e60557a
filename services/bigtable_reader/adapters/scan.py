"""Rows in key order, a page at a time: what a snapshot reads."""

from collections.abc import Sequence
from contextlib import aclosing
from typing import Any, Final

import grpc
from google.cloud.bigtable_v2.types import SampleRowKeysRequest, SampleRowKeysResponse

from services.bigtable_reader.adapters.connection import Channels, Method, Table
from services.bigtable_reader.adapters.errors import status_of
from services.bigtable_reader.adapters.row_chunks import READ_ROWS, BrokenRowError, RowChunks
from services.bigtable_reader.adapters.rows import CELL_BYTES, rows_filter
from services.bigtable_reader.core.images import RowCells
from services.bigtable_reader.core.records import KeyRange
from services.bigtable_reader.ports import Page, ReadRefusedError, Sample
from shared.contracts.errors import MisconfiguredError, TransientError

_SAMPLE: Final = Method("SampleRowKeys", SampleRowKeysRequest.pb(), SampleRowKeysResponse.pb())
_TIMEOUT: Final = 60.0
_BYTES: Final = 16 * 1024 * 1024


class BigtableScan:
    """The rows of one table, through the app profile of its change stream: the same cluster, which has the change."""

    def __init__(
        self,
        channels: Channels,
        table: Table,
        *,
        family_pattern: str | None = None,
        versions: int = 1,
        most_bytes: int = _BYTES,
    ) -> None:
        """``family_pattern``, ``versions``: as of `BigtableRows`.

        ``most_bytes``: of a page, less the message that goes beyond it.
        """
        self._channels = channels
        self._table = table
        self._filter = rows_filter(family_pattern, versions)
        self._most_bytes = most_bytes

    async def page(self, keys: KeyRange, most: int) -> Page:
        """Return the first rows of a range that exist, so many at most."""
        request = self._request(keys, most)
        request.filter.CopyFrom(self._filter)
        rows: list[tuple[bytes, RowCells]] = []
        last: bytes | None = None
        room = self._most_bytes
        chunks = RowChunks()
        answers = self._channels.stream(READ_ROWS, self._table, request, timeout=_TIMEOUT)
        try:
            async with aclosing(answers):
                async for answer in answers:
                    rows += chunks.take(answer.chunks)
                    last = rows[-1][0] if rows else last
                    room -= answer.ByteSize() + CELL_BYTES * len(answer.chunks)
                    # Without a row too it tells how far it is, where rows are many that have none of the families.
                    last = max(last or b"", bytes(answer.last_scanned_row_key)) or None
                    if room <= 0 and last is not None:  # else the first row is not whole
                        return Page(rows, last)
            chunks.end()
        except BrokenRowError as error:
            if last is None:
                raise TransientError(f"ReadRows on {self._table.name}: {error}") from error
            return Page(rows, last)
        except TransientError:
            if last is None:
                raise
            return Page(rows, last)  # what has come has come: the rest is asked for again
        except MisconfiguredError as error:
            if not _is_refused(error):
                raise
            if last is None:
                raise ReadRefusedError(str(error)) from error
            return Page(rows, last)
        return Page(rows, last if len(rows) == most else None)

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


def _is_refused(error: MisconfiguredError) -> bool:
    cause = error.__cause__
    return cause is not None and status_of(cause)[0] is grpc.StatusCode.FAILED_PRECONDITION
