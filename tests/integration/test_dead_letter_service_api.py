"""The service as a process with its HTTP API: dead letters are collected, inspected and replayed; a stop in between."""

import json
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from http.client import IncompleteRead
from pathlib import Path
from typing import Any

import grpc
import pytest

from deploy.local.platform.emulators import free_port
from deploy.local.platform.processes import Process, Processes
from shared.contracts.dead_letter import DeadLetter
from tests.integration.pubsub_topics import a_topology, pull
from tests.worlds.dead_letter_commands import fresh
from tests.worlds.dead_letter_service import DeadLetterService, counted

pytestmark = pytest.mark.integration

ADA, BOB = "the-token-that-ada-has", "the-token-that-bob-has"


@dataclass
class Running:
    """The service, its topics, and how it is asked."""

    service: DeadLetterService
    api_port: int
    process: Process

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

    def answer(self, path: str, body: object = None) -> Any:
        status, answered = self.ask(path, body)
        assert status == 200, answered
        return json.loads(answered)

    def collect(self, dead_letters: Sequence[DeadLetter]) -> None:
        """Let dead letters fail, and wait until they are collected."""
        self.service.publish(dead_letters)
        self.service.wait_until_stored(counted(dead_letters))

    def published(self) -> list[Any]:
        """Return the messages that came to the topic of change batches."""
        return [one.message for one in pull(self.service.channel, self.service.topology.subscription)]


@pytest.fixture
def running(channel: grpc.Channel, pubsub_emulator: str, new_processes: Processes, tmp_path: Path) -> Running:
    """Return the service that collects and answers."""
    tokens, port = tmp_path / "tokens", free_port()
    tokens.write_text(f"ada {ADA}\n")
    service = DeadLetterService(
        channel, pubsub_emulator, a_topology(channel), new_processes, tmp_path / "letters.sqlite3"
    )
    return Running(service, port, service.start(API_PORT=str(port), API_TOKEN_FILE=str(tokens)))


def test_what_is_collected_is_replayed_over_http_as_it_came_and_counted(running: Running) -> None:
    dead_letters = fresh(20, name="Lovelace")  # none of whose values is to be seen by chance
    running.collect(dead_letters)

    assert running.ask("replays", {"dead_letters": {"everything": True}}, token=None)[0] == 401
    assert running.ask("replays", {"dead_letters": {"everything": True}}, token=BOB)[0] == 401
    dry = running.answer("replays", {"dead_letters": {"everything": True}})
    assert (dry["verdicts"]["send"], dry["sent"], running.published()) == (20, 0, [])
    done = running.answer("replays", {"dead_letters": {"everything": True}, "execute": True})
    assert (done["sent"], done["left_open"]) == (20, 0)

    replayed = sorted((message.attributes["replay_of"], message.data) for message in running.published())
    assert replayed == sorted((one.identity, one.data) for one in dead_letters)
    trail = running.answer(f"dead-letters/{dead_letters[0].identity}/trail")["trail"]
    assert [(entry["action"], entry["who"]) for entry in trail] == [("arrived", "collector"), ("replayed", "ada")]
    metrics = running.service.get("/metrics") or ""
    assert 'millrace_dead_letter_api_requests_total{route="/v1/replays",status="200"} 2.0' in metrics
    assert 'millrace_dead_letter_api_request_seconds_count{route="/v1/replays"} 4.0' in metrics
    output = running.process.log.read_text()
    assert "api_served" in output
    assert ADA not in output
    assert "Lovelace" not in output


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
        getattr(running.process, sign)()
        assert (running.process.wait(timedelta(seconds=20)) == 0) is (sign == "ask_to_end")
        with pytest.raises((IncompleteRead, ConnectionError)):
            answer.read()
