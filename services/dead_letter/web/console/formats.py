"""How values are shown on pages: every character as what it is, times with their age, counts as bars."""

import re
import unicodedata
from collections.abc import Sequence
from typing import Final

from shared.contracts.timestamps import Nanoseconds, parse_timestamp

_QUOTED: Final = re.compile(r"(?<![^\s(\[])(`[^`\s]+ [^`]*`)")
_SECOND: Final = 1_000_000_000
_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
_HIDDEN: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})
"""Categories of characters that are not seen, or that change how others are: direction, line ends, surrogates."""
_KEPT: Final = frozenset("\n\t")


def visible(value: object) -> object:
    """Return a text with its unseen characters as escapes, so that it is read as what it is; others as they are."""
    if not isinstance(value, str) or hasattr(value, "__html__") or value.isprintable():
        return value
    return "".join(_escaped(letter) for letter in value)


def _escaped(letter: str) -> str:
    if letter in _KEPT or unicodedata.category(letter) not in _HIDDEN:
        return letter
    return f"\\u{ord(letter):04x}" if ord(letter) <= 0xFFFF else f"\\U{ord(letter):08x}"


def duration(seconds: float | None) -> str:
    """Return a length of time in its two largest units."""
    if seconds is None:
        return "unknown"
    if abs(seconds) < 10:
        return f"{seconds:.1f} s"
    rest, parts = round(abs(seconds)), list[str]()
    for length, unit in _UNITS:
        number, rest = divmod(rest, length)
        if number or parts:
            parts.append(f"{number} {unit}")
    return ("-" if seconds < 0 else "") + " ".join(part for part in parts[:2] if not part.startswith("0 "))


def ago(text: str | None, now: Nanoseconds) -> str:
    """Return how long ago an RFC 3339 time was; what is none as it is."""
    if not text:
        return "never"
    try:
        seconds = (now - parse_timestamp(text)) / _SECOND
    except ValueError:
        return text[:64]
    return "just now" if abs(seconds) < 1 else f"{duration(seconds)} ago" if seconds > 0 else f"in {duration(-seconds)}"


def clock_time(text: str | None) -> str:
    """Return an RFC 3339 time to the second, for people; what is none as it is."""
    if not text:
        return ""
    try:
        parse_timestamp(text)
    except ValueError:
        return text[:64]
    return f"{text[:10]} {text[11:19]} UTC" if text.endswith("Z") else text


def number(value: float | None) -> str:
    """Return a number with its thousands apart."""
    if value is None:
        return "unknown"
    return f"{value:,.0f}" if isinstance(value, int) or abs(value) >= 10 else f"{value:,.1f}"


def bars(counts: Sequence[int], height: int) -> Sequence[int]:
    """Return the height of each count's bar: the largest has the full height, and one that is not 0 is seen."""
    most = max(counts, default=0)
    return [0 if not count else max(2, round(count / most * height)) for count in counts]


def commands(text: str) -> Sequence[tuple[str, bool]]:
    """Return the parts of a text, each with whether it is a command: more than a word between backticks.

    One word is a name in SQL, which keeps them.
    """
    parts = _QUOTED.split(text)
    return [(part[1:-1], True) if place % 2 else (part, False) for place, part in enumerate(parts)]


def signed_lines(diff: str) -> Sequence[tuple[str, str]]:
    """Return the lines of a unified diff below its head, each with what it is: added, removed, same or place."""
    kinds = {"+": "added", "-": "removed", "@": "place"}
    return [(kinds.get(line[:1], "same"), line) for line in diff.splitlines()[2:]]
