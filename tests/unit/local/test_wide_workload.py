"""The calls to Bigtable are the same each time, of every kind that they promise, and as many as are asked for."""

from collections import Counter

import pytest

from deploy.local.demo.wide_tables import AIRPORT_TRAFFIC, CORRECTED, HOURLY_WEATHER, TOTALS
from deploy.local.demo.wide_workload import Departure, Hour, WideWorkload, read_departures, read_hours
from deploy.local.platform.cells import Call, CheckAndMutate, DropRows, Increment, MutateRow, MutateRows, newest


@pytest.fixture(scope="module")
def hours() -> list[Hour]:
    return read_hours(900)


@pytest.fixture(scope="module")
def departures() -> list[Departure]:
    return read_departures(2000)


@pytest.fixture
def workload(hours: list[Hour], departures: list[Departure]) -> WideWorkload:
    return WideWorkload(hours, departures, 100)


def all_of(workload: WideWorkload, wanted: int = 3000) -> list[tuple[Call, int]]:
    return [*workload.load(), *workload.changes(wanted)]


def test_the_same_seed_makes_the_same_calls(hours: list[Hour], departures: list[Departure]) -> None:
    first, second = WideWorkload(hours, departures, 100), WideWorkload(hours, departures, 100)

    assert all_of(first) == all_of(second)
    assert first.weather.rows == second.weather.rows
    assert all_of(WideWorkload(hours, departures, 100, seed=7)) != all_of(WideWorkload(hours, departures, 100))


def test_it_changes_as_many_rows_as_asked_for_and_not_many_more(workload: WideWorkload) -> None:
    loaded = sum(rows for _, rows in workload.load())
    changed = sum(rows for _, rows in workload.changes(500))

    assert loaded == 200
    assert 500 <= changed <= 510


def test_flights_from_before_count_once_and_hours_never(hours: list[Hour], departures: list[Departure]) -> None:
    workload = WideWorkload(hours, departures, 100, before=300)
    before = list(workload.before())
    there = len(workload.traffic)
    loaded = [call for call, _ in workload.load()]

    assert {call.table for call in before} == {AIRPORT_TRAFFIC.name}
    assert before == [one.call for one in departures[:300]]
    assert [call for call in loaded if isinstance(call, Increment)] == [one.call for one in departures[300:400]]
    assert (there > 0, len(workload.weather)) == (True, 100)


def test_calls_of_every_kind_are_made(workload: WideWorkload) -> None:
    calls = [call for call, _ in all_of(workload)]

    assert {type(call) for call in calls} == {MutateRow, MutateRows, CheckAndMutate, Increment, DropRows}
    mutations = Counter(type(one).__name__ for call in calls if isinstance(call, MutateRow) for one in call.mutations)
    assert mutations.keys() == {"SetCell", "DeleteCells", "DeleteFamily", "DeleteRow"}
    dropped = [rows for call, rows in all_of(workload) if isinstance(call, DropRows)]
    assert 1 < max(dropped) <= 10, "some drop more than one row, and none drops many"


def test_row_keys_of_a_station_begin_with_the_latest_hour(hours: list[Hour]) -> None:
    of_one = [hour for hour in hours if hour.row_key.startswith(b"JFK#")]

    assert sorted(of_one, key=lambda hour: hour.row_key) == sorted(of_one, key=lambda hour: hour.at, reverse=True)


def test_counters_end_as_the_flights_say(departures: list[Departure]) -> None:
    workload = WideWorkload([], departures, 50)
    list(workload.load())

    counted = sum(
        int.from_bytes(newest(row[TOTALS][b"departures"]), signed=True) for row in workload.traffic.rows.values()
    )
    assert counted == 50


def test_corrections_are_left_in_more_versions_than_one(workload: WideWorkload) -> None:
    all_of(workload)
    versions = [len(cells) for row in workload.weather.rows.values() for cells in row.get(CORRECTED, {}).values()]

    assert max(versions) > HOURLY_WEATHER.versions, "so that the mirror has to leave some out"
