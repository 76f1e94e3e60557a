"""A console over a real socket and a SQLite store, with services that answer and much that has failed."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.dead_letter.adapters.store.database import open_database
from services.dead_letter.adapters.store.store import SqlDeadLetterStore
from services.dead_letter.core.dead_letters import Arrival
from services.dead_letter.web.app import application
from services.dead_letter.web.server import serving
from shared.contracts.change_batch import Header
from shared.contracts.dead_letter import DeadLetter
from shared.contracts.reasons import Reason
from shared.contracts.timestamps import Nanoseconds
from shared.runtime.clock import Clock, SystemClock
from shared.runtime.stop import Stop
from tests.builders import a_change, a_header
from tests.fakes.replaying import FakeReplayPublisher
from tests.fakes.status_pages import FakeStatusPages
from tests.unit.dead_letter.asgi import web_tools
from tests.unit.dead_letter.dead_letters import a_dead_letter, at, junk
from tests.worlds.console import SERVICES, statuses

_MINUTE = 60 * 1_000_000_000


def failed(now: int) -> Sequence[DeadLetter]:
    """Return dead letters of four causes, over a day."""
    cause = {
        "reason": Reason.SCHEMA_CONFLICT,
        "detail": "table pilots has the primary key (name), the source has (id): drop it in BigQuery",
    }
    pilots = [
        _failed(number, now - number * 4 * _MINUTE, {"sequence": 7}, a_header("pilots"), **cause)
        for number in range(1, 13)
    ]
    planes = [
        _failed(number, now - number * 23 * _MINUTE, {"name": f"N{number}UA", "seats": 150}) for number in range(1, 40)
    ]
    return [*planes, *pilots, junk(failed_at=Nanoseconds(now - 600 * _MINUTE))]


def _failed(
    number: int, failed_at: int, change: Mapping[str, Any], header: Header | None = None, **cause: Any
) -> DeadLetter:
    """Return a dead letter of a change that was committed just before it failed: one that may be replayed."""
    committed = at(failed_at // 1000 * 1000)
    return a_dead_letter(
        a_change(number, committed=committed, **change), header, failed_at=Nanoseconds(failed_at), **cause
    )


@dataclass
class Shown:
    """The console, and what its replays reach."""

    url: str
    store: SqlDeadLetterStore
    publisher: FakeReplayPublisher
    pages: FakeStatusPages


@contextmanager
def console(folder: Path, clock: Clock | None = None) -> Iterator[Shown]:
    """Serve the console for the block."""
    clock = clock or SystemClock()
    database, stop, publisher = open_database(f"sqlite:///{folder / 'letters.sqlite3'}"), Stop(), FakeReplayPublisher()
    now = clock.now()
    try:
        store, pages = SqlDeadLetterStore(database), FakeStatusPages(statuses(at(now // 1000 * 1000)))
        store.keep([Arrival(dead_letter=one, message_id=str(n)) for n, one in enumerate(failed(now))], Nanoseconds(now))
        tools = web_tools(store, publisher, clock, stop, services=SERVICES, pages=pages)
        with (
            tools.console.poller.polling(stop),
            tools.console.runs.running(stop),
            serving(application(tools), "127.0.0.1", 0, stop) as port,
        ):
            yield Shown(f"http://127.0.0.1:{port}", store, publisher, pages)
    finally:
        database.close()
