"""The dead-letter service: what could not be applied, from its subscription into the store, where it waits for people.

`python -m services.dead_letter`, or `run`, collects. Exits 0 when asked to stop, 1 when something failed that a restart
may fix, 2 when nothing will work until someone acts; the log says what.

`doctor` checks whether all that it needs is there and right. Everything else is a command for people and their scripts:
`python -m services.dead_letter --help` lists them.
"""

import os
import sys
from collections.abc import Sequence

from shared.runtime.service import run_as


def main(arguments: Sequence[str]) -> int:
    """Run the service, or a command beside it; return the exit code."""
    if list(arguments) in ([], ["run"]):
        return run_as("dead_letter", _run, os.environ)
    from services.dead_letter.wiring.commands import command  # noqa: PLC0415  nor does a command need the service

    return run_as("dead_letter", lambda: command(arguments, os.environ), os.environ, typed=True)


def _run() -> int:
    from services.dead_letter.wiring.service import service  # noqa: PLC0415  starts sooner without the commands

    return service()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
