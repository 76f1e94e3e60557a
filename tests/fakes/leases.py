"""The Leases port in memory: a subscription whose time passes when told, and what was done with its messages."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta

from shared.contracts.errors import TransientError
from tests.fakes.effects import Effects


class FakeLeases:
    """Keeps the promises of `MessageLeases`. ``unavailable`` calls fail first.

    ``must_keep`` is for tests of who uses it: whatever happens to a message whose lease nobody keeps, or that was
    settled before, is refused.
    """

    def __init__(
        self,
        effects: Effects | None = None,
        *,
        must_keep: bool = False,
        ack_deadline: timedelta = timedelta(seconds=60),
    ) -> None:
        self.effects = effects or Effects()
        self.kept: set[str] = set()
        self.acked: list[str] = []
        self.released: list[str] = []
        self.deferred_for: dict[str, timedelta] = {}
        self.unavailable = 0
        self._must_keep = must_keep
        self._ack_deadline = ack_deadline
        self._now = timedelta(0)
        self._there: dict[str, timedelta] = {}  # message -> from when on it can be leased
        self._leased: dict[str, str] = {}  # ack id -> message, of its last delivery only
        self._deliveries = 0

    def publish(self, *messages: str) -> None:
        self._there |= dict.fromkeys(messages, self._now)

    def lease(self) -> Mapping[str, str]:
        """Lease every message that nobody holds; return their ack ids by message."""
        leased = {}
        for message, since in self._there.items():
            if since <= self._now:
                self._deliveries += 1
                ack_id = leased[message] = f"{message}#{self._deliveries}"
                self._leased = {one: each for one, each in self._leased.items() if each != message} | {ack_id: message}
                self._there[message] = self._now + self._ack_deadline
        return leased

    def pass_time(self, time: timedelta) -> None:
        self._now += time
        self._extend(self.kept)

    @contextmanager
    def keeping(self, ack_ids: Sequence[str]) -> Iterator[None]:
        self.effects.note("keep leases")
        self.kept |= set(ack_ids)
        self._extend(ack_ids)
        try:
            yield
        finally:
            self.kept -= set(ack_ids)

    def ack(self, ack_ids: Sequence[str]) -> None:
        self._settle(f"ack {len(ack_ids)}", ack_ids)
        self.acked += ack_ids
        for ack_id in ack_ids:
            self._there.pop(self._leased.pop(ack_id, ""), None)

    def release(self, ack_ids: Sequence[str]) -> None:
        self._settle(f"release {len(ack_ids)}", ack_ids)
        self.released += ack_ids
        self._lease_until(ack_ids, self._now)

    def defer(self, ack_ids: Sequence[str], delay: timedelta) -> None:
        self._settle(f"defer {len(ack_ids)}", ack_ids)
        self.deferred_for |= dict.fromkeys(ack_ids, delay)
        self._lease_until(ack_ids, self._now + delay)

    def _settle(self, effect: str, ack_ids: Sequence[str]) -> None:
        if self._must_keep:
            assert set(ack_ids) <= self.kept, "a message whose lease nobody keeps, or that was settled before"
        if self.unavailable:
            self.unavailable -= 1
            raise TransientError("Pub/Sub is unavailable")
        self.effects.note(effect)
        self.kept -= set(ack_ids)

    def _extend(self, ack_ids: Sequence[str] | set[str]) -> None:
        self._lease_until(ack_ids, self._now + self._ack_deadline)

    def _lease_until(self, ack_ids: Sequence[str] | set[str], until: timedelta) -> None:
        for ack_id in ack_ids:
            if ack_id in self._leased:
                self._there[self._leased[ack_id]] = until
