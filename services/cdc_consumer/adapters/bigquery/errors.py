"""BigQuery's errors, of both its APIs, as the three errors; and which of them are one table's trouble only.

Sources: google.cloud.bigquery.storage.v1 `StorageError`; BigQuery, "Introduction to the Storage Write API", error
handling (which codes are worth a retry); the codes that Google's Java client retries on; BigQuery, "Troubleshoot quota
and limit errors" (what is beyond a limit is answered as what is forbidden is, 403, and distinguished by its reason).
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import grpc
import requests
from google.api_core import exceptions
from google.auth import exceptions as auth_exceptions
from google.cloud.bigquery_storage_v1.types import StorageError
from google.rpc.status_pb2 import Status

from services.cdc_consumer.ports import TableTroubleError
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.pubsub.credentials import credentials_error

_Code = StorageError.StorageErrorCode
_TABLE_TROUBLE: Final = frozenset(
    {
        _Code.TABLE_NOT_FOUND,
        _Code.STREAM_NOT_FOUND,
        _Code.SCHEMA_MISMATCH_EXTRA_FIELDS,
        _Code.CMEK_NOT_PROVIDED,
        _Code.INVALID_CMEK_PROVIDED,
        _Code.CMEK_ENCRYPTION_ERROR,
        _Code.KMS_SERVICE_ERROR,
        _Code.KMS_PERMISSION_DENIED,
    }
)
_LIMITS: Final = frozenset({"rateLimitExceeded", "quotaExceeded", "jobRateLimitExceeded"})
"""The reasons by which the REST API says that a call may succeed later."""
_NO_ADDRESS: Final = (
    requests.exceptions.InvalidURL,
    requests.exceptions.InvalidSchema,
    requests.exceptions.MissingSchema,
)
_storage_error: Final = StorageError.pb()
_BY_NUMBER: Final = {code.value[0]: code for code in grpc.StatusCode}


class AppendFailedError(TransientError):
    """An append that may succeed later, and the code that retries are counted by."""

    def __init__(self, message: str, *, code: str = "") -> None:
        super().__init__(message)
        self.code = code


def append_error(table: str, status: Status) -> Exception | None:
    """Return what a refused append is; None where it must be the rows themselves (an invalid argument, no row named).

    ``status`` is the ``error`` of a response, or what ended the connection.
    """
    code = _BY_NUMBER.get(status.code, grpc.StatusCode.UNKNOWN)
    storage = _storage_code(status.details)
    # BigQuery's words may quote a row, and a transient error's are logged at each retry.
    named = f"table {table}: append refused, {code_name(status)}"
    told = f"{named}: {status.message}"
    if storage in _TABLE_TROUBLE:
        return TableTroubleError(told, code=code_name(status))
    match code:
        case (
            grpc.StatusCode.ABORTED
            | grpc.StatusCode.UNAVAILABLE
            | grpc.StatusCode.CANCELLED
            | grpc.StatusCode.INTERNAL
            | grpc.StatusCode.DEADLINE_EXCEEDED
            | grpc.StatusCode.RESOURCE_EXHAUSTED
            | grpc.StatusCode.UNKNOWN  # how an idle connection's end has been seen from Python
        ):
            return AppendFailedError(named, code=code.name)
        case grpc.StatusCode.PERMISSION_DENIED:
            return TableTroubleError(told, code=code_name(status), denied=True)
        case grpc.StatusCode.INVALID_ARGUMENT:
            return None
        case grpc.StatusCode.UNAUTHENTICATED | grpc.StatusCode.UNIMPLEMENTED:  # of every table
            return MisconfiguredError("append-refused", told)
        case _:
            return TableTroubleError(told, code=code_name(status))


def is_exhausted(status: Status) -> bool:
    """Return whether a limit of BigQuery's is reached: of connections, where one has just been opened."""
    return _BY_NUMBER.get(status.code) is grpc.StatusCode.RESOURCE_EXHAUSTED


def code_name(status: Status) -> str:
    """Return the name of a status, and of BigQuery's own code beside it where there is one: what a log may say."""
    code = _BY_NUMBER.get(status.code, grpc.StatusCode.UNKNOWN)
    storage = _storage_code(status.details)
    return f"{code.name} {storage.name}" if storage else code.name


def call_status(ended: Any) -> Status:
    """Return the status of a call that has ended, with its details where the server sent any."""
    for key, value in ended.trailing_metadata() or ():
        if key == "grpc-status-details-bin" and isinstance(value, bytes):
            return Status.FromString(value)
    return Status(code=ended.code().value[0], message=ended.details() or "")


def beyond_limits(error: exceptions.GoogleAPICallError) -> bool:
    """Return whether a call was refused for a limit or a quota of BigQuery's: not what it asks for, but when."""
    return any(isinstance(each, Mapping) and each.get("reason") in _LIMITS for each in error.errors)


def reason_of(error: exceptions.GoogleAPICallError) -> str:
    """Return the word of Google's error table that a refusal is of; empty where it names none."""
    reasons = [str(each.get("reason") or "") for each in error.errors if isinstance(each, Mapping)]
    return reasons[0] if reasons else ""


@contextmanager
def rest_errors(what: str) -> Iterator[None]:
    """Translate what the BigQuery client raises about one table; ``what`` says what was being done.

    A handler of Forbidden in the block lets it pass where it is `beyond_limits`: no right is missing then.
    """
    try:
        yield
    except auth_exceptions.GoogleAuthError as error:  # first: some of them are an OSError, too
        raise credentials_error(what, error) from error
    except _NO_ADDRESS as error:
        raise MisconfiguredError(
            "bigquery-emulator-address", f"{what}: {_words(error)}; BIGQUERY_EMULATOR_HOST is host:port"
        ) from error
    except (
        exceptions.ServerError,
        exceptions.TooManyRequests,
        exceptions.RetryError,
        OSError,  # of `requests` and of the sockets below: a connection that ends at any place, or a timeout
    ) as error:
        raise TransientError(f"{what}: {_words(error)}") from error
    except exceptions.Unauthorized as error:
        raise MisconfiguredError(
            "bigquery-unauthorized",
            f"{what}: {_words(error)}; give the process credentials (gcloud auth application-default login)",
        ) from error
    except exceptions.GoogleAPICallError as error:
        if beyond_limits(error):
            raise TransientError(f"{what}: {_words(error)}") from error
        denied = isinstance(error, exceptions.Forbidden)
        raise TableTroubleError(f"{what}: {_words(error)}", denied=denied) from error


def _storage_code(details: Iterable[Any]) -> StorageError.StorageErrorCode | None:
    for detail in details:
        if detail.Is(_storage_error.DESCRIPTOR):
            found = _storage_error()
            detail.Unpack(found)
            return _Code(found.code)
    return None


def _words(error: Exception) -> str:
    return str(getattr(error, "message", "")) or str(error) or type(error).__name__
