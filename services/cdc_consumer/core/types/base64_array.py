"""Base64 for a whole column at once: Arrow has no kernel for it, a numpy lookup table decodes all values together."""

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

_PAD: Final = ord("=")
_INVALID: Final = 0xFF


def _sextets() -> npt.NDArray[np.uint8]:
    table = np.full(256, _INVALID, np.uint8)
    alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    table[np.frombuffer(alphabet, np.uint8)] = np.arange(64, dtype=np.uint8)
    return table


_SEXTETS: Final = _sextets()


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
    held = np.flatnonzero(lengths)
    padded_once = held[characters[ends[held] - 1] == _PAD]
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
