"""What the contract tests share: a crowd of readers for the Bigtable partition table, the stores of letters."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import pytest

from services.dead_letter.ports import DeadLetterStore
from tests.contract.bigtable_rigs import Run, run_rigs
from tests.contract.letter_stores import postgresql_store, sqlite_store
from tests.contract.postgresql_server import postgresql_server
from tests.fakes.dead_letter_store import FakeDeadLetterStore
from tests.integration.stand_in import StandIn


@pytest.fixture
def run(bigtable_emulator: str) -> Run:
    """Return a function that runs a scenario on rigs in the emulator."""
    return partial(run_rigs, bigtable_emulator)


@pytest.fixture(scope="session")
def postgresql() -> Iterator[str]:
    """Return the SQLAlchemy URL of a database that is there for the letters."""
    with postgresql_server() as address:
        yield address


@pytest.fixture(params=["in memory", "SQLite", "PostgreSQL"])
def letter_store(request: pytest.FixtureRequest) -> Iterator[DeadLetterStore]:
    """Give each test every store of letters, one after the other: what holds of one holds of all."""
    match request.param:
        case "SQLite":
            opened: AbstractContextManager[DeadLetterStore] = sqlite_store(
                request.getfixturevalue("tmp_path") / "letters.sqlite3"
            )
        case "PostgreSQL":
            opened = postgresql_store(request.getfixturevalue("postgresql"))
        case _:
            opened = nullcontext(FakeDeadLetterStore())
    with opened as found:
        yield found


@pytest.fixture
def stand_in(bigquery_stand_in: tuple[str, str]) -> StandIn:
    """Return a client of the stand-in with a fresh dataset."""
    return StandIn(bigquery_stand_in)


@pytest.fixture
def rest(bigquery_stand_in: tuple[str, str]) -> str:
    """Return ``host:port`` of the stand-in's REST side."""
    return bigquery_stand_in[0]
