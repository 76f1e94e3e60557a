"""The Inbox port in memory: a subscription that outlives the process, and the leases of each life of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta

from services.dead_letter.core.received import Received
from shared.contracts.errors import TransientError
from shared.contracts.timestamps import Nanoseconds
from shared.runtime.stop import Stop
from tests.fakes.effects import Effects


@dataclass
class FakeSubscription:
    """Messages by id until they are acknowledged, in the order in which they came."""

    messages: dict[str, Received] = field(default_factory=dict)
    published: int = 0

    def publish(self, data: bytes, attributes: Mapping[str, str], ordering_key: str = "") -> str:
        """Publish a message; return its id."""
        self.published += 1
        message_id = f"m{self.published}"
        self.messages[message_id] = Received(
            data=data,
            attributes=attributes,
            ordering_key=ordering_key,
            message_id=message_id,
            published_at=Nanoseconds(1_760_000_000_000_000_000 + self.published),
            ack_id="",
        )
        return message_id


class FakeInbox:
    """What one process has leased. It requests a stop once nothing is left; the first ``unavailable`` calls fail."""

    def __init__(
        self, subscription: FakeSubscription, stop: Stop, effects: Effects | None = None, at_once: int = 3
    ) -> None:
        self._subscription = subscription
        self._stop = stop
        self._effects = effects or Effects()
        self._at_once = at_once
        self._leases: dict[str, str] = {}
        self.unavailable = 0
        self.most_outstanding = 0

    def pull(self, wait: timedelta) -> Sequence[Received]:
        """Lease messages that are not leased; one that waits in vain ends the test."""
        self._reach("pull")
        leased = set(self._leases.values())
        found = [one for one in self._subscription.messages.values() if one.message_id not in leased]
        taken = []
        for one in found[: self._at_once]:
            ack_id = f"lease of {one.message_id}"
            self._leases[ack_id] = one.message_id
            taken.append(replace(one, ack_id=ack_id))
        self.most_outstanding = max(self.most_outstanding, len(self._leases))
        if not taken:
            self._stop.request()
        return taken

    def ack(self, ack_ids: Sequence[str]) -> None:
        """Forget messages."""
        self._reach(f"ack {len(ack_ids)}")
        for ack_id in ack_ids:
            self._subscription.messages.pop(self._leases.pop(ack_id), None)

    def _reach(self, effect: str) -> None:
        if self.unavailable:
            self.unavailable -= 1
            raise TransientError("Pub/Sub is unavailable")
        self._effects.note(effect)
