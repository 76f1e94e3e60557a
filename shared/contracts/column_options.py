"""What the tables file says of columns: how their values are masked, and what they are called in BigQuery.

[tables."Customers".masked_columns]
Email = "sha256"                  # a keyed digest: HMAC-SHA-256 with the key in mask_key_file
Phone = "first 4"                 # its first characters, of BYTES its first bytes
Notes = "null"                    # nothing

[tables."Customers".renamed_columns]
CustName = "name"
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeVar

from shared.contracts.option_values import NestedMistakesError, kind_of, shown

T = TypeVar("T")

_MASK: Final = re.compile(r"(sha256|null)|first ([1-9][0-9]{0,3})", re.ASCII)
_COLUMN_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,299}", re.ASCII)
RESERVED_PREFIXES: Final = (
    *("_TABLE_", "_FILE_", "_PARTITION", "_ROW_TIMESTAMP", "__ROOT__", "_COLIDENTIFIER"),
    *("_CHANGE_SEQUENCE_NUMBER", "_CHANGE_TYPE", "_CHANGE_TIMESTAMP"),
    "_MILLRACE_",  # ours: what every mirror carries, and the book-keeping of a micro-batch
)
"""What no column's name in BigQuery may begin with, in upper case."""


@dataclass(frozen=True, slots=True)
class Mask:
    """What is written in place of a value: a keyed digest of it, its first characters (or bytes), or NULL."""

    kind: Literal["sha256", "first", "null"]
    length: int = 0
    """Of ``first``."""

    def __str__(self) -> str:
        """Return the mask as the file has it."""
        return f"first {self.length}" if self.kind == "first" else self.kind


Masks = tuple[tuple[str, Mask], ...]
Renames = tuple[tuple[str, str], ...]


def masks(value: object) -> Masks:
    """Take a section with a mask for each column."""
    return _by_column(value, "masks", _mask)


def renames(value: object) -> Renames:
    """Take a section with a name for each column, no two the same: BigQuery does not tell upper from lower case."""
    found = _by_column(value, "names", _name)
    owners: dict[str, str] = {}
    twice = []
    for column, name in found:
        owner = owners.setdefault(name.lower(), column)
        if owner != column:
            twice.append(((column,), f"{shown(column)} would be column {name}, and so would {shown(owner)}"))
    if twice:
        raise NestedMistakesError(twice)
    return found


def _by_column(value: object, what: str, read: Callable[[object], T]) -> tuple[tuple[str, T], ...]:
    if not isinstance(value, Mapping):
        raise ValueError(f"not a section with {what} by column, but {kind_of(value)}")  # noqa: TRY004  the file's
    mistakes: list[tuple[tuple[str, ...], str]] = []
    found: dict[str, tuple[str, T]] = {}
    for column, each in value.items():
        if column.lower() in found:
            mistakes.append(((column,), f"{shown(column)} is there twice"))
        try:
            found[column.lower()] = column, read(each)
        except ValueError as error:
            mistakes.append(((column,), f"column {shown(column)}: {error}"))
    if mistakes:
        raise NestedMistakesError(mistakes)
    return tuple(found.values())


def _mask(value: object) -> Mask:
    found = _MASK.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        written = shown(value) if isinstance(value, str) else kind_of(value)
        raise ValueError(f'{written} is no mask: write "sha256", "null", or "first N" with N from 1 to 9999')
    match found[1]:
        case "sha256":
            return Mask("sha256")
        case "null":
            return Mask("null")
        case _:
            return Mask("first", int(found[2]))


def _name(value: object) -> str:
    if not isinstance(value, str) or _COLUMN_NAME.fullmatch(value) is None:
        written = shown(value) if isinstance(value, str) else kind_of(value)
        raise ValueError(
            f"{written} is no column name: letters, digits and '_', not a digit first, 1 to 300 characters"
        )
    return value
