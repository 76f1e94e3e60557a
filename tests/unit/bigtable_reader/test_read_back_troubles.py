"""Readings that fail, last too long, or lose their lease: what is set aside, what is asked for again, what goes on."""

import asyncio
from collections.abc import Collection, Sequence

import pytest

from services.bigtable_reader.core.changes.images import CellVersion, RowCells, TooLargeRow
from services.bigtable_reader.ports import ReadRefusedError, ReadRows
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.contracts.reasons import Reason
from tests.unit.bigtable_reader.read_backs import ROW, GatedRows, Reading, rows, sequence, some_turns
from tests.unit.bigtable_reader.readings import a_partition, an_owned

TWO_HOURS = 7_200_000_000
POISON: RowCells = {"f": {b"\xff": [CellVersion(1_000, b"v")]}}


def refuse(reading: Reading, row_key: bytes, by: str) -> None:
    """Have the reader make no image of a row, or have Bigtable not read it."""
    reading.rows.rows = {**reading.rows.rows, row_key: POISON}
    reading.rows.refuses = lambda row_keys: by == "Bigtable" and row_key in row_keys


async def test_a_row_without_an_image_is_a_dead_letter_and_the_others_of_its_reading_are_published() -> None:
    reading = Reading(GatedRows(a=ROW, b=POISON))
    await reading.ask_for_each(b"a", b"b", b"\xff")
    await some_turns()
    assert reading.published() == [("UPSERT", '{"row_key":"a"}', sequence(1))]
    assert [one.reason for one in reading.dead_letters.kept] == [
        Reason.VALUE_DOES_NOT_FIT,
        Reason.KEY_NOT_REPRESENTABLE,
    ]
    assert [one.sequence for one in reading.dead_letters.kept] == [sequence(2), sequence(3)]
    assert reading.owned.prefix.outstanding == 0


@pytest.mark.parametrize("refused_by", ["the reader", "Bigtable"])
async def test_a_row_without_an_image_is_confirmed_no_earlier_than_its_dead_letter_which_holds_up_no_other_row(
    refused_by: str,
) -> None:
    reading = Reading(GatedRows(a=ROW), readings=1)
    refuse(reading, b"b", refused_by)
    reading.dead_letters.open.clear()
    await reading.ask(b"b", 1)
    await some_turns()
    await reading.ask(b"a", 2)
    await asyncio.sleep(1)
    assert reading.published() == [("UPSERT", '{"row_key":"a"}', sequence(2))]
    assert (reading.dead_letters.kept, reading.owned.prefix.outstanding) == ([], 2)  # its place and the one behind it
    reading.dead_letters.open.set()
    await some_turns()
    assert (len(reading.dead_letters.kept), reading.owned.prefix.outstanding) == (1, 0)


@pytest.mark.parametrize("refused_by", ["the reader", "Bigtable"])
async def test_changes_of_a_row_share_one_dead_letter_while_it_is_under_way_and_the_row_is_read_again_after_it(
    refused_by: str,
) -> None:
    reading = Reading(GatedRows())
    refuse(reading, b"b", refused_by)
    reading.dead_letters.open.clear()
    for version in range(1, 51):
        await reading.ask(b"b", version)
        await some_turns()
    reading.rows.rows, reading.rows.refuses = {b"b": ROW}, lambda _row_keys: False
    await asyncio.sleep(1)
    assert (reading.published(), reading.owned.prefix.outstanding) == ([], 50)
    reading.dead_letters.open.set()
    await some_turns()
    assert [one.sequence for one in reading.dead_letters.kept] == [sequence(1)]
    assert reading.published() == [("UPSERT", '{"row_key":"b"}', sequence(50))]
    assert reading.owned.prefix.outstanding == 0


