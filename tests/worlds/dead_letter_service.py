"""A topic of dead letters and the service as a process."""

import sqlite3
import sys
import urllib.request
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import grpc

from deploy.local.platform.emulators import free_port
from deploy.local.platform.processes import Process, Processes
from services.dead_letter.adapters.store.database import open_database
from services.dead_letter.adapters.store.store import SqlDeadLetterStore
from services.dead_letter.core.dead_letters import DeadLetterLine
from services.dead_letter.core.selection import Selection
from shared.contracts.dead_letter import DeadLetter
from shared.pubsub.dead_letters import DeadLetterPublisher
from shared.pubsub.names import short_name
from shared.pubsub.topology import PubsubTopology
from shared.runtime.stop import Stop
from tests.builders import a_change
from tests.unit.dead_letter.dead_letters import a_dead_letter as a_dead_letter_of

ROOT = Path(__file__).resolve().parents[2]
PROJECT = "millrace-test"
ACK_DEADLINE = timedelta(seconds=10)
"""The shortest that Pub/Sub takes: what a killed collector had leased comes again after it."""
STARTS = timedelta(seconds=60)
TIMEOUT = timedelta(seconds=120)


@dataclass
class DeadLetterService:
    """A dead-letter topic, its store, and collectors between them."""

    channel: grpc.Channel
    pubsub: str
    topology: PubsubTopology
    processes: Processes
    file: Path
    port: int = field(default_factory=free_port)
    started: int = 0

    @property
    def database(self) -> str:
        return f"sqlite:///{self.file}"

    def launch(self, *arguments: str, module: str = "services.dead_letter", **variables: str) -> Process:
        """Start a collector."""
        self.started += 1
        environment = {
            "PYTHONPATH": str(ROOT),
            "GOOGLE_CLOUD_PROJECT": PROJECT,
            "PUBSUB_EMULATOR_HOST": self.pubsub,
            "DEAD_LETTER_SUBSCRIPTION": short_name(self.topology.dead_letter_subscription),
            "TOPIC": short_name(self.topology.topic),
            "DATABASE": self.database,
            "PORT": str(self.port),
        }
        command = [sys.executable, "-m", module, *arguments]
        return self.processes.start(f"dead_letter_{self.started}", command, environment | variables)

    def start(self, **variables: str) -> Process:
        """Start a collector and wait until it is ready."""
        process = self.launch(**variables)
        self.processes.wait_until(lambda: self.get("/readyz"), "the collector", STARTS)
        return process

    def get(self, path: str) -> str | None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
                return str(answer.read().decode())
        except OSError:
            return None

    def publish(self, dead_letters: Sequence[DeadLetter]) -> None:
        """Publish dead letters as every service does."""
        DeadLetterPublisher(self.channel, self.topology.dead_letter_topic, Stop()).keep(dead_letters)

    def stored(self) -> Sequence[DeadLetterLine]:
        """Return every dead letter of the store."""
        database = open_database(self.database)
        with closing(database):
            store, after = SqlDeadLetterStore(database), None
            found: list[DeadLetterLine] = []
            while True:
                page = store.find(Selection(), limit=1_000, after=after)
                found += page.dead_letters
                after = page.after
                if after is None:
                    return found

    def count(self) -> int:
        """Return how many dead letters there are; none where there is no store yet."""
        if not self.file.exists():
            return 0
        with closing(sqlite3.connect(f"file:{self.file}?mode=ro", uri=True)) as connection:
            try:
                ((found,),) = connection.execute("SELECT count(*) FROM letters").fetchall()
            except sqlite3.OperationalError:  # its tables are being made
                return 0
        return int(found)

    def attempts(self) -> Mapping[str, int]:
        """Return how often each dead letter has failed."""
        return {str(line.id): line.attempts for line in self.stored()}

    def wait_until_stored(self, wanted: Mapping[str, int]) -> None:
        def stored() -> bool:
            return self.file.exists() and self.attempts() == wanted

        self.processes.wait_until(lambda: stored() or None, f"{len(wanted)} dead letters in the store", TIMEOUT)


def a_dead_letter(number: int, size: int = 200) -> DeadLetter:
    return a_dead_letter_of(a_change(number), data=b"%d " % number + b"x" * size)


def counted(dead_letters: Sequence[DeadLetter]) -> Mapping[str, int]:
    return Counter(one.identity for one in dead_letters)
