"""What was last seen of a table that its change stream never tells."""

import msgspec


class Seen(msgspec.Struct, frozen=True):
    """The table's column families, and the clusters that it is replicated to (none where that is not told)."""

    families: frozenset[str]
    clusters: frozenset[str]
