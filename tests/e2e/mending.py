"""A dead-letter service, and a person at its commands."""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from datetime import timedelta
from subprocess import CompletedProcess
from typing import Any, Final

import msgspec

from deploy.local.platform.emulators import ROOT
from deploy.local.platform.processes import Processes
from deploy.local.platform.services import Flow, Pipeline, Service, dead_letters_in, start_dead_letter, wait_until_ready
from shared.contracts.change_batch import Change, Header
from shared.contracts.timestamps import Nanoseconds, format_timestamp
from tests.builders import a_change, a_message
from tests.integration.stand_in import StandIn
from tests.worlds.commands import run_command
from tests.worlds.consumer import World, counter

TIMEOUT: Final = timedelta(minutes=5)


class Mending:
    """What a test does to a pipeline that has a consumer and a dead-letter service, and what it sees of it."""

    def __init__(self, world: World, processes: Processes) -> None:
        self.world = world
        self.processes = processes
        self.environment = {
            **processes.environment,
            **world.pipeline.dead_letter_environment(dead_letters_in(processes.directory)),
            "PYTHONPATH": str(ROOT),
            "MILLRACE_USER": "ada",
        }

    def start(self, consumer: Service) -> None:
        """Start the dead-letter service, and wait until it and the consumer are ready."""
        dead_letters = start_dead_letter(self.processes, self.world.pipeline)
        wait_until_ready(self.processes, consumer, dead_letters, timeout=TIMEOUT)

    def answer(self, *words: str, code: int = 0) -> Any:
        """Run a command; return its document."""
        done = self.asked(*words)
        assert done.returncode == code, (words, done.stdout, done.stderr)
        return json.loads(done.stdout)

    def asked(self, *words: str) -> "CompletedProcess[str]":
        """Run a command; return its exit code, and what it says."""
        return run_command("services.dead_letter", [*words, "--json"], self.environment)

    def dead_letters(self, count: int, *filters: str) -> Sequence[Mapping[str, Any]]:
        """Wait until so many dead letters are as they are asked for; return them."""
        found: list[Mapping[str, Any]] = []

        def there() -> bool:
            done = self.asked("list", *filters)
            if done.returncode not in (0, 3):
                return False  # the collector has not made its store yet
            found[:] = json.loads(done.stdout)["dead_letters"]
            return len(found) == count

        try:
            self.processes.wait_until(there, f"{count} dead letters {filters}", TIMEOUT)
        except Exception as error:
            reasons = "\n".join(f"{one['reason']}: {one['table']} {one['key']}: {one['detail']}" for one in found)
            raise AssertionError(f"{error}\nthere are\n{reasons}") from error
        return found

    def rows(self, table: str) -> Mapping[int, tuple[Any, Any]] | None:
        """Return what BigQuery holds of a table: name and seats by id; None where there is no such table."""
        rows = self.world.dataset.rows(table)
        return None if rows is None else {row["id"]: (row["name"], row["seats"]) for row in rows}

    def wait_for(self, table: str, expected: Mapping[int, tuple[Any, Any]]) -> None:
        """Wait until a table is as it should be."""
        try:
            self.processes.wait_until(lambda: self.rows(table) == expected, f"{table} to be {expected}", TIMEOUT)
        except Exception as error:
            raise AssertionError(f"{error}\n{table} is {self.rows(table)}") from error

    def wait_until_handled(self, consumer: Service, messages: int) -> None:
        """Wait until a consumer has acknowledged so many messages since it was started."""
        self.processes.wait_until(
            lambda: counter(consumer, "leases_acked") >= messages, f"{messages} messages to be acked", TIMEOUT
        )


@contextmanager
def a_mending(processes: Processes, flow: Flow, stand_in: StandIn) -> Iterator[Mending]:
    """Give a pipeline without a source; nothing is started yet."""
    nothing = dict.fromkeys(("spanner", "database", "change_stream", "instance"), "")
    world = World(Pipeline(**asdict(flow), **nothing), processes, stand_in)
    with closing(world.channel):
        yield Mending(world, processes)


def change(key: int, sequence: int, **row: object) -> Change:
    """Return an upsert that was committed just now."""
    return a_change(key, sequence, "UPSERT", committed=format_timestamp(Nanoseconds(time.time_ns())), **row)


def committed_at(one: Change, instant: int) -> Change:
    """Return a change as of another time, in nanoseconds."""
    return msgspec.structs.replace(one, commit_timestamp=format_timestamp(Nanoseconds(instant)))


def publish(world: World, header: Header, *changes: Change) -> None:
    """Publish one change batch, as a reader does."""
    world.publish(a_message(*changes, header=header))
