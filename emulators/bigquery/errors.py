"""What the stand-in answers when it refuses: one error with Google's reason, HTTP code and gRPC code.

Source of reasons and codes: BigQuery, "Error messages" (error table).
"""

from dataclasses import dataclass
from typing import Final

import grpc

_CODES: Final = {
    "invalid": (400, "INVALID_ARGUMENT"),
    "invalidQuery": (400, "INVALID_ARGUMENT"),
    "required": (400, "INVALID_ARGUMENT"),
    "notFound": (404, "NOT_FOUND"),
    "duplicate": (409, "ALREADY_EXISTS"),
    "resourceInUse": (400, "FAILED_PRECONDITION"),
    "conditionNotMet": (412, "FAILED_PRECONDITION"),
    "accessDenied": (403, "PERMISSION_DENIED"),
    "rateLimitExceeded": (403, "RESOURCE_EXHAUSTED"),
    "quotaExceeded": (403, "RESOURCE_EXHAUSTED"),
    "responseTooLarge": (403, "PERMISSION_DENIED"),
    "bytesBilledLimitExceeded": (500, "INTERNAL"),  # not in the table: as Google's clients have met it
    "backendError": (503, "UNAVAILABLE"),
    "internalError": (500, "INTERNAL"),
    "notImplemented": (501, "UNIMPLEMENTED"),
}
REASONS: Final = frozenset(_CODES)
"""The words of Google's error table that are known here."""


@dataclass(eq=False)
class ApiError(Exception):
    """A request that is refused. ``reason`` is a word of Google's error table; the codes follow from it."""

    reason: str
    message: str

    def __str__(self) -> str:
        return self.message

    @property
    def http_code(self) -> int:
        """Return the HTTP status of the REST answer."""
        return _CODES[self.reason][0]

    @property
    def status(self) -> str:
        """Return the canonical status, as both protocols name it."""
        return _CODES[self.reason][1]

    @property
    def grpc_code(self) -> grpc.StatusCode:
        """Return the status of the gRPC answer."""
        return grpc.StatusCode[self.status]


def invalid(message: str) -> ApiError:
    """Make the refusal of a malformed request."""
    return ApiError("invalid", message)


def invalid_query(message: str) -> ApiError:
    """Make the refusal of a statement."""
    return ApiError("invalidQuery", message)


def not_found(message: str) -> ApiError:
    """Make the refusal of something that does not exist."""
    return ApiError("notFound", f"Not found: {message}")


def duplicate(message: str) -> ApiError:
    """Make the refusal to create what exists."""
    return ApiError("duplicate", f"Already Exists: {message}")
