"""What is written in place of a masked column's values: a keyed digest, their first characters, or NULL.

A mask leaves a column its type: a STRING's digest is 64 hexadecimal digits in lower case, that of BYTES 32 bytes. The
digest is HMAC-SHA-256 (RFC 2104) of the value's bytes: of text its UTF-8, of BYTES what the base64 on the wire means.
NULL stays NULL. Equal values have equal digests in every column and table, so tables can still be joined.

No Arrow kernel computes a digest, so OpenSSL hashes each distinct value of an array once; the rest is done by Arrow.
"""

import binascii
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from services.cdc_consumer.core.types.types import BYTES, STRING, UUID, ColumnType
from shared.contracts.column_options import Mask

MASKABLE: Final = (STRING, BYTES, UUID)
"""What can be masked by more than NULL: a value has one form there, and what replaces it is of the same type."""

_BLOCK: Final = 64
"""Bytes that SHA-256 takes at once."""
_FINGERPRINTED: Final = b"millrace mask key fingerprint"

_text: Final = msgspec.json.Decoder(str)
_raw_object: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


@dataclass(frozen=True, slots=True)
class MaskKey:
    """The key of digests. What is shown of it is its fingerprint alone."""

    secret: bytes = field(repr=False)
    _inner: bytes = field(init=False, repr=False, compare=False)
    _outer: bytes = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Prepare what RFC 2104 puts before a value and before its inner digest."""
        block = self.secret if len(self.secret) <= _BLOCK else hashlib.sha256(self.secret).digest()
        block = block.ljust(_BLOCK, b"\0")
        object.__setattr__(self, "_inner", bytes(byte ^ 0x36 for byte in block))
        object.__setattr__(self, "_outer", bytes(byte ^ 0x5C for byte in block))

    @property
    def fingerprint(self) -> str:
        """Return what tells the key from others and gives nothing of it away: 16 hexadecimal digits."""
        return self.digest(_FINGERPRINTED).hex()[:16]

    def digest(self, value: bytes) -> bytes:
        """Return the 32 bytes that stand for a value."""
        # Two digests cost less than half of what `hmac.digest` costs for values as short as those of columns.
        return hashlib.sha256(self._outer + hashlib.sha256(self._inner + value).digest()).digest()


@dataclass(frozen=True, slots=True)
class ColumnMask:
    """The mask of a column of one type. ``key`` is there if it is a digest."""

    mask: Mask
    kind: ColumnType
    key: MaskKey | None = None

    def array(self, values: pa.Array) -> pa.Array:
        """Return what is written in place of values in their wire type: an array of the same type and length."""
        if self.mask.kind == "null":
            return pa.nulls(len(values), values.type)
        if self.mask.kind == "first":
            slice_of = pc.binary_slice if self.kind == BYTES else pc.utf8_slice_codeunits
            return slice_of(values, 0, self.mask.length)
        encoded = pc.dictionary_encode(values)
        digests = [self._digest(each) for each in encoded.dictionary.cast(pa.binary()).to_pylist()]
        return pa.array(digests, values.type).take(encoded.indices)

    def json(self, value: msgspec.Raw) -> object:
        """Return the same for one value as the wire's JSON has it; NULL for what is no value of the type."""
        if self.mask.kind == "null" or bytes(value) == b"null":
            return None
        try:
            text = _text.decode(value)
            found = binascii.a2b_base64(text, strict_mode=True) if self.kind == BYTES else text
        except (msgspec.MsgspecError, binascii.Error):
            return None
        if self.mask.kind == "first":
            found = found[: self.mask.length]
        else:
            found = self._digest(found if isinstance(found, bytes) else found.encode())
        return binascii.b2a_base64(found, newline=False).decode() if isinstance(found, bytes) else found

    def _digest(self, value: bytes) -> bytes | str:
        assert self.key is not None, "who masks by digests has read the key"
        digest = self.key.digest(value)
        return digest if self.kind == BYTES else digest.hex()


def rewritten(
    ignored: frozenset[str], masks: Mapping[str, ColumnMask], names: Mapping[str, str]
) -> Callable[[Sequence[bytes]], list[bytes]] | None:
    """Return what makes JSON objects by column tell what the columns themselves tell; None where that is the same.

    Without the ``ignored`` columns, with masks and other names (both by the names at the source). Text that is no JSON
    object becomes null.
    """
    if not (ignored or masks or names):
        return None

    def one(text: bytes) -> bytes:
        try:
            values = _raw_object.decode(text)
        except (msgspec.MsgspecError, RecursionError):
            return b"null"
        return msgspec.json.encode(
            {
                names.get(name, name): masks[name].json(value) if name in masks else value
                for name, value in values.items()
                if name not in ignored
            }
        )

    return lambda texts: [one(text) for text in texts]
