"""The HTTP API on a real socket, over a SQLite store: what its document says holds, whatever is sent."""

import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from services.dead_letter.adapters.store.database import open_database
from services.dead_letter.adapters.store.store import SqlDeadLetterStore
from services.dead_letter.core.dead_letters import Arrival
from services.dead_letter.settings import Settings
from services.dead_letter.web.app import application
from services.dead_letter.web.callers import Callers
from services.dead_letter.web.server import serving
from services.dead_letter.wiring.service import opened
from services.dead_letter.wiring.serving import serving_api
from shared.contracts.errors import MisconfiguredError
from shared.contracts.reasons import Reason
from shared.runtime.health import Health
from shared.runtime.settings import read_settings
from shared.runtime.stop import Stop
from tests.builders import a_change, a_header
from tests.fakes.replaying import FakeReplayPublisher, WaitedClock
from tests.unit.dead_letter.asgi import TOKEN, TOKENS, web_tools
from tests.unit.dead_letter.dead_letters import NOW, a_dead_letter, junk

pytestmark = pytest.mark.integration

DEAD_LETTERS = [
    a_dead_letter(a_change(1, name="Ada", seats=3)),
    a_dead_letter(a_change(2, sequence=7), a_header("pilots"), reason=Reason.SCHEMA_CONFLICT),
    replace(a_dead_letter(a_change(3)), payload_bytes=20_000_000, data=b'{"id":"3"}', identity=""),
    junk(),
    junk(b'{"name": ["Ada", 1.5, null]}', reason=Reason.UNEXPLAINED, detail="who is 'Ada'?"),
]


@dataclass
class Served:
    """The API as somebody with a token reaches it."""

    port: int
    publisher: FakeReplayPublisher = field(default_factory=FakeReplayPublisher)
    stop: Stop = field(default_factory=Stop)

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
    """Serve dead letters of several kinds."""
    database = open_database(f"sqlite:///{folder / 'letters.sqlite3'}")
    try:
        store, publisher, stop = SqlDeadLetterStore(database), FakeReplayPublisher(), Stop()
        store.keep([Arrival(dead_letter=one, message_id=str(n)) for n, one in enumerate(DEAD_LETTERS)], NOW)
        callers = Callers(tokens=lambda: TOKENS, open_reads=False)
        tools = web_tools(store, publisher, WaitedClock(NOW), stop, callers=callers)
        with serving(application(tools), "127.0.0.1", 0, stop) as port:
            yield Served(port, publisher, stop)
    finally:
        database.close()


def environment(folder: Path, **more: str) -> Mapping[str, str]:
    """Return the variables of a service with an API over a file."""
    return {
        "GOOGLE_CLOUD_PROJECT": "p",
        "DEAD_LETTER_SUBSCRIPTION": "letters",
        "DATABASE": f"sqlite:///{folder / 'letters.sqlite3'}",
        "API_PORT": "0",
    } | more


@contextmanager
def as_set(folder: Path, stop: Stop, **more: str) -> Iterator[int | None]:
    """Serve as the settings say, over a file."""
    settings = read_settings(Settings, environment(folder, **more))
    database = open_database(settings.database)
    try:
        store = SqlDeadLetterStore(database)
        store.keep([Arrival(dead_letter=one, message_id=str(n)) for n, one in enumerate(DEAD_LETTERS)], NOW)
        with serving_api(settings, store, CollectorRegistry(), stop) as port:
            yield port
    finally:
        database.close()


def test_requests_take_no_connection_of_the_store_from_the_collector(tmp_path: Path) -> None:
    settings, health = read_settings(Settings, environment(tmp_path)), Health(timedelta(minutes=1))
    with opened(settings, health, Stop()) as (database, database_of_api), ExitStack() as requests:
        for _ in range(15):  # as many as there are
            requests.enter_context(database_of_api.reading())
        SqlDeadLetterStore(database).keep([Arrival(dead_letter=DEAD_LETTERS[0], message_id="1")], NOW)


def test_the_api_serves_by_its_settings_and_logs_no_secret(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(f"ada {TOKEN}\n")
    with as_set(tmp_path, Stop(), API_TOKEN_FILE=str(tokens)) as port:
        assert port is not None
        api = Served(port)
        assert api.answer("POST", "discard", {"dead_letters": {"table": ["pilots"]}, "why": "Ada"})["changed"] == 1
        assert api.answer("GET", f"dead-letters/{DEAD_LETTERS[1].identity}/trail")["trail"][-1]["who"] == "ada"
        assert api.ask("GET", f"dead-letters?token={TOKEN}")[0] == 422
        assert api.ask("GET", "dead-letters?table=Ada%20Lovelace")[0] == 200
        status, _headers, body = api.ask("POST", "replays", {"dead_letters": {"everything": True}, "execute": True})
        assert (status, b"set TOPIC" in body) == (503, True)
        assert api.answer("POST", "replays", {"dead_letters": {"everything": True}})["mirrors_asked"] is False
        tokens.write_text("bob the-token-that-bob-has\n")
        assert api.ask("GET", "stats")[0] == 401, "a token is taken back without a restart"
    output = "".join(capfd.readouterr())
    assert "api_served" in output
    assert TOKEN not in output
    assert "Ada" not in output


def test_without_a_port_nothing_is_served(tmp_path: Path) -> None:
    with as_set(tmp_path, Stop(), API_PORT="") as port:
        assert port is None


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(MisconfiguredError, match=f"API_PORT={port}"), as_set(tmp_path, Stop(), API_PORT=str(port)):
            raise AssertionError("served on a port that is taken")


def test_a_stop_ends_a_replay_under_way_with_an_answer_and_then_the_port(tmp_path: Path) -> None:
    with served(tmp_path) as api, ThreadPoolExecutor() as another:
        api.publisher.then = lambda _dead_letters: api.stop.request()
        slow = another.submit(
            api.answer, "POST", "replays", {"dead_letters": {"everything": True}, "execute": True, "rate": 0.1}
        )
        answered = slow.result(timeout=60)
        assert (answered["stopped"], answered["sent"]) == (True, 1)
        until_refused(api)


def until_refused(api: Served) -> None:
    """Return when nobody listens any more."""
    while True:
        with suppress(ConnectionResetError):  # it ends while it is connected to
            try:
                socket.create_connection(("127.0.0.1", api.port), timeout=5).close()
            except ConnectionRefusedError:
                return
        time.sleep(0.02)


def test_every_operation_answers_as_its_document_says_whatever_is_sent(tmp_path: Path) -> None:
    fuzz = ["--phases=examples,coverage,fuzzing,stateful", "--checks=all", "--max-examples=10", "--continue-on-failure"]
    same = ["--seed=5", "--generation-deterministic", "--workers=1", "--no-color"]
    with served(tmp_path) as api:
        done = subprocess.run(
            [
                *(sys.executable, "-c", "from schemathesis.cli import schemathesis; schemathesis()", "run"),
                f"{api.url}/v1/openapi.json",
                f"--header=Authorization: Bearer {TOKEN}",
                *(*fuzz, *same),
            ],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=170,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "Tested: 10" in done.stdout, done.stdout
        trails = [api.answer("GET", f"dead-letters/{one.identity}/trail")["trail"] for one in DEAD_LETTERS]
        assert {entry["action"] for trail in trails for entry in trail} >= {"arrived", "discarded", "restored"}
