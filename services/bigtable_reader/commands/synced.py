"""The command ``synced``: takes the mark *needs re-sync* away, of a table all of whose rows have come again."""

from typing import TextIO

from services.bigtable_reader.app.stall_watch import shown
from services.bigtable_reader.ports import ResyncStore
from shared.contracts.errors import MisconfiguredError


async def synced(store: ResyncStore, out: TextIO) -> int:
    """Take away what is found by now, and say what it was; return 0."""
    mark = await store.read()
    if mark is None:
        raise MisconfiguredError(
            "bigtable-table-not-marked",
            "the table is not marked: `python -m services.bigtable_reader status` says when it is",
        )
    await store.synced(mark)
    out.writelines(
        f"{mark.table}: taken away: {finding.kind.replace('_', ' ')}, found at {shown(finding.found_at)}\n"
        for finding in mark.findings
    )
    return 0
