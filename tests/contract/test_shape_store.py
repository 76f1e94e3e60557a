"""What is remembered of the tables, and which are pending resync: the same for the fake and for Spanner."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from deploy.local.platform.source import SpannerDatabase
from services.spanner_reader.adapters.schema.shape_table import SpannerShapeStore
from services.spanner_reader.core.schema.shapes import (
    COLUMNS_UNSEEN,
    ColumnShape,
    SchemaInspection,
    SchemaObservation,
    SpannerResyncKind,
    TableShape,
)
from services.spanner_reader.ports import ShapeStore
from shared.contracts.timestamps import Nanoseconds, parse_timestamp
from shared.runtime.retries import retried
from shared.runtime.stop import Stop
from tests.contract.spanner_tables import partition_table
from tests.fakes.spanner_schema import FakeShapeStore, Shapes

NOON = parse_timestamp("2026-11-21T12:00:00Z")
ID, NAME = ColumnShape("Id", "INT64", is_key=True, nullable=False), ColumnShape("Náme", "ARRAY<STRING>")
SINGERS, BARE = TableShape((ID, NAME)), TableShape((ID,))


def at(minute: int) -> Nanoseconds:
    return Nanoseconds(NOON + minute * 60_000_000_000)


def an_inspection(minute: int, **tables: TableShape) -> SchemaInspection:
    return SchemaInspection(at(minute), False, tables)


Readers = tuple[ShapeStore, ShapeStore]


class ShapeStoreContract:
    """Two readers' views of one store, which is empty."""

    async def test_what_one_reader_has_seen_the_other_compares_with(self, readers: Readers) -> None:
        ours, theirs = readers
        assert await ours.read() == (None, ())
        first = await ours.compare(an_inspection(0, Singers=SINGERS), [])
        assert (first.findings, first.left, first.requests) == ((), (), ())
        found = await theirs.compare(an_inspection(1, Singers=SINGERS, Albums=SINGERS), [])
        assert [(one.table, one.kind, one.after, one.before) for one in found.findings] == [
            ("Albums", SpannerResyncKind.TABLE_WATCHED, at(0), at(1))
        ]
        assert [request.table for request in found.requests] == ["Albums"]
        inspection, requests = await ours.read()
        assert inspection is not None
        assert (inspection.at, set(inspection.tables)) == (at(1), {"Singers", "Albums"})
        assert tuple(requests) == found.requests

    async def test_what_is_found_is_returned_once_and_the_resync_request_stays(self, readers: Readers) -> None:
        ours, theirs = readers
        await ours.compare(an_inspection(0, Singers=SINGERS), [])
        later = an_inspection(1, Singers=replace(SINGERS, columns=(ID, replace(NAME, type="STRING"))))
        found = await ours.compare(later, [])
        again = await theirs.compare(later, [])
        assert (len(found.findings), again.findings, again.requests) == (1, (), found.requests)
        older = await theirs.compare(an_inspection(0, Albums=SINGERS), [])
        assert (older.findings, older.left, older.requests) == ((), (), found.requests)
        assert (found.counted, older.counted) == (True, False)
        after = await theirs.compare(replace(later, at=at(2)), [])
        assert (after.findings, after.requests) == ((), found.requests)

    async def test_what_the_topic_lost_makes_every_watched_table_pending_resync(self, readers: Readers) -> None:
        ours, theirs = readers
        assert await ours.topic_lost(at(0), at(1)) == []  # no table has been inspected yet
        others = replace(SINGERS, watched=False)
        await ours.compare(an_inspection(0, Singers=SINGERS, Albums=BARE, Others=others), [])
        before, _requests = await ours.read()
        found = await ours.topic_lost(at(1), at(3))
        assert [request.table for request in found] == ["Albums", "Singers"]
        await theirs.topic_lost(at(2), at(4))  # by another reader, later
        inspection, requests = await theirs.read()
        assert {request.table for request in requests} == {"Albums", "Singers"}
        for request in requests:
            assert [one.kind for one in request.findings] == [SpannerResyncKind.TABLE_LOST]
            assert (request.since, request.sync_after) == (at(1), at(4))
        assert before is not None
        assert inspection == before
        assert not await ours.healed("Singers", at(4))
        assert await ours.healed("Singers", at(5))

    async def test_what_the_stream_kept_out_is_remembered_until_an_inspection_without(self, readers: Readers) -> None:
        ours, theirs = readers
        await ours.compare(an_inspection(0, Singers=SINGERS), [])
        ttl = frozenset({"exclude_ttl_deletes"})
        await ours.compare(replace(an_inspection(1, Singers=SINGERS), exclusions=ttl, watches_everything=True), [])
        inspection, _requests = await theirs.read()
        assert inspection is not None
        assert (inspection.exclusions, inspection.watches_everything) == (ttl, True)
        found = await theirs.compare(an_inspection(2, Singers=SINGERS), [])
        ((request,),) = (found.requests,)
        assert [one.kind for one in request.findings] == [SpannerResyncKind.TABLE_EXCLUDED]
        assert (request.since, request.sync_after) == (at(0), at(2))
        after = await theirs.compare(an_inspection(3, Singers=SINGERS), [])
        assert (after.findings, after.requests) == ((), found.requests)

    async def test_columns_gone_are_remembered_and_records_are_taken_into_account(self, readers: Readers) -> None:
        ours, theirs = readers
        await ours.compare(an_inspection(0, Singers=SINGERS, Albums=SINGERS), [])
        await ours.compare(an_inspection(1, Singers=BARE, Albums=SINGERS), [])
        seen = SchemaObservation("Albums", (ColumnShape("Id", "INT64", is_key=True),), Nanoseconds(at(1) + 1))
        found = await theirs.compare(an_inspection(2, Singers=SINGERS, Albums=SINGERS), [seen])
        assert {(one.table, one.kind, one.columns) for one in found.findings} == {
            ("Singers", SpannerResyncKind.COLUMN_AGAIN, ("Náme",)),
            ("Albums", SpannerResyncKind.COLUMN_AGAIN, ("Náme",)),
        }

    async def test_resync_requests_are_read_without_the_tables_that_have_none(self, readers: Readers) -> None:
        ours, theirs = readers
        assert await ours.resync_requests() == ()
        await ours.compare(an_inspection(0, Singers=SINGERS, Albums=SINGERS), [])
        assert await ours.resync_requests() == ()
        found = await ours.compare(an_inspection(1, Singers=SINGERS, Albums=BARE, Others=SINGERS), [])
        assert await theirs.resync_requests() == found.requests
        assert [request.table for request in found.requests] == ["Others"]

    async def test_of_inspections_of_readers_at_once_each_counts_and_no_resync_request_is_overwritten(
        self, readers: Readers
    ) -> None:
        ours, theirs = readers
        await ours.compare(an_inspection(0, Singers=SINGERS), [])
        retyped = replace(SINGERS, columns=(ID, replace(NAME, type="STRING")))
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: theirs.compare(an_inspection(2, Singers=retyped, Albums=SINGERS), []),
            lambda: ours.topic_lost(at(0), at(1)),
            lambda: ours.compare(an_inspection(1, Singers=SINGERS), []),
            lambda: theirs.topic_lost(at(0), at(1)),
        ]
        await asyncio.gather(*(retried(Stop(), call) for call in calls))
        inspection, requests = await ours.read()
        assert inspection is not None
        assert inspection.at == at(2)
        kinds = {request.table: {one.kind for one in request.findings} for request in requests}
        assert {SpannerResyncKind.TABLE_LOST, SpannerResyncKind.COLUMN_RETYPED} <= kinds["Singers"]
        assert SpannerResyncKind.TABLE_WATCHED in kinds["Albums"]

    async def test_a_table_that_went_is_remembered_until_it_is_synced(self, readers: Readers) -> None:
        ours, theirs = readers
        await ours.compare(an_inspection(0, Singers=SINGERS, Albums=SINGERS), [])
        gone = await ours.compare(an_inspection(1), [])
        assert gone.left == ("Albums", "Singers")
        assert not await ours.synced("Albums")  # it had no request; now nothing is left of it
        back = await theirs.compare(an_inspection(2, Singers=SINGERS, Albums=SINGERS), [])
        assert {(one.table, one.kind) for one in back.findings} == {
            ("Singers", SpannerResyncKind.TABLE_AGAIN),
            ("Albums", SpannerResyncKind.TABLE_WATCHED),
        }

    async def test_a_table_that_was_synced_has_no_resync_request_and_no_past(self, readers: Readers) -> None:
        ours, theirs = readers
        await ours.compare(an_inspection(0, Singers=SINGERS), [])
        await ours.compare(an_inspection(1, Singers=BARE), [])
        await ours.compare(an_inspection(2, Singers=SINGERS), [])
        await ours.compare(an_inspection(3, Singers=BARE), [])
        assert await theirs.synced("Singers")
        assert not await theirs.synced("Singers")
        assert not await theirs.synced("Nobody")
        assert not await theirs.synced("")
        after = await ours.compare(an_inspection(4, Singers=SINGERS), [])
        assert (after.findings, after.requests) == ((), ())

    async def test_a_snapshot_after_a_resync_request_heals_it_and_keeps_what_is_known_of_a_table(
        self, readers: Readers
    ) -> None:
        ours, theirs = readers
        await ours.compare(an_inspection(0, Singers=SINGERS), [])
        await ours.compare(an_inspection(1, Singers=BARE), [])
        await ours.compare(an_inspection(2, Singers=SINGERS), [])
        assert not await theirs.healed("Singers", at(1))
        assert not await theirs.healed("Singers", Nanoseconds(at(2) + COLUMNS_UNSEEN))
        assert not await theirs.healed("Nobody", at(4))
        assert not await theirs.healed("", at(4))
        assert await theirs.healed("Singers", Nanoseconds(at(2) + COLUMNS_UNSEEN + 1))
        assert not await theirs.healed("Singers", at(4))
        assert (await ours.read())[1] == ()
        await ours.compare(an_inspection(4, Singers=BARE), [])
        again = await ours.compare(an_inspection(5, Singers=SINGERS), [])
        assert [request.table for request in again.requests] == ["Singers"]


class TestFakeShapeStore(ShapeStoreContract):
    @pytest.fixture
    def readers(self) -> Readers:
        shapes = Shapes()
        return FakeShapeStore(shapes), FakeShapeStore(shapes)


@pytest.mark.integration
class TestSpannerShapeStore(ShapeStoreContract):
    @pytest.fixture(params=["GoogleSQL", "PostgreSQL"])
    @asynccontextmanager
    async def readers(
        self, request: pytest.FixtureRequest, database: Callable[..., SpannerDatabase]
    ) -> AsyncIterator[Readers]:
        async with partition_table(database(postgresql=request.param == "PostgreSQL")) as shared:
            yield SpannerShapeStore(shared, "p"), SpannerShapeStore(shared, "p")
