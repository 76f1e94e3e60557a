"""Change sequence numbers, a whole column at once: which texts are one, and what they are compared by.

Those that Millrace writes all have four sections of sixteen digits, so a column of them is a matrix of characters;
others that BigQuery's grammar allows take the general way.
"""

import re
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shared.contracts.change_sequence import parse_sequence

_SECTIONS: Final = 4
_SECTION_WIDTH: Final = 17  # sixteen digits and a '/'
_WIDTH: Final = _SECTIONS * _SECTION_WIDTH - 1

_GRAMMAR: Final = r"\A[0-9A-Fa-f]{1,16}(?:/[0-9A-Fa-f]{1,16}){0,3}\z"
"""The grammar of `shared.contracts.change_sequence`, for RE2."""

_NORMAL: Final = r"\A[0-9A-F]{16}(?:/[0-9A-F]{16}){3}\z"

_FIRST: Final = re.compile(r"[0-9A-Fa-f]{1,16}", re.ASCII)

_SLASH: Final = 0x10
_OTHER: Final = 0xFF


def _characters() -> npt.NDArray[np.uint8]:
    values = np.full(256, _OTHER, np.uint8)
    for digits in (b"0123456789ABCDEF", b"0123456789abcdef"):
        values[np.frombuffer(digits, np.uint8)] = np.arange(16, dtype=np.uint8)
    values[ord("/")] = _SLASH
    return values


_CHARACTERS: Final = _characters()


_SLASHES: Final = np.array([_SLASH if n % _SECTION_WIDTH == _SECTION_WIDTH - 1 else 0 for n in range(_WIDTH)], np.uint8)
"""What leaves less than `_SLASH` of a number that we write, by exclusive or."""


def are_sequences(texts: pa.StringArray) -> pa.BooleanArray:
    """Return which texts are change sequence numbers."""
    matrix = _matrix(texts)
    if matrix is not None:
        matrix ^= _SLASHES
        if matrix.max(initial=0) < _SLASH:
            return pa.array(np.ones(len(texts), np.bool_))
    return pc.match_substring_regex(texts, _GRAMMAR)


def sections_of(texts: pa.StringArray) -> Sequence[npt.NDArray[np.uint64]]:
    """Return valid numbers as columns to sort by, the most significant first: four sections, and how many there were.

    BigQuery's document leaves open how ``A`` compares with ``A/0``; as in our contract the shorter is older.
    """
    columns = [np.zeros(len(texts), np.uint64) for _ in range(_SECTIONS + 1)]
    ours = pc.equal(pc.binary_length(texts), _WIDTH).to_numpy(zero_copy_only=False)
    indices = np.flatnonzero(ours)
    matrix = _matrix(texts if len(indices) == len(texts) else texts.take(pa.array(indices)))
    if matrix is not None:
        for section in range(_SECTIONS):
            digits = matrix[:, section * _SECTION_WIDTH : (section + 1) * _SECTION_WIDTH - 1]
            octets = np.ascontiguousarray(digits[:, ::2] << 4 | digits[:, 1::2])
            columns[section][indices] = octets.view(">u8").reshape(-1)
        columns[_SECTIONS][indices] = _SECTIONS
    for index in np.flatnonzero(~ours).tolist():
        numbers = parse_sequence(texts[index].as_py()).sections
        for section, number in enumerate(numbers):
            columns[section][index] = number
        columns[_SECTIONS][index] = len(numbers)
    return columns


def first_sections(texts: pa.StringArray) -> npt.NDArray[np.uint64]:
    """Return the most significant section of each number, and any number for a text that is none."""
    digits = _matrix(texts, _SECTION_WIDTH - 1)
    if digits is not None:
        return np.ascontiguousarray(digits[:, ::2] << 4 | digits[:, 1::2]).view(">u8").reshape(-1).astype(np.uint64)
    numbers = [int(match[0], 16) if (match := _FIRST.match(text or "")) else 0 for text in texts.to_pylist()]
    return np.array(numbers, np.uint64)


def _matrix(texts: pa.StringArray, width: int = _WIDTH) -> npt.NDArray[np.uint8] | None:
    """Return what the first characters of each text stand for; None unless all are as long as the numbers we write."""
    lengths = pc.min_max(pc.binary_length(texts)).as_py()
    if texts.null_count or lengths["min"] != _WIDTH or lengths["max"] != _WIDTH:
        return None
    _, offsets, data = texts.buffers()
    start = int(np.frombuffer(offsets, np.int32)[texts.offset])
    characters = np.frombuffer(data, np.uint8)[start : start + _WIDTH * len(texts)].reshape(-1, _WIDTH)
    found: npt.NDArray[np.uint8] = _CHARACTERS[characters[:, :width]]
    return found


def normal_sequences(texts: pa.StringArray) -> pa.StringArray:
    """Return valid numbers in the one form whose text is in their order: four sections of sixteen capital digits."""
    normal = pc.match_substring_regex(texts, _NORMAL)
    if pc.all(normal, min_count=0).as_py():
        return texts
    others = [_normal(text) if text is not None else None for text in texts.filter(pc.invert(normal)).to_pylist()]
    return pc.replace_with_mask(texts, pc.invert(normal), pa.array(others, pa.string()))


def _normal(text: str) -> str:
    try:
        sections = parse_sequence(text).sections
    except ValueError:
        return text  # refused elsewhere
    return "/".join(f"{section:016X}" for section in (*sections, *[0] * (_SECTIONS - len(sections))))
