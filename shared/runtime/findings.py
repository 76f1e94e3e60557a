"""What a `doctor` finds: one finding for each thing it has inspected, with the fix of what is not as it should be."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Self, TextIO

from shared.runtime.answers import print_answer
from shared.runtime.settings import misspelling, misspelt_variables

_WIDTH: Final = 100  # characters of a line


class Level(StrEnum):
    """How much a finding matters."""

    OK = "ok"
    WARNING = "warning"
    """It works; something is likely to hurt later."""
    ERROR = "error"
    """It does not work, or loses, until someone acts."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was inspected: what, how it is, and the command or the step that fixes it ("" where nothing is).

    Details hold names and settings, never a row's values.
    """

    level: Level
    check: str
    detail: str
    fix: str = ""

    @classmethod
    def ok(cls, check: str, detail: str) -> Self:
        """Return that a thing is as it should be."""
        return cls(Level.OK, check, detail)

    @classmethod
    def warning(cls, check: str, detail: str, fix: str) -> Self:
        """Return that it works, and is likely to hurt later."""
        return cls(Level.WARNING, check, detail, fix)

    @classmethod
    def error(cls, check: str, detail: str, fix: str) -> Self:
        """Return that it does not work, or loses."""
        return cls(Level.ERROR, check, detail, fix)

    def __post_init__(self) -> None:
        if self.level is not Level.OK and not self.fix:
            raise ValueError(f"finding {self.check}: what is wrong needs its fix")


def misspelt_settings(settings: type, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Yield a finding for each variable whose name is nearly that of a setting."""
    for name, meant in misspelt_variables(settings, environ).items():
        yield Finding(Level.WARNING, f"variable {name}", "no setting has this name", misspelling(name, meant))


def print_findings(findings: Sequence[Finding], as_json: bool, out: TextIO) -> None:
    """Write all findings, as a JSON list of objects or as text."""
    print_answer(findings, finding_lines(findings), as_json, out)


def finding_lines(findings: Sequence[Finding]) -> Iterator[str]:
    """Return findings as text: a table with the fix, and a last line that counts them."""
    level = max((len(each.level) for each in findings), default=0)
    check = max((len(each.check) for each in findings), default=0)
    margin = " " * (level + check + 4)
    for each in findings:
        lines = wrapped(each.detail)
        if each.fix:
            lines += wrapped(each.fix, "-> ", "   ")
        yield f"{each.level:<{level}}  {each.check:<{check}}  {lines[0]}".rstrip()
        yield from (f"{margin}{line}" for line in lines[1:])
    yield ", ".join(f"{sum(one.level is kind for one in findings)} {kind}" for kind in Level)


def exit_code(findings: Sequence[Finding]) -> int:
    """Return what a doctor exits with: 1 where there is an error, else 0."""
    return int(any(each.level is Level.ERROR for each in findings))


def wrapped(text: str, first: str = "", margin: str = "") -> list[str]:
    """Return a text's lines, none of them empty; a word that is too long for a line, such as a path, stays whole.

    ``first`` stands before the first line, and ``margin`` before all others.
    """
    wrapper = textwrap.TextWrapper(
        _WIDTH, initial_indent=first, subsequent_indent=margin, break_long_words=False, break_on_hyphens=False
    )
    lines = []
    for line in text.splitlines():
        lines += wrapper.wrap(line)
        wrapper.initial_indent = margin if lines else first
    return lines or [first]
