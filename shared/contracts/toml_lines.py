"""TOML with the line of each statement, which the standard library's parser does not report.

A statement of a TOML document ends where a prefix of its lines parses and holds it, and begins behind the longest
shorter prefix that parses: inside a statement none does.
"""

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

Path = tuple[str, ...]
"""The keys that lead to a value, outermost first."""

_WHERE: Final = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)$", re.ASCII)


@dataclass(frozen=True, slots=True)
class TomlMistake:
    """What is wrong in a line, counted from 1."""

    line: int
    what: str


@dataclass(frozen=True)
class TomlDocument:
    """A TOML document as far as it can be read: a line that is none by itself is left out and reported."""

    lines: Sequence[str]
    content: Mapping[str, Any]
    mistakes: Sequence[TomlMistake]

    def line_of(self, path: Path) -> int:
        """Return the line in which the statement begins that first names a path."""
        before = 0
        for count, content in self._prefixes:
            if _contains(content, path):
                return before + 1
            before = count
        raise KeyError(path)

    @cached_property
    def _prefixes(self) -> Sequence[tuple[int, Mapping[str, Any]]]:
        """Return every prefix that parses, by how many lines it has."""
        found = ((count, _parsed("\n".join(self.lines[:count]))) for count in range(1, len(self.lines) + 1))
        return [(count, content) for count, content in found if isinstance(content, dict)]


def read_document(text: str) -> TomlDocument:
    """Return a document and its mistakes of syntax, a key or table that is there twice among them."""
    lines = text.split("\n")
    mistakes: list[TomlMistake] = []
    while True:
        content = _parsed("\n".join(lines))
        if isinstance(content, dict):
            return TomlDocument(lines, content, mistakes)
        sound = max(
            (count for count in range(len(lines)) if isinstance(_parsed("\n".join(lines[:count])), dict)), default=0
        )
        where = _WHERE.search(str(content))
        noticed = int(where[1]) if where is not None and where[1] else None
        beyond = f" (noticed in line {noticed})" if noticed is not None and noticed != sound + 1 else ""
        mistakes.append(TomlMistake(sound + 1, f"not TOML: {_WHERE.sub('', str(content))}{beyond}"))
        if beyond or where is None or not where[1] or lines[sound].lstrip().startswith("["):
            return TomlDocument(lines[:sound], _sound(lines[:sound]), mistakes)  # what follows could only mislead
        lines[sound] = ""


def _parsed(text: str) -> dict[str, Any] | str:
    """Return what a text says, or what is wrong with it."""
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        return str(error)


def _sound(lines: Sequence[str]) -> Mapping[str, Any]:
    content = _parsed("\n".join(lines))
    return content if isinstance(content, dict) else {}


def _contains(content: object, path: Path) -> bool:
    for key in path:
        if not isinstance(content, dict | list) or key not in content:
            return False
        content = content[key] if isinstance(content, dict) else key
    return True
