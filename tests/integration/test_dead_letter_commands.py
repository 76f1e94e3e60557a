"""The replay command as a process, between a SQLite file, the Pub/Sub emulator and the BigQuery stand-in."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from services.cdc_consumer.adapters.tables import BigQueryTables
from services.cdc_consumer.core.destinations import destinations
from services.dead_letter.adapters.database import open_database
from services.dead_letter.adapters.store import SqlLetterStore
from services.dead_letter.core.letters import Arrival, LetterId, State, StoredLetter
from services.dead_letter.core.selection import Selection
from shared.contracts.change_sequence import four_sections
from shared.contracts.dead_letter import DeadLetter
from shared.contracts.timestamps import Nanoseconds
from shared.pubsub.channels import open_channel
from shared.pubsub.names import short_name
from shared.pubsub.stubs import AcknowledgeRequest, PullRequest, acknowledge_stub, pull_stub
from shared.pubsub.topology import Topology
from tests.builders import a_change, a_header
from tests.integration.pubsub_topics import a_topology
from tests.integration.stand_in import PROJECT, StandIn
from tests.unit.dead_letter.letters import a_letter, at

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 120.0  # seconds


@dataclass
class Place:
    """A store with letters, and where they are replayed to."""

    file: Path
    pubsub: str
    channel: grpc.Channel
    topology: Topology
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
        process = self.start(*arguments)
        out, err = process.communicate(timeout=PATIENCE)
        return process.returncode, out, err

    def replay(self, *options: str, code: int = 0) -> Any:
        found, out, err = self.run("replay", "--all", "--execute", "--json", *options)
        assert found == code, err
        return json.loads(out)

    def keep(self, letters: Sequence[DeadLetter], message: str = "first") -> None:
        """Let letters arrive, as the collector keeps them."""
        with closing(open_database(self.environment["DATABASE"])) as database:
            arrivals = [Arrival(letter=letter, message_id=f"{message} {n}") for n, letter in enumerate(letters)]
            SqlLetterStore(database).keep(arrivals, Nanoseconds(time.time_ns()))

    def letters(self, *states: State) -> Sequence[StoredLetter]:
        with closing(open_database(self.environment["DATABASE"])) as database:
            return list(SqlLetterStore(database).in_replay_order(Selection(states=frozenset(states))))

    def replayed(self) -> int:
        return len(self.letters(State.REPLAYED))

    def wait_until(self, many: int) -> None:
        ends = time.monotonic() + PATIENCE
        while self.replayed() < many:
            assert time.monotonic() < ends, "nothing was replayed"

    def published(self) -> list[Any]:
        """Take every message from the topic's subscription."""
        pull, ack = pull_stub(self.channel), acknowledge_stub(self.channel)
        found: list[Any] = []
        name = self.topology.subscription
        while received := pull(
            PullRequest(subscription=name, max_messages=1_000, return_immediately=True), timeout=10
        ).received_messages:
            found += [one.message for one in received]
            ack(AcknowledgeRequest(subscription=name, ack_ids=[one.ack_id for one in received]), timeout=10)
        return found


@pytest.fixture
def place(tmp_path: Path, pubsub_emulator: str) -> Iterator[Place]:
    with open_channel(pubsub_emulator) as channel:
        yield Place(tmp_path / "letters.sqlite3", pubsub_emulator, channel, a_topology(channel))


def fresh(count: int, keys: int = 8) -> list[DeadLetter]:
    """Return letters of changes that were committed just now."""
    now = at(time.time_ns())
    letters = []
    for number in range(count):
        letter = a_letter(a_change(number % keys + 1, sequence=number + 1), ordering_key=f"planes/{number % keys}")
        data = letter.data.replace(letter.commit_timestamp.encode(), now.encode())
        letters.append(replace(letter, data=data, commit_timestamp=now, identity=""))
    return letters


def test_a_replay_arrives_as_the_letters_came_and_a_second_one_changes_nothing(place: Place) -> None:
    letters = fresh(20)
    place.keep(letters)
    code, out, _err = place.run("replay", "--json")
    assert (code, json.loads(out)["verdicts"]["send"]) == (0, 20)
    assert place.published() == []

    assert place.replay()["sent"] == 20
    messages = place.published()
    by_id = {letter.identity: letter for letter in letters}
    assert sorted(message.attributes["replay_of"] for message in messages) == sorted(by_id)
    for message in messages:
        letter = by_id[message.attributes["replay_of"]]
        assert (message.data, message.ordering_key) == (letter.data, letter.ordering_key)
        assert dict(message.attributes) == {**letter.attributes, "replay_of": letter.identity}

    code, _out, err = place.run("replay", "--all", "--execute")
    assert (code, "no letters" in err) == (3, True)
    assert place.published() == []


