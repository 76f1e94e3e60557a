"""What completing updates may take: memory, reads under way at a time, keys of a read, and looks at the schema."""

import asyncio
import contextlib
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from services.spanner_reader.app.stream.completer import keys_of_one_read
from services.spanner_reader.core.schema.shapes import SpannerResyncKind
from services.spanner_reader.core.snapshot.snapshot import KeyText
from services.spanner_reader.core.stream.records import ROOT, PartitionToken
from services.spanner_reader.ports import WatchedTable
from shared.contracts.timestamps import Nanoseconds
from shared.reading import owned_partition
from shared.runtime.stop import Stop
from tests.fakes.spanner_reader import Table
from tests.fakes.spanner_schema import FakeCatalog
from tests.fakes.virtual_time import run_in_virtual_time
from tests.seeds import examples
from tests.unit.spanner_reader.capturing import TOKENS, column_types, is_reconstructed
from tests.unit.spanner_reader.completing import a_world, completing
from tests.unit.spanner_reader.scripts import START, LiveClock, World, a_record

pytestmark = pytest.mark.usefixtures("quiet")


async def test_a_partition_whose_reads_hang_cuts_no_batch_of_another_one() -> None:
    odd = range(1, 101, 2)
    world = a_world(0, *odd)
    world.database.commit(("update", 0, {"b": "1"}))
    for number in range(40):
        world.database.commit(("insert", 2 + 2 * number, {"a": "x" * 1_000_000}))
    for key in odd:
        world.database.commit(("update", key, {"b": "1"}))
    _insert, update, *inserts = world.database.records[TOKENS[0]]
    one = completing(world)
    one.rows.hung = frozenset({0})
    async with one.completer.working(), one.of_another(TOKENS[1]).working() as other:
        await one.take(update)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(5):
                for insert in inserts:
                    await one.take(insert)
        assert one.completion.budget.used > 16_000_000
        for record in world.database.records[TOKENS[1]][len(odd) :]:
            await one.take(record, completer=other)
        async with asyncio.timeout(10):
            await other.finished()
        assert [keys for _at, keys in one.rows.reads] == [1, len(odd)]
    assert one.completion.budget.used == 0


@settings(max_examples=examples(50), deadline=None)
@given(
    st.lists(st.lists(st.integers(1, 2_000), min_size=1, max_size=30), min_size=2, max_size=30),
    st.integers(2_000, 50_000),
)
@example([[2_000] * 30] * 20, 5_000)
def test_partitions_share_one_budget_whatever_their_number_and_one_that_hangs_holds_up_no_other(
    sizes: list[list[int]], most: int
) -> None:
    async def scenario() -> None:
        world = a_world()
        tokens = [PartitionToken(f"p{key}") for key in range(len(sizes))]
        world.database.records |= {token: [] for token in tokens}
        world.database.partition_of = dict(enumerate(tokens))
        world.database.commit(*[("insert", key, {"a": "0"}) for key in range(len(sizes))])
        for number in range(max(map(len, sizes))):
            for key, each in enumerate(sizes):
                if number < len(each):
                    world.database.commit(("update", key, {"b": "x" * each[number]}))
        one = completing(world)
        one.completion.budget.most = most
        one.rows.hung = frozenset({0})
        peak = 0

        async def read(token: PartitionToken) -> None:
            nonlocal peak
            async with one.of_another(token).working() as completer:
                for record in world.database.records[token][1:]:
                    await one.take(record, completer=completer)
                    peak = max(peak, one.completion.budget.used)
                await completer.finished()

        stuck, *others = [asyncio.create_task(read(token)) for token in tokens]
        async with asyncio.timeout(600):
            await asyncio.gather(*others)
        assert not stuck.done()
        stuck.cancel()
        await asyncio.gather(stuck, return_exceptions=True)
        assert one.completion.budget.used == 0
        # Of each partition beside the budget: a change, what rests on it, and a row that is read for it.
        assert peak <= most + len(sizes) * 3 * 2_200
        assert len(world.published) == sum(map(len, sizes[1:]))

    run_in_virtual_time(scenario())


async def test_reads_of_a_table_that_hang_leave_those_of_others_their_turn() -> None:
    world = a_world(0, 2)
    at, one = world.database.now.since, completing(world)
    one.rows.hung = frozenset({0})
    stuck, other = (WatchedTable(name, ("Id",), column_types([("a", 2)]), "NEW_VALUES") for name in ("A", "B"))
    share = one.completion.budget.share
    hanging = [asyncio.create_task(one.completion.read(stuck, at, [KeyText('["0"]')], share())) for _ in range(20)]
    await asyncio.sleep(1)
    async with asyncio.timeout(5):
        rows, _all = await one.completion.read(other, at, [KeyText('["2"]')], share())
    assert rows == [["2", "2"]]
    assert [keys for _at, keys in one.rows.reads].count(1) < 20, "of one table there is a bound"
    for task in hanging:
        task.cancel()
    await asyncio.gather(*hanging, return_exceptions=True)


