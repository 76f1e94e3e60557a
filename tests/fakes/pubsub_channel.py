"""A gRPC channel to a Pub/Sub in memory: what was called, and answers that a test decides on.

``answer`` is called with the call's name and its request and returns the response, or raises. An async channel's
answers may wait (``hold``) until the test lets them go.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self

import grpc

from shared.pubsub.stubs import PublishResponse

Answer = Callable[[str, Any], Any]


class FakeRpcError(grpc.RpcError):
    """What a stub raises for a status."""

    def __init__(self, code: grpc.StatusCode) -> None:
        super().__init__(code.name)
        self._code = code

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return "as the test wants it"


class _Call:
    """A call in flight on a channel for threads. It has been answered; the caller just does not know yet."""

    def __init__(self, response: Any, error: grpc.RpcError | None) -> None:
        self._response, self._error = response, error
        self.awaited = False

    def result(self) -> Any:
        self.awaited = True
        if self._error is not None:
            raise self._error
        return self._response

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        callback(self)

    def done(self) -> bool:
        return True

    def cancelled(self) -> bool:
        return False

    def exception(self) -> grpc.RpcError | None:
        self.awaited = True
        return self._error


@dataclass
class FakeChannel:
    """A channel for threads."""

    answer: Answer
    calls: list[tuple[str, Any]] = field(default_factory=list)
    in_flight: list[_Call] = field(default_factory=list)

    def unary_unary(self, path: str, **_serializers: Any) -> Any:
        return _Stub(self, path.rpartition("/")[2])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        """Stay as it is: another block may open it."""

    def begin(self, name: str, request: Any) -> _Call:
        self.calls.append((name, request))
        try:
            call = _Call(self.answer(name, request), None)
        except grpc.RpcError as error:
            call = _Call(None, error)
        self.in_flight.append(call)
        return call


@dataclass
class _Stub:
    channel: FakeChannel
    name: str

    def __call__(self, request: Any, **_options: Any) -> Any:
        return self.channel.begin(self.name, request).result()

    def future(self, request: Any, **_options: Any) -> _Call:
        return self.channel.begin(self.name, request)


class FakeAsyncChannel:
    """A channel for an event loop, to topics. A publish on it waits while ``hold`` is set."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.confirmed: list[Any] = []
        self.failures: list[grpc.StatusCode] = []
        self.open = asyncio.Event()
        self.open.set()

    def unary_unary(self, _path: str, **_serializers: Any) -> Any:
        async def publish(request: Any, **_options: Any) -> Any:
            self.requests.append(request)
            await self.open.wait()
            if self.failures:
                raise FakeRpcError(self.failures.pop(0))
            self.confirmed.append(request)
            return PublishResponse(message_ids=[str(number) for number, _ in enumerate(request.messages)])

        return publish


class SlowChannel(FakeAsyncChannel):
    """A Pub/Sub that takes thirty milliseconds for a request, and does not answer those of some ordering keys."""

    def __init__(self, stuck: str = "") -> None:
        super().__init__()
        self.stuck = stuck
        self.most_under_way = self.under_way = 0

    def unary_unary(self, _path: str, **_serializers: Any) -> Any:
        stub = super().unary_unary(_path, **_serializers)

        async def publish(request: Any, **options: Any) -> Any:
            self.under_way += 1
            self.most_under_way = max(self.most_under_way, self.under_way)
            await asyncio.sleep(0.03)
            if self.stuck and request.messages[0].ordering_key == self.stuck:
                await asyncio.Event().wait()
            self.under_way -= 1
            return await stub(request, **options)

        return publish
