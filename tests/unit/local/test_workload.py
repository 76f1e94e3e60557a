"""The demo's changes are the same each time, possible in their order, and of every kind that they promise."""

from collections import Counter
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from itertools import chain
from typing import Any

import pytest

from deploy.local.demo.flights import FlightData, read_flight_data
from deploy.local.demo.flights_workload import FlightsWorkload
from deploy.local.demo.schema import KEYS
from deploy.local.demo.weather import WeatherData, celsius, read_weather_data
from deploy.local.demo.weather_workload import WeatherWorkload
from deploy.local.demo.workload import Transaction, Workload

Make = Callable[..., Workload]


@pytest.fixture(scope="module")
def flights() -> FlightData:
    return read_flight_data(2000)


@pytest.fixture(scope="module")
def weather() -> WeatherData:
    return read_weather_data(1500)


@pytest.fixture(params=[("flights", 0), ("flights", 300), ("weather", 0), ("weather", 50)], ids=str)
def make(request: pytest.FixtureRequest, flights: FlightData, weather: WeatherData) -> Make:
    """Return a function that makes a workload; each test runs with both, and with rows from before the stream."""
    kind, before = request.param
    return {
        "flights": lambda **more: FlightsWorkload(flights, 500, before=before, **more),
        "weather": lambda **more: WeatherWorkload(weather, 100, before=before, **more),
    }[str(kind)]


def all_of(workload: Workload, wanted: int = 3000) -> list[Transaction]:
    """Return all transactions; a third of the changes made, the column that comes later is there."""
    transactions = [*workload.before(), *workload.load()]
    for number, transaction in enumerate(workload.changes(wanted)):
        transactions.append(transaction)
        if number == 200:
            workload.column_added()
    return transactions


def test_the_same_seed_makes_the_same_changes(make: Make) -> None:
    first, second, other = make(), make(), make(seed=7)

    assert all_of(first) == all_of(second)
    assert first.tables == second.tables
    assert all_of(other) != all_of(make())


def test_it_yields_as_many_changes_as_asked_for_and_not_many_more(make: Make) -> None:
    workload = make()
    list(chain(workload.before(), workload.load()))

    changes = sum(sum(transaction.changes.values()) for transaction in workload.changes(3000))

    assert 3000 <= changes < 3000 + 30


def test_what_is_there_before_and_what_is_loaded_are_all_rows_once(flights: FlightData, weather: WeatherData) -> None:
    for workload, expected in (
        (FlightsWorkload(flights, 500, before=300), {"flights": 300}),
        (WeatherWorkload(weather, 100, before=60), {"observations": 60, "stations": 3}),
    ):
        written = [Counter[str](), Counter[str]()]
        for number, transactions in enumerate((workload.before(), workload.load())):
            for transaction in transactions:
                written[number].update(transaction.changes)
        assert {table: written[0][table] for table in expected} == expected
        assert written[1].keys() == {"flights"} or written[1].keys() == {"observations"}
        assert {table: len(rows) for table, rows in workload.tables.items()} == written[0] + written[1]


@pytest.mark.parametrize("seed", range(5))
def test_it_never_inserts_what_is_there_nor_changes_what_is_not(make: Make, seed: int) -> None:
    there: dict[str, set[tuple[Any, ...]]] = {table: set() for table in KEYS}
    for transaction in all_of(make(seed=seed)):
        for write in transaction.writes:
            key = tuple(write.row[column] for column in KEYS[write.table])
            if write.operation == "insert":
                assert key not in there[write.table]
                there[write.table].add(key)
            elif write.operation == "replace":
                there[write.table].add(key)
            else:
                assert key in there[write.table]
            if write.operation == "delete":
                there[write.table].remove(key)
                if write.table == "airlines":
                    there["flights"] = {one for one in there["flights"] if one[0] != key[0]}
            if write.table == "flights" and write.operation != "delete":
                assert key[:1] in there["airlines"]


@pytest.mark.parametrize("seed", range(5))
def test_a_row_changes_at_most_once_in_a_transaction_so_that_changes_can_be_counted(make: Make, seed: int) -> None:
    for transaction in all_of(make(seed=seed)):
        touched = Counter(
            (write.table, *(write.row[column] for column in KEYS[write.table])) for write in transaction.writes
        )
        assert set(touched.values()) == {1}


