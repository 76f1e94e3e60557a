"""What a late write of another cluster does to the store is what Bigtable's rule says, for any two histories."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from emulators.bigtable_streams.garbage import garbage_of
from emulators.bigtable_streams.protocol import ColumnFamily, GcRule
from emulators.bigtable_streams.replication import what_wins
from emulators.bigtable_streams.rows import CellName, RowCells
from emulators.bigtable_streams.writes import as_recorded
from tests.integration.bigtable_front import Cells, delete_column, delete_family, delete_row, set_cell
from tests.integration.bigtable_messages import ReadRecord
from tests.integration.bigtable_model import play, row_after

FAMILIES = st.sampled_from(["f", "g"])
COLUMNS = st.sampled_from([b"a", b"b"])
TIMES = st.sampled_from([0, 1_000, 2_000, 3_000])
CHANGES = st.one_of(
    st.builds(set_cell, FAMILIES, COLUMNS, st.binary(min_size=1, max_size=2), TIMES),
    st.builds(delete_column, FAMILIES, COLUMNS, st.just(0), st.sampled_from([0, 1_000, 2_000])),
    st.builds(delete_column, FAMILIES, COLUMNS, st.sampled_from([1_000, 2_000]), st.just(0)),
    st.builds(delete_family, FAMILIES),
    st.builds(delete_row),
)
WRITES = st.lists(
    st.tuples(st.lists(CHANGES, min_size=1, max_size=3), st.integers(1, 3), st.booleans()), min_size=1, max_size=8
)
"""Writes in the order they arrive: mutations, commit time of those that are late, whether it is late."""


def names(cells: Cells) -> RowCells:
    return RowCells(CellName(*name) for name in cells)


@given(WRITES)
def test_the_store_ends_as_the_rule_says_whatever_arrived_when(writes: Sequence[tuple[list[Any], int, bool]]) -> None:
    store: Cells = {}
    records: list[ReadRecord] = []
    for number, (mutations, commit, late) in enumerate(writes):
        order = (commit, number) if late else (10 + number, 0)
        entries = as_recorded(names(store), mutations)
        later = [entry for record in records if (record.commit, record.tiebreaker) > order for entry in record.entries]
        for winning in what_wins(entries, later, names(store)):
            play(winning, store)
        records.append(ReadRecord(b"row", 1, "cluster", *order, tuple(entries)))

        assert store == row_after(records)


def rule_of(**fields: Any) -> Any:
    return GcRule(**fields)


def test_rules_let_go_what_all_or_any_of_their_parts_do() -> None:
    two, hour = rule_of(max_num_versions=2), rule_of()
    hour.max_age.FromTimedelta(timedelta(hours=1))
    both, either = rule_of(), rule_of()
    both.intersection.rules.extend([two, hour])
    either.union.rules.extend([two, hour])
    now = 10 * 3_600_000_000
    row = [CellName("f", b"q", now - hours * 3_600_000_000) for hours in (0, 2, 3, 4)]
    row.append(CellName("f", b"other", now - 7_200_000_000))
    row.append(CellName("no rule", b"q", 0))

    def gone(rule: Any) -> list[int]:
        cells = garbage_of(row, {"f": ColumnFamily(gc_rule=rule).gc_rule}, now)
        return sorted(row.index(cell) for cell in cells)

    assert gone(two) == [2, 3]
    assert gone(hour) == [1, 2, 3, 4]
    assert gone(both) == [2, 3]
    assert gone(either) == [1, 2, 3, 4]
    assert gone(rule_of()) == []
