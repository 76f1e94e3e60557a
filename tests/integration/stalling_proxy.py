"""A proxy before a server, which can hang: it takes connections and bytes, and passes nothing on until it is healed."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

_BYTES: Final = 65_536


class StallingProxy:
    """Passes bytes both ways. Made by `stalling_proxy`."""

    def __init__(self, server: str) -> None:
        host, _, port = server.rpartition(":")
        self._server = host, int(port)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._passing = threading.Event()
        self._passing.set()
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    @property
    def address(self) -> str:
        """Return its ``host:port``."""
        return f"127.0.0.1:{self._listening.getsockname()[1]}"

    def hang(self) -> None:
        """Pass nothing on from now on."""
        self._passing.clear()

    def heal(self) -> None:
        """Pass on what came meanwhile, and go on."""
        self._passing.set()

    def close(self) -> None:
        """End every connection."""
        self.heal()
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for one in list(self._sockets):
            _end(one)
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                client, _address = self._listening.accept()
                server = socket.create_connection(self._server)
            except OSError:
                return
            self._sockets += [client, server]
            for source, target in ((client, server), (server, client)):
                pump = threading.Thread(target=self._pump, args=(source, target), daemon=True)
                self._threads.append(pump)
                pump.start()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(_BYTES):
                self._passing.wait()
                target.sendall(data)
        _end(target)


def _end(one: socket.socket) -> None:
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()


@contextmanager
def stalling_proxy(server: str) -> Iterator[StallingProxy]:
    """Give a proxy before the server at an address."""
    proxy = StallingProxy(server)
    try:
        yield proxy
    finally:
        proxy.close()
