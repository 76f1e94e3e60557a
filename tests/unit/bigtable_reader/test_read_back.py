"""One image for all records of a row that have come until it is read; its version stands from then on."""

import asyncio

from services.bigtable_reader.core.changes.images import CellVersion, RowCells
from tests.unit.bigtable_reader.read_backs import ROW, GatedRows, Reading, rows, sequence, some_turns


async def test_records_of_a_row_that_wait_share_one_reading_and_the_newest_version_and_are_confirmed_by_it() -> None:
    reading = Reading(GatedRows(a=ROW))
    await reading.ask_for_each(b"a", b"a", b"a")
    await some_turns()
    assert reading.rows.readings == [[b"a"]]
    assert reading.published() == [("UPSERT", '{"row_key":"a"}', sequence(3))]
    assert reading.owned.prefix.outstanding == 0
    assert reading.metrics.value("reader_rows_read_back_total") == 1
    assert reading.metrics.value("reader_read_backs_requested_total") == 3


async def test_what_comes_while_a_row_is_read_does_not_give_that_image_its_version_and_is_read_again_after_it() -> None:
    reading = Reading(GatedRows(a=ROW))
    reading.rows.gate.clear()
    await reading.ask(b"a", 1)
    await some_turns()
    await reading.ask(b"a", 2)
    await reading.ask(b"a", 3)
    await some_turns()
    assert reading.rows.readings == [[b"a"]]  # never two at a time
    reading.rows.gate.set()
    await some_turns()
    assert reading.rows.readings == [[b"a"], [b"a"]]
    assert sorted(number for _op, _key, number in reading.published()) == [sequence(1), sequence(3)]
    assert reading.owned.prefix.outstanding == 0


async def test_readings_are_bounded_in_rows_and_number_and_go_on_when_one_ends() -> None:
    reading = Reading(GatedRows(), rows_at_once=2, readings=2)
    reading.rows.gate.clear()
    await reading.ask_for_each(*rows(7))
    await some_turns()
    assert reading.rows.readings == [[b"row 0", b"row 1"], [b"row 2", b"row 3"]]
    reading.rows.gate.set()
    await some_turns()
    assert [len(keys) for keys in reading.rows.readings] == [2, 2, 2, 1]
    assert {op for op, _key, _number in reading.published()} == {"DELETE"}  # none of them exists
    assert reading.owned.prefix.outstanding == 0


async def test_of_large_rows_fewer_are_read_at_once() -> None:
    large: RowCells = {"f": {b"q": [CellVersion(1_000, b"v" * 3_000_000)]}}
    reading = Reading(GatedRows(**{f"row {number}": large for number in range(12)}), rows_at_once=4, readings=1)
    await reading.ask_for_each(*rows(12))
    await some_turns()
    sizes = [len(keys) for keys in reading.rows.readings]
    assert sizes[0] == 4
    assert sizes[-3:] == [1, 1, 1]
    assert sizes == sorted(sizes, reverse=True)
    assert reading.owned.prefix.outstanding == 0


async def test_who_asks_waits_while_too_many_are_left_to_read() -> None:
    reading = Reading(GatedRows(), rows_at_once=1, readings=1, waiting=3)
    reading.rows.gate.clear()
    await reading.ask(b"a", 1)
    await some_turns()  # being read
    await reading.ask(b"b", 2)
    waiting = asyncio.create_task(reading.ask(b"c", 3))
    await some_turns()
    assert not waiting.done()
    reading.rows.gate.set()
    await some_turns()
    assert waiting.done()
    assert len(reading.published()) == 3


async def test_draining_publishes_what_waits_and_ending_forgets_it() -> None:
    reading = Reading(GatedRows(a=ROW, b=ROW), rows_at_once=1, readings=1)
    reading.rows.gate.clear()
    await reading.ask_for_each(b"a", b"b")
    reading.rows.gate.set()
    await reading.read_back.drain(reading.stop)
    assert len(reading.rows.readings) == 2
    reading.rows.gate.clear()
    await reading.ask(b"a", 3)
    await some_turns()
    await reading.read_back.end()
    reading.rows.gate.set()
    await some_turns()
    assert sorted(number for _op, _key, number in reading.published()) == [sequence(1), sequence(2)]


async def test_few_rows_that_follow_closely_are_read_together_and_the_end_waits_for_no_rest() -> None:
    reading = Reading(GatedRows())
    await reading.ask(b"a", 1)
    await asyncio.sleep(0.001)
    assert reading.rows.readings == [[b"a"]]  # at once
    for number, row_key in enumerate((b"b", b"c"), 2):
        await reading.ask(row_key, number)
        await asyncio.sleep(0.001)
    assert reading.rows.readings == [[b"a"]]
    await some_turns()
    assert reading.rows.readings == [[b"a"], [b"b", b"c"]]
    await reading.ask(b"d", 4)
    await reading.read_back.drain(reading.stop)
    assert reading.rows.readings[2:] == [[b"d"]]


async def test_as_many_rows_as_one_reading_takes_wait_for_nothing() -> None:
    reading = Reading(GatedRows(), rows_at_once=2)
    await reading.ask(b"a", 1)
    await asyncio.sleep(0.001)
    for number, row_key in enumerate((b"b", b"c"), 2):
        await reading.ask(row_key, number)
        await asyncio.sleep(0.001)
    assert reading.rows.readings == [[b"a"], [b"b", b"c"]]


async def test_where_many_rows_wait_the_next_reading_waits_longer_for_more() -> None:
    reading = Reading(GatedRows())
    for number in range(40):
        await reading.ask(b"a %d" % number, number)
    await asyncio.sleep(0.001)
    for number in range(40):
        await reading.ask(b"b %d" % number, number)
    await asyncio.sleep(0.02)
    assert [len(keys) for keys in reading.rows.readings] == [40]
    for number in range(40):
        await reading.ask(b"c %d" % number, number)
    await asyncio.sleep(0.09)
    assert [len(keys) for keys in reading.rows.readings] == [40, 80]
