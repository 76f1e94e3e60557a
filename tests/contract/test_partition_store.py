"""What a PartitionStore promises, on the fake and on the partition table in the Spanner emulator."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar, Final

import pytest

from deploy.local.platform.source import SpannerDatabase
from services.spanner_reader.adapters.spanner.connection import (
    SpannerChannels,
    SpannerDatabaseClient,
    Statement,
    strings,
)
from services.spanner_reader.adapters.spanner.dialects import Dialect, partition_sql
from services.spanner_reader.adapters.stream import partition_table
from services.spanner_reader.adapters.stream.partition_table import SpannerPartitionStore
from services.spanner_reader.core.stream.partitions import NewPartition, PartitionState, SpannerPartition
from services.spanner_reader.core.stream.records import ROOT, PartitionToken
from services.spanner_reader.ports import SpannerProgress, TokenPartitionStore
from shared.contracts.errors import MisconfiguredError
from shared.contracts.timestamps import Nanoseconds, parse_timestamp
from shared.runtime.retries import retrying_async
from shared.runtime.stop import Stop
from tests.fakes.spanner_reader import FakePartitionStore, Table

LEASE: Final = timedelta(seconds=3)
START: Final = parse_timestamp("2026-11-21T09:00:00.123456789Z")  # nanoseconds are kept
A, B, C, D = (PartitionToken(name) for name in "abcd")


@dataclass
class Stores:
    """Two readers' views of one partition table, and a way to let their leases end."""

    one: TokenPartitionStore
    two: TokenPartitionStore
    let_leases_end: Callable[[], Awaitable[None]]


