"""What calls of gRPC raise, as the errors that say what to do next; and Pub/Sub's."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import grpc
from google.api_core.exceptions import GoogleAPICallError, RetryError
from google.auth.exceptions import GoogleAuthError

from shared.contracts.errors import MisconfiguredError, TransientError
from shared.pubsub.credentials import credentials_error

# Source: the retryable codes of Publish in Pub/Sub's own client configuration. Other services' streams are reset with
# INTERNAL, and an ordinary break is UNKNOWN, "Stream removed".
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
_REFUSALS: Final = frozenset(
    {
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.UNIMPLEMENTED,
    }
)
_HINTS: Final = {
    grpc.StatusCode.NOT_FOUND: "it does not exist; create it with `python -m services.cdc_consumer setup`",
    grpc.StatusCode.PERMISSION_DENIED: "grant this identity roles/pubsub.publisher on the topics, and "
    "roles/pubsub.subscriber and roles/pubsub.viewer on the subscriptions",
    grpc.StatusCode.UNAUTHENTICATED: "run `gcloud auth application-default login` or give the workload a service "
    "account",
}


def status_of(error: BaseException | None) -> tuple[grpc.StatusCode | None, str]:
    """Return the gRPC status that an error of a stub or a client carries, and its message; None where it has none."""
    if isinstance(error, grpc.RpcError):  # of an event loop's channel, or of a thread's
        return error.code(), error.details() or ""
    if isinstance(error, GoogleAPICallError):
        return error.grpc_status_code, str(error.message)
    return None, str(error)


@contextmanager
def grpc_errors(
    what: str,
    words: Callable[[grpc.StatusCode, Any], str],
    refused: Callable[[str, str, grpc.StatusCode, str], Exception],
    refusals: frozenset[grpc.StatusCode] = _REFUSALS,
) -> Iterator[None]:
    """Translate what stubs and clients raise; ``what`` says what was being done. What we do not know passes through.

    ``words`` returns an error's text for our message. ``refused`` returns the error to raise for a refusal, from
    ``what``, that text, the status and the service's own message. After a TransientError a write may have been applied.
    """
    try:
        yield
    except (grpc.RpcError, GoogleAPICallError) as error:
        code, message = status_of(error)
        if code in TRANSIENT:
            raise TransientError(f"{what}: {words(code, error)}") from error
        if code in refusals:
            raise refused(what, words(code, error), code, message) from error
        raise
    except RetryError as error:
        raise TransientError(f"{what}: {error}") from error
    except GoogleAuthError as error:
        raise credentials_error(what, error) from error


@contextmanager
def pubsub_errors(what: str) -> Iterator[None]:
    """Translate what Pub/Sub's stubs and clients raise; ``what`` names the call and its object for the message."""
    with grpc_errors(what, _words, _refused, _REFUSALS | {grpc.StatusCode.ALREADY_EXISTS}):
        yield


def _words(code: grpc.StatusCode, error: Any) -> str:
    return f"{code.name}: {status_of(error)[1]}"


def _refused(what: str, words: str, code: grpc.StatusCode, _message: str) -> Exception:
    hint = _HINTS.get(code)
    return MisconfiguredError("pubsub-refused", f"{what}: {words}" + (f": {hint}" if hint else ""))
