"""Dead letters of the reader: whole where a message has room for them, and never more at once than memory has."""

import asyncio
import base64
import json
from collections.abc import Sequence
from dataclasses import replace

from services.bigtable_reader.app.dead_lettering import DeadLettering
from services.bigtable_reader.core.changes.images import CellVersion
from services.bigtable_reader.core.changes.refused import CELL_BYTES, LARGEST, RefusedChange
from services.bigtable_reader.core.stream.records import DataChange, Microseconds, SetCell
from shared.contracts.bigtable_options import BigtableOptions
from shared.contracts.change_batch import decode_batch
from shared.contracts.dead_letter import DeadLetter, from_message
from shared.contracts.reasons import Reason
from shared.contracts.row_id import key_text
from shared.pubsub.dead_letters import dead_letter_message
from tests.fakes.bigtable_reader import FakeDeadLetterSink
from tests.fakes.bigtable_table import VirtualClock
from tests.unit.bigtable_reader.readings import a_record, entry_maker, image_maker

TEXT = BigtableOptions(values="text")


def a_refused_row(size: int) -> RefusedChange:
    """Return a row with a value of so many bytes that is no text."""
    cells = {"f": {b"q": [CellVersion(5, b"\xff" * size)]}}
    found = image_maker(TEXT).image(b"row", cells, a_record(b"row"), 7)
    assert isinstance(found, RefusedChange)
    return found


def refused_entries(*sizes: int, row_key: bytes = b"\xff") -> Sequence[RefusedChange]:
    """Return the entries of a call on a row whose key is no text, with values of so many bytes."""
    record = a_record(row_key)
    cells = tuple(SetCell("f", b"q", Microseconds(1_000), b"v" * size) for size in sizes)
    change = DataChange(row_key, "USER", "c1", record.commit, 0, cells, token="t", low_watermark=record.low_watermark)
    made, refused = entry_maker().changes(change)
    assert made == []
    return refused


async def dead_letters_of(*refused: RefusedChange) -> Sequence[DeadLetter]:
    dead_letters = FakeDeadLetterSink()
    await (await DeadLettering(dead_letters, VirtualClock()).begin(refused))
    return dead_letters.kept


def on_the_topic(dead_letter: DeadLetter) -> DeadLetter:
    message = dead_letter_message(dead_letter)
    assert message.ByteSize() < 10_000_000
    return from_message(message.data, dict(message.attributes))


async def test_what_a_message_has_room_for_is_kept_whole_and_of_what_is_larger_the_key_and_the_size() -> None:
    (entry, large_entry) = refused_entries(LARGEST - CELL_BYTES - 1, LARGEST)
    row, large_row = a_refused_row(LARGEST - CELL_BYTES - 1), a_refused_row(LARGEST)

    kept = [on_the_topic(one) for one in await dead_letters_of(entry, large_entry, row, large_row)]

    assert [one.payload_bytes for one in kept] == [None, large_entry.size, None, large_row.size]
    assert [one.reason for one in kept] == [Reason.KEY_NOT_REPRESENTABLE] * 2 + [Reason.VALUE_DOES_NOT_FIT] * 2
    for one, row_key in zip(kept, (b"\xff", b"\xff", b"row", b"row"), strict=True):
        document = json.loads(one.data) if one.payload_bytes else json.loads(bytes(decode_batch(one.data).old[0]))
        assert base64.b64decode(document["row_key"]) == row_key
        assert len(document) == (1 if one.payload_bytes else 2)


async def test_what_the_consumer_makes_of_a_dead_letter_that_is_replayed_and_fails_again_is_the_same_dead_letter() -> (
    None
):
    (entry,) = refused_entries(10)

    for dead_letter in await dead_letters_of(entry, a_refused_row(10)):
        batch = decode_batch(dead_letter.data)
        key = key_text(batch.header.table, batch.header.key_types(), bytes(batch.keys[0]))
        again = replace(dead_letter, data=batch.cut(0), key=key, sequence=batch.sequence[0], identity="")
        assert again.identity == dead_letter.identity


async def test_dead_letters_that_wait_are_bounded_by_bytes_and_made_as_they_are_sent() -> None:
    class Slow(FakeDeadLetterSink):
        def __init__(self) -> None:
            super().__init__()
            self.asked: list[int] = []
            self.go_on = asyncio.Event()

        async def keep(self, dead_letters: Sequence[DeadLetter]) -> None:
            self.asked.append(len(dead_letters))
            await self.go_on.wait()
            await super().keep(dead_letters)

    dead_letters = Slow()
    setting_aside = DeadLettering(dead_letters, VirtualClock())
    begun = 0

    async def begin_all() -> None:
        nonlocal begun
        for _record in range(20):
            await setting_aside.begin(refused_entries(1_500_000, 1_500_000, 1_500_000))
            begun += 1

    beginning = asyncio.create_task(begin_all())
    for _turn in range(200):
        await asyncio.sleep(0)
    assert begun == 8  # of 4.5 MB each: the 32 MB are full
    assert set(dead_letters.asked) == {2}  # of one record not all at once
    dead_letters.go_on.set()
    await beginning
    await (await setting_aside.begin(refused_entries(1)))
    assert len(dead_letters.kept) == 20 * 3 + 1

    dead_letters.go_on.clear()
    left = await setting_aside.begin(refused_entries(1))
    await setting_aside.end()
    assert left.cancelled()
