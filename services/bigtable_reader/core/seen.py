"""What was last seen of a table that its change stream never tells."""

from typing import Final

import msgspec

ANY: Final = "any"
"""No cluster: an app profile that may route to each of them. Names of clusters have six letters at least."""


class Seen(msgspec.Struct, frozen=True):
    """The table's column families, and the clusters that it is replicated to (none where that is not told).

    ``retention``: seconds for which its change stream is kept; None where that was not looked at. ``routed_to``: the
    cluster by which it is read, or `ANY`; None where nobody may ask.
    """

    families: frozenset[str]
    clusters: frozenset[str]
    retention: float | None = None
    routed_to: str | None = None
