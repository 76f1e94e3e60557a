"""The key of masks, from the file that the tables file names: read by each process on its own machine.

It is in no setting, argument or option of Spark's: those are shown in logs and web pages.
"""

from pathlib import Path
from typing import Final

from services.cdc_consumer.core.types.masks import MaskKey
from shared.contracts.errors import MisconfiguredError
from shared.contracts.tables_file import TablesFile

_LEAST: Final = 32
"""Bytes: as many as a digest has (RFC 2104, section 3). A short key can be guessed, and then what is masked, too."""
_MAKE: Final = "make one: openssl rand -base64 48 > mask.key"


def read_mask_key(file: TablesFile, *, expected: str = "") -> MaskKey | None:
    """Return the key that a tables file names; None where it masks no column by a digest.

    A line break at its end is no part of it. MisconfiguredError where it cannot be read, is too short, or is not the
    one with the ``expected`` fingerprint (empty: any is).
    """
    if not file.needs_mask_key or file.mask_key_file is None:
        return None
    what = f"{file.line(('mask_key_file',))}: mask_key_file = {file.mask_key_file!r}"
    try:
        secret = Path(file.mask_key_file).read_bytes().rstrip(b"\r\n")
    except (OSError, ValueError) as error:  # the latter of a NUL in the path
        why = error.strerror if isinstance(error, OSError) else error
        raise MisconfiguredError(
            "mask-key-unreadable",
            f"{what} cannot be read ({why}): mount the key there on every machine of the consumer, Spark's "
            "workers too. With another key than before, equal values would no longer be masked alike",
        ) from error
    if len(secret) < _LEAST:
        raise MisconfiguredError(
            "mask-key-too-short", f"{what} has {len(secret)} bytes, and a key needs {_LEAST} at least; {_MAKE}"
        )
    key = MaskKey(secret)
    if expected and key.fingerprint != expected:
        raise MisconfiguredError(
            "mask-key-differs",
            f"{what} holds another key on this machine ({key.fingerprint}) than where the consumer was started "
            f"({expected}): give all machines the same key, and restart the consumer",
        )
    return key
