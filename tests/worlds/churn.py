"""Three replicas of a reader that join, leave, are killed, and stand still for longer than a lease, under load."""

import random
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from deploy.local.platform.processes import Process
from tests.integration.log_lines import events
from tests.integration.readers import Readers

REPLICAS: Final = 3
SECONDS: Final = 8.0
"""How long changes are made after each step: longer than a lease."""
UNCONFIRMED: Final = 5.0
"""How long Pub/Sub stands still: longer than a heartbeat, and than watermarks are not saved."""
STEPS: Final = (
    "kill",
    "stand still",
    "unconfirmed",
    "leave",
    "kill",
    "unconfirmed",
    "stand still",
    "kill two",
    "leave",
)


class Churn:
    """Replicas, and what happens to them while ``change`` changes the source and ``see`` looks at what is saved."""

    def __init__(
        self,
        readers: Readers,
        seed: int,
        change: Callable[[random.Random], object],
        pull: Callable[[], object],
        see: Callable[[], object] = lambda: None,
    ) -> None:
        self._readers = readers
        self._chance = random.Random(seed)
        self._change = change
        self._pull = pull
        self._see = see
        self.replicas = [readers.start() for _ in range(REPLICAS)]

    def run(self) -> None:
        """Take every step, with changes before, meanwhile and after."""
        self._live(SECONDS)
        for step in STEPS:
            self._take(step)

    def _take(self, step: str) -> None:
        """Let something happen to replicas, and bring their number up to three."""
        match step:
            case "kill":
                self._one().kill()
            case "kill two":
                self._one().kill()
                self._one().kill()
            case "leave":
                leaving = self._one()
                leaving.ask_to_end()
                self._readers.wait(lambda: leaving.exit_code == 0, "the replica to leave")
            case "stand still":
                while not self._stands_still(self._chance.choice(self.replicas)):
                    pass
            case "unconfirmed":
                self._kill_unconfirmed()
            case _:
                raise AssertionError(step)
        self._live(SECONDS)
        while len(self.replicas) < REPLICAS:
            self.replicas.append(self._readers.start())
        self._live(SECONDS / 2)

    def _live(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._change(self._chance)
            self._see()
            self._pull()

    def _one(self) -> Process:
        return self.replicas.pop(self._chance.randrange(len(self.replicas)))

    def _stands_still(self, replica: Process) -> bool:
        """Let a replica stand still until another has taken over from it; return False where it owned no partition."""
        with standing_still(replica):
            owned = {partition for partition, owner in self._owners().items() if owner == replica.name}
            _code, status = self._readers.status()
            if not any(one["partitions"] for one in status["readers"] if f"/{replica.pid}/" in one["owner"]):
                return False
            self._live(SECONDS)
            self._readers.wait(
                lambda: any(owner != replica.name for partition, owner in self._owners().items() if partition in owned),
                "another to take over",
                self._pull,
            )
        return True

    def _owners(self) -> Mapping[str, str]:
        """Return which replica has claimed each partition last."""
        claims = [
            (line["time"], str(line.get("partition_token", line.get("stream_range"))), process.name)
            for process in self._readers.processes.running
            if process.name.startswith("reader")
            for line in events(process, "partition_claimed")
        ]
        return {partition: name for _time, partition, name in sorted(claims)}

    def _kill_unconfirmed(self) -> None:
        """Kill a replica when heartbeats have come behind changes that Pub/Sub has not confirmed."""
        (pubsub,) = (process for process in self._readers.processes.running if "pubsub" in process.name)
        with standing_still(pubsub):
            for _time in range(5):
                self._change(self._chance)
            until = time.monotonic() + UNCONFIRMED
            while time.monotonic() < until:
                self._see()
            self._one().kill()


@contextmanager
def standing_still(process: Process) -> Iterator[None]:
    """Stop a process for the block, as the system stops one that it does not run."""
    process.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.signal(signal.SIGCONT)
