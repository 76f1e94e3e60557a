"""One image for all records of a row that have come until it is read; its stamp stands from then on."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta

from services.bigtable_reader.core.images import CellVersion, RowCells, Trigger
from services.bigtable_reader.held import Held
from services.bigtable_reader.ports import ReadRefusedError, ReadRows
from services.bigtable_reader.read_back import ReadBack
from services.bigtable_reader.set_aside import SettingAside
from shared.contracts.change_sequence import four_sections
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.contracts.reasons import Reason
from shared.runtime.stop import Stop
from tests.fakes.bigtable_reader import FakeLetters, FakeMetrics, FakePublisher, Topic
from tests.fakes.bigtable_table import VirtualClock
from tests.fakes.virtual_time import run_in_virtual_time
from tests.unit.bigtable_reader.readings import a_held, a_record, outputs

ROW: RowCells = {"f": {b"q": [CellVersion(1_000, b"v")]}}


class GatedRows:
    """Rows whose readings go on by hand."""

    def __init__(self, **rows: RowCells) -> None:
        self.rows: Mapping[bytes, RowCells] = {key.encode(): cells for key, cells in rows.items()}
        self.readings: list[Sequence[bytes]] = []
        self.gate = asyncio.Event()
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
            raise ReadRefusedError("FAILED_PRECONDITION")
        asked = row_keys[: self.at_once]
        return ReadRows({key: self.rows[key] for key in asked if key in self.rows}, row_keys[self.at_once :])


class Reading:
    """A read-back of one held partition."""

    def __init__(self, rows: GatedRows, *, rows_at_once: int = 100, readings: int = 8, waiting: int = 1_000) -> None:
        images = outputs().images
        assert images is not None
        self.rows = rows
        self.topic = Topic()
        self.publisher = FakePublisher(self.topic)
        self.letters = FakeLetters()
        self.metrics = FakeMetrics()
        self.failures: list[BaseException | None] = []
        self.held = a_held()
        self.stop = Stop()
        self.read_back = ReadBack(
            rows=rows,
            images=images,
            publisher=self.publisher,
            set_aside=SettingAside(self.letters, VirtualClock()),
            metrics=self.metrics,
            fail=self.failures.append,
            rows_at_once=rows_at_once,
            readings=readings,
            waiting=waiting,
        )

    async def ask(self, row_key: bytes, stamp: int, held: Held | None = None) -> None:
        """Ask for a row."""
        held = held or self.held
        record = a_record(row_key, stamp)
        place = held.prefix.add(record.token, record.low_watermark, 1)
        await self.read_back.ask(held, row_key, Trigger.of(record), stamp, place, self.stop)

    def published(self) -> list[tuple[str, str, str]]:
        """Return operation, key and sequence of what was published."""
        return [(change.op, change.key, change.sequence) for change in self.topic.changes]


def sequence(stamp: int) -> str:
    return str(four_sections(stamp))


async def some_turns() -> None:
    await asyncio.sleep(0.01)


def test_records_of_a_row_that_wait_share_one_reading_and_the_newest_stamp_and_all_are_confirmed_by_it() -> None:
    async def scenario() -> None:
        reading = Reading(GatedRows(a=ROW))
        reading.rows.gate.set()
        for stamp in (1, 2, 3):
            await reading.ask(b"a", stamp)
        await some_turns()
        assert reading.rows.readings == [[b"a"]]
        assert reading.published() == [("UPSERT", '{"row_key":"a"}', sequence(3))]
        assert reading.held.prefix.outstanding == 0
        assert (reading.metrics.rows, reading.metrics.asked) == (1, 3)

    run_in_virtual_time(scenario())


def test_what_comes_while_a_row_is_being_read_does_not_give_that_image_its_stamp_and_is_read_again_after_it() -> None:
    async def scenario() -> None:
        reading = Reading(GatedRows(a=ROW))
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
        assert reading.held.prefix.outstanding == 0

    run_in_virtual_time(scenario())


def test_readings_are_bounded_in_rows_and_number_and_go_on_when_one_ends() -> None:
    async def scenario() -> None:
        reading = Reading(GatedRows(), rows_at_once=2, readings=2)
        for number in range(7):
            await reading.ask(b"row %d" % number, number + 1)
        await some_turns()
        assert reading.rows.readings == [[b"row 0", b"row 1"], [b"row 2", b"row 3"]]
        reading.rows.gate.set()
        await some_turns()
        assert [len(keys) for keys in reading.rows.readings] == [2, 2, 2, 1]
        assert {op for op, _key, _number in reading.published()} == {"DELETE"}  # none of them exists
        assert reading.held.prefix.outstanding == 0

    run_in_virtual_time(scenario())


def test_of_large_rows_fewer_are_read_at_once() -> None:
    async def scenario() -> None:
        large: RowCells = {"f": {b"q": [CellVersion(1_000, b"v" * 3_000_000)]}}
        reading = Reading(GatedRows(**{f"row {number}": large for number in range(12)}), rows_at_once=4, readings=1)
        reading.rows.gate.set()
        for number in range(12):
            await reading.ask(b"row %d" % number, number + 1)
        await some_turns()
        sizes = [len(keys) for keys in reading.rows.readings]
        assert sizes[0] == 4
        assert sizes[-3:] == [1, 1, 1]
        assert sizes == sorted(sizes, reverse=True)
        assert reading.held.prefix.outstanding == 0

    run_in_virtual_time(scenario())


def test_a_row_without_an_image_is_a_dead_letter_and_the_others_of_its_reading_are_published() -> None:
    async def scenario() -> None:
        reading = Reading(GatedRows(a=ROW, b={"f": {b"\xff": [CellVersion(1_000, b"v")]}}))
        reading.rows.gate.set()
        for row_key, stamp in ((b"a", 1), (b"b", 2), (b"\xff", 3)):
            await reading.ask(row_key, stamp)
        await some_turns()
        assert reading.published() == [("UPSERT", '{"row_key":"a"}', sequence(1))]
        assert [letter.reason for letter in reading.letters.kept] == [
            Reason.VALUE_DOES_NOT_FIT,
            Reason.KEY_NOT_REPRESENTABLE,
        ]
        assert [letter.sequence for letter in reading.letters.kept] == [sequence(2), sequence(3)]
        assert reading.held.prefix.outstanding == 0

    run_in_virtual_time(scenario())


def test_a_reading_that_fails_is_made_again_under_the_same_stamp() -> None:
    async def scenario() -> None:
        reading = Reading(GatedRows(a=ROW))
        reading.rows.gate.set()
        reading.rows.errors = [TransientError("UNAVAILABLE"), TransientError("UNAVAILABLE")]
        await reading.ask(b"a", 1)
        await asyncio.sleep(10)
        assert len(reading.rows.readings) == 3
        assert [number for _op, _key, number in reading.published()] == [sequence(1)]

    run_in_virtual_time(scenario())


def test_what_is_left_of_a_reading_is_read_under_its_own_stamps_after_what_came_is_published() -> None:
    async def scenario() -> None:
        reading = Reading(GatedRows(a=ROW, b=ROW, c=ROW), readings=1)
        reading.rows.at_once = 2
        for number, row_key in enumerate((b"a", b"b", b"c"), 1):
            await reading.ask(row_key, number)
        await some_turns()
        for _part in range(2):
            await reading.ask(b"c", 9)  # while it is being read, or left: for another reading
        reading.rows.gate.set()
        await some_turns()
        assert reading.rows.readings == [[b"a", b"b", b"c"], [b"c"], [b"c"]]
        assert [number for _op, _key, number in reading.published()] == [sequence(stamp) for stamp in (1, 2, 3, 9)]
        assert reading.held.prefix.outstanding == 0

    run_in_virtual_time(scenario())


def test_the_rest_is_not_read_while_the_publisher_has_no_room_for_what_came() -> None:
    async def scenario() -> None:
        reading = Reading(GatedRows(a=ROW, b=ROW), readings=1)
        reading.rows.at_once = 1
        reading.rows.gate.set()
        reading.publisher.room.clear()
        await reading.ask(b"a", 1)
        await reading.ask(b"b", 2)
        await some_turns()
        assert reading.rows.readings == [[b"a", b"b"]]
        reading.publisher.room.set()
        await some_turns()
        assert len(reading.published()) == 2

    run_in_virtual_time(scenario())


def test_a_reading_that_takes_too_long_is_made_of_fewer_rows() -> None:
    async def scenario() -> None:
        reading = Reading(GatedRows(), readings=1)
        reading.rows.gate.set()
        reading.rows.errors = [TransientError("DEADLINE_EXCEEDED")] * 3
        for number in range(8):
            await reading.ask(b"row %d" % number, number + 1)
        await asyncio.sleep(60)
        assert [len(keys) for keys in reading.rows.readings] == [8, 4, 2, 1, 2, 4, 1]
        assert len(reading.published()) == 8
        assert reading.held.prefix.outstanding == 0

    run_in_virtual_time(scenario())


def test_a_row_that_takes_too_long_each_time_holds_up_no_other_and_is_asked_for_until_it_comes() -> None:
    class Slow(GatedRows):
        slow = True

        async def read(self, row_keys: Sequence[bytes]) -> ReadRows:
            if self.slow and b"row 2" in row_keys:
                self.readings.append(list(row_keys))
                raise TransientError("DEADLINE_EXCEEDED")
            return await super().read(row_keys)

    async def scenario() -> None:
        rows = Slow()
        reading = Reading(rows, readings=1)
        rows.gate.set()
        for number in range(8):
            await reading.ask(b"row %d" % number, number + 1)
        await asyncio.sleep(300)
        assert len(reading.published()) == 7
        assert reading.held.prefix.outstanding == 6  # its place and those behind it
        assert rows.readings[-1] == [b"row 2"]
        rows.slow = False
        await asyncio.sleep(60)
        assert reading.published()[7:] == [("DELETE", '{"row_key":"row 2"}', sequence(3))]
        assert reading.held.prefix.outstanding == 0

    run_in_virtual_time(scenario())


def test_a_row_that_is_too_large_to_be_read_is_a_dead_letter_without_its_bytes_and_the_others_go_on() -> None:
    async def scenario() -> None:
        keys = [b"row %d" % number for number in range(9)]
        reading = Reading(GatedRows(**{key.decode(): ROW for key in keys}), readings=1)
        reading.rows.gate.set()
        reading.rows.refuses = lambda row_keys: b"row 5" in row_keys
        for number, key in enumerate(keys, 1):
            await reading.ask(key, number)
        await some_turns()
        assert sorted(key for _op, key, _number in reading.published()) == [
            f'{{"row_key":"row {number}"}}' for number in range(9) if number != 5
        ]
        (letter,) = reading.letters.kept
        assert (letter.reason, letter.key) == (Reason.TOO_LARGE, '["row 5"]')
        assert letter.sequence == sequence(6)
        assert reading.held.prefix.outstanding == 0
        assert reading.failures == []

    run_in_virtual_time(scenario())


def test_when_no_row_at_all_is_read_that_is_reported_and_no_row_is_set_aside() -> None:
    async def scenario() -> None:
        reading = Reading(GatedRows(a=ROW, b=ROW))
        reading.rows.gate.set()
        reading.rows.refuses = lambda _row_keys: True
        await reading.ask(b"a", 1)
        await reading.ask(b"b", 2)
        await some_turns()
        assert [type(error) for error in reading.failures] == [ReadRefusedError]
        assert isinstance(reading.failures[0], MisconfiguredError)
        assert reading.letters.kept == []
        assert reading.held.prefix.outstanding == 2

    run_in_virtual_time(scenario())


def test_what_nobody_can_mend_is_reported_and_confirms_nothing() -> None:
    async def scenario() -> None:
        reading = Reading(GatedRows(a=ROW))
        reading.rows.gate.set()
        reading.rows.errors = [MisconfiguredError("PERMISSION_DENIED")]
        await reading.ask(b"a", 1)
        await some_turns()
        assert [type(error) for error in reading.failures] == [MisconfiguredError]
        assert reading.held.prefix.outstanding == 1

    run_in_virtual_time(scenario())


def test_when_a_lease_ends_during_a_reading_its_image_is_not_published_and_the_others_are() -> None:
    async def scenario() -> None:
        reading = Reading(GatedRows(a=ROW, b=ROW))
        ending = a_held(seconds=5)
        await reading.ask(b"a", 1, ending)
        await reading.ask(b"b", 2)
        await some_turns()
        await reading.ask(b"a", 3, ending)
        await asyncio.sleep(timedelta(seconds=6).total_seconds())
        reading.rows.gate.set()
        await some_turns()
        assert reading.published() == [("UPSERT", '{"row_key":"b"}', sequence(2))]
        assert reading.rows.readings == [[b"a", b"b"]]
        assert ending.prefix.outstanding == 2

    run_in_virtual_time(scenario())


def test_rows_behind_those_of_a_lost_partition_are_read_though_nothing_else_comes() -> None:
    async def scenario() -> None:
        reading = Reading(GatedRows(a=ROW), rows_at_once=2)
        reading.rows.gate.set()
        lost = a_held(seconds=0)
        for number in range(5):
            await reading.ask(b"lost %d" % number, number + 1, lost)
        await reading.ask(b"a", 9)
        await some_turns()
        assert reading.rows.readings == [[b"a"]]
        assert reading.held.prefix.outstanding == 0

    run_in_virtual_time(scenario())


def test_who_asks_waits_while_too_many_wait() -> None:
    async def scenario() -> None:
        reading = Reading(GatedRows(), rows_at_once=1, readings=1, waiting=2)
        await reading.ask(b"a", 1)
        await some_turns()  # being read, and waiting no more
        await reading.ask(b"b", 2)
        waiting = asyncio.create_task(reading.ask(b"c", 3))
        await some_turns()
        assert not waiting.done()
        reading.rows.gate.set()
        await some_turns()
        assert waiting.done()
        assert len(reading.published()) == 3

    run_in_virtual_time(scenario())


def test_draining_publishes_what_waits_and_ending_forgets_it() -> None:
    async def scenario() -> None:
        reading = Reading(GatedRows(a=ROW, b=ROW), rows_at_once=1, readings=1)
        await reading.ask(b"a", 1)
        await reading.ask(b"b", 2)
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

    run_in_virtual_time(scenario())


def test_few_rows_that_follow_closely_are_read_together_and_the_end_waits_for_no_rest() -> None:
    async def scenario() -> None:
        reading = Reading(GatedRows())
        reading.rows.gate.set()
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

    run_in_virtual_time(scenario())


def test_as_many_rows_as_one_reading_takes_wait_for_nothing() -> None:
    async def scenario() -> None:
        reading = Reading(GatedRows(), rows_at_once=2)
        reading.rows.gate.set()
        await reading.ask(b"a", 1)
        await asyncio.sleep(0.001)
        for number, row_key in enumerate((b"b", b"c"), 2):
            await reading.ask(row_key, number)
            await asyncio.sleep(0.001)
        assert reading.rows.readings == [[b"a"], [b"b", b"c"]]

    run_in_virtual_time(scenario())
