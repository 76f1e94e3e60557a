"""Poison of the real consumer is collected, looked at, mended, replayed and applied; twice, and nothing changes."""

import json
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from deploy.local.emulators import ROOT, free_port
from deploy.local.processes import Processes
from deploy.local.services import Pipeline, wait_until_ready
from shared.contracts.change_batch import Change, Header
from shared.contracts.timestamps import Nanoseconds, format_timestamp
from shared.pubsub.names import short_name
from tests.builders import a_change, a_header, a_message
from tests.conftest import PROJECT
from tests.integration.stand_in import StandIn
from tests.integration.test_cdc_consumer import World

pytestmark = pytest.mark.timeout(1_800)

PATIENCE = timedelta(minutes=5)


class Mending:
    """A consumer, a collector, and a person at the commands."""

    def __init__(self, world: World, processes: Processes, directory: Path) -> None:
        self.world = world
        self.processes = processes
        pipeline = world.pipeline
        self.environment = {
            **processes.environment,
            "PYTHONPATH": str(ROOT),
            "GOOGLE_CLOUD_PROJECT": PROJECT,
            "PUBSUB_EMULATOR_HOST": pipeline.pubsub,
            "DEAD_LETTER_SUBSCRIPTION": short_name(world.topology.dead_letter_subscription),
            "TOPIC": short_name(world.topology.topic),
            "DATABASE": f"sqlite:///{directory}/letters.sqlite3",
            "BIGQUERY_DATASET": pipeline.dataset,
            "BIGQUERY_EMULATOR_HOST": pipeline.bigquery_rest,
            "MILLRACE_USER": "ada",
            "PORT": str(free_port()),
        }
        consumer = world.start()
        command = [sys.executable, "-m", "services.dead_letter"]
        processes.start("dead_letter", command, self.environment)
        wait_until_ready(processes, consumer, patience=PATIENCE)

    def say(self, *words: str, code: int = 0) -> Any:
        """Run a command; return its document."""
        done = self.asked(*words)
        assert done.returncode == code, done.stderr
        return json.loads(done.stdout)

    def asked(self, *words: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "services.dead_letter", *words, "--json"]
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False, timeout=120)

    def letters(self, count: int, *filters: str) -> Sequence[Mapping[str, Any]]:
        """Wait until so many letters are as they are asked for; return them."""
        found: list[Mapping[str, Any]] = []

        def there() -> bool:
            done = self.asked("list", *filters)
            if done.returncode not in (0, 3):
                return False  # the collector has not made its store yet
            found[:] = json.loads(done.stdout)["letters"]
            return len(found) == count

        self.processes.wait_until(there, f"{count} letters {filters}", PATIENCE)
        return found

    def rows(self, table: str) -> Mapping[int, tuple[Any, Any]] | None:
        rows = self.world.dataset.rows(table)
        return None if rows is None else {row["id"]: (row["name"], row["seats"]) for row in rows}

    def wait_for(self, table: str, expected: Mapping[int, tuple[Any, Any]]) -> None:
        self.processes.wait_until(lambda: self.rows(table) == expected, f"{table} to be {expected}", PATIENCE)


@pytest.fixture
def mending(
    processes: Processes, pubsub_emulator: str, bigquery_stand_in: tuple[str, str], tmp_path: Path
) -> Iterator[Mending]:
    rest, grpc = bigquery_stand_in
    pipeline = Pipeline(
        spanner="",
        pubsub=pubsub_emulator,
        bigquery_rest=rest,
        bigquery_grpc=grpc,
        database="",
        change_stream="",
        project=PROJECT,
        instance="",
        name=f"letters-{uuid.uuid4().hex[:8]}",
    )
    world = World(pipeline, processes, StandIn(bigquery_stand_in))
    yield Mending(world, processes, tmp_path)
    world.channel.close()


def change(key: int, sequence: int, name: str, seats: str) -> Change:
    """Return a change that was committed just now."""
    now = format_timestamp(Nanoseconds(time.time_ns()))
    return msgspec.structs.replace(a_change(key, sequence, name=name, seats=seats), commit_timestamp=now)


def publish(world: World, header: Header, *changes: Change) -> None:
    world.publish(a_message(*changes, header=header))


def test_letters_are_mended_by_an_edit_and_by_the_schema_and_replayed_until_the_tables_are_right(
    mending: Mending,
) -> None:
    world, planes, pilots = mending.world, a_header("planes"), a_header("pilots")
    table = f"{PROJECT}.{world.pipeline.dataset}.pilots"
    world.stand_in.run(
        f"CREATE TABLE `{table}` (id INT64, name INT64, seats INT64, _millrace_sequence STRING, "
        "_millrace_commit_timestamp TIMESTAMP, PRIMARY KEY (id) NOT ENFORCED)"
    )
    publish(world, planes, change(1, 1, name="a", seats="2"), change(2, 2, name="b", seats="many"))
    publish(world, pilots, *(change(key, key, name=f"p{key}", seats="1") for key in range(1, 6)))
    mending.wait_for("planes", {1: ("a", 2)})

    # One bad value: looked at, edited, replayed.
    (letter,) = mending.letters(1, "--table", "planes")
    assert (letter["reason"], letter["key"]) == ("value_does_not_fit", "[2]")
    assert "seats" in letter["detail"]
    assert "many" not in json.dumps(mending.say("show", letter["id"]))
    edit = mending.say("edit", letter["id"], "--set", 'seats="12"', "--why", "a word for a number")
    assert mending.say("replay", "--id", edit["id"])["verdicts"]["send"] == 1
    assert mending.say("replay", "--id", edit["id"], "--execute")["sent"] == 1
    mending.wait_for("planes", {1: ("a", 2), 2: ("b", 12)})

    # One cause for many: the group is replayed once the table is right.
    mending.letters(5, "--table", "pilots")
    (group,) = mending.say("groups", "--table", "pilots")["groups"]
    assert (group["reason"], group["letters"]) == ("schema_conflict", 5)
    world.stand_in.run(f"ALTER TABLE `{table}` DROP COLUMN name")
    assert mending.say("replay", "--group", group["id"], "--execute")["sent"] == 5
    right = {key: (f"p{key}", 1) for key in range(1, 6)}
    mending.wait_for("pilots", right)

    # Everything once more, and what is newer stays.
    publish(world, planes, change(2, 9, name="newest", seats="20"))
    mending.wait_for("planes", {1: ("a", 2), 2: ("newest", 20)})
    assert mending.say("restore", "--all", "--state", "replayed", "--state", "superseded")["changed"] == 7
    document = mending.say("replay", "--all", "--execute")
    assert (document["sent"], document["verdicts"]["superseded"]) == (5, 2)
    mending.environment["BIGQUERY_DATASET"] = ""  # now it is not known, and loses by its sequence
    mending.say("restore", "--id", edit["id"])
    assert mending.say("replay", "--id", edit["id"], "--execute")["sent"] == 1
    publish(world, planes, change(3, 1, name="last", seats="1"))
    mending.wait_for("planes", {1: ("a", 2), 2: ("newest", 20), 3: ("last", 1)})
    assert mending.rows("pilots") == right
    assert mending.asked("list").returncode == 3
    actions = [entry["action"] for entry in mending.say("show", edit["id"])["trail"]]
    assert actions == ["edited", "replayed", "restored", "superseded", "restored", "replayed"]
