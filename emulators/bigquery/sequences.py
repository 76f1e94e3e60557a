"""`_CHANGE_SEQUENCE_NUMBER` in columns: a text per row becomes 64 upper-case digits, which sort as BigQuery compares.

Sections are compared one by one as unsigned numbers, so each is filled up to its 16 digits. How a missing section
compares is not documented; here it counts as zero, and what stays equal is decided by the time of ingestion.
"""

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

_SECTION: Final = "[0-9A-Fa-f]{1,16}"
_GRAMMAR: Final = rf"^(?P<a>{_SECTION})(?:/(?P<b>{_SECTION}))?(?:/(?P<c>{_SECTION}))?(?:/(?P<d>{_SECTION}))?$"
_FIXED: Final = "^[0-9A-F]{16}/[0-9A-F]{16}/[0-9A-F]{16}/[0-9A-F]{16}$"


def comparable(texts: pa.Array) -> pa.Array:
    """Return the comparable form of each text; null where the text is null or outside the grammar."""
    if texts.null_count == 0 and pc.all(pc.match_substring_regex(texts, _FIXED)).as_py() is not False:
        return pc.replace_substring(texts, "/", "")  # written as we write them: nothing to fill up
    sections = pc.extract_regex(texts, _GRAMMAR)
    filled = [pc.utf8_lpad(pc.fill_null(pc.struct_field(sections, name), ""), 16, "0") for name in "abcd"]
    joined = pc.utf8_upper(pc.binary_join_element_wise(*filled, ""))
    return pc.if_else(pc.is_valid(sections), joined, pa.scalar(None, pa.string()))
