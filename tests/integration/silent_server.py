"""A server that takes every call and answers none, and what is stopped before it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from shared.contracts.errors import TransientError
from shared.runtime.stop import Stop


class Silent(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    """Takes calls, and notes how much of its own time each had left when it was over."""

    def __init__(self) -> None:
        self.taken = asyncio.Event()
        self.over = asyncio.Event()
        self.seconds_left: list[float] = []

    def service(self, handler_call_details: Any) -> Any:
        """Take a call, whatever it is."""
        return grpc.unary_unary_rpc_method_handler(self._take)

    async def _take(self, _request: Any, context: Any) -> Any:
        self.taken.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.seconds_left.append(context.time_remaining())
            self.over.set()


@asynccontextmanager
async def serving(*handlers: "grpc.GenericRpcHandler[Any, Any]") -> AsyncIterator[str]:
    """Serve on a free port while the block runs; yield the address."""
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(handlers)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


def stopped_before_a_silent_server(scenario: Callable[[str, Stop], Awaitable[None]]) -> None:
    """Stop what a scenario begins as soon as a call has come: it ends, and the call before its own time was over."""

    async def running() -> None:
        silent, stop = Silent(), Stop()
        async with serving(silent) as address:
            task = asyncio.ensure_future(scenario(address, stop))
            await silent.taken.wait()
            stop.request()
            with pytest.raises(TransientError):
                await task
            await silent.over.wait()
            assert len(silent.seconds_left) == 1
            assert silent.seconds_left[0] > 0

    asyncio.run(asyncio.wait_for(running(), 120))
