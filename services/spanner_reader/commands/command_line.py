"""What the commands beside the service are, and what each of them takes."""

import argparse
from collections.abc import Mapping
from typing import Final

from services.spanner_reader.commands.pause import pause_parser, resume_parser
from services.spanner_reader.commands.snapshot import snapshot_parser
from shared.runtime.commands import Command, reader_status_parser, without_arguments

PROGRAM: Final = "python -m services.spanner_reader"


def status_parser() -> argparse.ArgumentParser:
    """Return what parses the arguments of ``status``."""
    return reader_status_parser(PROGRAM)


def synced_parser() -> argparse.ArgumentParser:
    """Return what parses the arguments of ``synced``."""
    parser = argparse.ArgumentParser(
        f"{PROGRAM} synced",
        description="Take away the mark of a table that needs re-sync: all of its rows came again, in whatever way. "
        "A snapshot takes it away by itself.",
    )
    parser.add_argument("table", metavar="TABLE", help="a marked table: `status` lists those")
    return parser


def topic_parser() -> argparse.ArgumentParser:
    """Return what parses the arguments of ``topic``: there are none."""
    return without_arguments(
        f"{PROGRAM} topic",
        "Let the partition table's readers publish to TOPIC from now on, in place of the topic they published to. "
        "No reader may be there. What the former topic still holds stays there: let its consumer apply all of it.",
    )


def rows_parser() -> argparse.ArgumentParser:
    """Return what parses the arguments of ``rows``: there are none."""
    return without_arguments(
        f"{PROGRAM} rows",
        "Answer, line by line on standard input and output, what a command of the consumer asks of tables' rows. "
        "`sweep` and `reconcile` start this as their child (--source, SOURCE_ROWS); nobody types it.",
    )


COMMANDS: Final[Mapping[str, Command]] = {
    "doctor": Command("look whether all that the reader needs is there and right"),
    "status": Command("how far all readers are, and what needs attention", status_parser),
    "snapshot": Command("read the rows of tables again, as they are now", snapshot_parser),
    "pause": Command("pause the stream, or tables", pause_parser),
    "resume": Command("let the stream, or tables, go on", resume_parser),
    "synced": Command("take away the mark of a table that needs re-sync", synced_parser),
    "topic": Command("let the readers publish to another topic from now on", topic_parser),
    "rows": Command("answer for the source: what `sweep` and `reconcile` of the consumer start", rows_parser),
}
