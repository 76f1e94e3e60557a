"""Runs the dead-letter service, or a command, and is dead before one step of it that leaves a mark outside.

    python -m tests.integration.dying STEP FILE [ARGUMENT...]

Steps are statements that write, commits of what was written, and calls that lease, acknowledge or publish messages;
they are counted from 0, and their names are written to a file as they are reached. What it dies of is SIGKILL: nothing
of it gets anything done after that. So it is dead after each step but the last, and before each but the first.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, Engine, event

from shared.pubsub import stubs

_CALLS: Final = {
    "/google.pubsub.v1.Publisher/Publish": "publish",
    "/google.pubsub.v1.Subscriber/Pull": "pull",
    "/google.pubsub.v1.Subscriber/Acknowledge": "acknowledge",
}


class Steps:
    """Counts steps, and dies before one of them."""

    def __init__(self, last: int, file: Path) -> None:
        self._left = last
        self._file = file

    def reach(self, name: str) -> None:
        """Note a step, or die before it."""
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self._left -= 1
        with self._file.open("a") as file:
            file.write(f"{name}\n")


class Call:
    """A call of Pub/Sub that is a step."""

    def __init__(self, name: str, stub: Any, steps: Steps) -> None:
        self._name = name
        self._stub = stub
        self._steps = steps

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Make the call."""
        self._steps.reach(self._name)
        return self._stub(*arguments, **options)

    def future(self, *arguments: Any, **options: Any) -> Any:
        """Begin the call."""
        self._steps.reach(self._name)
        return self._stub.future(*arguments, **options)


def watch(steps: Steps) -> None:
    """Let what is done from now on be counted."""
    plain = stubs._stub

    def stub(channel: Any, call: str, request: Any, response: Any) -> Any:
        made, name = plain(channel, call, request, response), _CALLS.get(f"/google.pubsub.v1.{call}")
        return made if name is None else Call(name, made, steps)

    stubs._stub = stub

    @event.listens_for(Engine, "before_cursor_execute")
    def statement(_connection: Any, _cursor: Any, statement: str, *_more: Any) -> None:
        words = statement.split()
        if words[0] in ("INSERT", "UPDATE", "DELETE"):
            steps.reach(f"{words[0].lower()} {words[1 if words[0] == 'UPDATE' else 2]}")

    @event.listens_for(Engine, "commit")
    def commit(connection: Connection) -> None:
        if connection.get_execution_options().get("writing"):
            steps.reach("commit")


if __name__ == "__main__":
    watch(Steps(int(sys.argv[1]), Path(sys.argv[2])))
    from services.dead_letter.__main__ import main

    sys.exit(main(sys.argv[3:]))