async def test_who_asks_waits_while_the_dead_letters_of_too_many_rows_are_under_way() -> None:
    reading = Reading(GatedRows(**{f"row {number}": POISON for number in range(9)}), waiting=3)
    reading.dead_letters.open.clear()
    asking = asyncio.create_task(reading.ask_for_each(*rows(9)))
    await asyncio.sleep(60)
    assert reading.owned.prefix.outstanding == 3
    reading.dead_letters.open.set()
    await asking
    await some_turns()
    assert (len(reading.dead_letters.kept), reading.owned.prefix.outstanding) == (9, 0)


async def test_draining_reads_a_row_again_whose_dead_letter_is_confirmed_meanwhile() -> None:
    reading = Reading(GatedRows())
    refuse(reading, b"b", "the reader")
    reading.dead_letters.open.clear()
    await reading.ask(b"b", 1)
    await some_turns()
    await reading.ask(b"b", 2)
    reading.rows.rows = {b"b": ROW}
    draining = asyncio.create_task(reading.read_back.drain(reading.stop))
    await some_turns()
    assert not draining.done()
    reading.dead_letters.open.set()
    await draining
    await some_turns()
    assert reading.published() == [("UPSERT", '{"row_key":"b"}', sequence(2))]


async def test_a_row_of_a_lost_partition_that_bigtable_refuses_leaves_room_for_others() -> None:
    reading = Reading(GatedRows(a=ROW), waiting=1)
    refuse(reading, b"b", "Bigtable")
    reading.rows.gate.clear()
    asking = asyncio.create_task(reading.ask(b"b", 1, an_owned(seconds=5)))
    await asyncio.sleep(6)
    reading.rows.gate.set()
    await asking
    await reading.ask(b"a", 2)
    await some_turns()
    assert reading.dead_letters.kept == []
    assert reading.published() == [("UPSERT", '{"row_key":"a"}', sequence(2))]


async def test_a_reading_that_fails_is_made_again_under_the_same_version() -> None:
    reading = Reading(GatedRows(a=ROW))
    reading.rows.errors = [TransientError("UNAVAILABLE"), TransientError("UNAVAILABLE")]
    await reading.ask(b"a", 1)
    await asyncio.sleep(10)
    assert len(reading.rows.readings) == 3
    assert [number for _op, _key, number in reading.published()] == [sequence(1)]


async def test_what_is_left_of_a_reading_is_read_under_its_own_versions_after_what_came_is_published() -> None:
    reading = Reading(GatedRows(a=ROW, b=ROW, c=ROW), readings=1)
    reading.rows.gate.clear()
    reading.rows.at_once = 2
    await reading.ask_for_each(b"a", b"b", b"c")
    await some_turns()
    for _part in range(2):
        await reading.ask(b"c", 9)  # while it is being read, or left: for another reading
    reading.rows.gate.set()
    await some_turns()
    assert reading.rows.readings == [[b"a", b"b", b"c"], [b"c"], [b"c"]]
    assert [number for _op, _key, number in reading.published()] == [sequence(version) for version in (1, 2, 3, 9)]
    assert reading.owned.prefix.outstanding == 0


async def test_the_rest_is_not_read_while_the_publisher_has_no_room_for_what_came() -> None:
    reading = Reading(GatedRows(a=ROW, b=ROW), readings=1)
    reading.rows.at_once = 1
    reading.publisher.room.clear()
    await reading.ask_for_each(b"a", b"b")
    await some_turns()
    assert reading.rows.readings == [[b"a", b"b"]]
    reading.publisher.room.set()
    await some_turns()
    assert len(reading.published()) == 2


async def test_a_reading_that_takes_too_long_is_made_of_fewer_rows() -> None:
    reading = Reading(GatedRows(), readings=1)
    reading.rows.errors = [TransientError("DEADLINE_EXCEEDED")] * 3
    await reading.ask_for_each(*rows(8))
    await asyncio.sleep(60)
    assert [len(keys) for keys in reading.rows.readings] == [8, 4, 2, 1, 2, 4, 1]
    assert len(reading.published()) == 8
    assert reading.owned.prefix.outstanding == 0


class TooLongError(TransientError):
    """Bigtable has ended a reading."""

    code = "DEADLINE_EXCEEDED"


