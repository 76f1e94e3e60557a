"""Messages in requests to Pub/Sub."""

from collections.abc import Iterable, Iterator
from typing import Any

from shared.pubsub.packer import REQUEST_BYTES, REQUEST_MESSAGES
from shared.pubsub.stubs import PublishRequest
from shared.runtime.portions import cut


def publish_requests(topic: str, messages: Iterable[Any]) -> Iterator[Any]:
    """Yield the requests that publish messages, each below Pub/Sub's limits of bytes and messages."""
    for some in cut(messages, lambda one: one.ByteSize() + 8, REQUEST_BYTES, REQUEST_MESSAGES):
        yield PublishRequest(topic=topic, messages=some)
