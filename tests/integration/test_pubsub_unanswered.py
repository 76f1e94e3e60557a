"""A look at the topics that is given up, before a server that takes every call and answers none."""

import asyncio
from datetime import timedelta
from itertools import count

import pytest

from shared.contracts.errors import TransientError
from shared.pubsub import topology
from shared.pubsub.subscriptions import TopicSubscriptions
from shared.runtime.stop import Stop
from tests.integration.silent_server import stopped_before_a_silent_server

pytestmark = pytest.mark.integration


def test_what_pubsub_does_not_answer_at_the_start_is_cancelled() -> None:
    async def scenario(address: str, stop: Stop) -> None:
        subscriptions = TopicSubscriptions(address, ["projects/p/topics/changes"], timedelta(days=1))
        await asyncio.to_thread(subscriptions.check_now, stop)

    stopped_before_a_silent_server(scenario)


def test_an_abandoned_inspection_of_the_topics_leaves_no_thread_waiting() -> None:
    async def scenario(address: str, stop: Stop) -> None:
        subscriptions = TopicSubscriptions(address, ["projects/p/topics/changes"], timedelta(days=1))
        looking = asyncio.create_task(subscriptions.check())
        await stop.wait_async()
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
        raise TransientError("given up")

    stopped_before_a_silent_server(scenario)


@pytest.mark.parametrize("waits", [True, False])
def test_a_service_waits_for_pubsub_at_its_start_and_a_command_does_not(
    waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topology, "_RETRY_BUDGET", timedelta(0))
    subscriptions = TopicSubscriptions("127.0.0.1:1", ["projects/p/topics/changes"], timedelta(days=1))
    stop, attempts = Stop(), count(1)

    def progressed() -> None:
        if next(attempts) == 3:
            stop.request()

    with pytest.raises(TransientError, match="asked to stop" if waits else "UNAVAILABLE"):
        subscriptions.check_now(stop, progressed if waits else None)
    assert stop.requested is waits
