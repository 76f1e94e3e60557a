"""The published message classes of google.cloud.bigquery.storage.v1, raw: without proto-plus around every access."""

from typing import Any, Final

from google.cloud.bigquery_storage_v1 import types

AppendRowsRequest: Final[Any] = types.AppendRowsRequest.pb()
AppendRowsResponse: Final[Any] = types.AppendRowsResponse.pb()
BatchCommitRequest: Final[Any] = types.BatchCommitWriteStreamsRequest.pb()
BatchCommitResponse: Final[Any] = types.BatchCommitWriteStreamsResponse.pb()
CreateWriteStreamRequest: Final[Any] = types.CreateWriteStreamRequest.pb()
CreateReadSessionRequest: Final[Any] = types.CreateReadSessionRequest.pb()
DataFormat: Final[Any] = types.DataFormat
FinalizeWriteStreamRequest: Final[Any] = types.FinalizeWriteStreamRequest.pb()
FinalizeWriteStreamResponse: Final[Any] = types.FinalizeWriteStreamResponse.pb()
FlushRowsRequest: Final[Any] = types.FlushRowsRequest.pb()
FlushRowsResponse: Final[Any] = types.FlushRowsResponse.pb()
GetWriteStreamRequest: Final[Any] = types.GetWriteStreamRequest.pb()
ReadRowsRequest: Final[Any] = types.ReadRowsRequest.pb()
ReadRowsResponse: Final[Any] = types.ReadRowsResponse.pb()
ReadSession: Final[Any] = types.ReadSession.pb()
RowError: Final[Any] = types.RowError.pb()
SplitReadStreamRequest: Final[Any] = types.SplitReadStreamRequest.pb()
SplitReadStreamResponse: Final[Any] = types.SplitReadStreamResponse.pb()
StorageError: Final[Any] = types.StorageError.pb()
TableFieldSchema: Final[Any] = types.TableFieldSchema.pb()
TableSchema: Final[Any] = types.TableSchema.pb()
WriteStream: Final[Any] = types.WriteStream.pb()
WriteStreamView: Final[Any] = types.WriteStreamView

TABLE_NOT_FOUND: Final[int] = StorageError.TABLE_NOT_FOUND
SCHEMA_MISMATCH_EXTRA_FIELDS: Final[int] = StorageError.SCHEMA_MISMATCH_EXTRA_FIELDS
