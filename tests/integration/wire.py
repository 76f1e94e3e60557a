"""A way to a server that can be cut and mended: what a client sees of a server that is away and comes back."""

import contextlib
import socket
import threading
from collections.abc import Iterator


class Wire:
    """Forwards the connections to its own ``address``; while it is cut, all of them are closed and none lasts."""

    def __init__(self, to: str) -> None:
        host, _, port = to.rpartition(":")
        self._to = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._lock = threading.Lock()
        self._is_cut = False
        self._open: set[socket.socket] = set()
        self._threads = [threading.Thread(target=self._accept, name="wire")]
        self._threads[0].start()

    def cut(self) -> None:
        """Close every connection, and those to come at once."""
        with self._lock:
            self._is_cut = True
            for one in self._open:
                _shut(one)

    def mend(self) -> None:
        """Let connections through again."""
        with self._lock:
            self._is_cut = False

    def close(self) -> None:
        """End it for good."""
        self.cut()
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
                for source, sink in ((near, far), (far, near)):
                    thread = threading.Thread(target=self._forward, args=(source, sink), name="wire")
                    self._threads.append(thread)
                    thread.start()

    def _forward(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
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
