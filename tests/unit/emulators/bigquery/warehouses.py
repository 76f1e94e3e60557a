"""A warehouse of the BigQuery stand-in, in which statements are run as a query job runs them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from emulators.bigquery.sql import Defaults, read_parameters
from emulators.bigquery.statements import run
from emulators.bigquery.warehouse import Warehouse

NOW = 1_714_478_400_123_456
DEFAULTS = Defaults("p", "d")


class Clock:
    """A clock that stands still until it is put forward."""

    def __init__(self, micros: int = 1_700_000_000_000_000) -> None:
        self.micros = micros

    def now(self) -> int:
        return self.micros


@contextmanager
def a_warehouse(*statements: str, now: Callable[[], int] = lambda: NOW) -> Iterator[Warehouse]:
    """Give a warehouse in which these statements have been run."""
    warehouse = Warehouse(now)
    for statement in statements:
        run(warehouse, statement, DEFAULTS, {})
    yield warehouse
    warehouse.close()


def rows_of(warehouse: Warehouse, query: str, parameters: Sequence[Mapping[str, object]] = ()) -> list[dict[str, Any]]:
    """Return what a query answers."""
    rows = run(warehouse, query, DEFAULTS, read_parameters(parameters)).rows
    assert rows is not None
    return list(rows.to_pylist())


def value_of(warehouse: Warehouse, query: str) -> Any:
    """Return the one value that a query answers."""
    ((value,),) = (row.values() for row in rows_of(warehouse, query))
    return value
