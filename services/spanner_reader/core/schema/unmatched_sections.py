"""Where the tables file and the watched tables do not fit together: what names nothing, and what cannot be."""

import difflib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from services.spanner_reader.core.schema.shapes import TableShape
from shared.contracts.tables_file import TablesFile, nearest

_ALIKE: Final = 0.75
"""How similar two names are, by difflib's ratio, if one is probably mistyped."""


@dataclass(frozen=True, slots=True)
class UnmatchedSection:
    """What does not fit, in which section or list of the file, and what fixes it.

    ``refused``: nothing of the table could be applied as it is; else it works, but hardly as it was meant.
    """

    section: str
    why: str
    fix: str
    refused: bool = False


def unmatched_sections(file: TablesFile, tables: Mapping[str, TableShape]) -> Iterator[UnmatchedSection]:
    """Yield what does not fit to the tables that the stream watches, by their names as in records."""
    yield from _that_name_nothing(file, tables.keys())
    for name, table in tables.items():
        if file.included(name):
            yield from _of_columns(file, name, table)


def _that_name_nothing(file: TablesFile, watched: Collection[str]) -> Iterator[UnmatchedSection]:
    """Yield names that are probably mistyped: others are tables of another reader that shares the file."""
    if watched and not any(map(file.included, watched)):
        yield UnmatchedSection(
            "include",
            f"leaves out every table that the stream watches: {', '.join(sorted(watched))}",
            "correct include and exclude in the tables file, or name another file with TABLES_FILE",
        )
        return
    for section, name in file.naming_none_of(watched):
        meant = _meant(name, watched)
        if meant is not None:
            yield UnmatchedSection(
                section,
                f"{name} names no table that the stream watches",
                f"the nearest one that it watches is {meant}; names are compared letter by letter, schema and case too",
            )


def _meant(name: str, watched: Collection[str]) -> str | None:
    """Return the watched table that a name or pattern is nearly, or None."""
    literal = name.rstrip("*?")
    begins = {(one if literal == name else one[: len(literal)]).lower(): one for one in sorted(watched)}
    near = difflib.get_close_matches(literal.lower(), begins, n=1, cutoff=_ALIKE)
    return begins[near[0]] if near else None


def _of_columns(file: TablesFile, name: str, table: TableShape) -> Iterator[UnmatchedSection]:
    for option, why in file.changed_keys(name, (column for column, _kind in table.key)):
        yield UnmatchedSection(file.section_of(name, option), why, f"take it out of {option}", refused=True)
    there = {column.lower() for column in table.watched_names}
    for column in sorted(file.columns_named_for(name)):
        if column.lower() not in there:
            yield UnmatchedSection(
                f'[tables."{name}"]',
                f"names column {column}, which the stream does not carry of table {name}",
                f"take it out of that section's options; the nearest column is {nearest(column, table.watched_names)}",
            )
