"""A completer without a reader around it, and the table that it completes updates of."""

import random
from typing import Generic, TypeVar

from services.spanner_reader.app.mirrored_tables import MirroredTables
from services.spanner_reader.app.stream.completer import Completer, Completion
from services.spanner_reader.app.stream.owned_partition import SpannerOwnedPartition
from services.spanner_reader.core.stream.changes import ChangeMaker
from services.spanner_reader.core.stream.partitions import SpannerPartition
from services.spanner_reader.core.stream.records import DataChangeRecord, PartitionToken
from services.spanner_reader.ports import RowsAtTimestamp
from shared.contracts.tables_file import Mode
from shared.contracts.timestamps import Nanoseconds
from shared.reading.publishing import ConfirmedPublishing
from shared.runtime.stop import Stop
from tests.fakes.life import Life
from tests.fakes.reader_metrics import SpannerMetrics
from tests.fakes.spanner_reader import FakePublisher, SteppingClock
from tests.fakes.spanner_schema import FakeCatalog
from tests.unit.spanner_reader.capturing import CapturedDatabase, CapturedRows, CapturingWorld
from tests.unit.spanner_reader.scripts import START

RowsT = TypeVar("RowsT", bound=RowsAtTimestamp)


def a_world(*keys: int, mode: Mode = "mirror") -> CapturingWorld:
    """Return a table with some rows, whose stream captures what changed, and readers of it; a row's `a` is its key."""
    world = CapturingWorld(random.Random(0), CapturedDatabase(), mode, orderly=True)
    if keys:
        world.database.commit(*[("insert", key, {"a": f"{key}"}) for key in keys])
    return world


class Completing(Generic[RowsT]):
    """What completes updates of one partition, without a reader around it."""

    def __init__(
        self,
        rows: RowsT,
        catalog: FakeCatalog,
        publisher: FakePublisher,
        *,
        start: Nanoseconds = START,
        keeps_history: bool = False,
        **keys: tuple[str, ...],
    ) -> None:
        """``keys``: the key columns of each table, in their order, as the reader knows them."""
        self.rows = rows
        self.changes = ChangeMaker("//spanner/s", 16, keys)
        self.clock = SteppingClock(start)
        self.failed: list[BaseException | None] = []
        self.metrics = SpannerMetrics()
        self.publisher = publisher
        self.completion = Completion(
            rows,
            MirroredTables(catalog, self.changes, lambda _table: True),
            ConfirmedPublishing(self.publisher, self.metrics, self.failed.append),
            lambda _table: keeps_history,
            self.metrics,
            self.clock,
        )
        self.owned = self._owned("p")
        self.completer = Completer(self.completion, self.owned, Stop())

    def of_another(self, token: str) -> Completer:
        """Return what completes updates of another partition."""
        return Completer(self.completion, self._owned(token), Stop())

    def _owned(self, token: str) -> SpannerOwnedPartition:
        start = self.clock.now()
        return SpannerOwnedPartition(SpannerPartition(token=PartitionToken(token), start=start, watermark=start))

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

    async def complete(self, *records: DataChangeRecord) -> None:
        """Let records come, and wait until all of them are completed and confirmed."""
        async with self.completer.working():
            for record in records:
                await self.take(record)
            await self.completer.finished()
            await self.owned.confirmed()


def completing(world: CapturingWorld, *, by_hand: bool = False) -> Completing[CapturedRows]:
    """Return what completes updates of one partition of a world; ``by_hand``: the test confirms publications."""
    rows = CapturedRows(world.database, world.chance, Life())
    return Completing(rows, world.catalog, FakePublisher(world.world.topic, by_hand=by_hand), Singers=("Id",))
