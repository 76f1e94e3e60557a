"""By what a table in BigQuery says which source table it is of: labels, and the column that holds what is applied.

The services that write mirrors and those that query them use the same names, whatever a table itself is called.
"""

import hashlib
from typing import Final

from shared.contracts.change_batch import Header

SEQUENCE_COLUMN: Final = "_millrace_sequence"
"""The change sequence number that a row was written with; the pseudo-column itself cannot be queried."""
MIRROR_OF: Final = "millrace_mirror_of"
"""The label by which a table says whose mirror it is: a digest, for a label holds 63 characters of few kinds."""
HISTORY_OF: Final = "millrace_history_of"
"""The label by which a history, and the view over it, say of which source table: a digest."""


def source_table(header: Header) -> str:
    """Return the name of a source table, whichever change stream of its database its changes come by."""
    database, _, _stream = header.source.partition("/changeStreams/")
    return f"{database}/tables/{header.table}"


def label_of(source: str) -> str:
    """Return the value of a label that names a source table."""
    return hashlib.sha256(source.encode()).hexdigest()[:40]
