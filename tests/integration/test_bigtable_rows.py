"""Rows read back from the real emulator by their keys, through the front."""

import asyncio
import random
from collections.abc import Collection, Mapping, Sequence

import pytest

from services.bigtable_reader.adapters.bigtable.connection import BigtableChannels, Table
from services.bigtable_reader.adapters.stream.rows import BigtableRows
from services.bigtable_reader.core.changes.filters import Watched
from services.bigtable_reader.core.changes.images import CellVersion, Row, TooLargeRow
from shared.contracts.bigtable_options import BigtableOptions
from shared.contracts.errors import MisconfiguredError
from tests.integration.bigtable_front import INSTANCE, Front, FrontTable, delete_row, set_cell

pytestmark = pytest.mark.integration


def read(
    table: FrontTable, keys: Sequence[bytes], options: BigtableOptions | None = None, profile: str = ""
) -> Mapping[bytes, Row]:
    async def asked() -> Mapping[bytes, Row]:
        channels = BigtableChannels(table.front.address)
        try:
            named = Table(INSTANCE, table.name.rpartition("/")[2], profile)
            rows = BigtableRows(channels, named, Watched(options or BigtableOptions()))
            found, left = await rows.read(keys)
            assert not left
            return found
        finally:
            await channels.close()

    return asyncio.run(asked())


def test_rows_that_exist_are_read_exactly_and_no_others(front: Front) -> None:
    table = front.table("f", "g")
    table.write(b"\xff\0", set_cell("f", b"\xfe", b"\0\xff", 3_000), set_cell("g", b"", b"", 0))
    table.write(b"a", set_cell("f", b"q", b"v", 1_000))
    table.write(b"gone", set_cell("f", b"q", b"v"))
    table.write(b"gone", delete_row())
    table.write(b"b", set_cell("f", b"q", b"not asked for"))

    assert read(table, [b"\xff\0", b"a", b"gone", b"never", b"a"]) == {
        b"\xff\0": {"f": {b"\xfe": [CellVersion(3_000, b"\0\xff")]}, "g": {b"": [CellVersion(0, b"")]}},
        b"a": {"f": {b"q": [CellVersion(1_000, b"v")]}},
    }
    assert read(table, []) == {}


def test_as_many_versions_as_asked_for_come_newest_first(front: Front) -> None:
    table = front.table("f")
    for timestamp in (2_000, 1_000, 3_000):
        table.write(b"k", set_cell("f", b"q", b"%d" % timestamp, timestamp))

    for versions, expected in ((1, [3_000]), (2, [3_000, 2_000]), (9, [3_000, 2_000, 1_000])):
        row = read(table, [b"k"], BigtableOptions(versions=versions))[b"k"]
        assert isinstance(row, dict)
        found = row["f"][b"q"]
        assert [version.timestamp for version in found] == expected


def test_only_watched_families_are_read_and_a_row_of_none_is_not_there(front: Front) -> None:
    table = front.table("f.1", "fx1", "g")
    for family in ("f.1", "fx1", "g"):
        table.write(b"k", set_cell(family, b"q", b"v", 0))
    table.write(b"l", set_cell("g", b"q", b"v", 0))
    options = BigtableOptions(families=("f.?",))

    assert read(table, [b"k", b"l"], options) == {b"k": {"f.1": {b"q": [CellVersion(0, b"v")]}}}


def test_values_of_megabytes_and_thousands_of_keys_come_through(front: Front) -> None:
    table = front.table("f")
    chance = random.Random(7)
    large = {b"large": chance.randbytes(5_000_000), b"larger": chance.randbytes(8_900_000)}
    for key, value in large.items():
        table.write(key, set_cell("f", b"q", value, 0))
    wide = {b"column %d" % number: chance.randbytes(chance.randrange(200)) for number in range(2_000)}
    table.write(b"too large", set_cell("f", b"q", bytes(9_000_000), 0))
    table.write(b"wide", *(set_cell("f", qualifier, value, 0) for qualifier, value in wide.items()))

    found = read(table, [*large, b"wide", *(b"key %d" % number for number in range(2_500))])

    too_large = read(table, [b"too large"])[b"too large"]
    assert isinstance(too_large, TooLargeRow)
    assert too_large.bytes > 9_000_000
    values = {
        key: {qualifier: versions[0].value for qualifier, versions in row["f"].items()}
        for key, row in found.items()
        if isinstance(row, dict)
    }
    assert values == {b"wide": wide} | {key: {b"q": value} for key, value in large.items()}


def test_what_is_more_than_fits_into_memory_is_left_and_nothing_is_left_out(front: Front) -> None:
    table = front.table("f")
    for number in range(6):
        table.write(b"row %d" % number, set_cell("f", b"q", b"v" * 1_000_000, 0))

    async def asked() -> list[list[bytes]]:
        channels = BigtableChannels(table.front.address)
        try:
            rows = BigtableRows(channels, Table(INSTANCE, table.name.rpartition("/")[2]), most_bytes=1_500_000)
            left: Collection[bytes] = [b"none", *(b"row %d" % number for number in range(6)), b"row 6"]
            parts = []
            while left:
                found, left = await rows.read(list(left))
                parts.append(sorted(found))
            return parts
        finally:
            await channels.close()

    assert asyncio.run(asked()) == [[b"row 0", b"row 1"], [b"row 2", b"row 3"], [b"row 4", b"row 5"], []]


def test_a_profile_or_table_that_is_not_there_is_for_someone_to_act_on(front: Front) -> None:
    table = front.table("f")

    with pytest.raises(MisconfiguredError, match="NOT_FOUND"):
        read(table, [b"k"], profile="nobody")
    with pytest.raises(MisconfiguredError, match="NOT_FOUND"):
        read(FrontTable(front, f"{INSTANCE}/tables/nowhere"), [b"k"])
