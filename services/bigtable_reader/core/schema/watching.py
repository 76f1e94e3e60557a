"""What a tables file lets into the mirror: which rows, which columns, in which form; and what another one lets in more.

Readers with another file drop what theirs leaves out, and publish rows without it, and no record of that comes again.
So what is watched is kept beside the positions. A reader that watches more than was kept finds that rows are missing;
one that watches less misses nothing.
"""

import hashlib
from collections.abc import Collection, Sequence

import msgspec

from shared.contracts.bigtable_options import BigtableOptions, CellColumn, FamilyColumn
from shared.contracts.errors import MisconfiguredError
from shared.contracts.option_values import matches_any
from shared.contracts.tables_file import Mode


class DeclaredColumn(msgspec.Struct, frozen=True, array_like=True, order=True):
    """A column that is declared. ``of``: the cell or the family that it holds, and how."""

    name: str
    family: str
    of: str
    whole: bool
    """Whether it holds the family, and not one cell of it."""


class Watching(msgspec.Struct, frozen=True, kw_only=True):
    """What is watched. ``mirrored``: there is a mirror; without one nothing of it counts."""

    mirrored: bool = True
    row_key: str = "STRING"
    key_prefixes: tuple[str, ...] = ()
    families: tuple[str, ...] = ("*",)
    excluded_families: tuple[str, ...] = ()
    excluded_columns: tuple[tuple[str, bytes], ...] = ()
    columns: tuple[DeclaredColumn, ...] = ()
    values: str = "base64"
    qualifiers: str = "text"
    versions: int = 1
    cell_timestamps: bool = False

    @property
    def digest(self) -> str:
        """Return what identifies it."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:16]

    def as_json(self, family: str) -> bool:
        """Return whether a family is a JSON column."""
        named = any(column.whole and column.family == family for column in self.columns)
        return (named or matches_any(self.families, family)) and not matches_any(self.excluded_families, family)


def watching_of(mode: Mode, options: BigtableOptions) -> Watching:
    """Return what is watched by these options."""
    if mode == "history":
        return Watching(mirrored=False)
    return Watching(
        row_key=options.row_key,
        key_prefixes=tuple(sorted(options.key_prefixes)),
        families=tuple(sorted(options.families)),
        excluded_families=tuple(sorted(options.excluded_families)),
        excluded_columns=tuple(sorted(options.excluded_columns)),
        columns=tuple(sorted(map(_column, options.columns))),
        values=options.values,
        qualifiers=options.qualifiers,
        versions=options.versions,
        cell_timestamps=options.cell_timestamps,
    )


def watched_more(mine: Watching, kept: Watching, families: Collection[str]) -> Sequence[str]:
    """Return which options let into the mirror what another file leaves out, of the families that the table has."""
    if not mine.mirrored:
        return ()
    if not kept.mirrored:
        return ("mode",)
    cells = set(kept.excluded_columns) - set(mine.excluded_columns)
    found = {
        "row_key": mine.row_key != kept.row_key,
        "key_prefixes": not all(prefix.startswith(kept.key_prefixes or "") for prefix in mine.key_prefixes or ("",)),
        "families": any(mine.as_json(family) and not kept.as_json(family) for family in families),
        "excluded_columns": any(mine.as_json(family) for family, _qualifier in cells),
        "columns": bool(set(mine.columns) - set(kept.columns))
        or any(mine.as_json(column.family) for column in set(kept.columns) - set(mine.columns)),
        "values": mine.values != kept.values,
        "qualifiers": mine.qualifiers != kept.qualifiers,
        "versions": mine.versions > kept.versions,
        "cell_timestamps": mine.cell_timestamps != kept.cell_timestamps,
    }
    return tuple(option for option, more in found.items() if more)


def differing(one: Watching, other: Watching) -> Sequence[str]:
    """Return the options by which two differ."""
    if one.mirrored != other.mirrored:
        return ("mode",)
    return [name for name in Watching.__struct_fields__ if getattr(one, name) != getattr(other, name)]


def check_the_same_is_watched(mine: Watching, kept: Watching | None) -> None:
    """Raise MisconfiguredError where rows are asked for that readers with another file would not read."""
    if kept is None or not mine.mirrored or mine == kept:
        return
    differ = ", ".join(differing(mine, kept))
    raise MisconfiguredError(
        "tables-file-differs",
        f"this tables file watches something else than that of the reader that inspected the table last ({differ}), "
        "so no reader would read what this command asks for: give the command the readers' tables file, or start them "
        "with this one first",
    )


def _column(column: CellColumn | FamilyColumn) -> DeclaredColumn:
    match column:
        case CellColumn():
            of = f"{column.qualifier!r} {column.type} {column.encoding} {column.timestamp}"
            return DeclaredColumn(column.name, column.family, of, whole=False)
        case FamilyColumn():
            return DeclaredColumn(column.name, column.family, f"{column.values} {column.qualifiers}", whole=True)
