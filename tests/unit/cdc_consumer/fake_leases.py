"""The Leases port in memory, for the micro-batch: who holds what, and what was done with it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

from shared.contracts.errors import TransientError
from tests.fakes.effects import Effects


class FakeLeases:
    """Remembers what became of each ack id; refuses whatever happens to a message that is not kept."""

    def __init__(self, effects: Effects | None = None) -> None:
        self.effects = effects or Effects()
        self.kept: set[str] = set()
        self.acked: list[str] = []
        self.given_back: list[str] = []
        self.put_off_for: dict[str, timedelta] = {}
        self.away = 0

    @contextmanager
    def keeping(self, ack_ids: Sequence[str]) -> Iterator[None]:
        self.effects.note("keep leases")
        self.kept |= set(ack_ids)
        try:
            yield
        finally:
            self.kept.clear()

    def ack(self, ack_ids: Sequence[str]) -> None:
        self._settle(f"ack {len(ack_ids)}", ack_ids)
        self.acked += ack_ids

    def give_back(self, ack_ids: Sequence[str]) -> None:
        self._settle(f"give back {len(ack_ids)}", ack_ids)
        self.given_back += ack_ids

    def put_off(self, ack_ids: Sequence[str], delay: timedelta) -> None:
        self._settle(f"put off {len(ack_ids)}", ack_ids)
        self.put_off_for |= dict.fromkeys(ack_ids, delay)

    def _settle(self, effect: str, ack_ids: Sequence[str]) -> None:
        assert set(ack_ids) <= self.kept, "a message whose lease nobody keeps, or that was settled before"
        if self.away:
            self.away -= 1
            raise TransientError("Pub/Sub is away")
        self.effects.note(effect)
        self.kept -= set(ack_ids)
