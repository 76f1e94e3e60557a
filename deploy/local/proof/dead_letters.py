"""Poison in a run: changes that cannot be applied, collected as dead letters, their causes fixed, and replayed.

The runways of New York's airports are a table that is made in Spanner while everything runs. In BigQuery an operator
has made a table of that name before, by hand and with another primary key, so BigQuery cannot take any of its rows.
One row has an array with a NULL in it, which no BigQuery array holds. And a foreign publisher publishes what is no
change batch. What is done about each is what `docs/reference/dead-letters.md` says, by the real command.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, Protocol

from deploy.local.platform.processes import ProcessDiedError, wait_until
from deploy.local.platform.source import SpannerDatabase, Value, Write
from deploy.local.platform.stack import PrintLine, Stack
from shared.contracts.reasons import Reason
from shared.pubsub.channels import open_channel
from shared.pubsub.stubs import PublishRequest, PubsubMessage, publish_stub
from shared.runtime.stop import Stop

TABLE: Final = "runways"
_KEY: Final = ("airport", "name")
_IN_SPANNER: Final = f"""
CREATE TABLE {TABLE} (
  airport STRING(3) NOT NULL,
  name STRING(7) NOT NULL,
  length_feet INT64,
  headings ARRAY<INT64>,
) PRIMARY KEY (airport, name)"""
_BY_HAND: Final = f"""
CREATE TABLE {TABLE} (
  airport STRING NOT NULL,
  name STRING NOT NULL,
  length_feet INT64,
  headings ARRAY<INT64>,
  PRIMARY KEY (name) NOT ENFORCED  -- not (airport, name)
)"""
_LENGTHS: Final = {
    "EWR": {"04L/22R": 11_000, "04R/22L": 10_000, "11/29": 6_725},
    "JFK": {"04L/22R": 12_079, "04R/22L": 8_400, "13L/31R": 10_000, "13R/31L": 14_572},
    "LGA": {"04/22": 7_001, "13/31": 7_003},
}
_WITH_NULL: Final = ("EWR", "11/29")
_REMEASURED: Final = ("JFK", "13R/31L")
_LEFT: Final = 1
_NONE_SUCH: Final = 3
"""Exit codes of the command: something stays open, no dead letter matches."""
_REPLAY_AGAIN: Final = 10.0
"""Seconds."""
_JUNK: Final = b"a flight plan, and no change batch"


@dataclass(slots=True)
class DeadLettersFound:
    """What became of the poison of a run."""

    collected: Mapping[str, int] = field(default_factory=dict)
    """Dead letters by reason."""
    by_state: Mapping[str, int] = field(default_factory=dict)
    """What has become of them."""

    @property
    def settled(self) -> bool:
        """Return whether every dead letter was collected, and none is left open."""
        states = {state: number for state, number in self.by_state.items() if number}
        return "open" not in states and 0 < sum(self.collected.values()) <= sum(states.values())

    def lines(self) -> Sequence[str]:
        """Return it in lines for people."""
        ends = [
            f"{self.by_state[state]} {what}"
            for state, what in (
                ("replayed", "replayed and applied once their table was fixed"),
                ("superseded", "superseded, for their row was corrected at its source"),
                ("discarded", "discarded"),
                ("open", "open STILL"),
            )
            if self.by_state.get(state)
        ]
        return [
            f"dead letters: {sum(self.collected.values())} collected ({_by_reason(self.collected)})",
            f"  {'; '.join(ends)}" + ("; none is open" if self.settled else ""),
        ]


class Command(Protocol):
    """The command for dead letters, wherever it runs."""

    def __call__(self, *arguments: str) -> tuple[int, str]:
        """Run it; return the exit code and its output."""


class DeadLettersStory:
    """What goes wrong in a run, and how it is put right. Without Spanner there is only what is no change batch."""

    def __init__(self, stack: Stack, command: Command, timeout: timedelta, stop: Stop, print_line: PrintLine) -> None:
        self._stack = stack
        self._command = command
        self._timeout = timeout
        self._stop = stop
        self._print_line = print_line
        self._database: SpannerDatabase | None = None
        self.changes: dict[str, int] = {}
        """Changes committed, by table."""

    def begin(self) -> None:
        """Make the table on both sides, in BigQuery as it should not be."""
        if self._stack.databases:
            database = self._stack.databases[0].database
            self._stack.dataset.query(_BY_HAND)
            database.alter(_IN_SPANNER)
            # of its own, for the thread of the story: a database is one thread's
            self._database = database.instance.database(database.name)

    def happen(self) -> DeadLettersFound:
        """Write what cannot be applied, wait until it is collected, fix the causes and replay."""
        self._publish_junk()
        if self._database is not None:
            self._write_runways(self._database)
        collected = self._open()
        by_reason = _by_reason(collected)
        self._print_line(f"{sum(collected.values())} changes cannot be applied and are dead letters: {by_reason}")
        if self._database is not None:
            self._fix_the_table(self._database)
            self._correct_at_the_source(self._database)
        self._run("discard", "--reason", Reason.UNDECODABLE.value, "--why", "it is no change batch")
        return self._found(collected)

    def _publish_junk(self) -> None:
        flow = self._stack.flow
        with open_channel(flow.pubsub) as channel:
            request = PublishRequest(topic=flow.topology.topic, messages=[PubsubMessage(data=_JUNK)])
            publish_stub(channel)(request, timeout=30)
        self._wait(lambda: self._open().get(Reason.UNDECODABLE.value, 0) >= 1, "the junk to be collected")

    def _write_runways(self, database: SpannerDatabase) -> None:
        rows = [(airport, name) for airport, runways in _LENGTHS.items() for name in runways]
        self._commit(database, [Write("insert", TABLE, _row(*key)) for key in rows])
        conflict, invalid = Reason.SCHEMA_CONFLICT.value, Reason.VALUE_DOES_NOT_FIT.value
        self._wait(
            lambda: self._open().get(conflict, 0) >= len(rows) - 1 and self._open().get(invalid, 0) >= 1,
            "the runways to be collected",
        )
        before = self._open()[conflict]
        self._commit(database, [Write("update", TABLE, {**_named(_REMEASURED), "length_feet": 14_511})])
        self._wait(lambda: self._open().get(conflict, 0) > before, "the runway that changed to be collected")

    def _fix_the_table(self, database: SpannerDatabase) -> None:
        self._stack.dataset.query(f"DROP TABLE {TABLE}")  # as its dead letters say
        rows = len(database.query(f"SELECT name FROM {TABLE}")) - 1
        replayed = 0.0

        def applied() -> bool:  # again for what was on its way as a dead letter when the table was fixed
            nonlocal replayed
            if time.monotonic() > replayed + _REPLAY_AGAIN:
                self._run("replay", "--reason", Reason.SCHEMA_CONFLICT.value, "--execute", may_be_left=True)
                replayed = time.monotonic()
            return len(self._stack.dataset.rows(TABLE) or ()) >= rows

        self._wait(applied, "the replayed runways to be applied")

    def _correct_at_the_source(self, database: SpannerDatabase) -> None:
        self._commit(database, [Write("update", TABLE, {**_named(_WITH_NULL), "headings": _headings(_WITH_NULL[1])})])
        rows = len(database.query(f"SELECT name FROM {TABLE}"))
        self._wait(lambda: len(self._stack.dataset.rows(TABLE) or ()) >= rows, "the corrected runway to be applied")
        self._run("replay", "--reason", Reason.VALUE_DOES_NOT_FIT.value, "--execute")

    def _commit(self, database: SpannerDatabase, writes: Sequence[Write]) -> None:
        database.commit(writes)
        self.changes[TABLE] = self.changes.get(TABLE, 0) + len(writes)

    def _open(self) -> Mapping[str, int]:
        """Return how many dead letters of each reason are open, as the collector says."""
        found = self._stack.dead_letter.status().get("open_by_reason", {})
        assert isinstance(found, dict)
        return found

    def _found(self, collected: Mapping[str, int]) -> DeadLettersFound:
        return DeadLettersFound(collected, json.loads(self._run("stats", "--json"))["by_state"])

    def _run(self, *arguments: str, may_be_left: bool = False) -> str:
        code, output = self._command(*arguments)
        if code and not (may_be_left and code in (_LEFT, _NONE_SUCH)):
            command = " ".join(arguments)
            raise ProcessDiedError(f"`python -m services.dead_letter {command}` ended with {code}:\n{output}")
        return output

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        wait_until(lambda: condition() or None, what, timeout=self._timeout, stop=self._stop)


def _row(airport: str, name: str) -> Mapping[str, Value]:
    headings = _headings(name)
    if (airport, name) == _WITH_NULL:  # of INT64: an array of STRING with a NULL ends Spanner's emulator
        headings = (headings[0], None)
    return {**_named((airport, name)), "length_feet": _LENGTHS[airport][name], "headings": headings}


def _headings(name: str) -> tuple[int | None, ...]:
    """Return the directions of a runway, which its name holds in tens of degrees."""
    return tuple(int(end[:2]) * 10 for end in name.split("/"))


def _named(key: tuple[str, str]) -> Mapping[str, Value]:
    return dict(zip(_KEY, key, strict=True))


def _by_reason(dead_letters: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {reason}" for reason, number in sorted(dead_letters.items()))
