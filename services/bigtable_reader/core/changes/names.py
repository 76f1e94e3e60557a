"""What a family's column is called in BigQuery."""

import re
import zlib
from typing import Final

_PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_RESERVED: Final = (
    "_TABLE_",
    "_FILE_",
    "_PARTITION",
    "_ROW_TIMESTAMP",
    "__ROOT__",
    "_COLIDENTIFIER",
    "_CHANGE_",
    "_MILLRACE_",
)


def family_column(family: str, *taken: str) -> str:
    """Return a column name for a family: its own where BigQuery takes that, and nothing of ours is called so.

    Any other is ``family_``, its letters and digits, and a checksum, so that no two families share one; and it never
    depends on which other families there are.
    """
    upper = family.upper()
    if _PLAIN.fullmatch(family) and not upper.startswith(_RESERVED) and upper not in {name.upper() for name in taken}:
        return family
    letters = re.sub(r"[^A-Za-z0-9_]", "_", family)
    return f"family_{letters}_{zlib.crc32(family.encode()):08x}"
