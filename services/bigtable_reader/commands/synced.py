"""The command ``synced``: takes the mark *needs re-sync* away, of a table all of whose rows have come again."""

import argparse
from collections.abc import Sequence
from typing import TextIO

from services.bigtable_reader.app.stall_watch import shown
from services.bigtable_reader.ports import ResyncStore
from shared.contracts.errors import MisconfiguredError
from shared.runtime.commands import without_arguments


def synced_parser() -> argparse.ArgumentParser:
    """Return what parses the arguments of ``synced``: there are none."""
    return without_arguments(
        "python -m services.bigtable_reader synced",
        "Take away the mark of the table when it needs re-sync: all of its rows came again, in whatever way. "
        "A snapshot takes it away by itself.",
    )


async def synced(arguments: Sequence[str], store: ResyncStore, out: TextIO) -> int:
    """Take away what is found by now, and say what it was; return 0."""
    synced_parser().parse_args(arguments)
    mark = await store.read()
    if mark is None:
        raise MisconfiguredError("the table is not marked: `python -m services.bigtable_reader status` says when it is")
    await store.synced(mark)
    out.writelines(
        f"{mark.table}: taken away: {finding.kind.replace('_', ' ')}, found at {shown(finding.found_at)}\n"
        for finding in mark.findings
    )
    return 0