async def test_a_transaction_of_many_rows_is_completed_by_reads_of_a_thousand_keys() -> None:
    keys = range(0, 5_000, 2)
    world = a_world(*keys)
    world.database.commit(*[("update", key, {"b": "1"}) for key in keys])
    one = completing(world)
    await one.complete(*world.database.records[TOKENS[0]][len(keys) :])
    assert [asked for _at, asked in one.rows.reads] == [1_000, 1_000, 500]
    assert [change.row for _header, change in world.published] == [f'{{"a":"{key}","b":"1"}}' for key in keys]


async def test_columns_are_asked_for_once_a_second_unless_a_record_names_one_that_is_new() -> None:
    world = a_world(0, mode="both")
    world.start()
    await asyncio.sleep(2)
    asked = world.catalog.inspected
    for number in range(50):
        world.database.commit(("update", 0, {"b": f"{number}"}))
        await asyncio.sleep(0.2)
    assert sum(len(rows.reads) for rows in world.rows) > 45, "nearly each is of a batch of its own"
    assert world.catalog.inspected - asked < 13
    world.database.commit(("update", 0, {"b": "new"}))
    await asyncio.sleep(0.3)
    asked = world.catalog.inspected
    world.database.alter("a", "b", "c")
    world.database.commit(("update", 0, {"c": "set"}))
    world.database.commit(("update", 0, {"a": "1"}))
    await asyncio.sleep(0.4)
    assert world.catalog.inspected == asked + 2, "now, and just before the batch"
    world.database.alter("a", "c")
    world.database.commit(("update", 0, {"a": "2"}))
    await asyncio.sleep(0.4)
    assert world.catalog.inspected == asked + 4
    assert world.world.metrics.value("reader_completion_failures_total") == 1, (
        "the read of a column that is gone is refused"
    )
    await world.until_all_is_read()
    world.check_versions()
    assert not any(is_reconstructed(change) for _header, change in world.published)


async def test_a_column_that_is_missing_while_updates_are_completed_is_known_to_have_been_dropped() -> None:
    """No insert shows it, and the schema is inspected by itself before and after."""
    world = a_world()
    world.database.commit(("insert", 0, {"a": "0", "b": "old"}), ("insert", 2, {"a": "0", "b": "old"}))
    world.start()
    await asyncio.sleep(90)
    world.database.commit(("update", 0, {"a": "1"}))
    await asyncio.sleep(1)
    world.database.alter("a")
    await asyncio.sleep(1)
    world.database.commit(("update", 0, {"a": "2"}))
    await asyncio.sleep(0.115)
    world.database.alter("a", "b")  # before an inspection that this one asks for
    await world.until_all_is_read()
    (request,) = world.world.shapes.all_requests
    assert [(one.kind, one.columns) for one in request.findings] == [(SpannerResyncKind.COLUMN_AGAIN, ("b",))]


async def test_a_column_that_was_missing_while_no_reader_ran_is_known_to_have_been_dropped() -> None:
    """It is the last one, so that it has the same place as before, and only updates came while it was away."""
    world = a_world(mode="both")
    world.database.commit(*[("insert", key, {"a": "0", "b": "old"}) for key in range(4)])
    world.start()
    await asyncio.sleep(90)
    await world.stop(killed=False)
    for columns in (("a",), ("a", "b")):
        world.database.commit(("update", 0, {"a": f"before {columns}"}))
        await asyncio.sleep(20)
        world.database.alter(*columns)
        await asyncio.sleep(20)
        world.database.commit(("update", 0, {"a": f"after {columns}"}))
    await world.until_all_is_read()
    world.check_versions()
    assert not any(is_reconstructed(change) for _header, change in world.published)
    (request,) = world.world.shapes.all_requests
    assert [(one.kind, one.columns) for one in request.findings] == [(SpannerResyncKind.COLUMN_AGAIN, ("b",))]


def test_one_read_asks_for_so_many_keys_or_bytes_and_for_one_key_whatever_its_size() -> None:
    large = KeyText("x" * 600_000)
    huge = KeyText(large * 4)
    for keys, most in (([KeyText("x")] * 1_500, 1_000), ([large] * 4, 2), ([large], 1), ([huge] * 2, 1)):
        assert keys_of_one_read(keys) == most


async def test_a_transaction_of_more_records_than_may_wait_is_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of its updates is completed before its last record has come, so none can be confirmed before that."""
    monkeypatch.setattr(owned_partition, "_UNCONFIRMED", 20)
    records = [
        replace(
            a_record(Nanoseconds(START + 1_000_000_000), number, transaction="large"),
            record_sequence=f"{number:08d}",
            mod_type="UPDATE",
            value_capture_type="NEW_VALUES",
            is_last_record_in_transaction_in_partition=number == 59,
            mods=(replace(a_record(START, number).mods[0], new_values='{"Name":"x"}'),),
        )
        for number in range(60)
    ]
    records.append(a_record(Nanoseconds(START + 2_000_000_000), 1))
    world = await World.begun({ROOT: records}, table=Table(LiveClock(START)), together=8)
    world.catalog = FakeCatalog(replace(world.catalog.tables[0], value_capture_type="NEW_VALUES"))
    world.catalog.time = Nanoseconds(START + 5_000_000_000)
    stop = Stop()
    reading = asyncio.create_task(world.reader(owner="o", poll=timedelta(seconds=1)).run(stop))
    await asyncio.sleep(600)
    stop.request()
    await reading
    assert len(world.topic.changes) == len(records)
