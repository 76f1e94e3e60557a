"""A read-back on a table that answers when it is told to, and what came of it."""

import asyncio
from collections.abc import Callable, Mapping, Sequence

from services.bigtable_reader.app.dead_lettering import DeadLettering
from services.bigtable_reader.app.stream.owned_partition import BigtableOwnedPartition
from services.bigtable_reader.app.stream.read_back import ReadBack, ReadBackLimits
from services.bigtable_reader.core.changes.images import CellVersion, Row, RowCells
from services.bigtable_reader.ports import ReadRefusedError, ReadRows
from shared.contracts.change_sequence import four_sections
from shared.reading.publishing import ConfirmedPublishing
from shared.runtime.stop import Stop
from tests.fakes.bigtable_reader import FakeDeadLetterSink, FakePublisher, Topic
from tests.fakes.bigtable_table import VirtualClock
from tests.fakes.reader_metrics import BigtableMetrics
from tests.unit.bigtable_reader.readings import a_record, an_owned, image_maker

ROW: RowCells = {"f": {b"q": [CellVersion(1_000, b"v")]}}


class GatedRows:
    """Rows whose readings may be held up, and fail."""

    def __init__(self, **rows: Row) -> None:
        self.rows: Mapping[bytes, Row] = {key.encode(): cells for key, cells in rows.items()}
        self.readings: list[Sequence[bytes]] = []
        self.gate = asyncio.Event()
        """While it is not set, no reading goes on."""
        self.gate.set()
        self.errors: list[Exception] = []
        self.refuses: Callable[[Sequence[bytes]], bool] = lambda _row_keys: False
        self.at_once = 1_000
        """Rows that fit into memory."""

    async def read(self, row_keys: Sequence[bytes]) -> ReadRows:
        """Return those of the rows that exist, when the gate is open."""
        self.readings.append(list(row_keys))
        await self.gate.wait()
        if self.errors:
            raise self.errors.pop(0)
        if self.refuses(row_keys):
            raise ReadRefusedError("made-up", "FAILED_PRECONDITION")
        asked = row_keys[: self.at_once]
        return ReadRows({key: self.rows[key] for key in asked if key in self.rows}, row_keys[self.at_once :])


class Reading:
    """A read-back of one held partition."""

    def __init__(self, rows: GatedRows, *, rows_at_once: int = 100, readings: int = 8, waiting: int = 1_000) -> None:
        self.rows = rows
        self.topic = Topic()
        self.publisher = FakePublisher(self.topic)
        self.dead_letters = FakeDeadLetterSink()
        self.metrics = BigtableMetrics()
        self.failures: list[BaseException | None] = []
        self.owned = an_owned()
        self.stop = Stop()
        self.read_back = ReadBack(
            rows,
            image_maker(),
            ConfirmedPublishing(self.publisher, self.metrics, self.failures.append),
            DeadLettering(self.dead_letters, VirtualClock()),
            self.metrics,
            ReadBackLimits(rows_at_once, readings, waiting),
        )

    async def ask(self, row_key: bytes, version: int, owned: BigtableOwnedPartition | None = None) -> None:
        """Ask for a row."""
        owned = owned or self.owned
        record = a_record(row_key, version)
        place = owned.prefix.add(record.low_watermark, 1, token=record.token)
        self.read_back.ask(owned, row_key, record.without_entries(), version, place, self.stop)
        await self.read_back.room()

    async def ask_for_each(self, *row_keys: bytes, owned: BigtableOwnedPartition | None = None) -> None:
        """Ask for rows, under the versions 1, 2, and so on."""
        for version, row_key in enumerate(row_keys, 1):
            await self.ask(row_key, version, owned)

    def published(self) -> list[tuple[str, str, str]]:
        """Return operation, key and sequence of what was published."""
        return [(change.op, change.key, change.sequence) for change in self.topic.changes]


def rows(count: int) -> list[bytes]:
    """Return the keys of so many rows."""
    return [b"row %d" % number for number in range(count)]


def sequence(version: int) -> str:
    return str(four_sections(version))


async def some_turns() -> None:
    await asyncio.sleep(0.01)
