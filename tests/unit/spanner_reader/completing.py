"""A completer without a reader around it, and the table that it completes updates of."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from services.spanner_reader.app.mirrored_tables import MirroredTables
from services.spanner_reader.app.stream.completer import Completer, Completion
from services.spanner_reader.app.stream.owned_partition import SpannerOwnedPartition
from services.spanner_reader.core.stream.changes import ChangeMaker
from services.spanner_reader.core.stream.records import DataChangeRecord, PartitionToken
from shared.contracts.tables_file import Mode
from shared.contracts.timestamps import Nanoseconds
from shared.reading.publishing import ConfirmedPublishing
from shared.runtime.stop import Stop
from tests.fakes.life import Life
from tests.fakes.reader_metrics import FakeMetrics
from tests.fakes.spanner_reader import FakePublisher
from tests.fakes.virtual_time import run_in_virtual_time
from tests.unit.spanner_reader.capturing import (
    SINGERS,
    START,
    TOKENS,
    CapturedDatabase,
    CapturedRows,
    CapturingWorld,
)


def a_world(mode: Mode = "mirror") -> CapturingWorld:
    """Return a table whose stream captures what changed, and readers of it."""
    return CapturingWorld(random.Random(0), CapturedDatabase(), mode, orderly=True)


def live(scenario: Callable[[], Awaitable[None]]) -> None:
    """Run a scenario of ten hours at most."""

    async def limited() -> None:
        async with asyncio.timeout(36_000):
            await scenario()

    run_in_virtual_time(limited())


@dataclass
class Clock:
    """A clock that a test moves."""

    time: Nanoseconds = START

    def now(self) -> Nanoseconds:
        """Return the time now."""
        return self.time


@dataclass
class Harness:
    """What completes updates of one partition, without a reader around it."""

    world: CapturingWorld
    clock: Clock = field(default_factory=Clock)
    failed: list[BaseException | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.changes = ChangeMaker("//spanner/s", 16, {SINGERS: ("Id",)})
        self.rows = CapturedRows(self.world.database, self.world.chance, Life())
        self.metrics = FakeMetrics()
        self.publisher = FakePublisher(self.world.world.topic)
        self.completion = Completion(
            self.rows,
            MirroredTables(self.world.catalog, self.changes, lambda _table: True),
            ConfirmedPublishing(self.publisher, self.metrics, self.failed.append),
            lambda _table: False,
            self.metrics,
            self.clock,
        )
        self.held = SpannerOwnedPartition(self.world.world.table.rows[TOKENS[0]])
        self.completer = Completer(self.completion, self.held, Stop())

    def of_another(self, token: PartitionToken) -> Completer:
        """Return what completes updates of another partition."""
        return Completer(self.completion, SpannerOwnedPartition(self.world.world.table.rows[token]), Stop())

    async def take(
        self, record: DataChangeRecord, *, left_out: bool = False, completer: Completer | None = None
    ) -> None:
        """Let a record come."""
        completer = completer or self.completer
        completer.arrived(record)
        if left_out:
            await completer.left_out(record)
        else:
            await completer.publish(record, *self.changes.changes(record))
