"""Three replicas of the Spanner reader that join, leave, are killed, and stand still for longer than a lease.

Partitions live for two seconds, so they change owners and end all the time. What is checked is what the topic holds.
"""

import random
import signal
import time
from collections.abc import Iterator

import pytest

from deploy.local.platform import emulators
from deploy.local.platform.processes import Process, Processes
from deploy.local.platform.source import SpannerInstance
from shared.contracts.timestamps import Nanoseconds, format_timestamp
from shared.pubsub.channels import open_channel
from tests.integration.log_lines import events
from tests.integration.pubsub_topics import a_topology
from tests.worlds.spanner_pipeline import DDL, SpannerPipeline

REPLICAS = 3
SECONDS = 8.0
"""How long changes are committed after each step: longer than a lease."""
UNCONFIRMED = 5.0
"""How long Pub/Sub stands still: longer than a heartbeat, and than watermarks are not saved."""
STEPS = ("kill", "stand still", "unconfirmed", "leave", "kill", "unconfirmed", "stand still", "kill two", "leave")


@pytest.fixture
def pipeline(new_processes: Processes) -> Iterator[SpannerPipeline]:
    """Return a pipeline on emulators of its own."""
    flags = {"override_change_stream_partition_token_alive_seconds": "2"}
    with (
        emulators.spanner_emulator(new_processes, **flags) as spanner,
        emulators.pubsub_emulator(new_processes) as pubsub,
        open_channel(pubsub) as channel,
    ):
        instance = SpannerInstance.create(spanner, "millrace-test", "replicas")
        made = instance.create_database(DDL), instance.create_database([])
        yield SpannerPipeline(*made, pubsub, channel, a_topology(channel), new_processes)
        new_processes.end_all()


class Churn:
    """Replicas, what happens to them, and the low watermark as it was seen meanwhile."""

    def __init__(self, pipeline: SpannerPipeline, seed: int) -> None:
        self._pipeline = pipeline
        self._chance = random.Random(seed)
        self.replicas = [pipeline.start() for _ in range(REPLICAS)]
        self.seen: list[tuple[float, Nanoseconds]] = []
        """Times, in seconds since 1970, and the low watermark that was saved by then."""

    def live(self, seconds: float) -> None:
        """Commit changes for a while, and note what is saved."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._pipeline.write(rows=self._chance.choice((1, 1, 1, 10)))
            self._see()
            self._pipeline.pull()

    def step(self, name: str) -> None:
        """Let something happen to replicas, and bring their number up to three."""
        match name:
            case "kill":
                self._taken().kill()
            case "kill two":
                self._taken().kill()
                self._taken().kill()
            case "leave":
                self._leave()
            case "stand still":
                self._stand_still()
            case "unconfirmed":
                self._kill_unconfirmed()
            case _:
                raise AssertionError(name)
        self.live(SECONDS)
        while len(self.replicas) < REPLICAS:
            self.replicas.append(self._pipeline.start())
        self.live(SECONDS / 2)

    def _see(self) -> None:
        low = self._pipeline.low_watermark()
        self.seen.append((time.time(), low))

    def _taken(self) -> Process:
        return self.replicas.pop(self._chance.randrange(len(self.replicas)))

    def _leave(self) -> None:
        leaving = self._taken()
        leaving.ask_to_end()
        self._pipeline.wait(lambda: leaving.exit_code == 0, "the replica to leave")

    def _stand_still(self) -> None:
        paused = self._chance.choice(self.replicas)
        paused.signal(signal.SIGSTOP)
        self.live(SECONDS)
        paused.signal(signal.SIGCONT)

    def _kill_unconfirmed(self) -> None:
        """Kill a replica when heartbeats have come behind changes that Pub/Sub has not confirmed."""
        (pubsub,) = (process for process in self._pipeline.processes.running if "pubsub" in process.name)
        pubsub.signal(signal.SIGSTOP)
        try:
            for _transaction in range(5):
                self._pipeline.write()
            until = time.monotonic() + UNCONFIRMED
            while time.monotonic() < until:
                self._see()
            self._taken().kill()
        finally:
            pubsub.signal(signal.SIGCONT)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [0, 1])
def test_replicas_that_come_and_go_publish_every_change_and_save_no_watermark_before_it_is_confirmed(
    pipeline: SpannerPipeline, seed: int
) -> None:
    churn = Churn(pipeline, seed)
    churn.live(SECONDS)
    for step in STEPS:
        churn.step(step)
    pipeline.wait_for_all()
    last = pipeline.committed[-1][1]
    pipeline.wait(
        lambda: pipeline.low_watermark() > last, "all partitions to get behind the last change", pipeline.pull
    )

    early = [
        (key, format_timestamp(commit), format_timestamp(low))
        for seen_at, low in churn.seen
        for key, commit in pipeline.committed
        if commit < low and pipeline.published_at[key, format_timestamp(commit)] > seen_at
    ]
    assert not early, "a watermark was saved before these changes were with Pub/Sub"
    lows = [low for _seen_at, low in churn.seen]
    assert lows == sorted(lows), "a watermark went back"
    assert len(set(lows)) > len(STEPS), "the watermark moved all the time"
    assert sum(bool(events(one, "partition_claimed")) for one in churn.replicas) > 1, "they share the partitions"
