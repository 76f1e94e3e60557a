"""The collector as a process, between the Pub/Sub emulator and its SQLite file: kills, floods, refusals to start."""

import json
import random
import sqlite3
import sys
import threading
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest

from deploy.local.emulators import free_port
from deploy.local.processes import Process, Processes
from services.dead_letter.adapters.database import open_database
from services.dead_letter.adapters.store import SqlLetterStore
from services.dead_letter.core.letters import LetterLine
from services.dead_letter.core.selection import Selection
from shared.contracts.dead_letter import DeadLetter
from shared.contracts.reasons import Reason
from shared.contracts.timestamps import Nanoseconds
from shared.pubsub.channels import open_channel
from shared.pubsub.letters import DeadLetterPublisher
from shared.pubsub.names import short_name
from shared.pubsub.stubs import (
    GetSubscriptionRequest,
    ModifyAckDeadlineRequest,
    PublishRequest,
    PubsubMessage,
    get_subscription_stub,
    modify_ack_deadline_stub,
    publish_stub,
)
from shared.pubsub.topology import Topology
from shared.runtime.service import MISCONFIGURED
from shared.runtime.stop import Stop
from tests.integration.generous_pubsub import generous_pubsub
from tests.integration.pubsub_topics import a_topology, pull
from tests.integration.stalling_proxy import stalling_proxy

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]
PROJECT = "millrace-test"
ACK_DEADLINE = timedelta(seconds=10)
"""The shortest that Pub/Sub takes: what a killed collector held comes again after it."""
STARTS = timedelta(seconds=60)
PATIENCE = timedelta(seconds=120)
FLOOD = 3_000


@dataclass
class Letters:
    """A dead-letter topic, its store, and collectors between them."""

    channel: grpc.Channel
    pubsub: str
    topology: Topology
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

    def publish(self, letters: Sequence[DeadLetter]) -> None:
        """Publish letters as every service does."""
        DeadLetterPublisher(self.channel, self.topology.dead_letter_topic, Stop()).keep(letters)

    def stored(self) -> Sequence[LetterLine]:
        """Return every letter of the store."""
        database = open_database(self.database)
        with closing(database):
            store, after = SqlLetterStore(database), None
            found: list[LetterLine] = []
            while True:
                page = store.find(Selection(), limit=1_000, after=after)
                found += page.letters
                after = page.after
                if after is None:
                    return found

    def count(self) -> int:
        """Return how many letters there are; none where there is no store yet."""
        if not self.file.exists():
            return 0
        with closing(sqlite3.connect(f"file:{self.file}?mode=ro", uri=True)) as connection:
            try:
                ((letters,),) = connection.execute("SELECT count(*) FROM letters").fetchall()
            except sqlite3.OperationalError:  # its tables are being made
                return 0
        return int(letters)

    def attempts(self) -> Mapping[str, int]:
        """Return how often each letter has failed."""
        return {str(line.id): line.attempts for line in self.stored()}

    def wait_until_stored(self, wanted: Mapping[str, int]) -> None:
        def stored() -> bool:
            return self.file.exists() and self.attempts() == wanted

        self.processes.wait_until(lambda: stored() or None, f"{len(wanted)} letters in the store", PATIENCE)


@pytest.fixture
def letters(pubsub_emulator: str, new_processes: Processes, tmp_path: Path) -> Iterator[Letters]:
    with open_channel(pubsub_emulator) as channel:
        topology = a_topology(channel, ACK_DEADLINE)
        yield Letters(channel, pubsub_emulator, topology, new_processes, tmp_path / "letters.sqlite3")


def a_letter(number: int, size: int = 200) -> DeadLetter:
    return DeadLetter(
        data=b"%d " % number + b"x" * size,
        attributes={"table": "planes"},
        ordering_key="planes/3",
        reason=Reason.VALUE_DOES_NOT_FIT,
        detail="column seats of type INT64: not a whole number",
        failed_at=Nanoseconds(1_760_000_000_000_000_000 + number),
        failed_in="cdc_consumer",
        table="planes",
        key=f"[{number}]",
        sequence="0000000000000001/0000000000000000/0000000000000000/0000000000000000",
    )


def counted(letters: Sequence[DeadLetter]) -> Mapping[str, int]:
    return Counter(letter.identity for letter in letters)


