"""Dead letters on their way to the dead-letter topic: kept means confirmed, and only then may a message be acked."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from typing import Any, Final

import grpc

from shared.contracts.dead_letter import PREFIX, DeadLetter, to_attributes
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.pubsub.errors import pubsub_errors
from shared.pubsub.outage import Outage
from shared.pubsub.publish_requests import publish_requests
from shared.pubsub.stubs import PubsubMessage, publish_stub, routing
from shared.runtime.retries import retrying, retrying_async
from shared.runtime.stop import Stop

_TIMEOUT: Final = 30.0
# Pub/Sub's limits: bytes of a message, attributes on it.
_LARGEST: Final = 9_900_000
_ATTRIBUTES: Final = 100


def dead_letter_message(dead_letter: DeadLetter) -> Any:
    """Return a dead letter as a Pub/Sub message: its bytes and attributes as they came, and what we say of them beside.

    It has no ordering key of its own (the original's is an attribute), so that dead letters share a request. A foreign
    message at Pub/Sub's own limit has no room for what we say beside it: its dead letter is flagged and keeps the size
    instead of the bytes, and the first attributes instead of all.
    """
    attributes = to_attributes(dead_letter)
    if len(attributes) > _ATTRIBUTES:
        ours = {name: value for name, value in attributes.items() if name.startswith(PREFIX)}
        theirs = [each for each in attributes.items() if each[0] not in ours]
        attributes = dict(theirs[: _ATTRIBUTES - len(ours)]) | ours
    message = PubsubMessage(data=dead_letter.data, attributes=attributes)
    if message.ByteSize() > _LARGEST:
        attributes["dead_letter_payload_bytes"] = str(len(dead_letter.data))
        message = PubsubMessage(attributes=dict(list(attributes.items())[-_ATTRIBUTES:]))
    return message


class DeadLetterPublisher:
    """Keeps dead letters from a thread. Without a ``budget`` it tries until it succeeds or is asked to stop."""

    def __init__(self, channel: grpc.Channel, topic: str, stop: Stop, budget: timedelta | None = None) -> None:
        self._publish = publish_stub(channel)
        self._topic = topic
        self._stop = stop
        self._budget = budget

    def keep(self, dead_letters: Sequence[DeadLetter]) -> None:
        """Return when every dead letter is confirmed by the dead-letter topic; until then none counts as kept."""
        for request in publish_requests(self._topic, map(dead_letter_message, dead_letters)):
            for attempt in retrying(self._stop, self._budget):
                with attempt, pubsub_errors(f"publish dead letters to {self._topic}"):
                    self._publish(request, timeout=_TIMEOUT, metadata=routing("topic", self._topic))


class DeadLettersRefusedError(TransientError):
    """The dead-letter topic takes no dead letters until someone acts; the message names what to do."""

    fix = "do what the error names; only the partitions with such changes wait until then"


@contextmanager
def _waiting() -> Iterator[None]:
    try:
        yield
    except MisconfiguredError as error:
        raise DeadLettersRefusedError(str(error)) from error


class AsyncDeadLetterPublisher:
    """The same in an event loop; ``kept`` is called with the dead letters that are.

    ``waits``: a refusal is retried too, until a stop. A service sets it: its other records go on meanwhile.
    """

    def __init__(
        self,
        channel: grpc.aio.Channel,
        topic: str,
        stop: Stop,
        kept: Callable[[Sequence[DeadLetter]], None] = lambda _dead_letters: None,
        monotonic: Callable[[], float] = time.monotonic,
        *,
        waits: bool = False,
    ) -> None:
        self._kept = kept
        self._waiting = _waiting if waits else nullcontext
        self._outage = Outage(topic, monotonic)
        self._publish = publish_stub(channel)
        self._topic = topic
        self._stop = stop

    async def keep(self, dead_letters: Sequence[DeadLetter]) -> None:
        """Return when every dead letter is confirmed by the dead-letter topic."""
        call = f"publish dead letters to {self._topic}"
        for request in publish_requests(self._topic, map(dead_letter_message, dead_letters)):
            async for attempt in retrying_async(self._stop):
                with attempt, self._outage.attempt(), self._waiting(), pubsub_errors(call):
                    await self._publish(request, timeout=_TIMEOUT, metadata=routing("topic", self._topic))
        self._kept(dead_letters)

    def why_not_ready(self) -> str:
        """Return that publishing to the dead-letter topic has failed for long, or nothing. Any thread may ask."""
        return self._outage.why_not_ready()
