"""What becomes of updates that hold only what changed: of each kind of row, failure and moment."""

import asyncio
import contextlib
import json
from collections import ChainMap
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from datetime import timedelta

import pytest

from services.spanner_reader.core.snapshot.snapshot import KeyText
from services.spanner_reader.core.stream.records import Mod, SpannerColumnType
from services.spanner_reader.ports import WatchedTable
from shared.contracts.errors import TransientError
from shared.contracts.tables_file import Mode
from shared.contracts.timestamps import Nanoseconds
from tests.fakes.life import CrashError
from tests.fakes.pauses import FakePauseStore
from tests.fakes.snapshots import FakeRows, Versions
from tests.fakes.spanner_reader import FakePublisher, SteppingClock, Topic
from tests.fakes.spanner_schema import FakeCatalog
from tests.fakes.virtual_time import run_in_virtual_time
from tests.unit.spanner_reader.capturing import (
    SINGERS,
    TOKENS,
    CapturingWorld,
    Moment,
    is_reconstructed,
    key_of,
    row_of,
)
from tests.unit.spanner_reader.completing import Completing, a_world, completing
from tests.unit.spanner_reader.scripts import START, a_record

pytestmark = pytest.mark.usefixtures("quiet")

MOMENT = 0.5
AN_HOUR = timedelta(hours=1)


def versions(world: CapturingWorld, key: int) -> list[object]:
    """Return the rows that were published of a key, by their sequences."""
    found = {change.sequence: row_of(header, change) for header, change in world.published if key_of(change) == key}
    return [row for _sequence, row in sorted(found.items())]


async def read_for_a_while(world: CapturingWorld) -> None:
    """Let a reader read what there is, and stop; after that, no reader runs for a while."""
    world.start()
    await asyncio.sleep(2)
    await world.stop(killed=False)
    await asyncio.sleep(10)


def reads(world: CapturingWorld) -> list[int]:
    """Return of how many keys each read was."""
    return [keys for rows in world.rows for _at, keys in rows.reads]


async def test_updates_of_many_rows_are_completed_by_one_read_and_whole_changes_by_none() -> None:
    world = a_world()
    world.database.commit(*[("insert", key, {"a": f"{key}", "b": "old"}) for key in (0, 2, 4)])
    world.start()
    await asyncio.sleep(MOMENT)
    for value in ("1", "2", "3"):
        world.database.commit(*[("update", key, {"b": value}) for key in (0, 2, 4)])
    world.database.commit(("insert", 6, {"a": "6"}), ("update", 6, {"b": "7"}))
    await world.until_all_is_read()
    assert reads(world) == [3]
    assert world.world.metrics.value("reader_completion_read_seconds_count") == 1
    assert versions(world, 2) == [{"a": "2", "b": value} for value in ("old", "1", "2", "3")]
    assert versions(world, 6) == [{"a": "6", "b": None}, {"a": "6", "b": "7"}]
    assert world.world.metrics.completed_changes[0] == 10


async def test_what_needs_no_read_waits_for_none_unless_its_row_does() -> None:
    world = a_world(0, 2)
    world.start()
    await asyncio.sleep(2)
    world.database.commit(("update", 0, {"b": "1"}))
    world.database.commit(("delete", 0, {}))
    world.database.commit(("insert", 4, {"a": "4"}))
    await asyncio.sleep(0.05)  # half of what a batch waits for more
    assert versions(world, 4) == [{"a": "4", "b": None}]
    assert len(versions(world, 0)) == 1
    await world.until_all_is_read()
    order = [(key_of(change), change.mod_type) for _header, change in world.published]
    assert order[-2:] == [(0, "UPDATE"), (0, "DELETE")]