def test_what_failed_again_comes_back_as_the_same_letter_with_one_more_attempt(place: Place) -> None:
    letters = fresh(1)
    place.keep(letters)
    place.replay()
    place.keep(letters, "again")
    (letter,) = place.letters()
    assert (letter.id, letter.state, letter.attempts, letter.replays) == (letters[0].identity, State.OPEN, 2, 1)


@pytest.mark.parametrize("many", [1, 40, 120])
def test_killed_at_any_moment_and_run_again_every_letter_is_sent(place: Place, many: int) -> None:
    letters = fresh(200)
    place.keep(letters)
    process = place.start("replay", "--all", "--execute", "--rate", "100")
    place.wait_until(many)
    process.kill()
    process.communicate(timeout=PATIENCE)

    document = place.replay()  # what the dead one held is taken at once
    assert document["verdicts"]["held"] == 0
    times = Counter(message.attributes["replay_of"] for message in place.published())
    assert times.keys() == {letter.identity for letter in letters}
    assert max(times.values()) <= 2
    assert place.replayed() == 200


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_asked_to_stop_it_finishes_what_is_under_way_and_the_next_goes_on_at_once(
    place: Place, sign: signal.Signals
) -> None:
    place.keep(fresh(400))
    process = place.start("replay", "--all", "--execute", "--rate", "100", "--json")
    place.wait_until(1)
    process.send_signal(sign)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1, err
    document = json.loads(out)
    assert document["stopped"]
    assert 0 < document["sent"] == place.replayed() < 400
    assert "run it again" in err

    assert place.replay("--rate", "0")["sent"] == 400 - document["sent"]
    times = Counter(message.attributes["replay_of"] for message in place.published())
    assert (len(times), set(times.values())) == (400, {1})


def test_two_replays_at_once_send_no_letter_twice(place: Place) -> None:
    place.keep(fresh(1_500))
    processes = [place.start("replay", "--all", "--execute", "--rate", "0", "--json") for _ in range(2)]
    sent = 0
    for process in processes:
        out, err = process.communicate(timeout=PATIENCE)
        assert process.returncode in (0, 1, 3), err
        sent += json.loads(out)["sent"]
    assert sent == 1_500 == place.replayed()
    assert set(Counter(message.attributes["replay_of"] for message in place.published()).values()) == {1}


def test_ten_thousand_letters_are_replayed_and_their_rate_is_shown(place: Place) -> None:
    place.keep(fresh(10_000, keys=64))
    code, out, err = place.run("replay", "--all", "--execute", "--rate", "0")
    assert code == 0, err
    assert "10000 sent in" in out
    assert "a second" in out
    assert place.replayed() == 10_000


def test_an_old_change_is_superseded_by_the_newer_row_in_the_mirror(
    place: Place, bigquery_stand_in: tuple[str, str]
) -> None:
    stand_in = StandIn(bigquery_stand_in)
    wanted = destinations(a_header())
    assert wanted is not None
    assert wanted.mirror is not None
    BigQueryTables(stand_in.client, PROJECT, stand_in.dataset).ensure(wanted.mirror)
    stand_in.run(f"INSERT INTO planes (id, _millrace_sequence) VALUES (1, '{four_sections(2)}')")
    place.variables = {"BIGQUERY_DATASET": stand_in.dataset, "BIGQUERY_EMULATOR_HOST": bigquery_stand_in[0]}
    old, new = fresh(1)[0], fresh(9)[8]
    place.keep([old, new])

    document = place.replay()
    assert (document["sent"], document["verdicts"]["superseded"], document["mirrors_asked"]) == (1, 1, True)
    assert [message.attributes["replay_of"] for message in place.published()] == [new.identity]
    assert {letter.id: letter.state for letter in place.letters()} == {
        LetterId(old.identity): State.SUPERSEDED,
        LetterId(new.identity): State.REPLAYED,
    }


def test_a_topic_without_a_subscription_takes_no_replay(place: Place) -> None:
    place.keep(fresh(1))
    place.variables = {"TOPIC": "nobody-listens"}
    code, _out, err = place.run("replay", "--all", "--execute")
    assert code == 2
    assert "nobody-listens" in err
    place.variables = {"TOPIC": ""}
    code, _out, err = place.run("replay", "--all", "--execute")
    assert (code, "set TOPIC" in err) == (2, True)
    assert [letter.state for letter in place.letters()] == [State.OPEN]


def test_without_a_store_the_error_names_the_setting(place: Place) -> None:
    code, _out, err = place.run("list")
    assert (code, "DATABASE" in err) == (2, True)
    assert not place.file.exists()
