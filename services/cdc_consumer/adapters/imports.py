"""Keeps what a Python worker has imported out of its garbage collections.

PySpark collects all of a worker's garbage after every task (pyspark/daemon.py). A worker of ours holds a few hundred
thousand objects that never become garbage, modules and their classes, and looking through them takes a tenth of a
second of CPU, in each of the five processes that Spark asks in every micro-batch.
"""

import functools
import gc
import os


def exempt_imports() -> None:
    """Exempt from collections what this process holds by now; only the first call in a process does anything."""
    _exempt(os.getpid())


@functools.cache
def _exempt(_process: int) -> None:
    gc.freeze()
