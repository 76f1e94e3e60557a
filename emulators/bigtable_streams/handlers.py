"""What a call of the front's gRPC server meets: a fault, the front's own answer, or the emulator's."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import parse_qs

import grpc

from emulators.bigtable_streams.emulator import Emulator, Metadata
from emulators.bigtable_streams.faults import Faults
from emulators.bigtable_streams.profiles import Profiles
from emulators.bigtable_streams.protocol import DATA
from emulators.bigtable_streams.refusals import RefusedError, precondition
from emulators.bigtable_streams.tables import instance_of

Unary = Callable[[bytes], Coroutine[Any, Any, bytes]]
Streaming = Callable[[bytes], AsyncIterator[bytes]]

_ROUTING: Final = "x-goog-request-params"
_READ_ROWS: Final = f"{DATA}ReadRows"
_ROW_BYTES: Final = 256 * 1024 * 1024
"""Of one row. Source: google/bigtable/v2/data.proto, Row: larger ones cannot be read in full."""
_ROWS_BYTES: Final = 512 * 1024
"""Of rows in one message, about. Bigtable has been seen to send 1.8 MB (googleapis/google-cloud-go, issue 295)."""
# What gRPC sets by itself on each connection.
_OWN_METADATA: Final = ("grpc-", ":", "te", "content-type", "user-agent", "accept-encoding")


class Handlers(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # generic in the published types only
    """Finds the handler of a method: one of the front's own, or the way through to the emulator."""

    def __init__(
        self,
        emulator: Emulator,
        faults: Faults,
        profiles: Profiles,
        unary: Mapping[str, Unary],
        streaming: Mapping[str, Streaming],
        streaming_once: Mapping[str, Unary],
    ) -> None:
        """``streaming_once``: methods that stream, of which the front gives all in one answer."""
        self._emulator = emulator
        self._faults = faults
        self._profiles = profiles
        self._unary = unary
        self._streaming = streaming
        self._streaming_once = streaming_once
        self._tasks: set[asyncio.Task[bytes]] = set()

    def service(self, handler_call_details: Any) -> Any:
        """Return the handler of a method."""
        method: str = handler_call_details.method
        if (unary := self._unary.get(method)) is not None:
            return grpc.unary_unary_rpc_method_handler(self._answering(method, unary))
        if (once := self._streaming_once.get(method)) is not None:
            return grpc.unary_stream_rpc_method_handler(self._answering_once(method, once))
        if (streaming := self._streaming.get(method)) is not None:
            return grpc.unary_stream_rpc_method_handler(self._answering_with_several(method, streaming))
        return grpc.stream_stream_rpc_method_handler(self._passing_through(method))

    async def settle(self) -> None:
        """Wait for the calls whose clients have left."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _answering(self, method: str, handler: Unary) -> Any:
        async def answer(request: bytes, context: Any) -> bytes:
            async with _refusing(context):
                return await self._answer(method, handler, request)
            raise AssertionError("a refusal ends the call")

        return answer

    def _answering_once(self, method: str, handler: Unary) -> Any:
        async def answer(request: bytes, context: Any) -> AsyncIterator[bytes]:
            async with _refusing(context):
                yield await self._answer(method, handler, request)

        return answer

    async def _answer(self, method: str, handler: Unary, request: bytes) -> bytes:
        await self._faults.meet("before", method, request)
        # a client that leaves does not undo what the emulator was asked to do: it is recorded all the same
        task = asyncio.create_task(handler(request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        answered = await asyncio.shield(task)
        await self._faults.meet("after", method, request)
        return answered

    def _answering_with_several(self, method: str, handler: Streaming) -> Any:
        async def answer(request: bytes, context: Any) -> AsyncIterator[bytes]:
            async with _refusing(context):
                await self._faults.meet("before", method, request)
                async for each in handler(request):
                    yield each
                await self._faults.meet("after", method, request)

        return answer

    def _passing_through(self, method: str) -> Any:
        async def answer(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
            async with _refusing(context):
                metadata = context.invocation_metadata()
                if method.startswith(DATA):
                    self._check_profile(metadata)
                first = [request async for request in _first(requests)]
                about = first[0] if first else b""
                await self._faults.meet("before", method, about)
                call = self._emulator.any_call(
                    method, _joined(first, requests), _passed_on(metadata), context.time_remaining()
                )
                try:
                    await context.send_initial_metadata(tuple(await call.initial_metadata()))
                    async for each in _together(call) if method == _READ_ROWS else call:
                        yield each
                    context.set_trailing_metadata(tuple(await call.trailing_metadata()))
                    await self._faults.meet("after", method, about)
                finally:
                    call.cancel()

        return answer

    def _check_profile(self, metadata: Metadata) -> None:
        """Raise RefusedError where a call of the data API names a profile that is not there."""
        for key, value in metadata:
            if key == _ROUTING and "app_profile_id=" in str(value):
                routing = parse_qs(str(value))
                profile, resource = routing.get("app_profile_id", [""])[0], _resource(routing)
                if profile and resource:
                    self._profiles.get(instance_of(resource), profile)


@asynccontextmanager
async def _refusing(context: Any) -> AsyncIterator[None]:
    """End the call with the status of what was raised, with the emulator's details and trailers."""
    try:
        yield
    except RefusedError as error:
        await context.abort(error.code, error.message)
    except grpc.aio.AioRpcError as error:
        await context.abort(error.code(), error.details() or "", tuple(error.trailing_metadata()))


async def _together(answers: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the rows of ReadRows many in a message, as Bigtable sends them; the emulator sends one in each.

    One behind the other the bytes of two messages are the message with the chunks of both. What came before the call
    broke off is yielded too.
    """
    waiting: list[bytes] = []
    size = 0
    try:
        async for answer in answers:
            if len(answer) > _ROW_BYTES:
                if waiting:
                    yield b"".join(waiting)
                raise precondition(
                    f"Row is too large to be read: {len(answer)} bytes, at most {_ROW_BYTES} are allowed"
                )
            waiting.append(answer)
            size += len(answer)
            if size >= _ROWS_BYTES:
                yield b"".join(waiting)
                waiting, size = [], 0
    except grpc.aio.AioRpcError:
        if waiting:
            yield b"".join(waiting)
        raise
    if waiting:
        yield b"".join(waiting)


async def _first(requests: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    async for request in requests:
        yield request
        return


async def _joined(first: Sequence[bytes], rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    for request in first:
        yield request
    async for request in rest:
        yield request


def _passed_on(metadata: Metadata) -> Metadata:
    return tuple((key, value) for key, value in metadata if not key.startswith(_OWN_METADATA))


def _resource(routing: Mapping[str, Sequence[str]]) -> str:
    return next((values[0] for key, values in routing.items() if key != "app_profile_id" and values), "")