def test_killed_at_each_step_in_turn_a_restarted_reader_publishes_what_was_true() -> None:
    async def scenario(killed_at: int | None) -> int:
        world = a_world(*range(4), mode="both")
        life = world.start(killed_at)
        for number in range(4):
            await asyncio.sleep(0.15)
            world.database.commit(
                ("update", 0, {"b": f"{number}"}), ("update", 1, {"a": f"{number}"}), ("delete", number, {})
            )
        await asyncio.sleep(3)
        if killed_at is not None:
            (_life, _stop, task) = world.readers.pop()
            with pytest.raises(CrashError):
                await task
            world.database.clock.step(timedelta(minutes=1))
        await world.until_all_is_read()
        world.check_versions()
        assert {(key_of(change), change.sequence) for _header, change in world.published} == world.database.truth.keys()
        assert not any(is_reconstructed(change) for _header, change in world.published)
        return life.steps

    steps = run_in_virtual_time(scenario(None))
    assert steps > 40
    for killed_at in range(1, steps - 20):
        run_in_virtual_time(scenario(killed_at))


async def test_a_column_that_another_reader_has_seen_first_is_not_blanked() -> None:
    world = a_world(0, 1)
    world.start()
    world.start()
    await asyncio.sleep(120)
    world.database.commit(("update", 0, {"a": "1"}), ("update", 1, {"a": "1"}))
    await asyncio.sleep(2)
    owners = [world.world.table.rows[token].owner for token in TOKENS]
    assert set(owners) == {"reader 1", "reader 2"}
    its_key = owners.index("reader 1")
    world.database.alter("a", "b", "c")
    world.database.commit(("update", its_key, {"c": "set"}))
    await asyncio.sleep(2)
    await world.stop(0, killed=False)
    world.database.commit(("update", its_key, {"a": "2"}))
    await world.until_all_is_read()
    assert versions(world, its_key)[-1] == {"a": "2", "b": None, "c": "set"}


async def test_an_update_in_the_transaction_of_a_replaced_row_rests_on_what_replaced_it() -> None:
    world = a_world()
    world.database.commit(("insert", 0, {"a": "0", "b": "0"}), ("insert", 2, {"a": "2"}))
    world.start()
    await asyncio.sleep(MOMENT)
    world.database.commit(("replace", 0, {"a": "new"}), ("update", 2, {"b": "2"}))
    world.database.commit(("update", 0, {"a": "newer"}))
    await world.until_all_is_read()
    assert versions(world, 0)[-2:] == [{"a": "new", "b": None}, {"a": "newer", "b": None}]


async def test_changes_that_a_pause_drops_count_for_those_that_follow() -> None:
    world = a_world(0, 2)
    world.start()
    await asyncio.sleep(MOMENT)
    await world.stop(killed=False)
    pauses = FakePauseStore(world.world.pauses)
    world.database.commit(("update", 2, {"b": "before"}))
    await pauses.pause(SINGERS)
    world.database.commit(("update", 0, {"a": "dropped"}))
    await pauses.resume(SINGERS)
    world.database.commit(("update", 0, {"b": "after"}))
    await world.until_all_is_read()
    assert versions(world, 0)[-1] == {"a": "dropped", "b": "after"}
    assert len(versions(world, 0)) == 2
    world.check_versions()


@pytest.mark.parametrize("mode", ["mirror", "both"])
async def test_updates_of_a_table_that_is_dropped_meanwhile_are_completed_while_it_is_remembered(mode: Mode) -> None:
    world = a_world(0, mode=mode)
    world.database.commit(("update", 0, {"b": "1"}))
    world.database.alter()
    await world.until_all_is_read()
    assert versions(world, 0) == [{"a": "0", "b": None}, {"a": "0", "b": "1"}]
    assert not any(is_reconstructed(change) for _header, change in world.published)


@pytest.mark.parametrize(("mode", "last"), [("mirror", []), ("both", [{"b": "1"}])])
async def test_of_a_table_that_is_gone_and_forgotten_a_history_has_what_the_updates_say(
    mode: Mode, last: list[object]
) -> None:
    world = a_world(0, mode=mode)
    await read_for_a_while(world)
    world.database.commit(("update", 0, {"b": "1"}))
    world.database.alter()
    await asyncio.sleep(2 * AN_HOUR.total_seconds())
    await world.until_all_is_read()
    assert versions(world, 0)[1:] == last
    assert world.world.metrics.completed_changes == (0, 1)


