"""The command ``synced``: removes the resync request of a table all of whose rows have come again."""

from typing import TextIO

from services.bigtable_reader.app.stall_watch import shown
from services.bigtable_reader.ports import ResyncStore
from shared.contracts.errors import MisconfiguredError
from shared.runtime.answers import print_answer


async def synced(store: ResyncStore, out: TextIO, *, as_json: bool) -> int:
    """Delete the resync request, and print what it was; return 0."""
    request = await store.read()
    if request is None:
        raise MisconfiguredError(
            "bigtable-no-resync-request",
            "the table is not pending resync: `python -m services.bigtable_reader status` says when it is",
        )
    await store.synced(request)
    found = [{"kind": one.kind, "found_at": shown(one.found_at)} for one in request.findings]
    taken_away = (f"{one['kind'].replace('_', ' ')}, found at {one['found_at']}" for one in found)
    lines = (f"{request.table}: taken away: {what}" for what in taken_away)
    print_answer({"table": request.table, "why": found}, lines, as_json, out)
    return 0
