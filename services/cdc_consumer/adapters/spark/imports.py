"""Keeps what a Python worker has imported out of its garbage collections.

PySpark collects all of a worker's garbage after every task (pyspark/daemon.py). A worker of ours holds a few hundred
thousand objects that never become garbage, modules and their classes, and scanning them takes a tenth of a
second of CPU, in each of the five processes that Spark asks in every micro-batch.

In between, Python searches for garbage after every few hundred objects that stay, and decoding makes a million of them:
a fourth of what it costs to read an envelope. So it searches seldom, and finds as much.
"""

import functools
import gc
import os
from typing import Final

_SELDOM: Final = 200_000  # objects more than there were, after which Python searches for garbage of its own accord


def exempt_imports() -> None:
    """Exempt from collections what this process holds by now; only the first call in a process does anything."""
    _exempt(os.getpid())


@functools.cache
def _exempt(_process: int) -> None:
    gc.freeze()
    gc.set_threshold(_SELDOM)
