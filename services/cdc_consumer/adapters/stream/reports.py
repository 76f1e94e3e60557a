"""Counts, and signs of life, on their way from Spark's processes to the driver's metrics.

One datagram each over a Unix socket on the driver's machine: nothing is stored, and a report without a receiver is
dropped: no message is lost by it, and by when something comes again that was deferred is kept on the disk, too. Tasks
report only where they are certain to see that machine's disk (`Settings`: ``tasks_report``); elsewhere there is what
`commit` reports, nothing is shown of what it does not know, and of a task that failed there nothing is known: a drain
may say that all is done while messages that it deferred are still to come. What is said of very many tables goes in
several.
"""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Final

import msgspec

from services.cdc_consumer.core.stream.counts import Counts, Report

_LARGEST: Final = 1 << 16
_TIMEOUT: Final = 1.0  # seconds: the receiver's queue is short, and does nothing else
_END: Final = b""


def send_report(address: str | None, report: Report) -> None:
    """Send a report to ``address``; drop it if nothing receives there."""
    if not address:
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.settimeout(_TIMEOUT)
        for datagram in _datagrams(report):
            sender.sendto(datagram, address)


def _datagrams(report: Report) -> Iterator[bytes]:
    """Return a report in as many chunks as it takes: the first has the counts, the others only speak of tables."""
    encoded, tables = msgspec.json.encode(report), report.counts.tables
    if len(encoded) <= _LARGEST or not tables:
        yield encoded
        return
    half = dict(islice(tables.items(), len(tables) // 2))
    rest = {name: note for name, note in tables.items() if name not in half}
    if half:
        yield from _datagrams(replace(report, counts=replace(report.counts, tables=half)))
        yield from _datagrams(Report(counts=Counts(tables=rest)))
    else:
        yield from _datagrams(replace(report, counts=replace(report.counts, tables={})))


@contextmanager
def receiving_reports(address: Path, take: Callable[[Report], None]) -> Iterator[None]:
    """Hand every report to ``take``, on a thread of its own, while the block runs."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(address))

        def receive() -> None:
            while (data := receiver.recv(_LARGEST)) != _END:
                take(msgspec.json.decode(data, type=Report))

        thread = threading.Thread(target=receive, name="reports", daemon=True)
        thread.start()
        try:
            yield
        finally:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.sendto(_END, str(address))
            thread.join()