class PartitionStoreContract:
    """The promises. A subclass opens the stores."""

    async def test_the_first_query_is_remembered_once(self, stores: Stores) -> None:
        assert await stores.one.add_root(START, None)
        assert not await stores.two.add_root(later(60), None)
        survey = await stores.one.survey()
        assert [(p.token, p.start, p.watermark, p.state) for p in survey.unfinished] == [
            (ROOT, START, START, PartitionState.CREATED)
        ]
        assert survey.finished == 0
        assert survey.now > START

    async def test_a_claim_takes_what_is_free_and_raises_its_fencing_number(self, stores: Stores) -> None:
        claimed = await claimed_root(stores.one)
        assert claimed.token == ROOT
        assert claimed.watermark == START
        assert claimed.state is PartitionState.SCHEDULED
        assert await stores.two.claim([ROOT], None) == []  # another's, until its lease ends
        (again,) = await stores.one.claim([ROOT], None)  # one's own, whose answer never arrived
        assert again.fencing == claimed.fencing + 1

    async def test_an_expired_lease_is_taken_over_and_its_first_owner_writes_nothing_more(self, stores: Stores) -> None:
        first = await claimed_root(stores.one)
        await stores.let_leases_end()
        (second,) = await stores.two.claim([ROOT], None)
        assert second.fencing == first.fencing + 1

        assert await stores.one.advance([SpannerProgress(first, later(60))]) == {ROOT}
        assert await stores.one.advance([SpannerProgress(first, later(60))], release=True) == {ROOT}
        assert await stores.one.finish(SpannerProgress(first, later(60)), [child(A)]) is None
        (row,) = (await stores.two.survey()).unfinished
        assert (row.watermark, row.owner, row.fencing) == (START, second.owner, second.fencing)
        assert await stores.two.advance([SpannerProgress(second, later(1))]) == frozenset()

    async def test_a_renewed_lease_is_not_taken_over(self, stores: Stores) -> None:
        owned = await claimed_root(stores.one)
        await stores.let_leases_end()
        assert await stores.one.advance([SpannerProgress(owned, START)]) == frozenset()
        assert await stores.two.claim([ROOT], None) == []

    async def test_a_watermark_never_moves_back(self, stores: Stores) -> None:
        owned = await claimed_root(stores.one)
        await stores.one.advance([SpannerProgress(owned, later(60))])
        assert await stores.one.advance([SpannerProgress(owned, later(30))]) == frozenset()
        (row,) = (await stores.one.survey()).unfinished
        assert row.watermark == later(60)
        assert row.state is PartitionState.RUNNING

    async def test_a_released_partition_is_free_at_once_and_goes_on_at_its_watermark(self, stores: Stores) -> None:
        owned = await claimed_root(stores.one)
        assert await stores.one.advance([SpannerProgress(owned, later(60))], release=True) == frozenset()
        (taken,) = await stores.two.claim([ROOT], None)
        assert taken.watermark == later(60)

    async def test_a_load_is_saved_with_the_lease_and_goes_to_the_next_owner(self, stores: Stores) -> None:
        owned = await claimed_root(stores.one)
        assert owned.load == 0
        await stores.one.advance([SpannerProgress(owned, START, load=7)])
        (row,) = (await stores.two.survey()).unfinished
        assert row.load == 7
        await stores.one.advance([SpannerProgress(owned, START, load=9)], release=True)
        (taken,) = await stores.two.claim([ROOT], None)
        assert taken.load == 9

    async def test_finishing_stores_the_children_and_a_known_child_is_left_as_it_is(self, stores: Stores) -> None:
        parents = await first_partitions(stores.one, A, B)
        merged = NewPartition(C, frozenset({A, B}), later(60))
        assert await stores.one.finish(SpannerProgress(parents[0], later(50)), [merged]) == {C}
        assert (
            await stores.one.finish(SpannerProgress(parents[0], later(50)), [merged]) == frozenset()
        )  # again: nothing
        assert await stores.one.claim([C], None) == []  # one parent of two
        (row,) = [p for p in (await stores.one.survey()).unfinished if p.token == C]
        assert row.finished_parents == {A}

        assert await stores.one.finish(SpannerProgress(parents[1], later(55)), [merged]) == frozenset()
        (claimed,) = await stores.one.claim([C], None)
        assert (claimed.start, claimed.watermark, claimed.parents) == (later(60), later(60), frozenset({A, B}))
        survey = await stores.one.survey()
        assert [p.token for p in survey.unfinished] == [C]
        assert survey.finished == 3

    async def test_a_child_waits_for_a_parent_that_no_record_has_named_yet(self, stores: Stores) -> None:
        (parent,) = await first_partitions(stores.one, A)
        await stores.one.finish(SpannerProgress(parent, later(50)), [NewPartition(C, frozenset({A, B}), later(60))])
        assert await stores.one.claim([C], None) == []

    async def test_nothing_is_due_beyond_the_end(self, stores: Stores) -> None:
        await stores.one.add_root(START, None)
        assert await stores.one.claim([ROOT], Nanoseconds(START - 1)) == []
        assert len(await stores.one.claim([ROOT], START)) == 1

    async def test_leases_and_watermarks_of_many_partitions_are_saved_together(self, stores: Stores) -> None:
        owned = await first_partitions(stores.one, A, B, C)
        assert await stores.one.advance([SpannerProgress(p, later(n)) for n, p in enumerate(owned)]) == frozenset()
        found = {p.token: p.watermark for p in (await stores.one.survey()).unfinished}
        assert found == {A: START, B: later(1), C: later(2)}
        assert await stores.one.advance([]) == frozenset()
        assert await stores.one.claim([], None) == []

    async def test_readers_are_counted_for_as_long_as_a_lease_lasts_or_until_they_leave(self, stores: Stores) -> None:
        await stores.one.add_root(START, None)
        assert (await stores.one.survey()).readers == frozenset()
        await stores.one.attend()
        await stores.two.attend()
        assert (await stores.one.survey()).readers == {"one", "two"}
        await stores.two.attend(leave=True)
        await stores.two.attend(leave=True)  # again: nothing
        assert (await stores.one.survey()).readers == {"one"}
        await stores.let_leases_end()
        assert (await stores.one.survey()).readers == frozenset()
        await stores.one.attend()
        assert (await stores.two.survey()).readers == {"one"}

    async def test_a_finished_partition_is_forgotten_unless_an_unfinished_one_needs_it(self, stores: Stores) -> None:
        a, b = await first_partitions(stores.one, A, B)
        merged = NewPartition(C, frozenset({A, B}), later(60))
        await stores.one.finish(SpannerProgress(a, later(50)), [merged])
        assert await stores.one.forget_finished(timedelta(days=1)) == 0  # not old enough
        await stores.let_leases_end()
        assert await stores.one.forget_finished(LEASE) == 1  # the first query's: no partition names it as its parent
        assert await stores.one.forget_finished(LEASE) == 0  # C waits for B, and then needs A
        (again,) = await stores.two.claim([B], None)
        await stores.two.finish(SpannerProgress(again, later(55)), [merged])
        (owned,) = await stores.two.claim([C], None)
        await stores.let_leases_end()
        assert await stores.two.forget_finished(LEASE) == 0  # another owner may have to claim C
        (taken,) = await stores.one.claim([C], None)
        assert taken.fencing == owned.fencing + 1

        await stores.one.finish(SpannerProgress(taken, later(70)), [NewPartition(D, frozenset({C}), later(80))])
        await stores.let_leases_end()
        assert await stores.one.forget_finished(LEASE) == 2  # A and B; C is D's parent
        assert await stores.two.finish(SpannerProgress(b, later(55)), [merged]) is None  # a zombie brings nothing back
        assert await stores.two.advance([SpannerProgress(b, later(55))]) == {B}
        survey = await stores.one.survey()
        assert ([p.token for p in survey.unfinished], survey.finished) == ([D], 1)
        assert len(await stores.one.claim([D], None)) == 1


class TestFakePartitionStore(PartitionStoreContract):
    @pytest.fixture
    def stores(self) -> Stores:
        table = Table()
        table.clock.time = later(3_600)

        async def let_leases_end() -> None:
            table.clock.step(LEASE * 2)

        return Stores(FakePartitionStore(table, "one", LEASE), FakePartitionStore(table, "two", LEASE), let_leases_end)


