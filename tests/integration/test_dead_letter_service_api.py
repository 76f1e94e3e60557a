"""The service as a process with its HTTP API: letters are collected, looked at and replayed, with a stop in between."""

import json
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from http.client import IncompleteRead
from pathlib import Path
from typing import Any

import grpc
import pytest

from deploy.local.platform.emulators import free_port
from deploy.local.platform.processes import Processes
from deploy.local.platform.services import Flow, Service, start_dead_letter, wait_until_ready
from shared.contracts.dead_letter import DeadLetter
from shared.pubsub.channels import open_channel
from shared.pubsub.dead_letters import DeadLetterPublisher
from shared.runtime.stop import Stop
from tests.builders import a_change
from tests.integration.pubsub_topics import pull
from tests.unit.dead_letter.letters import a_letter, at

pytestmark = pytest.mark.integration

PROJECT = "millrace-test"
ADA, BOB = "the-token-that-ada-has", "the-token-that-bob-has"
TIMEOUT = timedelta(seconds=120)


@dataclass
class Running:
    """The service, its topics, and how it is asked."""

    flow: Flow
    channel: grpc.Channel
    processes: Processes
    tokens: Path
    api_port: int
    service: Service

    def ask(self, path: str, body: object = None, token: str | None = ADA) -> tuple[int, bytes]:
        """Send a request; without a body a GET."""
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.api_port}/v1/{path}", data, headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def answer(self, path: str, body: object = None, token: str | None = ADA) -> Any:
        status, answered = self.ask(path, body, token)
        assert status == 200, answered
        return json.loads(answered)

    def replay(self, **more: Any) -> Any:
        return self.answer("replays", {"dead_letters": {"everything": True}, "execute": True} | more)

    def collect(self, letters: Sequence[DeadLetter]) -> None:
        """Let letters fail, and wait until they are collected."""
        DeadLetterPublisher(self.channel, self.flow.topology.dead_letter_topic, Stop()).keep(letters)
        self.wait_until(
            lambda: self.answer("stats", token=None)["by_state"].get("open", 0) >= len(letters), "dead-letters"
        )

    def wait_until(self, condition: Any, what: str) -> None:
        self.processes.wait_until(lambda: condition() or None, what, TIMEOUT)

    def published(self) -> list[Any]:
        """Return the messages that came to the topic of change batches."""
        return [one.message for one in pull(self.channel, self.flow.topology.subscription)]

    def start(self, **more: str) -> None:
        """Start the service, and wait until it collects and answers."""
        settings = {"API_PORT": str(self.api_port), "API_TOKEN_FILE": str(self.tokens), "BIGQUERY_DATASET": ""} | more
        self.service = start_dead_letter(self.processes, self.flow, **settings)
        wait_until_ready(self.processes, self.service)


@pytest.fixture
def running(pubsub_emulator: str, new_processes: Processes, tmp_path: Path) -> Iterator[Running]:
    name = f"api-{uuid.uuid4().hex[:12]}"
    flow = Flow(pubsub=pubsub_emulator, bigquery_rest="", bigquery_grpc="", project=PROJECT, name=name)
    flow.create_topics()
    tokens = tmp_path / "tokens"
    tokens.write_text(f"ada {ADA}\n")
    nothing: Any = None
    with open_channel(pubsub_emulator) as channel:
        found = Running(flow, channel, new_processes, tokens, free_port(), nothing)
        found.start()
        yield found


def fresh(count: int) -> list[DeadLetter]:
    """Return letters of changes that were committed just now, none of whose values is to be seen by chance."""
    now = at(time.time_ns())
    letters = [a_letter(a_change(number, name="Lovelace")) for number in range(count)]
    data = [one.data.replace(one.commit_timestamp.encode(), now.encode()) for one in letters]
    return [replace(one, data=new, commit_timestamp=now, identity="") for one, new in zip(letters, data, strict=True)]


def test_what_is_collected_is_replayed_over_http_as_it_came_and_counted(running: Running) -> None:
    letters = fresh(20)
    running.collect(letters)

    assert running.ask("replays", {"dead_letters": {"everything": True}}, token=None)[0] == 401
    assert running.ask("replays", {"dead_letters": {"everything": True}}, token=BOB)[0] == 401
    dry = running.answer("replays", {"dead_letters": {"everything": True}})
    assert (dry["verdicts"]["send"], dry["sent"], running.published()) == (20, 0, [])
    done = running.replay()
    assert (done["sent"], done["left_open"]) == (20, 0)

    replayed = sorted((message.attributes["replay_of"], message.data) for message in running.published())
    assert replayed == sorted((letter.identity, letter.data) for letter in letters)
    trail = running.answer(f"dead-letters/{letters[0].identity}/trail")["trail"]
    assert [(entry["action"], entry["who"]) for entry in trail] == [("arrived", "collector"), ("replayed", "ada")]
    metrics = running.service.metrics()
    assert metrics["millrace_dead_letter_api_requests_total"] >= 5
    assert metrics["millrace_dead_letter_api_request_seconds_count"] >= 5
    said = running.service.process.log.read_text()
    assert "api_served" in said
    assert ADA not in said
    assert "Lovelace" not in said


def test_an_export_is_streamed_whole_and_masked_unless_asked_for(running: Running) -> None:
    letters = fresh(1_300)
    running.collect(letters)

    status, masked = running.ask("export", token=None)
    assert (status, masked.count(b"\n"), b"Lovelace" in masked) == (200, 1_300, False)
    assert {json.loads(line)["id"] for line in masked.splitlines()} == {letter.identity for letter in letters}
    assert running.ask("export?values=true", token=None)[0] == 401
    shown = running.ask("export?values=true&key=[7]")[1]
    assert json.loads(shown)["masked"] is False
    assert running.answer(f"dead-letters/{json.loads(shown)['id']}/trail")["trail"][-1]["action"] == "exported"


def test_a_token_is_exchanged_without_a_restart(running: Running) -> None:
    running.collect(fresh(1))
    running.tokens.write_text(f"ada {ADA}\nbob {BOB}\n")
    assert running.answer("replays", {"dead_letters": {"everything": True}}, token=BOB)["verdicts"]["send"] == 1
    running.tokens.write_text(f"bob {BOB}\n")
    assert running.ask("replays", {"dead_letters": {"everything": True}})[0] == 401
    assert running.answer("replays", {"dead_letters": {"everything": True}, "execute": True}, token=BOB)["sent"] == 1


@pytest.mark.parametrize("sign", ["kill", "ask_to_end"])
def test_an_export_that_is_cut_short_can_be_told_from_a_whole_one(running: Running, sign: str) -> None:
    running.collect([replace(one, data=one.data + b" " * 100_000, identity="") for one in fresh(400)])
    with urllib.request.urlopen(
        urllib.request.Request(
            f"http://127.0.0.1:{running.api_port}/v1/export?values=true", headers={"Authorization": f"Bearer {ADA}"}
        ),
        timeout=60,
    ) as answer:
        answer.read(1_000)
        getattr(running.service.process, sign)()
        assert (running.service.process.wait(timedelta(seconds=20)) == 0) is (sign == "ask_to_end")
        with pytest.raises((IncompleteRead, ConnectionError)):
            answer.read()