async def test_where_its_rows_are_forgotten_a_mirror_gets_the_row_as_it_is_once_and_of_one_that_is_gone_nothing() -> (
    None
):
    world = a_world(0, 2)
    await read_for_a_while(world)
    for value in ("1", "2"):
        world.database.commit(("update", 0, {"b": value}), ("update", 2, {"b": value}))
    await asyncio.sleep(2 * AN_HOUR.total_seconds())
    world.database.commit(("delete", 2, {}))
    await world.until_all_is_read()
    assert versions(world, 0)[1:] == [{"a": "0", "b": "2"}]
    assert versions(world, 2)[1:] == [None]
    assert world.world.metrics.completed_changes == (0, 4)
    world.check_versions()


async def test_a_table_that_is_left_out_is_not_read() -> None:
    world = a_world()
    world.included = False
    world.database.commit(("insert", 0, {"a": "0"}), ("update", 0, {"b": "1"}))
    await world.until_all_is_read()
    assert (world.published, reads(world)) == ([], [])


async def test_a_table_of_key_columns_only_is_not_read() -> None:
    world = a_world(mode="both")
    world.database.past = [Moment(world.database.past[0].since, (), {})]
    world.database.commit(("insert", 0, {}), ("insert", 2, {}))
    world.database.commit(("replace", 0, {}), ("delete", 2, {}))
    await world.until_all_is_read()
    assert (versions(world, 0), versions(world, 2), reads(world)) == ([{}, {}], [{}, None], [])


async def test_a_read_that_fails_is_made_again_and_counted() -> None:
    world = a_world(*range(0, 20, 2))
    world.database.commit(*[("update", key, {"b": f"{key}"}) for key in range(0, 20, 2)])
    world.start()
    world.rows[0].breaks = 0.5
    await world.until_all_is_read()
    world.check_versions()
    assert world.world.metrics.value("reader_completion_failures_total") > 0
    assert len(world.mirror()) == 10


async def test_a_key_that_is_none_of_its_table_is_published_as_it_came_and_holds_nothing_up() -> None:
    world = a_world(0)
    world.database.commit(("update", 0, {"b": "1"}))
    update = world.database.records[TOKENS[0]][-1]
    poison = replace(update, mods=(Mod('{"Id":"x"}', '{"b":"2"}', "{}"), *update.mods))
    world.database.records[TOKENS[0]][-1] = poison
    await world.until_all_is_read()
    (bad,) = [(header, change) for header, change in world.published if change.key == '{"Id":"x"}']
    assert (bad[0].value_capture_type, bad[1].row) == ("OLD_AND_NEW_VALUES", '{"b":"2"}')
    rows = [json.loads(change.row or "") for _header, change in world.published if change.key == '{"Id":"0"}']
    assert rows == [{"a": "0", "b": None}, {"a": "0", "b": "1"}]


async def test_a_record_that_needs_no_completing_holds_the_watermark_until_it_is_confirmed() -> None:
    world = a_world(0)
    one = completing(world, by_hand=True)
    (insert,) = world.database.records[TOKENS[0]]
    async with one.completer.working():
        await one.take(insert)
        (publication,) = one.publisher.waiting
        assert one.owned.position == START
        one.publisher.confirm(publication)
        await asyncio.sleep(0)
        assert one.owned.position == insert.commit_timestamp


async def test_a_record_that_is_published_in_parts_holds_the_watermark_until_all_of_them_are_confirmed() -> None:
    """A key that is none of its table is published at once, and what is to be completed later."""
    world = a_world(0)
    world.database.commit(("update", 0, {"b": "1"}))
    update = world.database.records[TOKENS[0]][-1]
    one = completing(world, by_hand=True)
    async with one.completer.working():
        await one.take(replace(update, mods=(Mod('{"Id":"x"}', '{"b":"2"}', "{}"), *update.mods)))
        async with asyncio.timeout(60):
            await one.completer.finished()
        for publication, position in zip(list(one.publisher.waiting), (START, update.commit_timestamp), strict=True):
            one.publisher.confirm(publication)
            await asyncio.sleep(0)
            assert one.owned.position == position


