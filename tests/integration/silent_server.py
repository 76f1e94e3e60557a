"""Servers in this process, of gRPC: one that takes every call and answers none, and what is stopped before it."""

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import grpc
import pytest
from google.cloud.spanner_v1 import CreateSessionRequest, ExecuteSqlRequest, PartialResultSet, Session

from services.spanner_reader.adapters.spanner.connection import SpannerChannels, SpannerDatabaseClient
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


class SpannerServer(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    """Makes sessions. Its subclasses answer queries, and whatever else they need."""

    def service(self, handler_call_details: Any) -> Any:
        """Take a call."""
        name = handler_call_details.method.rpartition("/")[2]
        match name:
            case "CreateSession":
                return grpc.unary_unary_rpc_method_handler(
                    self._session, CreateSessionRequest.pb().FromString, Session.pb().SerializeToString
                )
            case "ExecuteStreamingSql":
                return grpc.unary_stream_rpc_method_handler(
                    self._execute, ExecuteSqlRequest.pb().FromString, PartialResultSet.pb().SerializeToString
                )
            case _:
                return grpc.unary_unary_rpc_method_handler(partial(self._other, name))

    async def _session(self, request: Any, _context: Any) -> Any:
        return Session.pb()(name=f"{request.database}/sessions/s", multiplexed=True)

    @abstractmethod
    def _execute(self, request: Any, context: Any) -> AsyncIterator[Any]:
        """Answer a query."""

    async def _other(self, name: str, _request: Any, context: Any) -> Any:
        """Answer any other call, as a server that does not have it."""
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, name)


@asynccontextmanager
async def serving_spanner(server: SpannerServer) -> AsyncIterator[SpannerDatabaseClient]:
    """Serve while the block runs; yield a client of a database there."""
    async with serving(server) as address:
        channels = SpannerChannels(address)
        try:
            yield SpannerDatabaseClient("projects/p/instances/i/databases/d", channels)
        finally:
            await channels.close()


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
