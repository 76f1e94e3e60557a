"""A subscription that delivers to one process after the other, for tests of messages that end the process."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from shared.contracts.errors import TransientError
from tests.fakes.effects import CrashError
from tests.unit.cdc_consumer.world import AT_ONCE, World

MINUTE = timedelta(minutes=1)


class Deliveries:
    """A subscription of some messages: each time a new process has all that are left; it may end over those it has."""

    def __init__(self, world: World, messages: Mapping[str, Any], age: timedelta = AT_ONCE) -> None:
        self.world = world
        self.pending = dict(messages)
        self.published = datetime.fromtimestamp(world.clock.time / 1e9, tz=UTC) - age
        self.times = 0

    def deliver(self, after: timedelta) -> bool:
        """Let a new process have what is left; tell whether it lives."""
        world, names = self.world, list(self.pending)
        self.times += 1
        world.clock.pass_time(after)
        world.effects.dead = False
        world.start_anew()
        world.leases.kept.clear()
        world.leases.acked.clear()
        messages = [
            dict(self.pending[name])
            | {"message_id": name, "delivery_attempt": self.times, "publish_time": self.published}
            for name in names
        ]
        try:
            world.apply(*messages)
        except (CrashError, RuntimeError, TransientError):
            return False
        finally:
            for ack_id in world.leases.acked:
                del self.pending[names[int(ack_id[1:])]]
        return True

    def loop(self, most: int) -> int:
        """Restart as Kubernetes does, later after each crash and 300 s later at most; return how often it crashed."""
        crashes = 0
        while self.pending and self.times < most:
            back_off = min(timedelta(seconds=10) * (1 << min(crashes, 10)), timedelta(seconds=300))
            crashes += not self.deliver(back_off + timedelta(seconds=20))
        return crashes
