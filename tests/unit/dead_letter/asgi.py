"""A client that calls the application as a server does, without a socket."""

import asyncio
import json
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from services.dead_letter.app.replay.replay_tools import ReplayTools
from services.dead_letter.app.service_poller import ServicePoller
from services.dead_letter.core.attention import Launcher
from services.dead_letter.core.dead_letters import DeadLetterId
from services.dead_letter.ports import DeadLetterStore
from services.dead_letter.web.app import application
from services.dead_letter.web.callers import Callers, Token, read_tokens
from services.dead_letter.web.tools import ConsoleTools, WebTools
from shared.runtime.clock import Clock
from shared.runtime.stop import Stop
from tests.fakes.replaying import FakeMirrors, FakeReplayPublisher
from tests.fakes.status_pages import FakeStatusPages
from tests.unit.dead_letter.dead_letters import JUNK, ONE, TWO
from tests.worlds.replaying import World

TOKEN = "a-token-that-is-long-enough"  # noqa: S105  the test's own
TOKENS: tuple[Token, ...] = tuple(read_tokens(f"ada {TOKEN}", "the test"))


@dataclass(frozen=True)
class Answered:
    """An answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def message(self) -> str:
        """Return what a refusal says, which is of the one shape."""
        error = self.json["error"]
        assert error.keys() == {"status", "message", "problems"}
        assert error["status"] == self.status
        return str(error["message"])


def web_tools(
    store: DeadLetterStore,
    publisher: FakeReplayPublisher,
    clock: Clock,
    stop: Stop,
    *,
    mirrors: FakeMirrors | None = None,
    services: Mapping[str, str] | None = None,
    pages: FakeStatusPages | None = None,
    launcher: Launcher | None = None,
    **more: Any,
) -> WebTools:
    """Return what requests act through, where one user has a token and everything behind is a fake."""
    given: dict[str, Any] = {
        "replay": ReplayTools(
            publisher=lambda _stop: nullcontext(publisher), mirrors=lambda: nullcontext(mirrors or FakeMirrors())
        ),
        "console": ConsoleTools(
            poller=ServicePoller(services or {}, pages or FakeStatusPages(), clock), launcher=launcher or Launcher()
        ),
        "callers": Callers(tokens=lambda: TOKENS, open_reads=True),
    }
    return WebTools(store=store, clock=clock, stop=stop, **given | more)


class Api:
    """The API over a world of dead letters, asked by a caller with a token."""

    def __init__(self, callers: Callers | None = None, **more: Any) -> None:
        self.world = world = World()
        self.stop = Stop()
        reached = {name: getattr(world, name) for name in ("store", "publisher", "mirrors", "clock")}
        given = {} if callers is None else {"callers": callers}
        self.tools = web_tools(**reached | {"stop": self.stop} | given | more)
        self.app = application(self.tools)

    def get(self, path: str, **options: Any) -> Answered:
        return self.ask("GET", path, **options)

    def post(self, path: str, body: object, **options: Any) -> Answered:
        return self.ask("POST", path, body=body, **options)

    def actions(self, dead_letter: str) -> list[tuple[str, str]]:
        return [(entry.action.value, entry.who) for entry in self.world.store.trail(DeadLetterId(dead_letter))]

    def ask(
        self,
        method: str,
        path: str,
        *,
        body: object = None,
        headers: Mapping[str, str] | None = None,
        token: str | None = TOKEN,
        host: str = "127.0.0.1:8083",
        **query: Any,
    ) -> Answered:
        """Send a request under /v1; a body that is no bytes goes as JSON."""
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        given = {"host": host, "content-length": str(len(data))}
        if body is not None:
            given["content-type"] = "application/json"
        if token is not None:
            given["authorization"] = f"Bearer {token}"
        given |= headers or {}
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": f"/v1/{path}" if not path.startswith("/") else path,
            "raw_path": path.encode(),
            "query_string": urlencode(query, doseq=True).encode(),
            "root_path": "",
            "headers": [(name.encode(), value.encode()) for name, value in given.items()],
            "server": ("127.0.0.1", 8083),
            "client": ("127.0.0.1", 1),
        }
        return asyncio.run(_call(self.app, scope, data))


async def _call(app: Any, scope: dict[str, Any], body: bytes) -> Answered:
    sent: list[Any] = []
    waiting = [{"type": "http.request", "body": body[at : at + 65_536], "more_body": True} for at in range(0, len(body), 65_536)]  # fmt: skip # noqa: E501
    waiting.append({"type": "http.request", "body": b"", "more_body": False})

    async def receive() -> Any:
        if not waiting:
            await asyncio.Event().wait()  # whoever asks stays until the answer is there
        return waiting.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return Answered(sent[0]["status"], headers, b"".join(one.get("body", b"") for one in sent[1:]))


WRITES = ("discard", "restore", f"dead-letters/{ONE.identity}/edit", "replays")
READS = (
    "dead-letters",
    f"dead-letters/{ONE.identity}",
    f"dead-letters/{ONE.identity}/trail",
    "groups",
    "stats",
    "export",
)
EVERYTHING = {"dead_letters": {"everything": True}}


def with_dead_letters(api: Api) -> Api:
    api.world.keep(ONE, TWO, JUNK)
    return api
