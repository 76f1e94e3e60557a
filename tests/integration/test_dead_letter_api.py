"""The HTTP API on a real socket, over a SQLite store: what its document says holds, whatever is sent."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import Phase, settings

from services.dead_letter.adapters.database import open_database
from services.dead_letter.adapters.store import SqlLetterStore
from services.dead_letter.core.letters import Arrival, LetterId, State
from services.dead_letter.web.app import application
from services.dead_letter.web.callers import Callers
from services.dead_letter.web.server import serving
from services.dead_letter.web.tools import Tools
from shared.contracts.reasons import Reason
from shared.runtime.stop import Stop
from tests.builders import a_change, a_header
from tests.fakes.replaying import FakeMirrors, FakeReplayPublisher, WaitedClock
from tests.unit.dead_letter.asgi import TOKEN, TOKENS, Api
from tests.unit.dead_letter.letters import NOW, a_letter, junk

pytestmark = pytest.mark.integration

LETTERS = [
    a_letter(a_change(1, name="Ada", seats=3)),
    a_letter(a_change(2, sequence=7), a_header("pilots"), reason=Reason.SCHEMA_CONFLICT),
    replace(a_letter(a_change(3)), payload_bytes=20_000_000, data=b'{"id":"3"}', identity=""),
    junk(),
    junk(b'{"name": ["Ada", 1.5, null]}', reason=Reason.UNEXPLAINED, detail="who is 'Ada'?"),
]


@dataclass
class Served:
    """The API as somebody with a token reaches it."""

    port: int
    store: SqlLetterStore
    publisher: FakeReplayPublisher
    stop: Stop

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ask(self, method: str, path: str, body: object = None) -> tuple[int, Mapping[str, str], bytes]:
        request = urllib.request.Request(
            f"{self.url}/v1/{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, dict(answer.headers), answer.read()
        except urllib.error.HTTPError as error:
            return error.code, dict(error.headers), error.read()

    def answer(self, method: str, path: str, body: object = None) -> Any:
        status, _headers, answered = self.ask(method, path, body)
        assert status == 200, answered
        return json.loads(answered)


@contextmanager
def served(folder: Path) -> Iterator[Served]:
    """Serve letters of several kinds."""
    database = open_database(f"sqlite:///{folder / 'letters.sqlite3'}")
    try:
        store, publisher, stop = SqlLetterStore(database), FakeReplayPublisher(), Stop()
        store.keep([Arrival(letter=one, message_id=str(n)) for n, one in enumerate(LETTERS)], NOW)
        tools = Tools(
            store=store,
            publisher=lambda _stop: nullcontext(publisher),
            mirrors=lambda: nullcontext(FakeMirrors()),
            callers=Callers(tokens=TOKENS, open_reads=False),
            clock=WaitedClock(NOW),
            stop=stop,
        )
        with serving(application(tools), "127.0.0.1", 0, stop) as port:
            yield Served(port, store, publisher, stop)
    finally:
        database.close()


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("fuzzed")) as api:
        yield api


DOCUMENT = schemathesis.openapi.from_dict(Api(Callers(tokens=TOKENS)).get("openapi.json").json)


@DOCUMENT.parametrize()
@settings(max_examples=10, derandomize=True, deadline=None, phases=[Phase.explicit, Phase.generate], database=None)
def test_every_operation_answers_as_its_document_says_whatever_is_sent(case: Any, fuzzed: Served) -> None:
    case.call_and_validate(base_url=fuzzed.url, headers={"Authorization": f"Bearer {TOKEN}"})
