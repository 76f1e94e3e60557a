"""Whole columns at once: base64, for which Arrow has no kernel; arrays as JSON text; and the few rows that need more.

JSON text is for columns whose arrays may hold NULL, which BigQuery's cannot. An element is as the source writes it: an
INT64, a NUMERIC or a DATE is a text, a BOOL and a FLOAT64 are themselves. A FLOAT32 and a UUID are in the one form that
equal ones have in common.
"""

from collections.abc import Callable, Iterator
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

_PAD: Final = ord("=")
_INVALID: Final = 0xFF


def _sextets() -> npt.NDArray[np.uint8]:
    table = np.full(256, _INVALID, np.uint8)
    alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    table[np.frombuffer(alphabet, np.uint8)] = np.arange(64, dtype=np.uint8)
    return table


_SEXTETS: Final = _sextets()


def one_array(column: pa.ChunkedArray) -> pa.Array:
    """Return a column in one piece; without a copy where it is one already."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def json_table(schema: pa.Schema, lines: bytes, unexpected: str) -> pa.Table | None:
    """Return JSON documents, a line each, as a table; None where one does not fit.

    ``unexpected``: what becomes of fields that the schema lacks, in the words of `pyarrow.json.ParseOptions`.
    """
    try:
        return pyarrow.json.read_json(
            pa.BufferReader(lines),
            # One block, so that nothing is cut at a line break inside a document; one thread, the task's own.
            read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=len(lines) + 1),
            parse_options=pyarrow.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior=unexpected),
        )
    except pa.ArrowException:
        return None


def decode_base64(texts: pa.StringArray) -> pa.BinaryArray | None:
    """Return the bytes that base64 texts mean (NULL stays NULL), or None if one of them is not padded base64."""
    filled = texts.fill_null("") if texts.null_count else texts
    _, offsets_buffer, data_buffer = filled.buffers()
    if len(filled) == 0 or data_buffer is None:
        return filled.cast(pa.binary()) if not texts.null_count else texts.cast(pa.binary())
    offsets = np.frombuffer(offsets_buffer, np.int32)[filled.offset : filled.offset + len(filled) + 1]
    lengths = np.diff(offsets)
    if (lengths % 4).any():
        return None
    # Every length is a multiple of four, so the values stand in the buffer as one row of whole quads.
    characters = np.frombuffer(data_buffer, np.uint8)[offsets[0] : offsets[-1]]
    sextets = _SEXTETS[characters]
    ends = (offsets[1:] - offsets[0]).astype(np.int64)
    nonempty = np.flatnonzero(lengths)
    padded_once = nonempty[characters[ends[nonempty] - 1] == _PAD]
    padded_twice = padded_once[characters[ends[padded_once] - 2] == _PAD]
    sextets[ends[padded_once] - 1] = 0
    sextets[ends[padded_twice] - 2] = 0
    if (sextets == _INVALID).any():
        return None
    quads = sextets.reshape(-1, 4)
    triples = np.empty((len(quads), 3), np.uint8)
    triples[:, 0] = quads[:, 0] << 2 | quads[:, 1] >> 4
    triples[:, 1] = quads[:, 1] << 4 | quads[:, 2] >> 2
    triples[:, 2] = quads[:, 2] << 6 | quads[:, 3]
    kept = np.ones(triples.size, np.bool_)
    kept[ends[padded_once] // 4 * 3 - 1] = False
    kept[ends[padded_twice] // 4 * 3 - 2] = False
    decoded_lengths = lengths // 4 * 3
    decoded_lengths[padded_once] -= 1
    decoded_lengths[padded_twice] -= 1
    decoded_offsets = np.concatenate(([0], np.cumsum(decoded_lengths))).astype(np.int32)
    buffers = [None, pa.py_buffer(decoded_offsets), pa.py_buffer(triples.reshape(-1)[kept])]
    decoded = pa.BinaryArray.from_buffers(pa.binary(), len(filled), buffers)
    return pc.if_else(texts.is_valid(), decoded, pa.scalar(None, pa.binary())) if texts.null_count else decoded


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


T = TypeVar("T")

_FEW: Final = 32
"""From so few rows on, the exact way one by one costs no more than another round of halving."""


def by_halves(
    start: int, stop: int, fast: Callable[[int, int], T | None], exact: Callable[[int, int], T]
) -> Iterator[T]:
    """Yield parts that together cover the rows ``start`` to ``stop``, in order.

    ``fast`` takes a range of rows whole or refuses it (None); a range that it refuses is halved, so that one bad row
    costs a few more calls and not one call a row; what is left at the end goes ``exact``.
    """
    part = fast(start, stop)
    if part is not None:
        yield part
    elif stop - start <= _FEW:
        yield exact(start, stop)
    else:
        middle = (start + stop) // 2
        yield from by_halves(start, middle, fast, exact)
        yield from by_halves(middle, stop, fast, exact)
