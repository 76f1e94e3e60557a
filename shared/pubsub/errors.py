"""Pub/Sub's errors as the three that say what to do next."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import grpc
from google.api_core.exceptions import GoogleAPICallError, RetryError
from google.auth.exceptions import GoogleAuthError

from shared.contracts.errors import MisconfiguredError, TransientError
from shared.pubsub.credentials import credentials_error

# Source: the retryable codes of Publish in Pub/Sub's own client configuration.
TRANSIENT: Final = frozenset(
    {
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.UNKNOWN,
    }
)

_HINTS: Final = {
    grpc.StatusCode.NOT_FOUND: "it does not exist; create it with `python -m services.cdc_consumer setup`",
    grpc.StatusCode.PERMISSION_DENIED: "grant this identity roles/pubsub.publisher on the topics, and "
    "roles/pubsub.subscriber and roles/pubsub.viewer on the subscriptions",
    grpc.StatusCode.UNAUTHENTICATED: "run `gcloud auth application-default login` or give the workload a service "
    "account",
}
_REFUSALS: Final = frozenset(_HINTS) | {
    grpc.StatusCode.ALREADY_EXISTS,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.OUT_OF_RANGE,
    grpc.StatusCode.UNIMPLEMENTED,
}


@contextmanager
def pubsub_errors(what: str) -> Iterator[None]:
    """Translate what Pub/Sub's stubs and clients raise; ``what`` names the call and its object for the message."""
    try:
        yield
    except (grpc.RpcError, GoogleAPICallError) as error:
        code = status_code(error)
        if code in TRANSIENT:
            raise TransientError(f"{what}: {code.name}: {_details(error)}") from error
        if code in _REFUSALS:
            hint = _HINTS.get(code)
            raise MisconfiguredError(
                "pubsub-refused", f"{what}: {code.name}: {_details(error)}" + (f": {hint}" if hint else "")
            ) from error
        raise
    except RetryError as error:
        raise TransientError(f"{what}: {error}") from error
    except GoogleAuthError as error:
        raise credentials_error(what, error) from error


def status_code(error: Any) -> grpc.StatusCode:
    """Return the gRPC status of an error of a stub or of a client library."""
    found = error.grpc_status_code if isinstance(error, GoogleAPICallError) else error.code()
    return found if isinstance(found, grpc.StatusCode) else grpc.StatusCode.UNKNOWN


def _details(error: Any) -> str:
    return str(error.message if isinstance(error, GoogleAPICallError) else error.details())
