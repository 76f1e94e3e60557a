"""The demo's changes on the Spanner emulator: it takes them all, and ends with what the model says."""

from collections.abc import Callable

import pytest

from deploy.local.comparison import compare, table_shapes
from deploy.local.demo.flights import read_flight_data
from deploy.local.demo.schema import KEYS, STATEMENTS
from deploy.local.demo.workload import Workload
from deploy.local.source import SpannerDatabase

pytestmark = pytest.mark.integration


def test_spanner_takes_every_change_and_ends_as_the_model(database: Callable[..., SpannerDatabase]) -> None:
    demo = database(*STATEMENTS)
    workload = Workload(read_flight_data(800), 200)

    for transaction in [*workload.load(), *workload.changes(1000)]:
        demo.commit(transaction.writes)

    shapes = table_shapes(demo)
    assert {table: tuple(shapes[table].key) for table in KEYS} == KEYS
    for table in KEYS:
        modelled = list(workload.tables[table].values())
        comparison = compare(shapes[table], demo.query(f"SELECT * FROM {table}"), modelled)
        assert comparison.equal, comparison.named
        assert comparison.rows == len(modelled) > 0
