"""The command ``synced``: removes the resync request of a table all of whose rows have come again."""

from typing import TextIO

from services.bigtable_reader.app.stall_watch import shown
from services.bigtable_reader.ports import ResyncStore
from shared.contracts.errors import MisconfiguredError


async def synced(store: ResyncStore, out: TextIO) -> int:
    """Delete the resync request, and print what it was; return 0."""
    request = await store.read()
    if request is None:
        raise MisconfiguredError(
            "bigtable-no-resync-request",
            "the table is not pending resync: `python -m services.bigtable_reader status` says when it is",
        )
    await store.synced(request)
    out.writelines(
        f"{request.table}: taken away: {finding.kind.replace('_', ' ')}, found at {shown(finding.found_at)}\n"
        for finding in request.findings
    )
    return 0
