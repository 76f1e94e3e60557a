"""Keeps what a process has imported out of its garbage collections, and has it search for garbage seldom.

Python searches after every few hundred objects that stay. Decoding makes a million of them, hardly any in a cycle: a
fourth of what it cost the consumer to read an envelope, a twentieth of a record in the Spanner reader. PySpark also
collects all of a worker's garbage after every task (pyspark/daemon.py). A worker holds a few hundred thousand objects
that never become garbage, modules and their classes, and scanning them takes a tenth of a second of CPU, in each of the
five processes that Spark asks in every micro-batch.
"""

import functools
import gc
import os
from typing import Final

_SELDOM: Final = 100_000  # objects more than there were, after which Python searches for garbage of its own accord


def exempt_imports() -> None:
    """Exempt from collections what this process holds by now; only the first call in a process does anything."""
    _exempt(os.getpid())


@functools.cache
def _exempt(_process: int) -> None:
    gc.freeze()
    gc.set_threshold(_SELDOM)
