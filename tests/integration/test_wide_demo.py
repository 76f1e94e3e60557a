"""The demo's calls on the Bigtable emulator, behind its front: it takes them all, and ends with what the model says."""

from collections.abc import Iterator

import pytest

from deploy.local.demo.wide_tables import AIRPORT_TRAFFIC, HOURLY_WEATHER, WIDE_TABLES
from deploy.local.demo.wide_workload import WideWorkload, read_departures, read_hours
from deploy.local.platform.bigtable import BigtableInstance
from deploy.local.platform.cells import Row, newest
from tests.conftest import PROJECT

pytestmark = pytest.mark.integration


@pytest.fixture
def instance(bigtable_front: str) -> Iterator[BigtableInstance]:
    instance = BigtableInstance(bigtable_front, PROJECT, "demo")
    yield instance
    instance.close()


def newest_values(row: Row) -> dict[tuple[str, bytes], bytes]:
    return {(family, name): newest(versions) for family, cells in row.items() for name, versions in cells.items()}


def test_bigtable_takes_every_change_and_ends_as_the_model(instance: BigtableInstance) -> None:
    for table in WIDE_TABLES:
        instance.create_table(table.table)
    workload = WideWorkload(read_hours(300), read_departures(300), 90)

    for number, (call, _rows) in enumerate([*workload.load(), *workload.changes(600)]):
        instance.apply(call)
        if number % 100 == 50:
            assert instance.split(HOURLY_WEATHER.name, f"JFK#{number:03}".encode())
            instance.collect_garbage(AIRPORT_TRAFFIC.name)

    assert instance.rows(HOURLY_WEATHER.name) == workload.weather.rows
    counted = {row_key: newest_values(row) for row_key, row in instance.rows(AIRPORT_TRAFFIC.name).items()}
    assert counted == {row_key: newest_values(row) for row_key, row in workload.traffic.rows.items()}
    assert instance.merge(HOURLY_WEATHER.name, b"JFK#050")
    assert not instance.merge(HOURLY_WEATHER.name, b"JFK#050")