class SlowRows(GatedRows):
    """Rows of which some take so long each time that Bigtable ends the reading."""

    slow: Collection[bytes] = ()

    async def read(self, row_keys: Sequence[bytes]) -> ReadRows:
        if not set(self.slow).isdisjoint(row_keys):
            self.readings.append(list(row_keys))
            await asyncio.sleep(60)
            raise TooLongError("DEADLINE_EXCEEDED")
        return await super().read(row_keys)


async def test_a_row_that_takes_too_long_each_time_holds_up_no_other_and_is_asked_for_until_it_comes() -> None:
    slow = SlowRows()
    slow.slow = [b"row 2"]
    reading = Reading(slow, readings=1)
    await reading.ask_for_each(*rows(8))
    await asyncio.sleep(600)
    assert len(reading.published()) == 7
    assert reading.owned.prefix.outstanding == 6  # its place and those behind it
    assert slow.readings[-1] == [b"row 2"]
    slow.slow = []
    await asyncio.sleep(120)
    assert reading.published()[7:] == [("DELETE", '{"row_key":"row 2"}', sequence(3))]
    assert reading.owned.prefix.outstanding == 0


@pytest.mark.parametrize("together", [True, False])
async def test_more_such_rows_than_readings_hold_up_no_other_nor_what_comes_of_these_later(together: bool) -> None:
    slow = SlowRows(other=ROW)
    slow.slow = rows(20)
    reading = Reading(slow, readings=2)
    reading.owned = an_owned(seconds=10_000)
    for number, row_key in enumerate(slow.slow, 1):
        await reading.ask(row_key, number)
        await asyncio.sleep(0 if together else 1)
    await asyncio.sleep(6_000)
    assert reading.published() == []
    await reading.ask(b"other", 21)
    await reading.ask(b"row 3", 22)  # while its reading is under way
    await some_turns()
    assert reading.published() == [("UPSERT", '{"row_key":"other"}', sequence(21))]
    slow.slow = []
    await asyncio.sleep(120)
    versions = [number for _op, key, number in reading.published() if key == '{"row_key":"row 3"}']
    assert versions[-1] == sequence(22)
    assert {key for _op, key, _number in reading.published()} == {
        f'{{"row_key":"{key.decode()}"}}' for key in [b"other", *rows(20)]
    }
    assert reading.owned.prefix.outstanding == 0


async def test_what_comes_of_a_slow_row_before_it_is_asked_for_again_shares_that_reading() -> None:
    slow = SlowRows()
    slow.slow = [b"row 0"]
    reading = Reading(slow)
    await reading.ask(b"row 0", 1)
    await asyncio.sleep(70)  # in its second reading
    for version in range(2, 6):
        await reading.ask(b"row 0", version)
    slow.slow = []
    await asyncio.sleep(120)
    assert len(slow.readings) == 3
    assert reading.published() == [("DELETE", '{"row_key":"row 0"}', sequence(5))]
    assert reading.owned.prefix.outstanding == 0


@pytest.mark.parametrize("waits_for", ["a slow reading", "Bigtable", "a dead letter of it"])
async def test_a_row_that_is_read_long_after_its_change_gets_a_new_version_before_that_reading(waits_for: str) -> None:
    slow = SlowRows(a=ROW)
    slow.slow = [b"a"] if waits_for == "a slow reading" else ()
    reading = Reading(slow)
    owned = reading.owned = an_owned(seconds=1_000_000)
    if waits_for == "Bigtable":
        slow.errors = [TransientError("UNAVAILABLE")]
        slow.gate.clear()
    if waits_for == "a dead letter of it":
        slow.rows = {b"a": POISON}
        reading.dead_letters.open.clear()
        await reading.ask(b"a", 1)
        await some_turns()
    await reading.ask(b"a", 2)
    await asyncio.sleep(7_200)
    owned.versions.rise(TWO_HOURS)
    slow.rows, slow.slow = {b"a": ROW}, ()
    slow.gate.set()
    reading.dead_letters.open.set()
    await asyncio.sleep(120)
    assert reading.published() == [("UPSERT", '{"row_key":"a"}', sequence(TWO_HOURS + 1))]
    assert (owned.versions.last, owned.prefix.outstanding) == (TWO_HOURS + 1, 0)