def test_a_transaction_names_every_version_that_it_leaves_of_the_tables_with_a_history(flights: FlightData) -> None:
    workload = FlightsWorkload(flights, 500, before=300)
    versions: dict[Any, Any] = {}
    for transaction in all_of(workload):
        assert transaction.left.keys() == {"flights"}
        assert len(transaction.left["flights"]) == transaction.changes.get("flights", 0), "cascades are among them"
        versions |= transaction.left["flights"]

    there = {key: row for key, row in versions.items() if row is not None}
    column = workload.demo.added.name
    model = workload.tables["flights"]
    assert there.keys() == model.keys()
    assert len(there) < len(versions), "some were deleted"
    assert all({column: None, **there[key]} == model[key] for key in there)


def test_no_change_knows_the_column_before_it_is_there_and_many_do_after(make: Make) -> None:
    workload = make()
    added = workload.demo.added
    before = [*workload.before(), *workload.load(), *workload.changes(500)]
    assert not any(added.name in write.row for one in before for write in one.writes)

    workload.column_added()
    after = list(workload.changes(500))

    values = [write.row[added.name] for one in after for write in one.writes if added.name in write.row]
    assert sum(value is not None for value in values) > 20
    assert all(added.name in row for row in workload.tables[added.table].values())


def test_every_kind_of_change_of_flights_occurs(flights: FlightData) -> None:
    workload = FlightsWorkload(flights, 500)
    list(workload.load())
    transactions = list(workload.changes(3000))

    assert operations(transactions) >= {
        *(("flights", operation) for operation in ("insert", "update", "delete")),
        *(("airlines", operation) for operation in ("insert", "delete")),
        ("planes", "replace"),
        ("planes", "update"),
        ("airports", "update"),
    }
    assert any(len({write.table for write in one.writes}) == 3 for one in transactions)
    assert any(len(one.writes) < sum(one.changes.values()) for one in transactions), "no cascade"
    assert hottest(transactions) >= 7


def test_every_kind_of_change_of_the_weather_occurs(weather: WeatherData) -> None:
    workload = WeatherWorkload(weather, 100)
    list(workload.load())
    transactions = list(workload.changes(2000))

    assert operations(transactions) >= {
        *(("observations", operation) for operation in ("insert", "update", "delete", "replace")),
        ("stations", "update"),
    }
    assert any(len({write.table for write in one.writes}) == 2 for one in transactions)
    assert hottest(transactions) >= 50, "the stations' rows"


def operations(transactions: list[Transaction]) -> set[tuple[str, str]]:
    return {(write.table, write.operation) for one in transactions for write in one.writes}


def hottest(transactions: list[Transaction]) -> int:
    touched = Counter(
        (write.table, *(write.row[column] for column in KEYS[write.table]))
        for one in transactions
        for write in one.writes
    )
    return touched.most_common(1)[0][1]


def test_flights_happen_as_they_happened(flights: FlightData) -> None:
    for flight in flights.flights:
        row = flight.row
        departure, arrival, minutes = row["departure"], row["arrival"], row["air_minutes"]
        if isinstance(arrival, datetime):
            assert isinstance(departure, datetime)
            assert isinstance(minutes, int)
            assert 0 < (arrival - departure).total_seconds() / 60 - minutes < 200
        assert row["cancelled"] is (row["departure"] is None)
        assert flight.scheduled["departure"] is None


def test_the_weather_comes_in_the_order_of_its_time_at_three_stations(weather: WeatherData) -> None:
    keys = [(str(one.row["observed_at"]), one.row["station"]) for one in weather.observations]

    assert keys == sorted(keys)
    assert len(set(keys)) == len(keys)
    assert {station for _, station in keys} == {row["code"] for row in weather.stations} == {"EWR", "JFK", "LGA"}
    assert all(-40 < Decimal(str(one.row["temperature_f"])) < 110 for one in weather.observations)
    assert (celsius("39.02"), celsius("-40"), celsius(None)) == ("3.90", "-40.00", None)
