"""What is paused, and what that does to marks: the same for the fake and for Spanner."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass

import pytest

from deploy.local.platform.source import SpannerDatabase
from services.spanner_reader.adapters.pause_table import SpannerPauseStore
from services.spanner_reader.adapters.schema.shape_table import SpannerShapeStore
from services.spanner_reader.core.schema.shapes import (
    NEVER,
    ColumnShape,
    SchemaInspection,
    SpannerResyncKind,
    TableShape,
)
from services.spanner_reader.ports import PauseStore, ShapeStore
from shared.contracts.errors import MisconfiguredError
from shared.contracts.timestamps import Nanoseconds, parse_timestamp
from tests.contract.spanner_tables import partition_table
from tests.fakes.pauses import FakePauseStore, PauseTable
from tests.fakes.spanner_schema import FakeShapeStore

NOON = parse_timestamp("2026-11-21T12:00:00Z")
ID, NAME = ColumnShape("Id", "INT64", is_key=True, nullable=False), ColumnShape("Name", "STRING")
SINGERS = TableShape((ID, NAME))
MINUTE = 60_000_000_000


@dataclass
class Stores:
    """Two views of one store, which is empty, and the shapes beside it, in which Singers is known."""

    ours: PauseStore
    theirs: PauseStore
    shapes: ShapeStore


class PauseStoreContract:
    """The promises. A subclass opens the stores."""

    @pytest.fixture
    @asynccontextmanager
    async def stores(self, opened: AbstractAsyncContextManager[Stores]) -> AsyncIterator[Stores]:
        async with opened as stores:
            await stores.shapes.compare(SchemaInspection(NOON, False, {"Singers": SINGERS, "Albums": SINGERS}), [])
            yield stores

    async def test_a_pause_of_the_stream_is_everybodys_until_it_is_over(self, stores: Stores) -> None:
        before = await stores.ours.read()
        assert (before.stream, before.tables) == (None, {})
        assert await stores.theirs.pause(None)
        assert not await stores.ours.pause(None)
        paused = await stores.ours.read()
        assert paused.stream is not None
        assert before.at < paused.stream.paused_at <= paused.at
        assert (await stores.shapes.read())[1] == ()
        assert await stores.ours.resume(None)
        assert not await stores.theirs.resume(None)
        assert (await stores.theirs.read()).stream is None

    async def test_a_pause_of_a_table_is_its_resync_request_until_its_rows_came_again_after_it(
        self, stores: Stores
    ) -> None:
        assert await stores.ours.pause("Singers")
        assert not await stores.theirs.pause("Singers")
        pause = (await stores.theirs.read()).tables["Singers"]
        (request,) = (await stores.shapes.read())[1]
        assert [(one.kind, one.after, one.before) for one in request.findings] == [
            (SpannerResyncKind.TABLE_PAUSED, pause.paused_at, NEVER)
        ]
        with pytest.raises(MisconfiguredError, match="is paused"):
            await stores.shapes.synced("Singers")
        assert await stores.theirs.resume("Singers")
        assert not await stores.ours.resume("Singers")
        read = await stores.ours.read()
        resumed = read.tables["Singers"]
        assert resumed.resumed_at is not None
        assert pause.paused_at == resumed.paused_at < resumed.resumed_at <= read.at
        (request,) = (await stores.shapes.read())[1]
        assert request.sync_after == resumed.resumed_at
        assert await stores.shapes.synced("Singers")
        assert (await stores.shapes.read())[1] == ()
        assert (await stores.ours.read()).tables == {}
        assert not await stores.shapes.synced("Singers")

    async def test_a_snapshot_heals_it_that_began_after_it_was_over_and_no_other(self, stores: Stores) -> None:
        await stores.ours.pause("Singers")
        during = (await stores.theirs.read()).at
        await stores.theirs.resume("Singers")
        resumed = (await stores.ours.read()).tables["Singers"].resumed_at
        assert resumed is not None
        assert not await stores.shapes.healed("Singers", during)
        assert not await stores.shapes.healed("Singers", resumed)
        assert await stores.shapes.healed("Singers", Nanoseconds(resumed + 1_000))
        assert (await stores.ours.read()).tables == {}
        assert (await stores.shapes.read())[1] == ()
        await stores.ours.pause("Singers")
        assert not await stores.shapes.healed("Singers", Nanoseconds(resumed + 1_000_000_000))
        assert await stores.ours.resume("Singers")

    async def test_paused_again_its_resync_request_is_as_old_as_the_first_pause(self, stores: Stores) -> None:
        await stores.ours.pause("Singers")
        first = (await stores.ours.read()).tables["Singers"]
        await stores.ours.resume("Singers")
        assert await stores.theirs.pause("Singers")
        again = (await stores.ours.read()).tables["Singers"]
        assert (again.since, again.resumed_at) == (first.paused_at, None)
        assert again.paused_at > first.paused_at

    async def test_what_inspections_find_of_a_paused_table_is_kept_apart_and_goes_with_it(self, stores: Stores) -> None:
        await stores.ours.pause("Singers")
        retyped = TableShape((ID, ColumnShape("Name", "BYTES")))
        later = SchemaInspection(Nanoseconds(NOON + MINUTE), False, {"Singers": retyped, "Albums": SINGERS})
        found = await stores.shapes.compare(later, [])
        assert {one.kind for request in found.requests for one in request.findings} == {
            SpannerResyncKind.TABLE_PAUSED,
            SpannerResyncKind.COLUMN_RETYPED,
        }
        await stores.ours.resume("Singers")
        assert (await stores.shapes.compare(later, [])).requests == (await stores.shapes.read())[1]
        assert await stores.shapes.synced("Singers")
        assert (await stores.shapes.read())[1] == ()

    async def test_what_no_reader_has_seen_is_not_paused(self, stores: Stores) -> None:
        for name in ("Nobody", ""):
            with pytest.raises(MisconfiguredError, match="no reader has seen"):
                await stores.ours.pause(name)
        assert not await stores.ours.resume("Nobody")
        assert (await stores.ours.read()).tables == {}


class TestFakePauseStore(PauseStoreContract):
    @pytest.fixture
    def opened(self) -> AbstractAsyncContextManager[Stores]:
        table = PauseTable()
        return nullcontext(Stores(FakePauseStore(table), FakePauseStore(table), FakeShapeStore(table.shapes)))


@pytest.mark.integration
class TestSpannerPauseStore(PauseStoreContract):
    @pytest.fixture(params=["GoogleSQL", "PostgreSQL"])
    @asynccontextmanager
    async def opened(
        self, request: pytest.FixtureRequest, database: Callable[..., SpannerDatabase]
    ) -> AsyncIterator[Stores]:
        async with partition_table(database(postgresql=request.param == "PostgreSQL")) as shared:
            ours, theirs = (SpannerPauseStore(shared, "p") for _each in range(2))
            yield Stores(ours, theirs, SpannerShapeStore(shared, "p"))
