"""A way to a server that can be cut and mended, or hold things up: what a client sees of a server that is away."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Final

_A_MOMENT: Final = 0.02
"""Seconds after which is looked whether what is held up may go."""


class Wire:
    """Forwards the connections to its own ``address``; while it is cut, all of them are closed and none lasts."""

    def __init__(self, to: str) -> None:
        host, _, port = to.rpartition(":")
        self._to = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._lock = threading.Lock()
        self._is_cut = False
        self._flows = threading.Event()
        self._flows.set()
        self._buffered = bytearray()
        self._open: set[socket.socket] = set()
        self._threads = [threading.Thread(target=self._accept, name="wire")]
        self._threads[0].start()

    def cut(self) -> None:
        """Close every connection, and those to come at once."""
        with self._lock:
            self._is_cut = True
            for one in self._open:
                _shut(one)

    def fix(self) -> None:
        """Let connections through again."""
        with self._lock:
            self._is_cut = False

    def buffer(self) -> None:
        """Keep what clients send from now on; what the server sends goes through."""
        self._flows.clear()

    def let_go(self) -> None:
        """Send on what was kept, and what comes."""
        self._flows.set()

    def has_buffered(self, data: bytes) -> bool:
        """Return whether something that was sent is among what is kept."""
        return data in self._buffered

    def close(self) -> None:
        """End it for good."""
        self.cut()
        self.let_go()
        _shut(self._listener)
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                if self._is_cut:
                    near.close()
                    continue
                far = socket.create_connection(self._to)
                self._open |= {near, far}
                for ends in ((near, far, True), (far, near, False)):
                    thread = threading.Thread(target=self._forward, args=ends, name="wire")
                    self._threads.append(thread)
                    thread.start()

    def _keep(self, source: socket.socket, sink: socket.socket, data: bytes) -> None:
        """Take what comes without sending it on, until it may go."""
        kept = bytearray(data)
        self._buffered += data
        source.settimeout(_A_MOMENT)
        while not self._flows.is_set():
            with contextlib.suppress(TimeoutError):
                more = source.recv(65_536)
                if not more:
                    self._flows.wait()
                kept += more
                self._buffered += more
        source.settimeout(None)
        sink.sendall(kept)

    def _forward(self, source: socket.socket, sink: socket.socket, is_request: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                if is_request and not self._flows.is_set():
                    self._keep(source, sink, data)
                else:
                    sink.sendall(data)
        _shut(sink)
        with self._lock:
            self._open.discard(source)
        source.close()


@contextlib.contextmanager
def wire(to: str) -> Iterator[Wire]:
    """Return a wire to ``host:port`` that ends with the block."""
    one = Wire(to)
    try:
        yield one
    finally:
        one.close()


def _shut(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
