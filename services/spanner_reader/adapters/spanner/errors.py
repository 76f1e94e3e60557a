"""Spanner's errors as the three errors of ours."""

from contextlib import AbstractContextManager
from typing import Any, Final

import grpc

from shared.contracts.errors import MisconfiguredError, TransientError
from shared.pubsub.errors import grpc_errors, status_of

_ANOTHER_SCHEMA_CHANGE: Final = "concurrent schema change"
"""The emulator's words: it makes one schema change at a time, and none beside an open transaction. Spanner waits."""


def spanner_errors(what: str) -> AbstractContextManager[None]:
    """Translate what the client raises; see `grpc_errors`."""
    return grpc_errors(what, _words, _refused)


def _words(code: grpc.StatusCode, error: Any) -> str:
    return status_of(error)[1] if code is grpc.StatusCode.NOT_FOUND else str(error)


def _refused(what: str, words: str, code: grpc.StatusCode, message: str) -> Exception:
    if code is grpc.StatusCode.NOT_FOUND:
        if "Session not found" in message:  # dropped by the service: the next call makes another
            return TransientError(f"{what}: {words}")
        return MisconfiguredError("spanner-refused", f"{what}: {words}{_named_by(message)}")
    if code is grpc.StatusCode.FAILED_PRECONDITION and _ANOTHER_SCHEMA_CHANGE in message:
        return TransientError(f"{what}: {words}")  # another replica makes the tables: try again
    return MisconfiguredError("spanner-request-invalid", f"{what}: {words}")


def _named_by(message: str) -> str:
    """Return which settings name what is not there."""
    if "Database not found" in message:
        return ". Are GOOGLE_CLOUD_PROJECT, SPANNER_INSTANCE and SPANNER_DATABASE right, or PARTITION_DATABASE?"
    if "Instance not found" in message:
        return ". Are GOOGLE_CLOUD_PROJECT and SPANNER_INSTANCE right?"
    return ""
