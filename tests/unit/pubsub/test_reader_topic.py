"""What a reader's settings of publishing make of its publisher: ordering keys, and requests at once."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Literal, Self

import grpc
import pytest
from prometheus_client import CollectorRegistry

from shared.contracts.change_batch import BUCKET
from shared.pubsub.publisher import BatchPublisher
from shared.pubsub.reader_topic import ReaderTopic
from shared.reading.settings import ReaderSettings
from shared.runtime.health import Health
from shared.runtime.metrics import PublishingMetrics
from shared.runtime.stop import Stop
from tests.builders import a_change, a_header
from tests.fakes.pubsub_channel import FakeAsyncChannel
from tests.fakes.subscriptions import FakeSubscriptions

PublisherOf = Callable[[ReaderTopic], AbstractAsyncContextManager[BatchPublisher]]


class FakeConnection(FakeAsyncChannel):
    """A channel that is opened and closed."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        """Be closed."""


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> list[FakeConnection]:
    """Return the connections to Pub/Sub that are opened."""
    opened: list[FakeConnection] = []

    def insecure_channel(_host: str, **_options: object) -> FakeConnection:  # the real one needs a socket
        opened.append(FakeConnection())
        return opened[-1]

    monkeypatch.setattr(grpc.aio, "insecure_channel", insecure_channel)
    return opened


def a_topic(ordering: Literal["key", "none"] = "key", publish_requests: int = 200) -> ReaderTopic:
    settings = ReaderSettings(
        project="p",
        topic="changes",
        dead_letter_topic="dead-letters",
        ordering=ordering,
        publish_requests=publish_requests,
        pubsub_emulator_host="pubsub:8085",
    )
    return ReaderTopic(settings, "a test")


@asynccontextmanager
async def of_a_service(topic: ReaderTopic) -> AsyncIterator[BatchPublisher]:
    metrics = PublishingMetrics(CollectorRegistry())
    async with topic.publisher(1 << 20, metrics, Health(), Stop()) as (publisher, _dead_letters), publisher:
        yield publisher


def of_a_command(topic: ReaderTopic) -> AbstractAsyncContextManager[BatchPublisher]:
    return topic.checked_publisher(Stop())


@pytest.fixture(params=[of_a_service, of_a_command])
def publisher_of(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> PublisherOf:
    """Return what opens the publisher of a service, or of a command; the topic keeps what is published."""
    monkeypatch.setattr(ReaderTopic, "subscriptions", lambda _topic: FakeSubscriptions())
    opens: PublisherOf = request.param
    return opens


async def published(
    opened: AbstractAsyncContextManager[BatchPublisher], connections: list[FakeConnection], keys: int
) -> list[Any]:
    """Publish a change of each of so many ordering keys; return the requests under way before any is answered."""
    async with opened as publisher:
        for connection in connections:
            connection.open.clear()
        changes = [(f"planes/{number}", a_change(number)) for number in range(keys)]
        confirmed = await publisher.publish(a_header(), changes)
        await asyncio.sleep(1)
        under_way = [request for connection in connections for request in connection.requests]
        for connection in connections:
            connection.open.set()
        await confirmed
    return under_way


async def test_with_ordering_by_key_each_key_is_a_request_of_its_own(
    publisher_of: PublisherOf, connections: list[FakeConnection]
) -> None:
    requests = await published(publisher_of(a_topic(ordering="key")), connections, keys=3)

    messages = [[(one.ordering_key, BUCKET in one.attributes) for one in request.messages] for request in requests]
    assert sorted(messages) == [[("planes/0", False)], [("planes/1", False)], [("planes/2", False)]]


async def test_with_ordering_none_a_request_takes_all_keys_which_are_attributes(
    publisher_of: PublisherOf, connections: list[FakeConnection]
) -> None:
    (request,) = await published(publisher_of(a_topic(ordering="none")), connections, keys=3)

    messages = [(one.ordering_key, one.attributes[BUCKET]) for one in request.messages]
    assert messages == [("", "planes/0"), ("", "planes/1"), ("", "planes/2")]


@pytest.mark.parametrize(("most", "opened"), [(1, 1), (100, 1), (101, 2), (250, 3)])
async def test_so_many_requests_are_under_way_at_once_as_publish_requests_says_on_as_many_connections_as_they_need(
    publisher_of: PublisherOf, connections: list[FakeConnection], most: int, opened: int
) -> None:
    requests = await published(publisher_of(a_topic(publish_requests=most)), connections, keys=most + 5)

    assert (len(requests), len(connections)) == (most, opened)
