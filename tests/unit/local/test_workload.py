"""The demo's changes are the same each time, possible in their order, and of every kind that it promises."""

from collections import Counter
from datetime import datetime

import pytest

from deploy.local.demo.flights import FlightData, read_flight_data
from deploy.local.demo.schema import KEYS
from deploy.local.demo.workload import Transaction, Workload


@pytest.fixture(scope="module")
def data() -> FlightData:
    return read_flight_data(2000)


def all_of(workload: Workload, wanted: int = 3000) -> list[Transaction]:
    return [*workload.load(), *workload.changes(wanted)]


def test_the_same_seed_makes_the_same_changes(data: FlightData) -> None:
    first, second, other = Workload(data, 500), Workload(data, 500), Workload(data, 500, seed=7)

    assert all_of(first) == all_of(second)
    assert first.tables == second.tables
    assert all_of(other) != all_of(Workload(data, 500))


def test_it_yields_as_many_changes_as_asked_for_and_not_many_more(data: FlightData) -> None:
    workload = Workload(data, 500)
    list(workload.load())

    changes = sum(sum(transaction.changes.values()) for transaction in workload.changes(3000))

    assert 3000 <= changes < 3000 + 30


@pytest.mark.parametrize("seed", range(5))
def test_it_never_inserts_what_is_there_nor_changes_what_is_not(data: FlightData, seed: int) -> None:
    there: dict[str, set[object]] = {table: set() for table in KEYS}
    for transaction in all_of(Workload(data, 500, seed)):
        for write in transaction.writes:
            key = tuple(write.row[column] for column in KEYS[write.table])
            if write.operation == "insert":
                assert key not in there[write.table]
                there[write.table].add(key)
            else:
                assert key in there[write.table]
            if write.operation == "delete":
                there[write.table].remove(key)
                if write.table == "airlines":
                    there["flights"] = {one for one in there["flights"] if isinstance(one, tuple) and one[0] != key[0]}


def test_every_kind_of_change_occurs(data: FlightData) -> None:
    workload = Workload(data, 500)
    list(workload.load())
    transactions = list(workload.changes(3000))

    operations = {(write.table, write.operation) for one in transactions for write in one.writes}
    assert operations >= {
        *(("flights", operation) for operation in ("insert", "update", "delete")),
        *(("airlines", operation) for operation in ("insert", "delete")),
        ("planes", "replace"),
        ("planes", "update"),
        ("airports", "update"),
    }
    assert any(len({write.table for write in one.writes}) == 3 for one in transactions)
    assert any(len(one.writes) < sum(one.changes.values()) for one in transactions), "no cascade"
    touched = Counter(
        (write.table, *(write.row[column] for column in KEYS[write.table]))
        for one in transactions
        for write in one.writes
    )
    assert touched.most_common(1)[0][1] >= 7


def test_flights_happen_as_they_happened(data: FlightData) -> None:
    for flight in data.flights:
        row = flight.row
        departure, arrival, minutes = row["departure"], row["arrival"], row["air_minutes"]
        if isinstance(arrival, datetime):
            assert isinstance(departure, datetime)
            assert isinstance(minutes, int)
            assert 0 < (arrival - departure).total_seconds() / 60 - minutes < 200
        assert row["cancelled"] is (row["departure"] is None)
        assert flight.scheduled["departure"] is None