class TestSpannerPartitionStore(PartitionStoreContract):
    dialect: ClassVar[Dialect] = Dialect.GOOGLESQL

    @pytest.fixture(autouse=True)
    def _database(self, database: Callable[..., SpannerDatabase]) -> None:
        self.database = database(postgresql=self.dialect is Dialect.POSTGRESQL)

    @pytest.fixture
    @asynccontextmanager
    async def stores(self, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stores]:
        monkeypatch.setattr(partition_table, "_COUNT_EVERY", timedelta(0))
        channels = SpannerChannels(self.database.instance.address)

        def store(owner: str) -> SpannerPartitionStore:
            return SpannerPartitionStore(
                SpannerDatabaseClient(self.database.path, channels, self.dialect),
                "millrace_partitions",
                change_stream="s",
                owner=owner,
                lease=LEASE,
            )

        async def let_leases_end() -> None:
            await asyncio.sleep(LEASE.total_seconds() + 0.1)  # a lease ends by Spanner's clock, which no test can set

        try:
            one, two = store("one"), store("two")
            await one.create_table()
            await two.create_table()  # the second of two readers that start at once
            yield Stores(one, two, let_leases_end)
        finally:
            await channels.close()

    async def test_a_table_that_belongs_to_another_change_stream_is_refused(self, stores: Stores) -> None:
        await stores.one.add_root(START, None)
        channels = SpannerChannels(self.database.instance.address)
        database = SpannerDatabaseClient(self.database.path, channels, self.dialect)
        other = SpannerPartitionStore(
            database, "millrace_partitions", change_stream="other", owner="three", lease=LEASE
        )
        with pytest.raises(MisconfiguredError, match="PARTITION_TABLE"):
            await other.add_root(START, None)
        with pytest.raises(MisconfiguredError, match="PARTITION_TABLE"):
            await other.is_empty()
        await channels.close()

    async def test_an_index_that_another_reader_is_still_making_is_not_there_yet(self, stores: Stores) -> None:
        # The emulator makes an index at once; Spanner lists one that it is filling, and refuses to read it.
        channels = SpannerChannels(self.database.instance.address)
        database = SpannerDatabaseClient(self.database.path, channels, self.dialect)
        sql = partition_sql(self.dialect, "millrace_partitions")
        found = {}
        for state in ("READ_WRITE", "WRITE_ONLY"):
            statement = Statement(sql["exist"].replace("READ_WRITE", state), {"p1": strings(["millrace_partitions"])})
            found[state] = {str(name) for (name,) in await database.query(statement)}
        await channels.close()
        assert found["READ_WRITE"] == {"millrace_partitions", sql["index"]}
        assert found["WRITE_ONLY"] == {"millrace_partitions"}

    async def test_what_happened_to_a_partition_has_commit_timestamps(self, stores: Stores) -> None:
        owned = await claimed_root(stores.one)
        await stores.one.advance([SpannerProgress(owned, START)])
        await stores.one.finish(SpannerProgress(owned, START), [child(A)])
        in_order = "created_at < scheduled_at AND scheduled_at < running_at AND running_at < finished_at"
        rows = self.database.query(f"SELECT {in_order} AS ordered FROM millrace_partitions WHERE token = ''")
        assert rows == [{"ordered": True}]

    async def test_two_writers_at_once_end_one_after_the_other(self, stores: Stores) -> None:
        owned = await first_partitions(stores.one, A, B)
        await stores.one.advance([SpannerProgress(owned[1], START)], release=True)
        (other,) = await stores.two.claim([B], None)

        async def advance(store: TokenPartitionStore, partition: SpannerPartition, seconds: int) -> None:
            async for attempt in retrying_async(Stop()):  # aborted by the other's transaction: again
                with attempt:
                    await store.advance([SpannerProgress(partition, later(seconds))])

        writes = [advance(stores.one, owned[0], n) for n in range(1, 6)]
        writes += [advance(stores.two, other, n) for n in range(1, 6)]
        await asyncio.wait_for(asyncio.gather(*writes), 20)
        found = {p.token: p.watermark for p in (await stores.one.survey()).unfinished}
        assert found == {A: later(5), B: later(5)}


def later(seconds: int) -> Nanoseconds:
    return Nanoseconds(START + seconds * 1_000_000_000)


def child(token: PartitionToken) -> NewPartition:
    return NewPartition(token, frozenset(), START)


async def claimed_root(store: TokenPartitionStore) -> SpannerPartition:
    """Begin, and claim the first query."""
    await store.add_root(START, None)
    (root,) = await store.claim([ROOT], None)
    return root


async def first_partitions(store: TokenPartitionStore, *tokens: PartitionToken) -> Sequence[SpannerPartition]:
    """Finish the first query with these children, and claim them."""
    root = await claimed_root(store)
    assert await store.finish(SpannerProgress(root, START), [child(token) for token in tokens]) == set(tokens)
    claimed = {partition.token: partition for partition in await store.claim(tokens, None)}
    return [claimed[token] for token in tokens]


class TestSpannerPartitionStoreInPostgreSql(TestSpannerPartitionStore):
    dialect = Dialect.POSTGRESQL
