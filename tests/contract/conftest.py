"""What the contract tests share: a crowd of readers for the Bigtable partition table, a PostgreSQL for the letters."""

from collections.abc import Iterator
from functools import partial

import pytest

from tests.contract.bigtable_rigs import Run, run_rigs
from tests.contract.postgresql_server import postgresql_server


@pytest.fixture
def run(bigtable_emulator: str) -> Run:
    """Return a function that runs a scenario on rigs in the emulator."""
    return partial(run_rigs, bigtable_emulator)


@pytest.fixture(scope="session")
def postgresql() -> Iterator[str]:
    """Return the SQLAlchemy URL of a database that is there for the letters."""
    with postgresql_server() as address:
        yield address
