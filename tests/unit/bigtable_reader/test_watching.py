"""Another tables file: who lets in more marks the table, and a snapshot heals what its own file watches."""

import asyncio

import pytest

from services.bigtable_reader.core.schema.resync import BigtableResyncKind
from services.bigtable_reader.core.schema.watching import (
    Watching,
    check_the_same_is_watched,
    watched_more,
    watching_of,
)
from services.bigtable_reader.core.stream.records import Microseconds, SetCell
from shared.contracts.bigtable_options import BigtableOptions, CellColumn, FamilyColumn
from shared.contracts.errors import MisconfiguredError
from shared.contracts.tables_file import Mode
from tests.unit.bigtable_reader.snapshot_world import SnapshotWorld, a_filled_world
from tests.unit.bigtable_reader.world import Living

ALL = BigtableOptions()
CELL = CellColumn(name="t", family="f", qualifier=b"q")


@pytest.mark.parametrize(
    ("wide", "narrow", "option"),
    [
        (ALL, BigtableOptions(key_prefixes=("a",)), "key_prefixes"),
        (BigtableOptions(key_prefixes=("a", "b")), BigtableOptions(key_prefixes=("ab", "b")), "key_prefixes"),
        (ALL, BigtableOptions(families=("f",)), "families"),
        (BigtableOptions(families=("[fg]",)), BigtableOptions(families=("f", "h")), "families"),
        (ALL, BigtableOptions(excluded_families=("g",)), "families"),
        (ALL, BigtableOptions(excluded_columns=(("f", b"q"),)), "excluded_columns"),
        (BigtableOptions(versions=2), ALL, "versions"),
        (BigtableOptions(families=("g",), columns=(CELL,)), BigtableOptions(families=("g",)), "columns"),
    ],
)
def test_what_lets_in_more_is_reported_and_what_only_narrows_is_not(
    wide: BigtableOptions, narrow: BigtableOptions, option: str
) -> None:
    one, other = watching_of("mirror", wide), watching_of("both", narrow)
    assert watched_more(one, other, ["f", "g"]) == (option,)
    assert watched_more(other, one, ["f", "g"]) == ()
    assert watched_more(one, one, ["f", "g"]) == ()


@pytest.mark.parametrize(
    ("one", "other", "option"),
    [
        (BigtableOptions(columns=(CELL,)), ALL, "columns"),  # out of the family's JSON, and back into it
        (BigtableOptions(columns=(FamilyColumn(name="x", family="f"),)), ALL, "columns"),
        (BigtableOptions(row_key="BYTES"), ALL, "row_key"),
        (BigtableOptions(values="text"), ALL, "values"),
        (BigtableOptions(qualifiers="base64"), ALL, "qualifiers"),
        (BigtableOptions(cell_timestamps=True), ALL, "cell_timestamps"),
    ],
)
def test_what_rows_have_otherwise_is_reported_both_ways(
    one: BigtableOptions, other: BigtableOptions, option: str
) -> None:
    first, second = watching_of("mirror", one), watching_of("mirror", other)
    assert watched_more(first, second, ["f"]) == watched_more(second, first, ["f"]) == (option,)


def test_a_mirror_watches_more_than_a_change_log_and_what_only_that_has_does_not_count() -> None:
    log = watching_of("history", BigtableOptions(strip_values=True))
    assert watched_more(Watching(), log, ["f"]) == ("mode",)
    assert watched_more(log, Watching(), ["f"]) == ()
    assert watching_of("both", BigtableOptions(strip_values=True)) == watching_of("mirror", ALL)


def test_rows_are_not_asked_for_with_a_file_that_no_reader_has() -> None:
    kept = Watching(key_prefixes=("a",))
    for fits in (None, kept):
        check_the_same_is_watched(kept, fits)
    with pytest.raises(
        MisconfiguredError, match=r"\(key_prefixes, families\).*give the command the readers' tables file"
    ):
        check_the_same_is_watched(Watching(families=("f",)), kept)


