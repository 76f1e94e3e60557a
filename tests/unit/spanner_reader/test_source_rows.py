"""What the reader says of its tables' rows: all of them or some, whatever breaks, and never a row that is not there."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from types import SimpleNamespace

import pytest
import tenacity
from hypothesis import given, settings
from hypothesis import strategies as st

from services.spanner_reader.app.mirrored_tables import MirroredTables
from services.spanner_reader.app.source_rows import SpannerSourceRows
from services.spanner_reader.core.snapshot.snapshot import KeyText
from services.spanner_reader.core.stream.changes import ChangeMaker
from services.spanner_reader.ports import WatchedTable
from shared.contracts.change_batch import ChangeBatch, decode_batch
from shared.contracts.change_sequence import four_sections, parse_sequence
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.contracts.source_rows import Describe, Done, Publish, Read, ReadKeys
from shared.contracts.timestamps import Nanoseconds, format_timestamp, microseconds
from shared.runtime.stop import Stop
from tests.fakes.snapshots import FakeRows, Versions
from tests.fakes.spanner_reader import FakePublisher, SteppingClock, Topic
from tests.fakes.spanner_schema import FakeCatalog
from tests.fakes.virtual_time import run_in_virtual_time
from tests.seeds import examples
from tests.worlds.changing_table import PLANES, SECOND, START


class BreakingRows(FakeRows):
    """Rows whose readings break off after so many responses."""

    breaks: list[int]

    async def read(
        self,
        table: WatchedTable,
        at: Nanoseconds,
        *,
        after: KeyText | None,
        until: KeyText | None,
        in_key_order: bool = False,
    ) -> AsyncGenerator[Sequence[Sequence[object]], None]:
        """Yield rows in key order, two at a time, until it breaks."""
        left = self.breaks.pop(0) if self.breaks else None
        async for rows in super().read(table, at, after=after, until=until):
            if left == 0:
                raise TransientError("UNAVAILABLE")
            left = None if left is None else left - 1
            yield rows


@dataclass
class World:
    """A table that goes on changing, and the reader that is asked of it."""

    clock: SteppingClock = field(default_factory=lambda: SteppingClock(START))
    breaks: list[int] = field(default_factory=list)
    meanwhile: int = 0
    topic: Topic = field(default_factory=Topic)
    included: set[str] = field(default_factory=lambda: {"Planes"})

    def __post_init__(self) -> None:
        self.versions = Versions(self.clock)
        self.catalog = FakeCatalog(PLANES, clock=self.clock)
        self.rows = BreakingRows(self.versions, meanwhile=lambda: self.clock.step(self.meanwhile * SECOND))
        self.rows.breaks = self.breaks
        tables = MirroredTables(self.catalog, ChangeMaker("source", 4, {}), self.included.__contains__)
        self.answers = SpannerSourceRows(tables, self.rows, self._publisher, Stop())

    def write(self, key: int, value: str | None) -> None:
        """Commit a change a while after the one before."""
        self.clock.step(SECOND)
        self.versions.write(key, value)
        self.clock.step(SECOND)

    @asynccontextmanager
    async def _publisher(self) -> AsyncIterator[FakePublisher]:
        publisher = FakePublisher(self.topic)
        yield publisher
        await publisher.close()

    async def read(self, at: str | None = None) -> tuple[dict[str, str], list[ChangeBatch], Done]:
        """Return the rows that are read, the batches they came in, and what was said last."""
        *batches, done = [each async for each in self.answers.read(Read("Planes", at))]
        assert isinstance(done, Done)
        decoded = [decode_batch(batch) for batch in batches if isinstance(batch, bytes)]
        rows = {
            bytes(k).decode(): bytes(r).decode() for one in decoded for k, r in zip(one.keys, one.rows, strict=True)
        }
        return rows, decoded, done


def shown(rows: dict[int, str]) -> dict[str, str]:
    """Return rows as keys and rows of the wire."""
    return {f'{{"Id":"{key}"}}': f'{{"Name":"{value}"}}' for key, value in rows.items()}


@settings(deadline=None, max_examples=examples(60))
@given(st.dictionaries(st.integers(0, 40), st.text("abc", max_size=3)), st.lists(st.integers(0, 4), max_size=5))
def test_all_rows_come_once_as_they_are_at_one_time_whatever_breaks(rows: dict[int, str], breaks: list[int]) -> None:
    world = World(breaks=breaks)
    for key, value in rows.items():
        world.write(key, value)

    found, batches, done = run_in_virtual_time(world.read())

    assert found == shown(rows)
    assert sum(map(len, batches)) == done.rows == len(rows)
    assert len(batches[0]) == 0
    assert {batch.header.origin for batch in batches} == {"snapshot"}
    sequences = {sequence for batch in batches for sequence in batch.sequence}
    assert sequences <= {done.sequence}


async def test_a_read_ends_when_no_row_has_come_for_as_long_as_a_call_is_retried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(breaks=[1, *[0] * 1_000])
    for key in range(5):
        world.write(key, "a")
    monkeypatch.setattr(tenacity, "time", SimpleNamespace(monotonic=asyncio.get_running_loop().time))

    with pytest.raises(TransientError, match="UNAVAILABLE"):
        await world.read()


async def test_rows_are_read_as_they_were_at_a_time_and_a_time_that_is_forgotten_is_refused() -> None:
    world = World()
    world.write(1, "old")
    before = world.clock.now()
    world.write(1, "new")

    found, _batches, done = await world.read(at=format_timestamp(before))

    assert found == shown({1: "old"})
    assert done.sequence == str(four_sections(microseconds(before)))
    world.clock.step(timedelta(hours=2))
    with pytest.raises(MisconfiguredError, match="too long ago"):
        await world.read(at=format_timestamp(before))
    world.catalog.remembers = False
    with pytest.raises(MisconfiguredError, match="version_retention_period"):
        await world.read(at=format_timestamp(before))


async def test_what_is_left_when_a_time_is_forgotten_is_read_as_it_is_then_and_reports_so() -> None:
    world = World(meanwhile=1500)  # seconds between two responses: an hour is over in the middle
    for key in range(10):
        world.write(key, "a")

    found, batches, done = await world.read()

    assert found == shown(dict.fromkeys(range(10), "a"))
    sequences = sorted({sequence for batch in batches for sequence in batch.sequence})
    assert len(sequences) > 1
    assert sequences[0] == done.sequence


async def test_an_inspection_returns_the_rows_that_there_are_and_counts_the_others() -> None:
    world = World()
    for key in range(5):
        world.write(key, f"n{key}")

    asked = ReadKeys("Planes", (("3",), ("7",), ("1",)))
    *batches, done = [each async for each in world.answers.read_keys(asked)]

    assert isinstance(done, Done)
    assert (done.rows, done.absent) == (2, 1)
    keys = [bytes(key) for batch in batches if isinstance(batch, bytes) for key in decode_batch(batch).keys]
    assert sorted(keys) == [b'{"Id":"1"}', b'{"Id":"3"}']


async def test_what_is_published_of_keys_is_what_is_true_of_them_above_what_is_applied() -> None:
    world = World()
    world.write(1, "a")
    world.write(2, "b")
    world.write(2, None)
    applied = str(four_sections(microseconds(world.clock.now()) - 500_000))

    done = await world.answers.publish(Publish("Planes", (("1",), ("2",)), applied))

    assert (done.rows, done.absent) == (1, 1)
    published = {change.key: change for change in world.topic.changes}
    assert published['{"Id":"1"}'].row == '{"Name":"a"}'
    assert published['{"Id":"2"}'].op == "DELETE"
    assert {change.sequence for change in published.values()} == {done.sequence}
    assert parse_sequence(done.sequence) > parse_sequence(applied)


async def test_nothing_is_published_below_what_is_applied() -> None:
    world = World()
    world.write(1, "a")
    far = str(four_sections(microseconds(world.clock.now()) + 3_600_000_000))

    with pytest.raises(MisconfiguredError, match="a time in the future"):
        await world.answers.publish(Publish("Planes", (("1",),), far))

    assert not world.topic.changes


class Lenient(FakeRows):
    """Rows that find one, however its key is written."""

    async def read_keys(
        self, table: WatchedTable, at: Nanoseconds, keys: Sequence[KeyText]
    ) -> AsyncGenerator[Sequence[Sequence[object]], None]:
        """Yield the row."""
        await asyncio.sleep(0)
        yield [["1", "a"]]


def a_lenient_world() -> World:
    world = World()
    world.write(1, "a")
    world.answers._rows = Lenient(world.versions)
    return world


@pytest.mark.parametrize("key", [("1", "2"), ("one",), ()])
async def test_a_key_that_is_not_written_as_the_source_writes_it_deletes_nothing(key: tuple[str, ...]) -> None:
    world = a_lenient_world()
    with pytest.raises(MisconfiguredError):
        await world.answers.publish(Publish("Planes", (key,)))
    assert not world.topic.changes


async def test_a_row_that_is_found_by_another_text_of_its_key_is_not_deleted() -> None:
    done = await a_lenient_world().answers.publish(Publish("Planes", (("01",),)))
    assert (done.rows, done.absent) == (1, 0)


async def test_tables_that_are_not_mirrored_are_refused_by_name() -> None:
    world = World()
    assert await world.answers.tables() == ["Planes"]
    batch, _done = await world.answers.describe(Describe("Planes"))
    assert decode_batch(batch).header.primary_key == ("Id",)
    with pytest.raises(MisconfiguredError, match=r"table Nope is not among .*, which are: Planes"):
        await world.answers.describe(Describe("Nope"))

    world.included.clear()

    assert await world.answers.tables() == []
    with pytest.raises(MisconfiguredError, match="Planes is not among"):
        await world.answers.describe(Describe("Planes"))
