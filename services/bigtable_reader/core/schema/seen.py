"""What the last inspection of a table found: no record of its change stream contains it."""

from typing import Final

import msgspec

from services.bigtable_reader.core.stream.partitions import RESTART_WITH_ALL_ROWS
from shared.contracts.errors import MisconfiguredError

ANY: Final = "any"
"""No cluster: an app profile that may route to each of them. Names of clusters have six letters at least."""


class InspectedTable(msgspec.Struct, frozen=True):
    """The table's column families, and the clusters that it is replicated to (none where that is not known).

    ``retention``: seconds for which its change stream is kept; None where that was not inspected. ``routed_to``: the
    cluster by which it is read, or `ANY`; None where that may not be read.
    """

    families: frozenset[str]
    clusters: frozenset[str]
    retention: float | None = None
    routed_to: str | None = None


def require_the_same_cluster(known: str | None, found: str | None) -> None:
    """Raise MisconfiguredError, with the fix, where a stream that was read from one cluster would be from another."""
    if known is None or found is None or known == found:
        return
    now = "any cluster" if found == ANY else f"cluster {found}"
    raise MisconfiguredError(
        "read-from-another-cluster",
        f"this stream was read from cluster {known}, and the app profile routes to {now}. A position of one cluster "
        "may not be valid in another. A row that is read from a cluster where its change has not arrived yet stays "
        f"old in the mirror, because no later record contains that change. Let APP_PROFILE route to {known} again "
        f"(gcloud bigtable app-profiles update PROFILE --instance=INSTANCE --route-to={known}); a snapshot brings the "
        f"rows that changed in between: `status` says how. To stay with the other cluster: {RESTART_WITH_ALL_ROWS}",
    )
