"""A change log replayed, and images of every row, are what the emulator holds, cell by cell, after any calls."""

import asyncio
import base64
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import aclosing
from typing import Any

import grpc
import pytest

from services.bigtable_reader.adapters.change_stream import BigtableChangeStream
from services.bigtable_reader.adapters.connection import Channels, Table
from services.bigtable_reader.adapters.rows import BigtableRows
from services.bigtable_reader.core.entries import EntryMaker
from services.bigtable_reader.core.filters import Watched
from services.bigtable_reader.core.images import ImageMaker, Trigger
from services.bigtable_reader.core.records import ALL_KEYS, DataChange, Microseconds, Position, StreamQuery
from services.bigtable_reader.core.refused import Made
from shared.contracts.bigtable_options import BigtableOptions
from tests.integration.bigtable_front import INSTANCE, Cells, Front, FrontTable
from tests.integration.bigtable_model import keep, number
from tests.integration.bigtable_workload import FAMILIES, SUMS, Writers
from tests.unit.bigtable_reader.consumed import consumed

pytestmark = pytest.mark.integration

WRITERS = 8
CALLS = 40
LOSSLESS = BigtableOptions(row_key="BYTES", qualifiers="base64", timestamps="INT64", versions=10_000)


@pytest.fixture(scope="module")
def front(bigtable_front: str) -> Iterator[Front]:
    with Front(bigtable_front) as front:
        yield front


@pytest.fixture(params=range(4))
def written(front: Front, request: pytest.FixtureRequest) -> tuple[FrontTable, list[DataChange]]:
    """Return a table after many calls of every kind, and what its stream told."""
    table = front.table(*FAMILIES, aggregates=[SUMS])
    records = asyncio.run(write_and_read(table, request.param))
    assert len(records) > WRITERS * CALLS / 2
    assert len(table.rows()) > 10
    return table, records


async def write_and_read(table: FrontTable, seed: int) -> list[DataChange]:
    async with grpc.aio.insecure_channel(table.front.address) as channel:
        await Writers(channel, table.name, seed, writers=WRITERS, calls=CALLS).run()
    channels = Channels(table.front.address)
    try:
        stream = BigtableChangeStream(channels, watched_table(table))
        end = Microseconds(table.front.control.describe(table.name).now)
        query = StreamQuery(ALL_KEYS, Position(start=Microseconds(table.since)), end)
        async with asyncio.timeout(60), aclosing(stream.read(query)) as records:
            return [record async for record in records if isinstance(record, DataChange)]
    finally:
        await channels.close()


def watched_table(table: FrontTable) -> Table:
    return Table(INSTANCE, table.name.rpartition("/")[2])


def test_a_change_log_in_the_order_of_its_sequence_is_the_table(
    written: tuple[FrontTable, list[DataChange]],
) -> None:
    table, records = written
    entries = EntryMaker(source="s", table="t", instance="i", options=LOSSLESS, buckets=16, watched=Watched(LOSSLESS))
    lines = [change for record in records for _key, change in entries.changes(record)[0]]
    found = consumed(entries.header, lines)
    assert len({row["id"] for row in found}) == len(found) == sum(len(record.entries) for record in records)

    rows: defaultdict[bytes, Cells] = defaultdict(dict)
    for row in sorted(found, key=lambda row: str(row["_millrace_sequence"])):
        play(row, rows[row["row_key"]])

    assert {key: cells for key, cells in rows.items() if cells} == table.rows()


def play(row: Mapping[str, Any], cells: Cells) -> None:
    """Play a line of the change log on a row."""
    family, qualifier = row["column_family"], row["column"]
    match row["mod_type"]:
        case "SET_CELL":
            cells[family, qualifier, row["timestamp"]] = row["value"]
        case "DELETE_FAMILY":
            keep(cells, lambda name: name[0] != family)
        case "DELETE_CELLS":
            start, end = row["timestamp_from"] or 0, row["timestamp_to"]
            keep(
                cells,
                lambda name: name[:2] != (family, qualifier) or name[2] < start or (end is not None and name[2] >= end),
            )
        case "ADD_TO_CELL" | "MERGE_TO_CELL":
            name = (family, qualifier, row["timestamp"])
            cells[name] = (number(cells.get(name, bytes(8))) + number(row["value"])).to_bytes(8, "big", signed=True)
        case other:
            raise AssertionError(other)


def test_images_of_all_rows_that_were_told_of_are_the_table(
    written: tuple[FrontTable, list[DataChange]],
) -> None:
    table, records = written
    keys = sorted({record.row_key for record in records})
    watched = Watched(LOSSLESS)
    images = ImageMaker(source="s", table="t", options=LOSSLESS, families=[], buckets=16, watched=watched)

    async def read() -> list[Made]:
        channels = Channels(table.front.address)
        try:
            rows, left = await BigtableRows(channels, watched_table(table), versions=LOSSLESS.versions).read(keys)
            assert not left
        finally:
            await channels.close()
        found = [images.image(key, rows.get(key), Trigger.of(records[0]), 1) for key in keys]
        return [image for image in found if isinstance(image, Made)]

    made = asyncio.run(read())
    assert len(made) == len(keys)
    columns = {column.name for column in images.header.columns} - {"row_key"}
    told: dict[bytes, Cells] = {}
    for row in consumed(images.header, [image.change for image in made if image.change.op == "UPSERT"]):
        told[base64.b64decode(row["row_key"])] = {
            (column, base64.b64decode(qualifier), version["timestamp_micros"]): base64.b64decode(version["value"])
            for column in columns
            for qualifier, versions in json.loads(row[column] or "{}").items()
            for version in versions
        }

    assert told == table.rows()
    gone = {json.loads(image.change.key)["row_key"] for image in made if image.change.op == "DELETE"}
    assert {base64.b64decode(key) for key in gone} == set(keys) - told.keys()
