"""Everything around a micro-batch, in memory: what its tests act on and look at."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from msgspec import UNSET, UnsetType, structs

from services.cdc_consumer.app.stream.micro_batch import Memory, Ports, apply
from services.cdc_consumer.app.stream.trouble import RetryLimits
from services.cdc_consumer.core.schema.destinations import Plan
from services.cdc_consumer.core.stream.counts import Counts
from shared.contracts.change_batch import Change
from shared.contracts.change_sequence import four_sections
from shared.contracts.reasons import Reason
from shared.contracts.tables_file import read_tables_file
from shared.contracts.timestamps import Nanoseconds, parse_timestamp
from shared.runtime.clock import Monotonic
from shared.runtime.stop import Stop
from tests.builders import PLANE_COLUMNS, a_header, a_message, messages_table
from tests.fakes.cdc_writer import FakeCdcWriter
from tests.fakes.crash_counts import FakeCrashCounts
from tests.fakes.dead_letters import FakeDeadLetters
from tests.fakes.effects import CrashError, Effects
from tests.fakes.leases import FakeLeases
from tests.fakes.tables import FakeTables

NOW = parse_timestamp("2026-11-21T12:00:05Z")
PUBLISHED = datetime.fromtimestamp(NOW / 1e9, UTC)
WIDER = a_header(columns=(*PLANE_COLUMNS, ("colour", "STRING")))
AIRPORTS = a_header("airports")
AT_ONCE = timedelta(0)
NEEDED = {
    "GOOGLE_CLOUD_PROJECT": "p",
    "SUBSCRIPTION": "s",
    "DEAD_LETTER_TOPIC": "d",
    "BIGQUERY_DATASET": "mirror",
}
"""The settings that have no default."""


class SetClock:
    """Stands still but for what it is told; ``ticks`` go by each time it is looked at."""

    def __init__(self) -> None:
        self.time = NOW
        self.passed = 0
        self.ticks = timedelta(0)

    def now(self) -> Nanoseconds:
        self.pass_time(self.ticks)
        return self.time

    def monotonic(self) -> Monotonic:
        self.pass_time(self.ticks)
        return Monotonic(self.passed)

    def pass_time(self, time: timedelta) -> None:
        self.passed += int(time.total_seconds() * 1e9)
        self.set(time)

    def set(self, by: timedelta) -> None:
        """Show another time, without that any has passed."""
        self.time = Nanoseconds(self.time + int(by.total_seconds() * 1e9))


class _PassingEvent(threading.Event):
    def __init__(self, clock: SetClock) -> None:
        super().__init__()
        self._clock = clock

    def wait(self, timeout: float | None = None) -> bool:
        self._clock.pass_time(timedelta(seconds=timeout or 0))
        return self.is_set()


class PassingStop(Stop):
    """A stop of which each wait is over at once, and as much later by a clock."""

    def __init__(self, clock: SetClock) -> None:
        super().__init__()
        self.event = _PassingEvent(clock)


@dataclass
class World:
    """Everything around a micro-batch. What BigQuery and the dead-letter topic hold outlives a crash."""

    effects: Effects = field(default_factory=Effects)
    stop: Stop = field(default_factory=Stop)
    limits: RetryLimits = field(default_factory=lambda: RetryLimits(table=AT_ONCE, between_calls=AT_ONCE))
    tables_file: str = ""

    def __post_init__(self) -> None:
        self.tables = FakeTables(self.effects)
        self.writer = FakeCdcWriter(self.tables, self.effects)
        self.dead_letters = FakeDeadLetters(self.effects)
        self.leases = FakeLeases(self.effects, must_keep=True)
        self.crash_counts = FakeCrashCounts()
        self.clock = SetClock()
        self.writer.clock = self.clock
        self.memory = Memory(self.limits, plan=self.plan)
        self.waits = 0
        self.waited: set[tuple[str, str]] = set()
        """For which tables, and why."""
        self.meanwhile: Callable[[], None] = lambda: None
        """Called at each wait."""

    @property
    def plan(self) -> Plan:
        return Plan(read_tables_file(self.tables_file), "mirror")

    def apply(self, *messages: Mapping[str, object]) -> Counts:
        ports = Ports(
            leases=self.leases,
            dead_letters=self.dead_letters,
            tables=self.tables,
            writer=self.writer,
            waiting=self.wait,
            crash_counts=self.crash_counts,
        )
        return apply(messages_table(*messages), ports, self.memory, self.stop, self.clock)

    def wait(self, table: str = "", why: str = "") -> None:
        self.waits += 1
        self.waited.add((table, why))
        self.meanwhile()

    def restart(self, limits: RetryLimits | None = None) -> None:
        """Be another process."""
        self.memory = Memory(limits or self.limits, plan=self.plan)

    def names(self, table: str = "planes") -> Mapping[int, str]:
        return {key[0]: row["name"] for key, row in self.writer.rows(table).items()}  # type: ignore[misc]

    def reasons(self) -> list[Reason]:
        return [dead_letter.reason for dead_letter in self.dead_letters.kept.values()]


def retrying_world(tables_file: str = "") -> World:
    """Return a world that bears with tables for the usual time; a second goes by at each look at the clock."""
    world = World(limits=RetryLimits(between_calls=AT_ONCE), tables_file=tables_file)
    world.clock.ticks = timedelta(seconds=1)
    return world


def an_end(
    *changes: Change,
    since: int,
    read_since: int | UnsetType = UNSET,
    published: datetime = PUBLISHED,
    attributes: object = (),
) -> Mapping[str, object]:
    """Return the message that says that a snapshot of the planes is at its end."""
    header = structs.replace(
        a_header(), origin="snapshot", complete_since=str(four_sections(since)), read_since=read_since
    )
    return {**a_message(*changes, header=header), "publish_time": published, "attributes": attributes}


def killed_anywhere(make: Callable[[Effects], World], *messages: Mapping[str, object]) -> Iterator[tuple[World, bool]]:
    """Yield the worlds in which the process dies before one effect of a task, and at last the one in which it lives.

    Beside each: whether a message was acked.
    """
    whole = make(Effects())
    whole.apply(*messages)
    for crash in (*range(len(whole.effects.done)), None):
        world = make(Effects(crash_before=crash))
        with suppress(CrashError):
            world.apply(*messages)
        yield world, any(effect.startswith("ack") for effect in world.effects.done)
