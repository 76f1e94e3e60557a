"""What the commands beside the service are, and what each of them takes."""

import argparse
from collections.abc import Mapping
from typing import Final

from services.bigtable_reader.commands.pause import pause_parser, resume_parser
from services.bigtable_reader.commands.snapshot import snapshot_parser
from services.bigtable_reader.commands.synced import synced_parser
from shared.runtime.commands import Command, reader_status_parser, without_arguments

PROGRAM: Final = "python -m services.bigtable_reader"


def status_parser() -> argparse.ArgumentParser:
    """Return what parses the arguments of ``status``."""
    return reader_status_parser(PROGRAM)


def rows_parser() -> argparse.ArgumentParser:
    """Return what parses the arguments of ``rows``: there are none."""
    return without_arguments(
        f"{PROGRAM} rows",
        "Answer, line by line on standard input and output, what a command of the consumer asks of the rows. "
        "`sweep` and `reconcile` start this as their child (--source, SOURCE_ROWS); nobody types it.",
    )


COMMANDS: Final[Mapping[str, Command]] = {
    "doctor": Command("look whether all that the reader needs is there and right"),
    "status": Command("how far all readers are, and what needs attention", status_parser),
    "snapshot": Command("read the rows of the table again, as they are now", snapshot_parser),
    "pause": Command("pause the stream", pause_parser),
    "resume": Command("let the stream go on", resume_parser),
    "synced": Command("take away the mark of the table when it needs re-sync", synced_parser),
    "rows": Command("answer for the source: what `sweep` and `reconcile` of the consumer start", rows_parser),
}
