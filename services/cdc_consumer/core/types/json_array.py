"""Arrays as JSON text, a whole column at once: for columns whose arrays may hold what BigQuery's cannot, a NULL.

An element is as the source writes it: an INT64, a NUMERIC or a DATE is a text, a BOOL and a FLOAT64 are themselves.
"""

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

_CONTROL: Final = "[\x00-\x1f]"
_CONTROLS: Final = [chr(code) for code in range(0x20)]


def json_arrays(arrays: pa.ListArray) -> pa.StringArray:
    """Return arrays as they were parsed (of BOOL, of numbers, of text) as JSON; a NULL stays one."""
    arrays = pa.concat_arrays([arrays])  # from offset zero, with nothing behind its end
    texts = pc.fill_null(_texts(arrays.values), "null")
    lists = pa.ListArray.from_arrays(arrays.offsets, texts, mask=arrays.is_null() if arrays.null_count else None)
    return pc.binary_join_element_wise("[", pc.binary_join(lists, ","), "]", "")


def _texts(elements: pa.Array) -> pa.StringArray:
    if pa.types.is_boolean(elements.type):
        return elements.cast(pa.string())
    if pa.types.is_floating(elements.type):
        texts = elements.cast(pa.string())
        for shown, written in (("nan", '"NaN"'), ("-inf", '"-Infinity"'), ("inf", '"Infinity"')):
            texts = pc.if_else(pc.equal(texts, shown), written, texts)
        return texts
    texts = pc.replace_substring(pc.replace_substring(elements, "\\", "\\\\"), '"', '\\"')
    if pc.any(pc.match_substring_regex(texts, _CONTROL), min_count=0).as_py():
        for control in _CONTROLS:
            texts = pc.replace_substring(texts, control, f"\\u{ord(control):04x}")
    return pc.binary_join_element_wise('"', texts, '"', "")
