"""What Spark's processes write to stderr, as lines of our log: Java's own words are bare text, whatever is set."""

import contextlib
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import structlog

from shared.runtime.logs import logs_are_text, text_of

_STDERR: Final = 2
_USUAL: Final = re.compile(
    r"WARNING: Using incubator modules|Setting (?:default|Spark) log level to|To adjust logging level use|\s*$"
)
"""What is said at each start, and says nothing."""


@contextmanager
def words_as_lines() -> Iterator[None]:
    """Take what processes that are started in the block write to stderr, for as long as they live.

    Lines of JSON, of log4j and of Python workers, go through as they are; any other text is a field of an event. Where
    we log as text, they go through as text, and so does any other text. Python workers log JSON to a pipe.
    """
    reading, writing = os.pipe()
    ours = os.dup(_STDERR)
    os.dup2(writing, _STDERR)
    os.close(writing)
    threading.Thread(target=_forward, args=(reading, ours), name="Spark's words", daemon=True).start()
    try:
        yield
    finally:
        os.dup2(ours, _STDERR)


def _forward(reading: int, ours: int) -> None:
    log, plain = structlog.get_logger(), logs_are_text()
    with os.fdopen(reading, "rb") as lines:
        for line in lines:
            text = line.decode(errors="replace").rstrip()
            if not line.startswith(b"{") and _USUAL.match(text):
                continue
            if plain or line.startswith(b"{"):
                with contextlib.suppress(OSError):  # stderr may be closed: a line that cannot be written stops nothing
                    os.write(ours, text_of(line) if plain else line)
            else:
                log.warning("spark_said", text=text)
    os.close(ours)
