"""Calls of the real emulator, as bytes. Its refusals come back unchanged."""

from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

import grpc

Metadata = Sequence[tuple[str, str | bytes]]
_TIMEOUT_SECONDS: Final = 60.0
_OPTIONS: Final = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]


class Emulator:
    """The emulator behind the front. Made in a running event loop."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.aio.insecure_channel(address, options=_OPTIONS)
        self._unary: dict[str, Any] = {}

    async def unary(self, method: str, data: bytes) -> bytes:
        """Call a method that gives one answer; grpc.aio.AioRpcError as the emulator raised it."""
        call = self._unary.get(method)
        if call is None:
            call = self._unary[method] = self._channel.unary_unary(method, None, None)
        answer: bytes = await call(data, timeout=_TIMEOUT_SECONDS)
        return answer

    async def server_streaming(self, method: str, data: bytes) -> AsyncIterator[bytes]:
        """Call a method that gives several answers."""
        call: Any = self._channel.unary_stream(method, None, None)(data)
        async for answer in call:
            yield answer

    def any_call(self, method: str, requests: AsyncIterator[bytes], metadata: Metadata, seconds: float | None) -> Any:
        """Call a method of any arity; on the wire there is no difference."""
        return self._channel.stream_stream(method, None, None)(requests, metadata=metadata, timeout=seconds)

    async def close(self) -> None:
        """Close the connection."""
        await self._channel.close(None)
