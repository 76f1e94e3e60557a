"""A store of dead letters and the commands as processes."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from services.dead_letter.adapters.store.database import open_database
from services.dead_letter.adapters.store.store import SqlDeadLetterStore
from services.dead_letter.core.dead_letters import Arrival, State, StoredDeadLetter
from services.dead_letter.core.selection import Selection
from shared.contracts.dead_letter import DeadLetter
from shared.contracts.timestamps import Nanoseconds
from shared.pubsub.names import short_name
from shared.pubsub.topology import PubsubTopology
from tests.builders import a_change
from tests.integration.pubsub_topics import take
from tests.integration.stand_in import PROJECT
from tests.unit.dead_letter.dead_letters import a_dead_letter, at
from tests.worlds.commands import run_command

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT = 120.0  # seconds


@dataclass
class Place:
    """A store with dead letters, and where they are replayed to."""

    file: Path
    pubsub: str
    channel: grpc.Channel
    topology: PubsubTopology
    variables: dict[str, str] = field(default_factory=dict)

    @property
    def environment(self) -> Mapping[str, str]:
        return {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "GOOGLE_CLOUD_PROJECT": PROJECT,
            "PUBSUB_EMULATOR_HOST": self.pubsub,
            "TOPIC": short_name(self.topology.topic),
            "DATABASE": f"sqlite:///{self.file}",
            "MILLRACE_USER": "ada",
            **self.variables,
        }

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-m", "services.dead_letter", *arguments],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str) -> tuple[int, str, str]:
        ended = run_command("services.dead_letter", arguments, self.environment)
        return ended.returncode, ended.stdout, ended.stderr

    def replay(self, *options: str, code: int = 0) -> Any:
        found, out, err = self.run("replay", "--all", "--execute", "--json", *options)
        assert found == code, err
        return json.loads(out)

    def keep(self, dead_letters: Sequence[DeadLetter], message: str = "first") -> None:
        """Let dead letters arrive, as the collector keeps them."""
        with closing(open_database(self.environment["DATABASE"])) as database:
            arrivals = [Arrival(dead_letter=one, message_id=f"{message} {n}") for n, one in enumerate(dead_letters)]
            SqlDeadLetterStore(database).keep(arrivals, Nanoseconds(time.time_ns()))

    def dead_letters(self, *states: State) -> Sequence[StoredDeadLetter]:
        with closing(open_database(self.environment["DATABASE"])) as database:
            return list(SqlDeadLetterStore(database).in_replay_order(Selection(states=frozenset(states))))

    def replayed(self) -> int:
        return len(self.dead_letters(State.REPLAYED))

    def wait_until(self, many: int) -> None:
        ends = time.monotonic() + TIMEOUT
        while self.replayed() < many:
            assert time.monotonic() < ends, "nothing was replayed"

    def published(self) -> list[Any]:
        """Take every message from the topic's subscription."""
        return take(self.channel, self.topology.subscription)


def fresh(count: int, keys: int = 8, **row: Any) -> list[DeadLetter]:
    """Return dead letters of changes that were committed just now."""
    now = at(time.time_ns())
    return [
        a_dead_letter(
            a_change(number % keys + 1, sequence=number + 1, committed=now, **row),
            ordering_key=f"planes/{number % keys}",
        )
        for number in range(count)
    ]
