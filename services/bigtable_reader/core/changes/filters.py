"""Which rows, families and entries are of interest."""

import re
from collections.abc import Callable, Sequence
from typing import Final

from services.bigtable_reader.core.stream.records import DataChange, DeleteFamily, Entry, UnknownEntry
from shared.contracts.bigtable_options import BigtableOptions
from shared.contracts.option_values import matches_any

_REMEMBERED: Final = 10_000


class Watched:
    """What is watched of a table.

    For an image a family is, or is not: a row is there while it has a cell in a watched family, whichever its columns.
    """

    def __init__(self, options: BigtableOptions) -> None:
        self._options = options
        self._prefixes = tuple(prefix.encode() for prefix in options.key_prefixes)
        self._of_cells = frozenset(column.family for column in options.cell_columns)
        self._excluded = frozenset(options.excluded_columns)
        self._with_garbage = options.garbage_collection == "include"
        self._as_json: dict[str, bool] = {}
        self._declared = frozenset((column.family, column.qualifier) for column in options.cell_columns)
        self._everything = options.families == ("*",) and not options.excluded_families and not self._excluded

    @property
    def chooses_entries(self) -> bool:
        """Return whether it matters which entries a record has."""
        return not self._everything

    def row(self, row_key: bytes) -> bool:
        """Return whether a row is watched."""
        return not self._prefixes or row_key.startswith(self._prefixes)

    def family(self, name: str) -> bool:
        """Return whether a family is watched: as a JSON column, or for a column that is declared of a cell of it."""
        return name in self._of_cells or self.as_json(name)

    def as_json(self, family: str) -> bool:
        """Return whether a family is a JSON column."""
        known = self._as_json.get(family)
        if known is None:
            options = self._options
            named = family in options.family_columns or matches_any(options.families, family)
            known = named and not matches_any(options.excluded_families, family)
            if len(self._as_json) < _REMEMBERED:
                self._as_json[family] = known
        return known

    @property
    def versions(self) -> int:
        """Return how many versions of a cell are read."""
        return self._options.versions

    @property
    def versions_kept(self) -> Callable[[str, bytes], int | None] | None:
        """Return `versions_in_image`; None where that is None of every cell."""
        return None if self._everything and not self._declared else self.versions_in_image

    def versions_in_image(self, family: str, qualifier: bytes) -> int | None:
        """Return how many versions of a cell an image holds: 0 where it is left out, None for all that are read."""
        cell = family, qualifier
        if cell in self._declared:
            return 1
        return 0 if cell in self._excluded or not self.as_json(family) else None

    def calls_for_image(self, record: DataChange) -> bool:
        """Return whether a row is to be read back for a record; for garbage collection always, if it is watched."""
        if not self.row(record.row_key):
            return False
        if record.kind == "GARBAGE_COLLECTION" or self._everything:
            return True
        return any(isinstance(entry, UnknownEntry) or self.family(entry.family) for entry in record.entries)

    def entries(self, record: DataChange) -> Sequence[tuple[int, Entry]]:
        """Return the entries that a change log is to have, each with its place in the record."""
        if record.kind == "GARBAGE_COLLECTION" and not self._with_garbage:
            return ()
        if not self.row(record.row_key):
            return ()
        if self._everything:
            return list(enumerate(record.entries))
        return [(index, entry) for index, entry in enumerate(record.entries) if self._entry(entry)]

    def family_pattern(self) -> str | None:
        """Return a regular expression (RE2) of which every watched family is a full match; None if all may be.

        It may let in excluded ones, for RE2 cannot say no.
        """
        if any(pattern == "*" or "[" in pattern for pattern in self._options.families):
            return None
        patterns = [_expression(pattern) for pattern in self._options.families]
        named = [re.escape(name) for name in sorted(self._of_cells | self._options.family_columns.keys())]
        return "|".join(patterns + named) or None

    def _entry(self, entry: Entry) -> bool:
        if isinstance(entry, UnknownEntry):
            return True
        if not self.family(entry.family):
            return False
        return isinstance(entry, DeleteFamily) or (entry.family, entry.qualifier) not in self._excluded


def _expression(pattern: str) -> str:
    """Return what a shell pattern without brackets means. No family's name has a line break, so that `*` is `.*`."""
    return "".join({"*": ".*", "?": "."}.get(letter) or re.escape(letter) for letter in pattern)
