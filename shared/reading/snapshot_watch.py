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

    ``poll`` returns what to show, and what is in the way; where something is for long, that is said, and waited on.
    A poll that is not answered is made again, and for long is in the way, too.
    """
    loop = asyncio.get_running_loop()
    drawn, before, drawn_at = 0, dict[tuple[str, Any], int](), loop.time()
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
        shown_hindrance = hindrance if now - went_on_at > _HINDRANCE_AFTER.total_seconds() else None
        if out.isatty() and (answered or shown_hindrance):
            if drawn:
                out.write(_UP_AND_CLEAR.format(lines=drawn))
            rates = {_name(one): (one["rows"] - before.get(_name(one), one["rows"])) for one in shown}
            seconds = max(now - drawn_at, 0.001)
            out.writelines(f"{bar(one, rates[_name(one)] / seconds)}\n" for one in shown)
            out.write(f"{shown_hindrance}\n" if shown_hindrance else "")
            out.flush()
            drawn, before, drawn_at = (
                len(shown) + bool(shown_hindrance),
                {_name(one): one["rows"] for one in shown},
                now,
            )
        elif shown_hindrance and not warned:
            structlog.get_logger().warning("snapshots_wait", why=shown_hindrance.why, fix=shown_hindrance.fix)
            warned = True
        if not reading:
            if drawn:
                out.write(_UP_AND_CLEAR.format(lines=drawn))
            return shown
        await asyncio.sleep(_EVERY.total_seconds())


def bar(one: Mapping[str, Any], rows_per_second: float) -> str:
    """Return a snapshot as a line with a bar: of its key ranges, for how many rows there are is not known."""
    done = one["ranges"] - one["ranges_left"]
    filled = _WIDTH * done // max(1, one["ranges"])
    figures = f"{one['rows']:,} rows, {done} of {one['ranges']} key ranges"
    rate = f", {rows_per_second:,.0f} rows/s" if one["state"] == "READING" else ""
    return f"{one['table']} [{'#' * filled:<{_WIDTH}}] {one['state'].lower()}, {figures}{rate}"


def _name(one: Mapping[str, Any]) -> tuple[str, Any]:
    return one["table"], str(one["keys"])