async def test_a_row_that_is_read_long_after_its_change_is_read_for_the_changes_too_that_wait() -> None:
    reading = Reading(GatedRows(a=ROW))
    reading.rows.errors = [TransientError("UNAVAILABLE")] * 100
    await reading.ask(b"a", 1)
    await some_turns()
    reading.owned.versions.rise(TWO_HOURS)
    await reading.ask(b"a", TWO_HOURS)
    reading.rows.errors = []
    await asyncio.sleep(120)

    assert [number for _op, _key, number in reading.published()] == [sequence(TWO_HOURS)]
    assert reading.owned.prefix.outstanding == 0


async def test_a_row_that_is_read_soon_or_for_which_no_version_may_be_made_keeps_its_own() -> None:
    reading = Reading(GatedRows(a=ROW))
    full = an_owned(a_partition(min_version=TWO_HOURS))
    reading.owned.versions.rise(TWO_HOURS)
    await reading.ask(b"a", TWO_HOURS // 2)
    await reading.ask(b"a", 2, full)
    await some_turns()
    assert [number for _op, _key, number in reading.published()] == [sequence(TWO_HOURS // 2), sequence(2)]
    assert reading.owned.versions.last == full.versions.last == TWO_HOURS


async def test_no_new_version_is_made_for_a_partition_that_was_released() -> None:
    reading = Reading(GatedRows(a=ROW))
    reading.rows.errors = [TransientError("UNAVAILABLE")]
    released = an_owned()
    await reading.ask(b"a", 1, released)
    await some_turns()
    released.versions.rise(TWO_HOURS)
    released.over = True
    await asyncio.sleep(120)
    assert (len(reading.rows.readings), released.versions.last) == (2, TWO_HOURS)


async def test_who_waits_for_room_goes_on_when_changes_of_slow_rows_share_a_reading_though_no_row_comes() -> None:
    slow = SlowRows()
    slow.slow = rows(3)
    reading = Reading(slow, waiting=6)
    reading.owned = an_owned(seconds=10_000)
    await reading.ask_for_each(*slow.slow)
    await asyncio.sleep(1_000)
    asking = asyncio.create_task(reading.ask_for_each(*slow.slow))
    await some_turns()
    assert not asking.done()
    await asyncio.sleep(600)
    assert asking.done()
    assert reading.published() == []


@pytest.mark.parametrize("is_slow", [False, True])
async def test_while_no_row_comes_no_more_are_taken_than_may_wait_and_calls_become_rare(is_slow: bool) -> None:
    slow = SlowRows()
    slow.slow = rows(1_000) if is_slow else ()
    slow.errors = [TransientError("UNAVAILABLE")] * 10_000
    reading = Reading(slow, rows_at_once=4, readings=2, waiting=40)
    reading.owned = an_owned(seconds=10_000)
    asking = asyncio.create_task(reading.ask_for_each(*rows(1_000)))
    await asyncio.sleep(3_600)
    assert reading.owned.prefix.outstanding == 40
    assert len(slow.readings) < 2 * 3_600 / 3
    slow.errors, slow.slow = [], ()
    await asking
    await asyncio.sleep(120)
    assert reading.owned.prefix.outstanding == 0


async def test_no_more_slow_rows_are_asked_for_at_once_than_others() -> None:
    slow = SlowRows()
    slow.slow = rows(20)
    reading = Reading(slow, rows_at_once=3)
    reading.owned = an_owned(seconds=10_000)
    await reading.ask_for_each(*rows(20))
    await asyncio.sleep(6_000)
    slow.slow = ()
    await asyncio.sleep(120)
    assert max(map(len, slow.readings)) == 3
    assert reading.owned.prefix.outstanding == 0


async def test_a_slow_row_of_a_lost_partition_is_asked_for_no_more() -> None:
    slow = SlowRows()
    slow.slow = [b"row 0"]
    reading = Reading(slow)
    await reading.ask(b"row 0", 1, an_owned(seconds=100))
    await asyncio.sleep(1_000)
    assert len(slow.readings) == 2


async def test_a_row_that_is_too_large_to_be_read_is_a_dead_letter_without_its_bytes_and_the_others_go_on() -> None:
    reading = Reading(GatedRows(**{key.decode(): ROW for key in rows(9)}), readings=1)
    reading.rows.refuses = lambda row_keys: b"row 5" in row_keys
    await reading.ask_for_each(*rows(9))
    await some_turns()
    assert sorted(key for _op, key, _number in reading.published()) == [
        f'{{"row_key":"row {number}"}}' for number in range(9) if number != 5
    ]
    (dead_letter,) = reading.dead_letters.kept
    assert (dead_letter.reason, dead_letter.key) == (Reason.TOO_LARGE, '["row 5"]')
    assert dead_letter.sequence == sequence(6)
    assert reading.owned.prefix.outstanding == 0
    assert reading.failures == []


async def test_a_row_that_no_message_can_hold_is_a_dead_letter_with_its_size_and_the_others_go_on() -> None:
    reading = Reading(GatedRows(a=ROW, b=TooLargeRow(9_500_000)))
    await reading.ask_for_each(b"a", b"b")
    await some_turns()
    assert reading.published() == [("UPSERT", '{"row_key":"a"}', sequence(1))]
    (dead_letter,) = reading.dead_letters.kept
    assert (dead_letter.reason, dead_letter.key, dead_letter.sequence) == (Reason.TOO_LARGE, '["b"]', sequence(2))
    assert dead_letter.payload_bytes == 9_500_000
    assert "excluded_columns" in dead_letter.detail
    assert reading.owned.prefix.outstanding == 0


async def test_when_no_row_at_all_is_read_that_is_reported_and_no_row_is_dead_lettered() -> None:
    reading = Reading(GatedRows(a=ROW, b=ROW))
    reading.rows.refuses = lambda _row_keys: True
    await reading.ask_for_each(b"a", b"b")
    await some_turns()
    assert [type(error) for error in reading.failures] == [ReadRefusedError]
    assert isinstance(reading.failures[0], MisconfiguredError)
    assert reading.dead_letters.kept == []
    assert reading.owned.prefix.outstanding == 2


async def test_an_unforeseen_error_is_reported_and_confirms_nothing() -> None:
    reading = Reading(GatedRows(a=ROW))
    reading.rows.errors = [MisconfiguredError("made-up", "PERMISSION_DENIED")]
    await reading.ask(b"a", 1)
    await some_turns()
    assert [type(error) for error in reading.failures] == [MisconfiguredError]
    assert reading.owned.prefix.outstanding == 1


async def test_when_a_lease_ends_during_a_reading_its_image_is_not_published_and_the_others_are() -> None:
    reading = Reading(GatedRows(a=ROW, b=ROW))
    reading.rows.gate.clear()
    ending = an_owned(seconds=5)
    await reading.ask(b"a", 1, ending)
    await reading.ask(b"b", 2)
    await some_turns()
    await reading.ask(b"a", 3, ending)
    await asyncio.sleep(6)
    reading.rows.gate.set()
    await some_turns()
    assert reading.published() == [("UPSERT", '{"row_key":"b"}', sequence(2))]
    assert reading.rows.readings == [[b"a", b"b"]]
    assert ending.prefix.outstanding == 2


async def test_rows_behind_those_of_a_lost_partition_are_read_though_nothing_else_comes() -> None:
    reading = Reading(GatedRows(a=ROW), rows_at_once=2)
    lost = an_owned(seconds=0)
    await reading.ask_for_each(*rows(5), owned=lost)
    await reading.ask(b"a", 9)
    await some_turns()
    assert reading.rows.readings == [[b"a"]]
    assert reading.owned.prefix.outstanding == 0
