"""The dead-letter subscription: unary Pull, leases kept until their messages are acked, or nacked in the end.

A pull that waits is never cancelled but at the very end: what a cancelled pull has leased comes back only when its
deadline has passed (see googleapis/python-pubsub#343). So it has a long deadline and is kept from one wait to the next.
That such a pull is not answered says nothing: there may be no messages, or a Pub/Sub that takes calls and answers none.
So one that has been silent for a while is asked something that it always answers.

Memory is bounded by what a channel lets through: an answer above the limit is refused by gRPC on this side, its
messages come again when their leases end, and the next pull asks for as many as fit whatever they are. Pub/Sub's Pull
knows no limit of bytes, and any message may have ten million.
"""

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import timedelta
from typing import Any, Final

import grpc
import structlog

from services.dead_letter.core.received import Received
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.contracts.timestamps import Nanoseconds
from shared.pubsub.errors import pubsub_errors, status_of
from shared.pubsub.leases import Keeper, PubsubLeases, ack_deadline_of
from shared.pubsub.stubs import PullRequest, pull_stub, routing

LARGEST_MESSAGE: Final = 10_500_000
"""Bytes of a message, with what an answer has beside it: Pub/Sub takes ten million."""
_FIRST_PULL: Final = 10  # messages, while nothing is known of their size
TIMEOUT: Final = 3.0  # a stop waits for the call under way, for the lease keeper's, and for one more
_LONGEST_PULL: Final = timedelta(minutes=10)
_SILENCE: Final = 10.0  # seconds without an answer, after which one is asked for
_LAST_WAIT: Final = timedelta(milliseconds=500)
_SECOND: Final = 1_000_000_000


class PubsubInbox:
    """The subscription of one process, and the keeper of what is leased.

    ``messages`` and ``outstanding_bytes``: what one pull leases, at most. The channel has to refuse larger answers.
    """

    def __init__(
        self,
        channel: grpc.Channel,
        subscription: str,
        leases: PubsubLeases,
        keeper: Keeper,
        *,
        messages: int,
        outstanding_bytes: int,
    ) -> None:
        self._channel = channel
        self._pull = pull_stub(channel)
        self._subscription = subscription
        self._metadata = routing("subscription", subscription)
        self._leases = leases
        self._keeper = keeper
        self._messages = messages
        self._outstanding_bytes = outstanding_bytes
        self._most = min(_FIRST_PULL, messages)
        self._waiting: tuple[Any, threading.Event] | None = None
        self._answered_at = time.monotonic()

    def pull(self, wait: timedelta) -> Sequence[Received]:
        """Lease some messages; empty if none came in time. The pull goes on, and the next call waits for the same.

        TransientError also where Pub/Sub takes calls and does not answer them.
        """
        self._see_that_it_answers()
        call, answered = self._waiting or self._begin()
        if not answered.wait(wait.total_seconds()):
            self._waiting = call, answered
            return ()
        self._waiting = None
        with pubsub_errors(f"pull from {self._subscription}"):
            try:
                response = call.result()
            except grpc.RpcError as error:
                if status_of(error)[0] is grpc.StatusCode.DEADLINE_EXCEEDED:
                    return ()
                if status_of(error)[0] is grpc.StatusCode.RESOURCE_EXHAUSTED:  # too large an answer, or a quota
                    self._most = max(1, min(self._most, self._outstanding_bytes // LARGEST_MESSAGE))
                raise
        self._answered_at = time.monotonic()
        self._add_leases(response)
        return [_received(one) for one in response.received_messages]

    def ack(self, ack_ids: Sequence[str]) -> None:
        """Say that these are kept. Their leases are extended until that has succeeded."""
        self._leases.ack(ack_ids)

    def close(self) -> None:
        """Nack what is leased, and what the pull that waits may still bring."""
        if self._waiting is not None:
            (call, answered), self._waiting = self._waiting, None
            if not answered.wait(_LAST_WAIT.total_seconds()):
                call.cancel()
            answered.wait(_LAST_WAIT.total_seconds())
            if call.done() and not call.cancelled() and call.exception() is None:
                self._add_leases(call.result())
        leased = self._keeper.kept
        try:
            self._leases.release(leased)
        except (TransientError, MisconfiguredError) as error:  # they come again when their leases end
            structlog.get_logger().warning("dead_letters_not_nacked", leases=len(leased), error=str(error))

    def _see_that_it_answers(self) -> None:
        """Ask after a silence; if the service does not answer that either, the pull is begun again."""
        if time.monotonic() - self._answered_at < _SILENCE or (self._waiting and self._waiting[1].is_set()):
            return
        try:
            ack_deadline_of(self._channel, self._subscription, TIMEOUT)
            self._answered_at = time.monotonic()
        except TransientError:
            if self._waiting is not None:
                self._waiting[0].cancel()
                self._waiting = None
            raise

    def _begin(self) -> tuple[Any, threading.Event]:
        request = PullRequest(subscription=self._subscription, max_messages=self._most)
        call = self._pull.future(request, timeout=_LONGEST_PULL.total_seconds(), metadata=self._metadata)
        answered = threading.Event()
        call.add_done_callback(lambda _call: answered.set())
        return call, answered

    def _add_leases(self, response: Any) -> None:
        """Count leases, and choose how many the next pull asks for: as many as fit if all were as large as these."""
        received = response.received_messages
        self._keeper.add(one.ack_id for one in received)
        if received:
            fit = self._outstanding_bytes * len(received) // max(1, 2 * response.ByteSize())
            self._most = max(1, min(self._messages, 2 * self._most, fit))


@contextmanager
def open_inbox(
    channel: grpc.Channel, subscription: str, leases: PubsubLeases, *, messages: int, outstanding_bytes: int
) -> Iterator[PubsubInbox]:
    """Open a subscription for the block: what is leased is extended, and in the end, what still is is nacked."""
    with leases.keeper() as keeper:
        inbox = PubsubInbox(
            channel, subscription, leases, keeper, messages=messages, outstanding_bytes=outstanding_bytes
        )
        with closing(inbox):
            yield inbox


def _received(one: Any) -> Received:
    message = one.message
    attributes: Mapping[str, str] = dict(message.attributes)
    return Received(
        data=message.data,
        attributes=attributes,
        ordering_key=message.ordering_key,
        message_id=message.message_id,
        published_at=Nanoseconds(message.publish_time.seconds * _SECOND + message.publish_time.nanos),
        ack_id=one.ack_id,
    )
