"""Connections for calls that do not end by themselves, with as many on each as the service's front ends carry."""

import contextlib
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, Final

import grpc
import grpc.experimental

from shared.reading.byte_budget import ByteBudget
from shared.streams.message_feed import portions

Options = Sequence[tuple[str, int]]
STREAMS_PER_CONNECTION: Final = 50
"""A connection to Google's front ends carries a hundred calls at once; one more would wait, silently, for ever."""
OPTIONS: Final = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),  # channels with the same options would otherwise share one connection
]
# A connection that died without a word is noticed. Not for an emulator, which closes connections for pinging.
KEEPALIVE: Final = [("grpc.keepalive_time_ms", 30_000), ("grpc.keepalive_timeout_ms", 10_000)]
# The thread that asks for the next message waits for it itself, where else two others would pass it on.
_ONE_THREAD: Final = (grpc.experimental.ChannelOptions.SingleThreadedUnaryStream, 1)
# Else gRPC would read ahead of each call as much as it takes the network to carry in a round trip: 16 MB, and more.
_NO_MORE_AHEAD: Final = ("grpc.http2.bdp_probe", 0)
_AHEAD: Final = 256 << 10
"""Bytes that gRPC reads ahead of a call that nothing asks for its next message.

The window of a connection, which all of its calls share, follows from it: with the usual 64 kB they would have 6 MB/s
together at a round trip of 10 ms.
"""
_FIRST_STREAMS, _FIRST_AHEAD = 4, 8 << 20
"""The first connection has few calls, and more is read ahead of each: where partitions are few, what is far away comes
faster, and more of it at once.
"""

_OPENING_SECONDS: Final = 10.0
_OPENING_DOUBLED: Final = 5
"""A start that always takes long begins in the end; one that never comes is given up every five minutes."""


def opening_seconds(silences: int) -> float:
    """Return what a call may take to begin, beside its heartbeats, after so many silent ones in a row."""
    return _OPENING_SECONDS * float(1 << min(silences, _OPENING_DOUBLED))


class _Connection:
    def __init__(self, channel: grpc.Channel, most: int) -> None:
        self.channel = channel
        self.most = most
        self.streams = 0


class StreamConnections:
    """The connections of all such calls of a process, opened when they are needed."""

    def __init__(self, open_channel: Callable[[Options], grpc.Channel], budget: ByteBudget | None = None) -> None:
        """``open_channel`` takes more options; ``budget``: of the messages that have come and are not handed over."""
        self._open = open_channel
        self._budget = budget or ByteBudget()
        self._connections: list[_Connection] = []

    async def portions(
        self,
        path: str,
        request: Any,
        metadata: Sequence[tuple[str, str]],
        timeout: float | None = None,  # noqa: ASYNC109  the deadline travels with the call
    ) -> AsyncGenerator[Sequence[bytes], None]:
        """Yield the messages of a streaming method as bytes, many at a time; raise what ends it (grpc.RpcError).

        ``request`` is of a raw class. Closing the generator ends the call.
        """
        with self._room() as channel:
            ask: Any = channel.unary_stream(
                path, request_serializer=type(request).SerializeToString, response_deserializer=None
            )
            call = partial(ask, request, metadata=metadata, timeout=timeout)
            async with aclosing(portions(call, path.rpartition("/")[2], self._budget)) as found:
                async for portion in found:
                    yield portion

    def close(self) -> None:
        """Close the connections; calls on them are cancelled."""
        for connection in self._connections:
            connection.channel.close()

    @contextlib.contextmanager
    def _room(self) -> Iterator[grpc.Channel]:
        connection = next((one for one in self._connections if one.streams < one.most), None)
        if connection is None:
            most, ahead = (STREAMS_PER_CONNECTION, _AHEAD) if self._connections else (_FIRST_STREAMS, _FIRST_AHEAD)
            options = [_ONE_THREAD, _NO_MORE_AHEAD, ("grpc.http2.lookahead_bytes", ahead)]
            connection = _Connection(self._open(options), most)
            self._connections.append(connection)
        connection.streams += 1
        try:
            yield connection.channel
        finally:
            connection.streams -= 1
