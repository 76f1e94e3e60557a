"""The demo's changes on the Spanner emulator: it takes them all, and ends with what the model says."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from deploy.local.comparison import compare, table_shapes
from deploy.local.demo.workloads import workloads
from deploy.local.source import SpannerDatabase

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("number", [0, 1], ids=["flights", "weather"])
def test_spanner_takes_every_change_and_ends_as_the_model(
    database: Callable[..., SpannerDatabase], number: int
) -> None:
    workload = workloads(150, 1500, before=50)[number]
    demo = workload.demo
    source = database(*demo.statements, postgresql=demo.postgresql)

    for transaction in [*workload.before(), *workload.load(), *workload.changes(400)]:
        source.commit(transaction.writes)
    source.alter(demo.added.statement)
    workload.column_added()
    for transaction in workload.changes(600):
        source.commit(transaction.writes)

    shapes = table_shapes(source)
    assert {table: tuple(shapes[table].key) for table in demo.keys} == demo.keys
    for table in demo.keys:
        modelled = [as_bigquery_has_it(row) for row in workload.tables[table].values()]
        comparison = compare(shapes[table], source.query(f"SELECT * FROM {table}"), modelled)
        assert comparison.equal, comparison.named
        assert comparison.rows == len(modelled) > 0


def as_bigquery_has_it(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a row with lists as arrays."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in row.items()}
