"""Rows as they are now, by their keys."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final

from services.bigtable_reader.adapters.connection import Channels, Table
from services.bigtable_reader.adapters.row_chunks import READ_ROWS, read_rows
from services.bigtable_reader.core.images import CellVersion, RowCells

_TIMEOUT: Final = 60.0
_KEYS: Final = 1_000
_KEY_BYTES: Final = 256 * 1024
"""Of keys in a request, of which Bigtable takes half a megabyte."""


class BigtableRows:
    """The rows of one table, through the app profile of its change stream: the same cluster, which has the change."""

    def __init__(
        self, channels: Channels, table: Table, *, family_pattern: str | None = None, versions: int = 1
    ) -> None:
        """``family_pattern``: a regular expression (RE2) of the families to read, None for all; see `Watched`."""
        self._channels = channels
        self._table = table
        self._filter = _filter(family_pattern, versions)

    async def read(self, row_keys: Sequence[bytes]) -> Mapping[bytes, RowCells]:
        """Return those of the rows that exist and have a cell that is asked for. TransientError, MisconfiguredError."""
        found: dict[bytes, RowCells] = {}
        for keys in portions(sorted(set(row_keys))):
            found.update(await self._read(keys))
        return found

    async def _read(self, row_keys: Sequence[bytes]) -> Mapping[bytes, RowCells]:
        request = READ_ROWS.request(table_name=self._table.name, app_profile_id=self._table.app_profile)
        request.rows.row_keys.extend(row_keys)
        request.filter.CopyFrom(self._filter)
        found: dict[bytes, RowCells] = {}
        async with aclosing(read_rows(self._channels, self._table, request, _TIMEOUT)) as rows:
            async for row_key, cells in rows:
                families: RowCells = {}
                for cell in cells:
                    versions = families.setdefault(cell.family, {}).setdefault(cell.qualifier, [])
                    versions.append(CellVersion(cell.timestamp, cell.value))
                found[row_key] = families
        return found


def _filter(family_pattern: str | None, versions: int) -> Any:
    newest = READ_ROWS.request().filter
    newest.cells_per_column_limit_filter = versions
    if family_pattern is None:
        return newest
    both = READ_ROWS.request().filter
    both.chain.filters.add(family_name_regex_filter=family_pattern)
    both.chain.filters.add().CopyFrom(newest)
    return both


def portions(row_keys: Sequence[bytes], most: int = _KEYS, most_bytes: int = _KEY_BYTES) -> Iterator[Sequence[bytes]]:
    """Yield row keys, as many at a time as one request may name."""
    portion: list[bytes] = []
    size = 0
    for key in row_keys:
        if portion and (len(portion) == most or size + len(key) > most_bytes):
            yield portion
            portion, size = [], 0
        portion.append(key)
        size += len(key)
    if portion:
        yield portion
