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
    given = [] if list(arguments) == ["run"] else arguments
    return run_as("dead_letter", lambda: _run(given), os.environ, typed=bool(given))


def _run(arguments: Sequence[str]) -> int:
    if arguments:
        from services.dead_letter.wiring.commands import command  # noqa: PLC0415  a command needs no service

        return command(arguments, os.environ)
    from services.dead_letter.wiring.service import service  # noqa: PLC0415  starts sooner without the commands

    return service()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