async def test_values_that_are_no_object_are_published_as_they_came() -> None:
    world = a_world(0)
    world.database.commit(("update", 0, {"b": "1"}))
    world.database.commit(("update", 0, {"a": "2"}))
    records = world.database.records[TOKENS[0]]
    records[1] = replace(records[1], mods=(replace(records[1].mods[0], new_values="[1]"),))
    await world.until_all_is_read()
    found = [(header.value_capture_type, change.row) for header, change in world.published]
    assert found[1] == ("OLD_AND_NEW_VALUES", "[1]")
    assert found[2][0] == "NEW_ROW_AND_OLD_VALUES"


async def test_rows_of_other_keys_than_were_asked_for_are_believed_of_none() -> None:
    world = a_world(0, 2)
    world.start()
    await asyncio.sleep(2)
    world.rows[0].shifted = True
    world.database.commit(("update", 0, {"b": "1"}))
    await world.until_all_is_read()
    assert world.world.metrics.value("reader_completion_failures_total") == 1
    assert [header.value_capture_type for header, _change in world.published][-1] == "OLD_AND_NEW_VALUES"


async def test_a_change_that_has_waited_for_an_hour_is_not_published_but_read_again() -> None:
    world = a_world(0)
    world.database.commit(("update", 0, {"b": "1"}))
    one = completing(world)
    one.rows.unavailable = True

    async def read() -> None:
        async with one.completer.working():
            await one.take(world.database.records[TOKENS[0]][-1])
            await asyncio.sleep(60)
            assert one.owned.outstanding == 1
            one.clock.time = Nanoseconds(START + 3_601_000_000_000)
            one.rows.unavailable = False
            await asyncio.Event().wait()  # for the next record

    with pytest.raises(TransientError, match="have waited"):
        await read()
    assert one.failed == [], "the query breaks off, and the reader goes on"
    assert (world.published, one.owned.outstanding, one.owned.position) == ([], 0, START)
    assert one.completion.budget.used == 0


async def test_a_record_that_waits_for_room_as_its_query_breaks_off_does_not_hold_the_watermark_for_ever() -> None:
    world = a_world(0)
    world.database.commit(("update", 0, {"b": "1"}))
    world.database.commit(("insert", 2, {"a": "2"}))
    _inserted, update, insert = world.database.records[TOKENS[0]]
    one = completing(world)
    one.rows.unavailable = True

    async def read() -> None:
        async with one.completer.working():
            await one.take(update)
            await asyncio.sleep(60)
            one.clock.time = Nanoseconds(START + 3_601_000_000_000)
            one.publisher.room = 0
            one.rows.unavailable = False
            await one.take(insert)

    with pytest.raises(TransientError, match="have waited"):
        await read()
    assert (world.published, one.owned.outstanding, one.owned.position) == ([], 0, START)


@pytest.mark.parametrize("left_out", [False, True])
async def test_behind_an_update_that_waits_no_more_is_remembered_than_there_is_room_for(left_out: bool) -> None:
    world = a_world(0)
    world.database.commit(("update", 0, {"b": "1"}))
    for key in range(2, 82, 2):
        world.database.commit(("insert", key, {"a": "x" * 1_000_000}))
    _insert, update, *inserts = world.database.records[TOKENS[0]]
    one = completing(world)
    one.rows.unavailable = True
    taken = 0
    async with one.completer.working():
        await one.take(update)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(5):
                for insert in inserts:
                    await one.take(insert, left_out=left_out)
                    taken += 1
        assert 14 < taken < 20
        assert one.completion.budget.used < 18_000_000
        one.rows.unavailable = False
        for insert in inserts[taken:]:
            await one.take(insert, left_out=left_out)
        await one.completer.finished()
    assert one.completion.budget.used == 0


async def test_a_key_that_the_database_refuses_leaves_the_others_as_they_are() -> None:
    keys = range(0, 20, 2)
    world = a_world(*keys)
    world.database.commit(*[("update", key, {"b": "1"}) for key in keys])
    one = completing(world)
    one.rows.refused = 6
    await one.complete(*world.database.records[TOKENS[0]][10:])
    found = {key_of(change): (row_of(header, change), is_reconstructed(change)) for header, change in world.published}
    others = {key: ({"a": f"{key}", "b": "1"}, False) for key in keys if key != 6}
    assert found == others | {6: ({"b": "1"}, False)}
    assert (
        one.metrics.value("reader_completion_failures_total") == len(one.rows.refusals) + 1
    )  # and the change that was given up


