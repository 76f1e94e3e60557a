"""How AppendRows refuses: as an error in the answer, row by row, or by closing the stream with a status.

Source: google/cloud/bigquery/storage/v1/storage.proto. An error in the answer leaves the connection usable; what the
service cannot even relate to a table (no stream name, no routing header, no such table) closes it.
"""

from collections.abc import Mapping
from typing import Any

import grpc
from google.protobuf import any_pb2
from google.rpc import status_pb2

from emulators.bigquery.protocol import AppendRowsResponse, RowError, StorageError

_CORRUPTED_ROWS = (
    "Errors found while processing rows. Please refer to the row_errors field for details. "
    "The list may not be complete because of the size limitations."
)
_ROW_ERRORS = 1000


class AppendRefusedError(Exception):
    """An append of which nothing was accepted."""

    def __init__(
        self,
        message: str,
        *,
        code: grpc.StatusCode = grpc.StatusCode.INVALID_ARGUMENT,
        storage_code: int | None = None,
        entity: str = "",
        closes: bool = False,
        row_errors: Mapping[int, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.storage_code = storage_code
        self.entity = entity
        self.closes = closes
        self.row_errors = row_errors or {}

    def status(self) -> status_pb2.Status:
        """Return google.rpc.Status, with the StorageError among its details where there is one."""
        status = status_pb2.Status(code=self.code.value[0], message=self.message)
        if self.storage_code is not None:
            detail = StorageError(code=self.storage_code, entity=self.entity, error_message=self.message)
            packed = any_pb2.Any()
            packed.Pack(detail)
            status.details.append(packed)
        return status

    def response(self, write_stream: str) -> Any:
        """Return the answer that refuses one request and leaves the connection open."""
        answer = AppendRowsResponse(write_stream=write_stream)
        answer.error.CopyFrom(self.status())
        for index in sorted(self.row_errors)[:_ROW_ERRORS]:
            answer.row_errors.append(RowError(index=index, code=RowError.FIELDS_ERROR, message=self.row_errors[index]))
        return answer


def corrupted_rows(row_errors: Mapping[int, str]) -> AppendRefusedError:
    """Make the refusal of a whole request for what is wrong with some of its rows."""
    return AppendRefusedError(_CORRUPTED_ROWS, row_errors=row_errors)


def closing(
    message: str,
    code: grpc.StatusCode = grpc.StatusCode.INVALID_ARGUMENT,
    storage_code: int | None = None,
    entity: str = "",
) -> AppendRefusedError:
    """Make a refusal that closes the stream."""
    return AppendRefusedError(message, code=code, storage_code=storage_code, entity=entity, closes=True)