def test_letters_are_in_the_store_and_a_stop_ends_it_with_0(letters: Letters) -> None:
    sent = [a_letter(number) for number in (1, 2, 3, 2)]
    collector = letters.start()
    letters.publish(sent)

    letters.wait_until_stored(counted(sent))

    kept = {"new": 3, "again": 1, "seen": 0}  # counted once they are in the store
    letters.processes.wait_until(
        lambda: json.loads(letters.get("/status") or "{}").get("kept") == kept or None, "the count of them", PATIENCE
    )
    assert 'millrace_dead_letter_received_total{reason="value_does_not_fit"} 4.0' in (letters.get("/metrics") or "")
    assert letters.get("/healthz") == "alive\n"
    collector.ask_to_end()
    assert collector.wait(timedelta(seconds=10)) == 0
    assert pull(letters.channel, letters.topology.dead_letter_subscription) == []


def test_a_flood_is_kept_whole_though_the_collector_is_killed_again_and_again_in_its_midst(letters: Letters) -> None:
    chance = random.Random(5)
    sent = [a_letter(number) for number in range(FLOOD)]
    sent += [a_letter(number) for number in range(0, FLOOD, 10)]  # each tenth fails once more
    publishing = threading.Thread(target=letters.publish, args=(sent,))
    publishing.start()
    kills: list[int] = []
    for _ in range(5):
        collector = letters.launch()
        there = len(kills) and kills[-1]
        more = there + chance.randint(1, 500)
        letters.processes.wait_until(lambda more=more: letters.count() >= more or None, "more letters", PATIENCE)  # type: ignore[misc]
        collector.kill()
        kills.append(letters.count())
    publishing.join()
    assert kills[-1] < FLOOD, "killed in its midst"
    collector = letters.start()

    letters.wait_until_stored(counted(sent))

    assert collector.exit_code is None
    letters.processes.wait_until(
        lambda: pull(letters.channel, letters.topology.dead_letter_subscription) == [] or None, "acks", PATIENCE
    )


def test_what_pubsub_forwards_by_its_own_policy_is_collected_as_not_applied_in_time(letters: Letters) -> None:
    subscription = letters.topology.subscription
    found = get_subscription_stub(letters.channel)(GetSubscriptionRequest(subscription=subscription), timeout=10)
    assert found.dead_letter_policy.dead_letter_topic == letters.topology.dead_letter_topic
    deliveries = found.dead_letter_policy.max_delivery_attempts
    message = PubsubMessage(data=b"never acknowledged", attributes={"table": "planes"}, ordering_key="planes/3")
    publish_stub(letters.channel)(PublishRequest(topic=letters.topology.topic, messages=[message]), timeout=10)
    letters.start()

    def given_back() -> bool:
        ack_ids = [one.ack_id for one in pull(letters.channel, subscription)]
        if ack_ids:
            request = ModifyAckDeadlineRequest(subscription=subscription, ack_ids=ack_ids, ack_deadline_seconds=0)
            modify_ack_deadline_stub(letters.channel)(request, timeout=10)
        return letters.file.exists() and bool(letters.stored())

    letters.processes.wait_until(lambda: given_back() or None, "Pub/Sub to forward it", PATIENCE)

    (line,) = letters.stored()
    assert line.reason is Reason.NOT_APPLIED_IN_TIME
    assert f"delivered {deliveries} times by subscription " in line.detail
    assert short_name(subscription) in line.detail
    assert line.ordering_key == "planes/3"


def test_junk_that_somebody_publishes_is_collected_too(letters: Letters) -> None:
    letters.start()
    message = PubsubMessage(data=b"\x00\xff", attributes={"who": "kn\x00ws"})
    publish_stub(letters.channel)(
        PublishRequest(topic=letters.topology.dead_letter_topic, messages=[message]), timeout=10
    )

    letters.processes.wait_until(lambda: (letters.file.exists() and letters.stored()) or None, "the letter", PATIENCE)

    (line,) = letters.stored()
    assert (line.reason, line.size) == (Reason.UNEXPLAINED, 2)


def test_an_answer_larger_than_the_window_is_refused_and_its_letters_come_in_smaller_ones(letters: Letters) -> None:
    sent = [a_letter(number, size=4_000_000) for number in range(8)]
    letters.publish(sent)

    with generous_pubsub(letters.pubsub) as pubsub:
        collector = letters.start(PUBSUB_EMULATOR_HOST=pubsub, PULL_BYTES="11000000")

        letters.wait_until_stored(counted(sent))
        assert "RESOURCE_EXHAUSTED" in collector.output(), "all of them came in one answer"
        assert collector.exit_code is None
        collector.end()


