"""Bodies of REST requests as they are sent: plain or, as java-bigquery sends each of them, packed with gzip.

Sources: Google API client library, "Using gzip"; BigQuery, "Quotas and limits" (a query and its parameters: 10 MB).
"""

import zlib
from typing import Final

from emulators.bigquery.errors import ApiError, invalid

BODY_BYTES: Final = 20_000_000
"""The limit of an unpacked body: above anything that the service takes, and far below what could fill the memory."""

_GZIP: Final = 16 + zlib.MAX_WBITS


def unpacked(body: bytes, encoding: str) -> bytes:
    """Return a body without its Content-Encoding; ApiError for one that is malformed, too large or not served."""
    if encoding.lower() in ("gzip", "x-gzip") and body:
        return _gunzipped(body)
    if encoding.lower() not in ("", "identity", "gzip", "x-gzip"):
        raise ApiError("notImplemented", f"This stand-in does not serve the Content-Encoding {encoding!r}, only gzip")
    return body


def _gunzipped(body: bytes) -> bytes:
    parts: list[bytes] = []
    size = 0
    while body:  # RFC 1952: a file is one member after another
        member = zlib.decompressobj(_GZIP)
        try:
            parts.append(member.decompress(body, BODY_BYTES + 1 - size))
        except zlib.error:
            raise invalid("The request's body is not gzip, as its Content-Encoding says it is") from None
        size += len(parts[-1])
        if size > BODY_BYTES:
            raise invalid(f"The request is too large: its body has more than {BODY_BYTES} bytes when it is unpacked")
        if not member.eof:
            raise invalid("The request's body ends in the middle of its gzip data")
        body = member.unused_data
    return b"".join(parts)
