"""Counts on their way from where Spark commits a micro-batch, a Python process of its own, to the driver's metrics.

One datagram a micro-batch over a Unix socket: nothing waits, nothing is stored, and a report that nobody takes is
dropped, for it decides nothing.
"""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from services.cdc_consumer.counts import Counts

_LARGEST: Final = 1 << 16
_END: Final = b""


def send_report(address: str, counts: Counts) -> None:
    """Send counts to whoever receives at ``address``; drop them if nobody does."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)
        sender.sendto(msgspec.json.encode(counts), address)


@contextmanager
def receiving_reports(address: Path, take: Callable[[Counts], None]) -> Iterator[None]:
    """Hand every report to ``take``, on a thread of its own, while the block runs."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(address))

        def receive() -> None:
            while (data := receiver.recv(_LARGEST)) != _END:
                take(msgspec.json.decode(data, type=Counts))

        thread = threading.Thread(target=receive, name="reports", daemon=True)
        thread.start()
        try:
            yield
        finally:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.sendto(_END, str(address))
            thread.join()
