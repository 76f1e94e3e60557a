"""Which dead letters fail for one cause: the fingerprint of reason, table and the normalised detail.

What differs from one record to the next is taken out of a detail: numbers, quoted values, ids, times. What names the
place stays: columns, types (``INT64`` has no number in it) and names in quotes behind the word that says they are one.
"""

import hashlib
import re
from typing import Final

from services.dead_letter.core.dead_letters import GroupId
from shared.contracts.reasons import Reason

_LIMIT: Final = 4096  # characters; a detail on the dead-letter topic has 1024 bytes at most

_QUOTED: Final = r"""(?<!\w)(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")(?!\w)"""
_NAME: Final = r"\b(?:columns?|fields?|tables?|types?)(?: names?)? "
_TIME: Final = r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d(?::?\d\d)?)?)?"
_UUID: Final = r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}"
_HEX: Final = r"(?:0x[0-9A-Fa-f]+|(?=[A-Fa-f]*[0-9])[0-9A-Fa-f]{16,})"
_NUMBER: Final = r"[+-]?\d+(?:[.,:/]\d+)*(?:[eE][+-]?\d+)?"

_PARTICULARS: Final = re.compile(
    rf"(?P<name>{_NAME}{_QUOTED})|(?P<value>{_QUOTED})"
    rf"|(?<!\w)(?:(?P<time>{_TIME})|(?P<uuid>{_UUID})|(?P<number>{_NUMBER})|(?P<hex>{_HEX}))(?!\w)",
    re.ASCII | re.DOTALL,
)


def normalised(detail: str) -> str:
    """Return a detail in which ``<value>``, ``<time>``, ``<id>`` and ``<number>`` replace what differs."""
    return _PARTICULARS.sub(_stand_in, detail[:_LIMIT])


def group_of(reason: Reason, table: str, detail: str) -> GroupId:
    """Return the group of a dead letter that fails with this reason and detail in this table."""
    parts = (reason.value, table, normalised(detail))
    digest = hashlib.sha256()
    for part in parts:  # lengths first, so that no two lists of parts run into the same bytes
        data = part.encode(errors="surrogatepass")
        digest.update(len(data).to_bytes(8, "big") + data)
    return GroupId(digest.hexdigest()[:12])


def _stand_in(found: re.Match[str]) -> str:
    match found.lastgroup:
        case "name":
            return found[0]
        case "uuid" | "hex":
            return "<id>"
        case kind:
            return f"<{kind}>"
