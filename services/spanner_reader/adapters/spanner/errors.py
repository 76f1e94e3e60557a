"""Spanner's errors as the three errors of ours."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from google.api_core import exceptions
from google.auth.exceptions import GoogleAuthError

from shared.contracts.errors import MisconfiguredError, TransientError
from shared.pubsub.credentials import credentials_error

_TRANSIENT: Final = (
    exceptions.ServiceUnavailable,
    exceptions.Cancelled,
    exceptions.DeadlineExceeded,
    exceptions.InternalServerError,  # a stream that was reset on the way; also what `Aborted` is not
    exceptions.Aborted,
    exceptions.Unknown,  # "Stream removed": an ordinary break
    exceptions.ResourceExhausted,
    exceptions.RetryError,
)
_MISCONFIGURED: Final = (
    exceptions.OutOfRange,
    exceptions.InvalidArgument,
    exceptions.NotFound,
    exceptions.PermissionDenied,
    exceptions.Unauthenticated,
)
_ANOTHER_SCHEMA_CHANGE: Final = "concurrent schema change"
"""The emulator's words: it makes one schema change at a time, and none beside an open transaction. Spanner waits."""


@contextmanager
def spanner_errors(what: str) -> Iterator[None]:
    """Translate what the client raises; ``what`` says what was being done. What we do not know passes through."""
    try:
        yield
    except exceptions.NotFound as error:
        if "Session not found" in str(error.message):  # dropped by the service: the next call makes another
            raise TransientError(f"{what}: {error.message}") from error
        raise MisconfiguredError(
            "spanner-refused", f"{what}: {error.message}{_named_by(str(error.message))}"
        ) from error
    except exceptions.FailedPrecondition as error:
        if _ANOTHER_SCHEMA_CHANGE in str(error.message):  # another replica makes the tables: try again
            raise TransientError(f"{what}: {error}") from error
        raise MisconfiguredError("spanner-request-invalid", f"{what}: {error}") from error
    except _TRANSIENT as error:
        raise TransientError(f"{what}: {error}") from error
    except _MISCONFIGURED as error:
        raise MisconfiguredError("spanner-request-invalid", f"{what}: {error}") from error
    except GoogleAuthError as error:
        raise credentials_error(what, error) from error


def _named_by(message: str) -> str:
    """Return which settings name what is not there."""
    if "Database not found" in message:
        return ". Is SPANNER_DATABASE right, or PARTITION_DATABASE?"
    if "Instance not found" in message:
        return ". Is SPANNER_INSTANCE right?"
    return ""
