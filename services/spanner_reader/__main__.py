"""The Spanner reader: a change stream's changes, as change batches, on a Pub/Sub topic.

Exits 0 when asked to stop or at the end asked for, 2 when nothing will work until someone acts (the message says what).
"""

import os
import sys
from collections.abc import Sequence

from shared.runtime.service import run_as


def main(arguments: Sequence[str]) -> int:
    """Run the service, or a command beside it; return the exit code."""
    return run_as("spanner_reader", lambda: _run(arguments), os.environ, typed=list(arguments) not in ([], ["rows"]))


def _run(arguments: Sequence[str]) -> int:
    if arguments:
        from services.spanner_reader.wiring.commands import command  # noqa: PLC0415  a command needs no service

        return command(arguments, os.environ)
    from services.spanner_reader.wiring.service import service  # noqa: PLC0415  starts sooner without the commands

    return service()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
