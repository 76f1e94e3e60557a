"""What the contract tests share: owners in the Bigtable partition table, the stores of dead letters."""

from collections.abc import AsyncIterator, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    nullcontext,
)

import pytest

from services.dead_letter.ports import DeadLetterStore
from tests.contract.bigtable_rigs import Make, Rig, rigs
from tests.contract.dead_letter_stores import postgresql_store, sqlite_store
from tests.contract.postgresql_server import postgresql_server
from tests.fakes.dead_letter_store import FakeDeadLetterStore
from tests.integration.stand_in import StandIn


@pytest.fixture
def make(bigtable_emulator: str) -> AbstractAsyncContextManager[Make]:
    """Return a function that makes rigs in the emulator."""
    return rigs(bigtable_emulator)


@pytest.fixture
@asynccontextmanager
async def rig(bigtable_emulator: str) -> AsyncIterator[Rig]:
    """Return one rig in the emulator."""
    async with rigs(bigtable_emulator) as make:
        yield make()


@pytest.fixture(scope="session")
def postgresql() -> Iterator[str]:
    """Return the SQLAlchemy URL of a database that is there for the dead letters."""
    with postgresql_server() as address:
        yield address


@pytest.fixture(params=["in memory", "SQLite", "PostgreSQL"])
def store(request: pytest.FixtureRequest) -> Iterator[DeadLetterStore]:
    """Give each test every store of dead letters, one after the other: what holds of one holds of all."""
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
