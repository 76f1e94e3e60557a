"""How the command ``snapshot`` of both readers shows how far snapshots are, once or until they are over.

Watched snapshots are bars on a terminal; elsewhere only the end is shown.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, TextIO

import structlog

from shared.contracts.errors import TransientError
from shared.runtime.answers import print_answer

_EVERY: Final = timedelta(seconds=1)
_HINDRANCE_AFTER: Final = timedelta(seconds=30)
"""How long a snapshot stands still before the reason is shown: longer than a reader takes to start or take over."""
_WIDTH: Final = 30  # characters of a bar
_UP_AND_CLEAR: Final = "\x1b[{lines}F\x1b[J"

Shown = Sequence[Mapping[str, Any]]
"""Of each snapshot: ``table``, ``keys`` (None: all), ``state``, ``rows``, ``ranges`` and ``ranges_left``."""


@dataclass(frozen=True, slots=True)
class Hindrance:
    """Why what is left to read is not read, and how to fix it."""

    why: str
    fix: str

    def __str__(self) -> str:
        """Return both."""
        return f"{self.why}; {self.fix}"


def is_complete(shown: Mapping[str, Any]) -> bool:
    """Return whether a snapshot is read to its end, and its end is or will be announced."""
    return shown["state"] == "DONE" and shown["never_announced"] is None


def print_snapshots(
    shown: Shown, tables: Iterable[str], as_json: bool, lines: Callable[[Mapping[str, Any]], Iterable[str]], out: TextIO
) -> None:
    """Write snapshots as one JSON object, or as their lines; and which of the named tables have none."""
    present = {one["table"] for one in shown}
    missing = [f"{table}: no snapshot was asked for" for table in tables if table not in present]
    print_answer({"snapshots": shown}, [*(line for one in shown for line in lines(one)), *missing], as_json, out)


async def watch(poll: Callable[[], Awaitable[tuple[Shown, Hindrance | None]]], out: TextIO) -> Shown:
    """Poll until nothing is left to read; return what was shown last.

    ``poll`` returns what to show, and what is in the way. Something that stays in the way for long is shown, or logged
    once. A poll that is not answered is made again; that it gets no answer is in the way, too.
    """
    loop = asyncio.get_running_loop()
    bars = _Bars(out, loop.time())
    went_on_at, warned = loop.time(), False
    shown: Shown = ()
    answered = True
    while True:
        asked_at, was_answered = loop.time(), answered
        try:
            shown, hindrance = await poll()
            answered = True
        except TransientError as error:
            why, answered = f"how far the snapshots are is not known: {error}", False
            hindrance = Hindrance(why, "check the network and the settings of this command; it goes on asking")
        now = loop.time()
        reading = not answered or any(one["state"] == "READING" for one in shown)
        if hindrance is None or not reading or answered is not was_answered:
            went_on_at, warned = now if answered else asked_at, False
        lasting = hindrance if now - went_on_at > _HINDRANCE_AFTER.total_seconds() else None
        if out.isatty():
            if answered or lasting:
                bars.draw(shown, lasting, now)
        elif lasting and not warned:
            structlog.get_logger().warning("snapshots_wait", why=lasting.why, fix=lasting.fix)
            warned = True
        if not reading:
            bars.clear()
            return shown
        await asyncio.sleep(_EVERY.total_seconds())


class _Bars:
    """Snapshots as bars on a terminal, each time drawn over those of the time before."""

    def __init__(self, out: TextIO, now: float) -> None:
        self._out = out
        self._drawn_at = now
        self._lines = 0
        self._rows: Mapping[tuple[str, str], int] = {}

    def draw(self, shown: Shown, hindrance: Hindrance | None, now: float) -> None:
        """Draw a bar for each snapshot, with its rate since the last time, and what is in the way below them."""
        self.clear()
        seconds, before = max(now - self._drawn_at, 0.001), self._rows
        self._rows = {_name(one): one["rows"] for one in shown}
        for one in shown:
            rows = one["rows"] - before.get(_name(one), one["rows"])
            self._out.write(f"{bar(one, rows / seconds)}\n")
        self._out.write(f"{hindrance}\n" if hindrance else "")
        self._out.flush()
        self._drawn_at, self._lines = now, len(shown) + bool(hindrance)

    def clear(self) -> None:
        """Take the bars off the terminal."""
        if self._lines:
            self._out.write(_UP_AND_CLEAR.format(lines=self._lines))
            self._lines = 0


def bar(one: Mapping[str, Any], rows_per_second: float) -> str:
    """Return a snapshot as a line with a bar: of its key ranges, for how many rows there are is not known."""
    done = one["ranges"] - one["ranges_left"]
    filled = _WIDTH * done // max(1, one["ranges"])
    figures = f"{one['rows']:,} rows, {done} of {one['ranges']} key ranges"
    rate = f", {rows_per_second:,.0f} rows/s" if one["state"] == "READING" else ""
    return f"{one['table']} [{'#' * filled:<{_WIDTH}}] {one['state'].lower()}, {figures}{rate}"


def _name(one: Mapping[str, Any]) -> tuple[str, str]:
    return one["table"], str(one["keys"])
