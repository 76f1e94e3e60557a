"""The changes that are measured are what the documentation of the benchmark says they are."""

import pytest

from shared.contracts.errors import MisconfiguredError
from shared.runtime.settings import read_settings
from tests.benchmarks.backlog import one_change_a_message
from tests.benchmarks.sizes import PARTS, Sizes
from tests.benchmarks.workload import COLUMNS, TABLES, Workload, differences, row_values


def _mods(workload: Workload, changes: int) -> int:
    return sum(len(record.mods) for record in workload.records(changes))


def test_there_are_as_many_changes_as_asked_for() -> None:
    workload = Workload(1_000, seed=1)

    assert [_mods(workload, changes) for changes in (1, 7, 1_000)] == [1, 7, 1_000]


def test_five_in_a_hundred_changes_are_deletes_and_all_tables_have_some() -> None:
    records = list(Workload(100_000, seed=1).records(20_000))
    deletes = sum(len(one.mods) for one in records if one.mod_type == "DELETE")

    assert 0.04 <= deletes / 20_000 <= 0.06
    assert {one.table for one in records} == set(TABLES)


def test_later_changes_have_later_commit_timestamps() -> None:
    times = [record.commit_timestamp for record in Workload(1_000, seed=1).records(1_000, zipf=True)]

    assert times == sorted(set(times))


def test_with_zipf_few_keys_get_most_changes() -> None:
    def rows(zipf: bool) -> int:
        keys = {
            (one.table, mod.keys) for one in Workload(100_000, seed=1).records(10_000, zipf=zipf) for mod in one.mods
        }
        return len(keys)

    assert rows(zipf=False) > 9_000
    assert rows(zipf=True) < 5_000


def test_differences_are_found_in_every_value() -> None:
    rows = [row_values(key, key + 10) for key in range(3)]
    expected = {key: key + 10 for key in range(3)}

    assert differences(expected, rows) == []
    assert differences(expected, rows[1:]) == ["row 0 is missing"]
    assert differences(expected, [*rows, row_values(7, 1)]) == ["row 7 should be deleted"]
    assert differences(expected, [*rows, rows[0]]) == ["1 rows are there twice"]
    for name in set(COLUMNS) - {"id"}:
        assert len(differences(expected, [{**rows[0], name: None}, *rows[1:]])) == 1


def test_the_baseline_gets_each_change_in_a_message_of_its_own() -> None:
    backlog = one_change_a_message(Workload(1_000, seed=1).records(50))

    assert len(backlog.messages) == backlog.changes == 50


def test_parts_are_chosen_by_name() -> None:
    assert read_settings(Sizes, {}).parts == PARTS
    assert read_settings(Sizes, {"BENCH_ONLY": "reader, drain"}).parts == ("drain", "reader")
    with pytest.raises(MisconfiguredError, match="no such part: drains"):
        read_settings(Sizes, {"BENCH_ONLY": "drains"})
