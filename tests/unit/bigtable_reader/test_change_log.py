"""A change log of two clusters, in whatever order it comes and however often, says which cells there are.

What it should say is told without playing anything: a cell is there if its newest set, or what was added to it, comes
after everything that deleted it.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from random import Random
from typing import Literal, TypeGuard

from hypothesis import given, settings
from hypothesis import strategies as st

from services.bigtable_reader.core.stream.records import (
    Aggregated,
    DataChange,
    DeleteCells,
    DeleteFamily,
    Entry,
    Microseconds,
    SetCell,
)
from tests.fakes.bigtable_table import EPOCH
from tests.seeds import examples
from tests.unit.bigtable_reader.published import LOSSLESS, Cells, rows_of_entries
from tests.unit.bigtable_reader.readings import entry_maker

ROWS = st.sampled_from([b"r", b"\xff"])
FAMILIES = st.sampled_from(["f", "g"])
QUALIFIERS = st.sampled_from([b"q", b"\x00"])
TIMES = st.sampled_from([1_000, 2_000, 3_000]).map(Microseconds)
OPEN = st.just(Microseconds(0))


def one_version(family: str, qualifier: bytes, at: Microseconds) -> DeleteCells:
    return DeleteCells(family, qualifier, at, Microseconds(at + 1_000))


def added(kind: Literal["ADD_TO_CELL", "MERGE_TO_CELL"], time: Microseconds, amount: int) -> Aggregated:
    return Aggregated(kind, "sums", b"q", time, amount.to_bytes(8, "big", signed=True))


CELLS = st.builds(SetCell, FAMILIES, QUALIFIERS, TIMES, st.binary(max_size=3))
DELETED = st.one_of(
    st.builds(DeleteFamily, st.sampled_from(["f", "g", "sums"])),
    st.builds(DeleteCells, FAMILIES, QUALIFIERS, TIMES | OPEN, OPEN),
    st.builds(DeleteCells, FAMILIES, QUALIFIERS, OPEN, TIMES),
    st.builds(one_version, FAMILIES, QUALIFIERS, TIMES),
)
ADDED = st.builds(added, st.sampled_from(["ADD_TO_CELL", "MERGE_TO_CELL"]), TIMES, st.integers(-9, 9))
CALLS = st.lists(st.one_of(CELLS, CELLS, DELETED, ADDED), min_size=1, max_size=12)
ORDERS = st.tuples(ROWS, st.integers(0, 3), st.sampled_from([-(1 << 31), -1, 0, 1, (1 << 31) - 1]))
"""Row, commit time and tiebreaker: what no two changes have in common. A tiebreaker is any INT32."""


def record_of(order: tuple[bytes, int, int], entries: Sequence[Entry], *, garbage: bool) -> DataChange:
    """Return a change; commit times differ by less than the clusters' clocks do."""
    row_key, commit, tiebreaker = order
    return DataChange(
        row_key=row_key,
        kind="GARBAGE_COLLECTION" if garbage else "USER",
        source_cluster="" if garbage else f"c{tiebreaker % 2}",
        commit=Microseconds(EPOCH + commit),
        tiebreaker=tiebreaker,
        entries=tuple(entries),
        token="t",
        low_watermark=EPOCH,
    )


def rows_after(records: Sequence[DataChange]) -> Mapping[bytes, Cells]:
    """Return the cells that are there, by comparing their place in the order with that of what deletes them."""
    rows: defaultdict[bytes, Cells] = defaultdict(dict)
    placed = [
        (record.row_key, (record.commit, record.tiebreaker, index), entry)
        for record in records
        for index, entry in enumerate(record.entries)
    ]
    for row_key, name in {
        (row, (one.family, one.qualifier, one.timestamp))
        for row, _place, one in placed
        if isinstance(one, SetCell | Aggregated)
    }:
        of_row = [(place, entry) for row, place, entry in placed if row == row_key]
        gone = max((place for place, entry in of_row if deletes(entry, name)), default=(-1, 0, 0))
        alive = sorted((place, one.value) for place, one in of_row if writes(one, name) and place > gone)
        if alive:
            summed = sum(int.from_bytes(value, "big", signed=True) for _place, value in alive)
            rows[row_key][name] = alive[-1][1] if name[0] != "sums" else summed.to_bytes(8, "big", signed=True)
    return rows


def writes(entry: Entry, name: tuple[str, bytes, int]) -> TypeGuard[SetCell | Aggregated]:
    return isinstance(entry, SetCell | Aggregated) and (entry.family, entry.qualifier, entry.timestamp) == name


def deletes(entry: Entry, name: tuple[str, bytes, int]) -> bool:
    if isinstance(entry, DeleteFamily):
        return entry.family == name[0]
    return (
        isinstance(entry, DeleteCells)
        and (entry.family, entry.qualifier) == name[:2]
        and entry.start <= name[2]
        and (not entry.end or name[2] < entry.end)
    )


@settings(max_examples=examples(150))
@given(
    calls=st.dictionaries(ORDERS, st.tuples(CALLS, st.booleans()), min_size=1, max_size=8),
    seed=st.integers(0, 1 << 32),
)
def test_played_back_by_its_sequence_it_is_what_the_clusters_hold(
    calls: Mapping[tuple[bytes, int, int], tuple[list[Entry], bool]], seed: int
) -> None:
    maker = entry_maker(LOSSLESS)
    records = [record_of(order, entries, garbage=garbage) for order, (entries, garbage) in calls.items()]
    lines = [change for record in records for _key, change in maker.changes(record)[0]]
    chance = Random(seed)
    delivered = lines + chance.choices(lines, k=len(lines))
    chance.shuffle(delivered)

    logged, repeated = rows_of_entries([(maker.header, delivered)])

    assert logged == rows_after(records)
    assert repeated == len(lines)
