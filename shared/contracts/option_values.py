"""What an option's value may be. A reader takes what TOML holds, and raises ValueError with what is wrong with it."""

import difflib
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from fnmatch import fnmatchcase
from typing import Final

from shared.contracts.durations import parse_duration

PLACEHOLDER: Final = re.compile(r"\{([^{}]*)\}")

_PLACEHOLDERS: Final = ("schema", "table")


class NestedMistakesError(ValueError):
    """What is wrong inside a section: each mistake with the keys that lead to it from there."""

    def __init__(self, mistakes: Sequence[tuple[tuple[str, ...], str]]) -> None:
        super().__init__("; ".join(what for _path, what in mistakes))
        self.mistakes = tuple(mistakes)


def text(value: object) -> str:
    """Take a text that is not empty."""
    if not isinstance(value, str):
        raise ValueError(f"not a text in quotes, but {kind_of(value)}")  # noqa: TRY004  a mistake of the file's
    if not value:
        raise ValueError("an empty text")
    return value


def texts(value: object) -> tuple[str, ...]:
    """Take a list of texts."""
    if not isinstance(value, list):
        raise ValueError(f'not a list of texts (["a", "b"]), but {kind_of(value)}')  # noqa: TRY004  the same
    return tuple(text(each) for each in value)


def column_names(value: object) -> tuple[str, ...]:
    """Take a list of column names, none twice."""
    names = texts(value)
    seen: set[str] = set()
    for name in names:
        if name.lower() in seen:  # BigQuery does not distinguish upper from lower case
            raise ValueError(f"{shown(name)} is there twice")
        seen.add(name.lower())
    return names


def patterns(value: object) -> tuple[str, ...]:
    """Take a list of shell patterns that is not empty."""
    found = texts(value)
    if not found:
        raise ValueError('an empty list; leave it out, or write ["*"]')
    return tuple(pattern(each) for each in found)


def patterns_if_any(value: object) -> tuple[str, ...]:
    """Take a list of shell patterns."""
    return tuple(pattern(each) for each in texts(value))


def pattern(value: str) -> str:
    """Take a shell pattern."""
    rest = value
    while "[" in rest:
        rest = rest.partition("[")[2]
        if "]" not in rest[1:]:
            raise ValueError(f"pattern {shown(value)}: a '[' without its ']' stands for itself; write [[] if it should")
        rest = rest[1:].partition("]")[2]
    return value


def matches_any(patterns: Iterable[str], name: str) -> bool:
    """Return whether a name is one that shell patterns name, letter by letter."""
    return any(fnmatchcase(name, each) for each in patterns)


def template(letters: re.Pattern[str], what: str) -> Callable[[object], str]:
    """Take a text with the placeholders of a table's name; ``what`` says which letters there may be beside them."""

    def read(value: object) -> str:
        found = text(value)
        for placeholder in PLACEHOLDER.findall(found):
            if placeholder not in _PLACEHOLDERS:
                nearest = difflib.get_close_matches(placeholder, _PLACEHOLDERS, n=1, cutoff=0.0)[0]
                raise ValueError(f"unknown placeholder {{{placeholder}}}; the nearest known one is {{{nearest}}}")
        if letters.fullmatch(PLACEHOLDER.sub("", found)) is None:
            raise ValueError(f"{shown(found)}: only {what} and {{schema}}, {{table}}")
        return found

    return read


def one_of(choices: Sequence[str]) -> Callable[[object], str]:
    """Take one of some words."""

    def read(value: object) -> str:
        if isinstance(value, str):
            if value in choices:
                return value
            nearest = difflib.get_close_matches(value, choices, n=1, cutoff=0.0)[0]
            raise ValueError(f"{shown(value)} is not one of {', '.join(choices)}; the nearest is {nearest}")
        raise ValueError(f"not one of {', '.join(choices)}, but {kind_of(value)}")

    return read


def boolean(value: object) -> bool:
    """Take true or false."""
    if not isinstance(value, bool):
        raise ValueError(f"not true or false, but {kind_of(value)}")  # noqa: TRY004  a mistake of the file's
    return value


def duration(value: object) -> timedelta:
    """Take a duration of whole seconds."""
    found = parse_duration(text(value))
    if found <= timedelta(0) or found % timedelta(seconds=1):
        raise ValueError("not a whole number of seconds above zero; leave it out for tables that are always fresh")
    return found


def days(value: object) -> timedelta:
    """Take a duration of whole days."""
    found = parse_duration(text(value))
    if found <= timedelta(0) or found % timedelta(days=1):
        raise ValueError("not a whole number of days above zero; leave it out to keep everything")
    return found


def whole_number(least: int, most: int) -> Callable[[object], int]:
    """Take a whole number between two, inclusive."""

    def read(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"not a whole number, but {kind_of(value)}")  # noqa: TRY004  a mistake of the file's
        if not least <= value <= most:
            raise ValueError(f"{value} is not between {least} and {most}")
        return value

    return read


def shown(value: str) -> str:
    """Quote what the file says, cut: a mistake could be of any length."""
    return repr(value if len(value) <= 80 else value[:80] + "...")


def kind_of(value: object) -> str:
    """Say what kind of value the file holds."""
    kinds: tuple[tuple[type, str], ...] = (
        (bool, "true or false"),
        (int, "a number"),
        (float, "a number"),
        (str, "a text"),
        (list, "a list"),
        (dict, "a section"),
    )
    return next((name for kind, name in kinds if isinstance(value, kind)), "a date or time")
