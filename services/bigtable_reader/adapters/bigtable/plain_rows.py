"""Rows of the usual kind, made the texts of their images right from chunks, without an object for each cell.

Such a row begins and ends in the chunks at hand, names each of its columns once and in order, and has nothing but whole
values, of families whose JSON has them as base64. Any other row is left to `row_chunks.py`, with all that comes behind
it.
"""

from binascii import b2a_base64
from collections.abc import Iterable
from typing import Any, Final

from services.bigtable_reader.adapters.bigtable.row_messages import NO_MESSAGE, family_of, qualifier_of
from services.bigtable_reader.core.changes.images import ImageMaker, PlainRow, text_of_members

_REMEMBERED: Final = 1_000  # of each family
_SHORT: Final = 100  # bytes of a qualifier that is worth remembering

_Members = dict[bytes, tuple[bytes, bytes]]
"""Of a family, by their qualifiers as they are on the wire: the qualifier, and what the member begins with."""


class PlainRows:
    """Makes such rows of one table, where images may be made of them (`ImageMaker.has_plain_rows`)."""

    def __init__(self, images: ImageMaker) -> None:
        self._images = images
        self._families: dict[bytes, tuple[str, _Members]] = {}
        """By their names as they are on the wire."""

    def take(self, chunks: Iterable[Any], last: bytes) -> tuple[list[tuple[bytes, PlainRow]], int]:
        """Return the rows that some chunks begin with, and how many chunks these are. ``last``: the row key before."""
        rows: list[tuple[bytes, PlainRow]] = []
        taken = 0
        row_key = family_name = qualifier = b""
        family, members, parts, texts = "", _Members(), list[bytes](), dict[str, str]()
        for number, chunk in enumerate(chunks, 1):
            if chunk.reset_row or chunk.value_size:
                break
            begun = chunk.row_key
            if begun and begun != row_key:
                if row_key or begun <= last or chunk.family_name == NO_MESSAGE:
                    break
                row_key, family_name, parts, texts = begun, NO_MESSAGE, [], {}
            elif not row_key:
                break
            named = chunk.family_name
            if named != NO_MESSAGE and named != family_name:
                if parts:
                    texts[family] = text_of_members(parts)
                family_name, parts = named, []
                family, members = self._families.get(named) or self._family(named)
                if family in texts:
                    break
            column = chunk.qualifier
            member = members.get(column) or self._member(family, members, column)
            if member is None:
                break
            before, (qualifier, begin) = qualifier, member
            if parts and qualifier <= before:
                break
            parts.append(begin)
            parts.append(b2a_base64(chunk.value, newline=False))
            if chunk.commit_row:
                if (key := self._images.key(row_key)) is None:
                    break
                texts[family] = text_of_members(parts)
                rows.append((row_key, PlainRow(key, texts)))
                taken, last, row_key = number, row_key, b""
        return rows, taken

    def _family(self, family_name: bytes) -> tuple[str, _Members]:
        found = self._families[family_name] = family_of(family_name), {}
        return found

    def _member(self, family: str, members: _Members, column: bytes) -> tuple[bytes, bytes] | None:
        """Return a member's qualifier and beginning; None where the chunk names none, or it is not a plain one."""
        if column == NO_MESSAGE:
            return None
        qualifier = qualifier_of(column)
        begin = self._images.plain_member(family, qualifier)
        if begin is None:
            return None
        if len(members) < _REMEMBERED and len(qualifier) <= _SHORT:
            members[column] = qualifier, begin
        return qualifier, begin


def plain_rows(images: ImageMaker | None) -> PlainRows | None:
    """Return what makes plain rows; None where no image is made of them, or none may be."""
    return None if images is None or not images.has_plain_rows else PlainRows(images)
