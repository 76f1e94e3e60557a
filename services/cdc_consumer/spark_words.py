"""What Spark's processes write to stderr, as lines of our log: Java's own words are bare text, whatever is set."""

import contextlib
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import structlog

_STDERR: Final = 2
_USUAL: Final = re.compile(
    r"WARNING: Using incubator modules|Setting (?:default|Spark) log level to|To adjust logging level use|\s*$"
)
"""What is said at each start, and says nothing."""


@contextmanager
def words_as_lines() -> Iterator[None]:
    """Take what processes that are started in the block write to stderr, for as long as they live.

    Lines of JSON, of log4j and of Python workers, go through as they are; any other text is a field of an event.
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
    log = structlog.get_logger()
    with os.fdopen(reading, "rb") as lines:
        for line in lines:
            if line.startswith(b"{"):
                with contextlib.suppress(OSError):  # nobody listens: what is said there stops nothing
                    os.write(ours, line)
                continue
            text = line.decode(errors="replace").rstrip()
            if _USUAL.match(text) is None:
                log.warning("spark_said", text=text)
    os.close(ours)
