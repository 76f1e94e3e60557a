"""A stop at the start, against a server that takes every call and answers none: what is under way is cancelled."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import grpc
import pytest
from prometheus_client import CollectorRegistry

from services.bigtable_reader.__main__ import MicrosecondClock, read
from services.bigtable_reader.adapters.subscriptions import TopicSubscriptions
from services.bigtable_reader.metrics import ReaderMetrics
from services.bigtable_reader.settings import Settings
from shared.contracts.errors import TransientError
from shared.runtime.health import Health
from shared.runtime.settings import read_settings
from shared.runtime.stop import Stop

pytestmark = pytest.mark.integration


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


def run(scenario: Callable[[str, Stop], Awaitable[None]]) -> None:
    """Stop what a scenario begins as soon as a call has come: it ends, and the call before its own time was over."""

    async def running() -> None:
        silent, server, stop = Silent(), grpc.aio.server(), Stop()
        server.add_generic_rpc_handlers((silent,))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            task = asyncio.ensure_future(scenario(f"127.0.0.1:{port}", stop))
            await silent.taken.wait()
            stop.request()
            with pytest.raises(TransientError):
                await task
            await silent.over.wait()
            assert len(silent.seconds_left) == 1
            assert silent.seconds_left[0] > 0
        finally:
            await server.stop(None)

    asyncio.run(asyncio.wait_for(running(), 120))


def test_what_bigtable_does_not_answer_at_the_start_is_cancelled() -> None:
    async def scenario(address: str, stop: Stop) -> None:
        needed = {
            "GOOGLE_CLOUD_PROJECT": "p",
            "BIGTABLE_INSTANCE": "i",
            "BIGTABLE_TABLE": "weather",
            "TOPIC": "changes",
            "DEAD_LETTER_TOPIC": "dead",
            "BIGTABLE_EMULATOR_HOST": address,
        }
        metrics = ReaderMetrics(CollectorRegistry(), MicrosecondClock())
        subscriptions = TopicSubscriptions(address, [], timedelta(days=1))
        await read(read_settings(Settings, needed), stop, Health(), metrics, subscriptions)

    run(scenario)


def test_what_pubsub_does_not_answer_at_the_start_is_cancelled() -> None:
    async def scenario(address: str, stop: Stop) -> None:
        subscriptions = TopicSubscriptions(address, ["projects/p/topics/changes"], timedelta(days=1))
        await asyncio.to_thread(subscriptions.check_now, stop)

    run(scenario)


def test_a_look_at_the_topics_that_is_given_up_leaves_no_thread_waiting() -> None:
    async def scenario(address: str, stop: Stop) -> None:
        subscriptions = TopicSubscriptions(address, ["projects/p/topics/changes"], timedelta(days=1))
        looking = asyncio.create_task(subscriptions.check())
        await stop.wait_async()
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
        raise TransientError("given up")

    run(scenario)
