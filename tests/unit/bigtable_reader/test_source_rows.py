"""What the reader says of its table's rows: a row that cannot be read, or held, stands in the way of no other."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

import pytest

from services.bigtable_reader.app.mirrored_rows import MirroredRows
from services.bigtable_reader.app.source_rows import BigtableSourceRows
from services.bigtable_reader.commands.snapshot import key_of
from services.bigtable_reader.core.stream.partitions import BigtablePartitionSurvey
from services.bigtable_reader.core.stream.records import ALL_KEYS, Microseconds, SetCell
from shared.contracts.bigtable_options import BigtableOptions
from shared.contracts.change_batch import decode_batch
from shared.contracts.change_sequence import four_sections
from shared.contracts.errors import MisconfiguredError
from shared.contracts.source_rows import Done, Publish, Read, ReadKeys
from tests.fakes.bigtable_reader import FakePublisher, FakeRows, Topic
from tests.fakes.bigtable_snapshots import FakeScan
from tests.fakes.bigtable_table import EPOCH, Bigtable
from tests.unit.bigtable_reader.readings import a_partition, image_maker

OPTIONS = BigtableOptions(values="text")
KEYS = tuple((f"{number:02d}",) for number in range(20))


@dataclass
class World:
    """A table of twenty rows, and the reader that is asked of it."""

    table: Bigtable = field(default_factory=Bigtable)
    topic: Topic = field(default_factory=Topic)
    min_version: int = EPOCH
    paused_since: Microseconds | None = None
    unreadable: set[bytes] = field(default_factory=set)
    too_large: set[bytes] = field(default_factory=set)

    def write(self, row_key: str, value: bytes) -> None:
        """Write a row."""
        self.table.write(row_key.encode(), SetCell("f", b"q", Microseconds(1_000), value))

    def answers(self) -> BigtableSourceRows:
        """Return what answers; to be called in a loop."""
        for (key,) in KEYS:
            self.write(key, b"v")
        scan, rows = FakeScan(self.table), FakeRows(self.table)
        scan.unreadable = rows.unreadable = self.unreadable
        scan.too_large = rows.too_large = self.too_large
        to_row_key = partial(key_of, options=OPTIONS)
        return BigtableSourceRows(
            MirroredRows(image_maker(OPTIONS), [ALL_KEYS]), to_row_key, scan, rows, self._survey, self._publisher
        )

    async def _survey(self) -> tuple[BigtablePartitionSurvey, int]:
        await asyncio.sleep(0)
        stream_range = a_partition(min_version=self.min_version).stream_range
        return BigtablePartitionSurvey((stream_range,), {}, frozenset(), EPOCH, self.paused_since), 1

    @asynccontextmanager
    async def _publisher(self) -> AsyncIterator[FakePublisher]:
        publisher = FakePublisher(self.topic)
        yield publisher
        await publisher.close()


def rows_of(answers: list[bytes | Done]) -> dict[str, str]:
    batches = [decode_batch(answer) for answer in answers if isinstance(answer, bytes)]
    return {
        bytes(key).decode(): bytes(row).decode()
        for batch in batches
        for key, row in zip(batch.keys, batch.rows, strict=True)
    }


async def test_a_row_that_cannot_be_read_comes_without_what_is_in_it_and_the_others_come() -> None:
    world = World(unreadable={b"00", b"07"}, too_large={b"19"})
    answers = world.answers()
    read = [one async for one in answers.read(Read("weather"))]
    by_key = [one async for one in answers.read_keys(ReadKeys("weather", (*KEYS, ("never",))))]
    for answer in (read, by_key):
        found = rows_of(answer)
        assert len(found) == 20
        assert [key for key, row in sorted(found.items()) if row == "null"] == [
            '{"row_key":"00"}',
            '{"row_key":"07"}',
            '{"row_key":"19"}',
        ]
    assert isinstance(by_key[-1], Done)
    assert (by_key[-1].rows, by_key[-1].absent) == (20, 1)


async def test_rows_that_no_mirror_can_hold_are_named_and_the_others_published() -> None:
    world = World(unreadable={b"07"})
    answers = world.answers()
    world.write("03", b"\xff")
    with pytest.raises(MisconfiguredError, match=r"2 of 21 rows .* are published\): .*03"):
        await answers.publish(Publish("weather", (*KEYS, ("never",))))
    published = {change.key: change.op for change in world.topic.changes}
    assert published.keys() == {f'{{"row_key":"{key}"}}' for (key,) in (*KEYS, ("never",)) if key not in ("03", "07")}
    assert [key for key, op in published.items() if op == "DELETE"] == ['{"row_key":"never"}']


@pytest.mark.parametrize(("paused_since", "fix"), [(EPOCH, "`resume` it"), (None, "start a reader")])
async def test_below_what_is_applied_nothing_is_published_and_the_fix_is_named(
    paused_since: Microseconds | None, fix: str
) -> None:
    world = World(paused_since=paused_since)
    with pytest.raises(MisconfiguredError, match=fix):
        await world.answers().publish(Publish("weather", KEYS, str(four_sections(EPOCH + 1_000_000))))
    assert not world.topic.changes
