"""Replays: the bytes of dead letters as ordinary messages on the topic of change batches.

Source: Pub/Sub, "Order messages": a publish request holds messages of one ordering key, and those of one key keep the
order in which they were confirmed. So each key's requests go out one behind the other, and keys beside each other.
"""

from collections.abc import Collection, Sequence
from datetime import timedelta
from itertools import zip_longest
from typing import Any, Final

import grpc

from services.dead_letter.core.dead_letters import DeadLetterId
from services.dead_letter.core.pipeline import named
from shared.contracts.dead_letter import DeadLetter, replayed_attributes
from shared.contracts.errors import TransientError
from shared.pubsub.errors import pubsub_errors
from shared.pubsub.publish_requests import publish_requests
from shared.pubsub.stubs import PubsubMessage, publish_stub, routing
from shared.runtime.retries import retrying
from shared.runtime.stop import Stop

RETRY_BUDGET: Final = timedelta(seconds=60)
"""How long Pub/Sub may be unavailable before the replay ends; what is not confirmed stays open."""
_TIMEOUT: Final = 30.0
_AT_ONCE: Final = 16


class PubsubReplayPublisher:
    """The ReplayPublisher of one topic."""

    def __init__(
        self, channel: grpc.Channel, topic: str, stop: Stop, budget: timedelta = RETRY_BUDGET, *, emulated: bool = False
    ) -> None:
        self._stub = publish_stub(channel)
        self._topic = topic
        self._emulated = emulated
        self._stop = stop
        self._budget = budget

    @property
    def topic(self) -> str:
        """Return how the topic is known."""
        return named(self._topic, emulated=self._emulated)

    def publish(self, dead_letters: Sequence[DeadLetter], forced: Collection[DeadLetterId]) -> None:
        """Return when all are confirmed; as `ReplayPublisher.publish`."""
        by_key: dict[str, list[Any]] = {}
        for dead_letter in dead_letters:
            message = PubsubMessage(
                data=dead_letter.data,
                attributes=replayed_attributes(dead_letter, forced=DeadLetterId(dead_letter.identity) in forced),
                ordering_key=dead_letter.ordering_key,
            )
            by_key.setdefault(dead_letter.ordering_key, []).append(message)
        queues = [list(publish_requests(self._topic, messages)) for messages in by_key.values()]
        for start in range(0, len(queues), _AT_ONCE):
            for requests in zip_longest(*queues[start : start + _AT_ONCE]):
                left = [request for request in requests if request is not None]  # each is of another key
                retrying(self._stop, self._budget)(self._try, left)

    def _try(self, left: list[Any]) -> None:
        """Publish what is left, and take out what is confirmed; TransientError if that is not all."""
        metadata = routing("topic", self._topic)
        calls = [(request, self._stub.future(request, timeout=_TIMEOUT, metadata=metadata)) for request in left]
        error: TransientError | None = None
        for request, call in calls:
            try:
                with pubsub_errors(f"publish replays to {self._topic}"):
                    call.result()
            except TransientError as transient:
                error = transient
            else:
                left.remove(request)
        if error is not None:
            raise error