def test_a_second_collector_on_one_file_is_refused(letters: Letters) -> None:
    letters.start()

    second = letters.launch(PORT="0")

    assert second.wait(STARTS) == MISCONFIGURED
    assert "another collector" in second.log.read_text()


def test_a_store_that_is_locked_is_waited_for_and_the_service_is_not_ready(letters: Letters) -> None:
    collector = letters.start()
    with closing(sqlite3.connect(letters.file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        letters.publish([a_letter(1)])
        letters.processes.wait_until(
            lambda: letters.get("/readyz") is None or None, "the collector to say that it is not ready", PATIENCE
        )
        assert letters.get("/healthz") == "alive\n"
        other.execute("ROLLBACK")

    letters.wait_until_stored(counted([a_letter(1)]))
    assert collector.exit_code is None
    letters.processes.wait_until(lambda: letters.get("/readyz"), "the collector to be ready", PATIENCE)


def test_a_pubsub_that_answers_nothing_shows_and_it_stays_stoppable_and_goes_on_when_that_is_over(
    letters: Letters,
) -> None:
    with stalling_proxy(letters.pubsub) as pubsub:
        collector = letters.start(PUBSUB_EMULATOR_HOST=pubsub.address)
        letters.publish([a_letter(1)])
        letters.wait_until_stored(counted([a_letter(1)]))
        pubsub.hang()
        letters.processes.wait_until(
            lambda: letters.get("/readyz") is None or None, "the collector to say that it is not ready", PATIENCE
        )
        assert letters.get("/healthz") == "alive\n", "a restart would mend nothing"
        letters.publish([a_letter(2)])

        pubsub.heal()
        letters.processes.wait_until(lambda: letters.get("/readyz"), "the collector to be ready", PATIENCE)
        letters.wait_until_stored(counted([a_letter(1), a_letter(2)]))

        pubsub.hang()
        letters.processes.wait_until(
            lambda: letters.get("/readyz") is None or None, "the collector to say that it is not ready", PATIENCE
        )
        collector.ask_to_end()
        assert collector.wait(timedelta(seconds=10)) == 0, collector.obituary()


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({"DEAD_LETTER_SUBSCRIPTION": ""}, "DEAD_LETTER_SUBSCRIPTION is not set"),
        ({"DEAD_LETTER_SUBSCRIPTION": "nobody-made-it"}, "cdc_consumer setup"),
        ({"DATABASE": "oracle://me:secret@host/letters"}, "DATABASE"),
    ],
)
def test_a_bad_start_names_the_fix_and_no_secret(letters: Letters, variables: Mapping[str, Any], told: str) -> None:
    process = letters.launch(**variables)

    assert process.wait(STARTS) == MISCONFIGURED
    said = process.log.read_text()
    assert told in said
    assert "secret" not in said


def test_the_consumers_own_subscription_is_no_subscription_of_letters(letters: Letters) -> None:
    process = letters.launch(DEAD_LETTER_SUBSCRIPTION=short_name(letters.topology.subscription))

    assert process.wait(STARTS) == MISCONFIGURED
    assert "it is of the topic of change batches" in process.log.read_text()


def test_a_collector_of_another_pipeline_is_refused_and_takes_no_letter(letters: Letters) -> None:
    letters.start().end()
    theirs = a_topology(letters.channel, ACK_DEADLINE)
    DeadLetterPublisher(letters.channel, theirs.dead_letter_topic, Stop()).keep([a_letter(1)])

    other = letters.launch(
        DEAD_LETTER_SUBSCRIPTION=short_name(theirs.dead_letter_subscription), TOPIC=short_name(theirs.topic)
    )

    assert other.wait(STARTS) == MISCONFIGURED
    said = other.log.read_text()
    for name in (letters.topology.dead_letter_subscription, theirs.dead_letter_subscription, theirs.topic):
        assert name in said
    assert "give each pipeline a DATABASE of its own" in said
    assert letters.stored() == []
    assert len(pull(letters.channel, theirs.dead_letter_subscription)) == 1


def test_an_unknown_word_is_answered_with_the_usage(letters: Letters) -> None:
    process = letters.launch("walk")

    assert process.wait(STARTS) == MISCONFIGURED
