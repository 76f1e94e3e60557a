"""A row as it was read back."""

import msgspec


class CellVersion(msgspec.Struct, frozen=True, gc=False):
    """One version of a cell; microseconds since 1970-01-01 in UTC."""

    timestamp: int
    value: bytes


RowCells = dict[str, dict[bytes, list[CellVersion]]]
"""Family, qualifier, and the versions that were asked for, newest first."""