async def test_a_key_of_whole_numbers_is_asked_for_as_texts_however_the_record_writes_it() -> None:
    world = a_world(0)
    world.database.commit(("update", 0, {"b": "1"}))
    update = world.database.records[TOKENS[0]][-1]
    one = completing(world)
    await one.complete(replace(update, mods=(replace(update.mods[0], keys='{"Id":0}'),)))
    assert one.rows.keys == ['["0"]']
    assert [row_of(*published) for published in world.published] == [{"a": "0", "b": "1"}]


@pytest.mark.parametrize(
    "places",
    [(0, 1), (1, 0), (0, 0), (2, 1, 0)],
    ids=["in order", "out of order", "of one sequence", "three, the newest first"],
)
async def test_of_transactions_of_one_time_the_newest_change_has_all_however_late_the_others_come(
    places: tuple[int, ...],
) -> None:
    """Transactions that write other columns may have one commit timestamp (Spanner, "Commit timestamps")."""

    world, old = a_world(), {"a": "0", "b": "0", "c": "0"}
    database = world.database
    database.alter(*old)
    database.commit(("insert", 0, old))
    harness, before, commit = completing(world), database.now, database.tick()
    written = [{"a": "1"}, {"b": "1"}, {"c": "1"}][: len(places)]
    newest = {**old, **dict(ChainMap(*written))}
    database.past.append(Moment(commit, before.columns, {0: newest}))
    async with harness.completer.working():
        for place, wanted in zip(places, written, strict=True):
            record = database._record(before, commit, place, "update", 0, old, wanted, {**old, **wanted})
            await harness.take(replace(record, server_transaction_id=f"one that writes {wanted}"))
            await asyncio.sleep(1)  # each is completed by itself
        await harness.completer.finished()
    assert versions(world, 0)[-1] == newest, "of whatever is delivered again the newest still wins"
    assert len({change.sequence for _header, change in world.published}) == len(world.published)


SEAT_COLUMNS = (
    SpannerColumnType("Number", '{"code":"INT64"}', True, 1),
    SpannerColumnType("Plane", '{"code":"INT64"}', True, 2),
    SpannerColumnType("Name", '{"code":"STRING"}', False, 3),
    SpannerColumnType("Class", '{"code":"STRING"}', False, 4),
)
SEATS = WatchedTable("Seats", ("Plane", "Number"), SEAT_COLUMNS, "NEW_VALUES")


class Seats(FakeRows):
    """A table with one row."""

    async def read_keys(
        self, table: WatchedTable, at: Nanoseconds, keys: Sequence[KeyText]
    ) -> AsyncGenerator[Sequence[Sequence[object]], None]:
        """Yield the row if it is asked for, by its key in the order of the table's."""
        row = {"Plane": "1", "Number": "7", "Name": "old", "Class": "first"}
        if [row[name] for name in table.primary_key] in map(json.loads, keys):
            yield [[row[column.name] for column in table.column_types]]


@pytest.mark.parametrize("known", [(), ("Plane", "Number"), ("Number", "Plane")])
async def test_a_row_is_asked_for_by_the_key_as_the_table_had_it_then_whatever_is_known_of_it_now(
    known: tuple[str, ...],
) -> None:
    """Of a table that is dropped by now a restarted reader knows no order; one that is made again may have another."""
    topic, catalog = Topic(), FakeCatalog(SEATS)
    catalog.time = 2 * START
    one = Completing(Seats(Versions(SteppingClock(START))), catalog, FakePublisher(topic), Seats=known)
    mod = Mod('{"Number":"7","Plane":"1"}', '{"Name":"new"}', "{}")
    record = replace(a_record(START), table="Seats", column_types=SEAT_COLUMNS[:3], mods=(mod,), mod_type="UPDATE")
    await one.complete(replace(record, value_capture_type="NEW_VALUES"))
    assert one.failed == []
    assert [json.loads(change.row or "null") for change in topic.changes] == [{"Name": "new", "Class": "first"}]
    assert one.metrics.completed_changes[0] == 1
