"""Bigtable's errors as the three errors of ours, whether a raw channel raises them or a generated client."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import grpc
from google.api_core.exceptions import GoogleAPICallError, RetryError
from google.auth.exceptions import GoogleAuthError

from shared.contracts.errors import MisconfiguredError, TransientError
from shared.pubsub.credentials import credentials_error

_TRANSIENT: Final = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.INTERNAL,  # a stream that was reset on the way
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.UNKNOWN,  # "Stream removed": an ordinary break
        grpc.StatusCode.RESOURCE_EXHAUSTED,
    }
)
_MISCONFIGURED: Final = frozenset(
    {
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.UNIMPLEMENTED,
    }
)


def status_of(error: BaseException) -> tuple[grpc.StatusCode | None, str]:
    """Return the gRPC status that an error carries, and its message; None where it carries none."""
    if isinstance(error, grpc.RpcError):  # of an event loop's channel, or of a thread's
        return error.code(), error.details() or ""
    if isinstance(error, GoogleAPICallError):
        return error.grpc_status_code, str(error.message)
    return None, str(error)


@contextmanager
def bigtable_errors(what: str) -> Iterator[None]:
    """Translate what a call raises; ``what`` says what was being done. What we do not know passes through.

    Of a call that writes, a TransientError leaves open whether it was applied.
    """
    try:
        yield
    except (grpc.RpcError, GoogleAPICallError) as error:
        code, message = status_of(error)
        if code in _TRANSIENT:
            raise TransientError(f"{what}: {code.name} {message}") from error
        if code in _MISCONFIGURED:
            named_by = _named_by(message) if code is grpc.StatusCode.NOT_FOUND else ""
            raise MisconfiguredError("bigtable-refused", f"{what}: {code.name} {message}{named_by}") from error
        raise
    except RetryError as error:
        raise TransientError(f"{what}: {error}") from error
    except GoogleAuthError as error:
        raise credentials_error(what, error) from error


def _named_by(message: str) -> str:
    """Return which settings name what is not there; families, say, no setting names."""
    lowered = message.lower()
    if "app profile" in lowered:
        return ". Is APP_PROFILE right, or PARTITION_APP_PROFILE?"
    if "family" in lowered:
        return ""
    if "instance" in lowered and "table" not in lowered:
        return ". Is BIGTABLE_INSTANCE right, or PARTITION_INSTANCE?"
    if "table" in lowered:
        return ". Is BIGTABLE_TABLE right, or PARTITION_TABLE?"
    return ""
