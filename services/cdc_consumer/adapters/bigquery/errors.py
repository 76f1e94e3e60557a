"""BigQuery's errors, of both its APIs, as the three errors; and which of them are one table's trouble only.

Sources: google.cloud.bigquery.storage.v1 `StorageError`; BigQuery, "Introduction to the Storage Write API", error
handling (which codes are worth a retry); the codes that Google's Java client retries on.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

import grpc
from google.api_core import exceptions
from google.cloud import bigquery
from google.cloud.bigquery_storage_v1.types import StorageError
from google.rpc.status_pb2 import Status

from services.cdc_consumer.adapters.bigquery.unanswered import TableClient
from services.cdc_consumer.ports import TableTroubleError
from shared.bigquery.client import beyond_limits, bigquery_errors
from shared.contracts.errors import MisconfiguredError, TransientError

ONE_CALL: Final[Mapping[str, Any]] = {"retry": None, "timeout": 30.0}
"""How the client makes a call about a table: retries are not nested, for the micro-batch has the one policy."""
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
_storage_error: Final = StorageError.pb()
_STORAGE_NAMES: Final = {number: name for name, number in _storage_error.StorageErrorCode.items()}
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
    message = f"{named}: {status.message}"
    if storage in _TABLE_TROUBLE:
        return TableTroubleError(message, code=code_name(status))
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
            return TableTroubleError(message, code=code_name(status), denied=True)
        case grpc.StatusCode.INVALID_ARGUMENT:
            return None
        case grpc.StatusCode.UNAUTHENTICATED | grpc.StatusCode.UNIMPLEMENTED:  # of every table
            return MisconfiguredError("append-refused", message)
        case _:
            return TableTroubleError(message, code=code_name(status))


def is_exhausted(status: Status) -> bool:
    """Return whether a limit of BigQuery's is reached: of connections, where one has just been opened."""
    return _BY_NUMBER.get(status.code) is grpc.StatusCode.RESOURCE_EXHAUSTED


def code_name(status: Status) -> str:
    """Return the name of a status, and of BigQuery's own code beside it where there is one: what a log may say."""
    code = _BY_NUMBER.get(status.code, grpc.StatusCode.UNKNOWN)
    storage = _storage_code(status.details)
    return f"{code.name} {_STORAGE_NAMES.get(storage, storage)}" if storage else code.name


def call_status(ended: Any) -> Status:
    """Return the status of a call that has ended, with its details where the server sent any."""
    for key, value in ended.trailing_metadata() or ():
        if key == "grpc-status-details-bin" and isinstance(value, bytes):
            return Status.FromString(value)
    return Status(code=ended.code().value[0], message=ended.details() or "")


def reason_of(error: exceptions.GoogleAPICallError) -> str:
    """Return the word of Google's error table that a refusal is of; empty where it names none."""
    reasons = [str(each.get("reason") or "") for each in error.errors if isinstance(each, Mapping)]
    return reasons[0] if reasons else ""


def rest_errors(what: str) -> AbstractContextManager[None]:
    """Translate what the BigQuery client raises about one table; ``what`` says what was being done.

    A handler of Forbidden in the block lets it pass where it is `beyond_limits`: no right is missing then.
    """
    return bigquery_errors(what, _table_trouble)


def update_fields(client: TableClient, table: bigquery.Table, fields: Sequence[str]) -> bigquery.Table | str:
    """Change fields of a table, and return it; BigQuery's words where a right is missing.

    The client's errors: Conflict or PreconditionFailed where another has changed the table since it was read, Forbidden
    where so many have that BigQuery takes no more of it for now.
    """
    try:
        return client.update_table(table, fields, **ONE_CALL)
    except exceptions.Forbidden as error:
        if beyond_limits(error):
            raise
        return str(error.message)


def _table_trouble(text: str, error: exceptions.GoogleAPICallError) -> Exception:
    return TableTroubleError(text, denied=isinstance(error, exceptions.Forbidden))


def _storage_code(details: Iterable[Any]) -> int:
    """Return BigQuery's own code, which may be newer than the library; 0 without one."""
    for detail in details:
        if detail.Is(_storage_error.DESCRIPTOR):
            found = _storage_error()
            detail.Unpack(found)
            return int(found.code)
    return 0
