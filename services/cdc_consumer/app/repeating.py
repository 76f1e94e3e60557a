"""What the driver does again and again, beside the stream."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta


@contextmanager
def repeating(name: str, call: Callable[[], None], every: timedelta, first: timedelta | None = None) -> Iterator[None]:
    """Call on a thread while the block runs, ``every`` so often; the first time after ``first``, where that differs."""
    ended = threading.Event()

    def run() -> None:
        wait = every if first is None else first
        while not ended.wait(wait.total_seconds()):
            call()
            wait = every

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(1.0)  # it may wait for BigQuery, which a stop does not; what it does may end anywhere