async def a_world(first: BigtableOptions, mode: Mode = "mirror", *, automatic: bool = False) -> SnapshotWorld:
    """Let a reader with a tables file read some rows, and end."""
    rows = {b"a": [cell("f"), cell("g")], b"b": [cell("g")]}
    world = await a_filled_world([], rows=rows, watches=first, mode=mode, automatic=automatic)
    await world.by_hand.survey()
    await over(world, world.start_steady())
    assert not world.is_pending_resync()
    return world


def cell(family: str) -> SetCell:
    return SetCell(family, b"q", Microseconds(1_000), b"v")


async def over(world: SnapshotWorld, reader: Living) -> None:
    """Let a reader look, read what there is of snapshots, and end."""
    await asyncio.sleep(30)
    await world.wait_until_snapshots_are_over()
    await world.stop(reader)


@pytest.mark.parametrize(
    ("narrow", "mode", "option"),
    [
        (BigtableOptions(families=("f",)), "mirror", "families"),
        (BigtableOptions(key_prefixes=("a",)), "mirror", "key_prefixes"),
        (ALL, "history", "mode"),
    ],
)
async def test_a_start_that_watches_more_requests_a_resync_of_the_table_and_a_snapshot_brings_what_is_missing(
    narrow: BigtableOptions, mode: Mode, option: str
) -> None:
    world = await a_world(narrow, mode)
    world.watches, world.mode = ALL, "mirror"
    reader = world.start_steady()
    await asyncio.sleep(30)
    assert world.resync_request is not None
    assert [(one.kind, one.options) for one in world.resync_request.findings] == [
        (BigtableResyncKind.WATCHED_MORE, (option,))
    ]
    await world.request()
    await world.wait_until_snapshots_are_over()
    assert not world.is_pending_resync()
    assert world.mirrored(without_missing=True) == world.source()
    await over(world, reader)


async def test_without_being_asked_it_is_read_once() -> None:
    world = await a_world(BigtableOptions(families=("f",)), automatic=True)
    world.watches = ALL
    world.start_steady()
    await asyncio.sleep(30)
    await world.wait_until_healed()
    await asyncio.sleep(300)
    assert world.run == 2
    assert world.mirrored(without_missing=True) == world.source()
    await world.end()


async def test_a_start_that_only_narrows_requests_no_resync() -> None:
    world = await a_world(ALL)
    world.watches = BigtableOptions(key_prefixes=("a",), families=("f",))
    await over(world, world.start_steady())
    assert not world.is_pending_resync()


async def test_a_narrower_reader_heals_nothing_of_a_wider_one_though_its_own_snapshot_is_complete() -> None:
    world = await a_world(ALL)
    await world.find()
    world.watches = BigtableOptions(key_prefixes=("a",))
    reader = world.start_steady()
    await asyncio.sleep(30)
    await world.request()
    await over(world, reader)
    assert world.is_announced
    assert world.is_pending_resync()
    world.watches = ALL
    reader = world.start_steady()
    await asyncio.sleep(30)
    await world.request()
    await over(world, reader)
    assert not world.is_pending_resync()


async def test_a_reader_with_a_narrower_file_neither_reads_nor_announces_a_snapshot_of_a_wider_one() -> None:
    world = await a_world(ALL)
    world.watches = BigtableOptions(families=("f",))
    world.start_steady()
    await asyncio.sleep(30)
    world.watches = ALL
    await world.request()  # by a file that no reader has
    await asyncio.sleep(300)
    assert world.run == 2
    assert all(part.owner == "" and part.last is None for part in world.parts)
    await world.end()
    await over(world, world.start_steady())
    assert world.run == 2
    assert world.is_announced
    assert world.mirrored(without_missing=True) == world.source()


async def test_what_was_not_read_to_its_end_is_asked_for_again_by_a_start_with_another_file() -> None:
    world = await a_filled_world([b"a", b"b"])
    world.watches = BigtableOptions(families=("f",))
    await over(world, world.start_steady())
    assert world.run == 2
    assert world.is_announced
