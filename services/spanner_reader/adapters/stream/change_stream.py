"""The change stream query: one call per partition, and the records of all responses that have come, together."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from typing import Any, Final

import structlog
from google.api_core.exceptions import InvalidArgument, OutOfRange
from google.cloud.spanner_v1 import (
    ExecuteSqlRequest,
    ResultSetMetadata,
    TransactionOptions,
    TransactionSelector,
    TypeCode,
)
from google.protobuf.message import DecodeError
from google.protobuf.struct_pb2 import Value

from services.spanner_reader.adapters.spanner.chunks import ChunkedValue, value_from_wire
from services.spanner_reader.adapters.spanner.connection import (
    SpannerDatabaseClient,
    Statement,
    int64,
    row,
    string,
    timestamp,
)
from services.spanner_reader.adapters.spanner.dialects import Dialect
from services.spanner_reader.adapters.stream.json_record_decoder import JsonRecordDecoder
from services.spanner_reader.adapters.stream.record_decoder import RecordDecoder
from services.spanner_reader.adapters.stream.row_messages import Result
from services.spanner_reader.core.schema.resync import RESTART_WITH_ALL_ROWS
from services.spanner_reader.core.stream.records import ROOT, PartitionToken, SpannerStreamQuery, StreamRecord
from services.spanner_reader.ports import StartPastEndError, StartTooOldError
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.streams.connections import opening_seconds

_STUCK_AFTER_HEARTBEATS: Final = 3
_STUCK_AFTER_SECONDS: Final = 60.0
_RECORDS: Final = 256
"""Records that are handed over at a time: how long nothing else is done meanwhile."""
# The only options that Spanner takes for a change stream query; a read timestamp is not asked for, it would be a lie.
_STRONG: Final = TransactionSelector(single_use=TransactionOptions(read_only=TransactionOptions.ReadOnly(strong=True)))


def change_stream_query(
    change_stream: str, query: SpannerStreamQuery, dialect: Dialect = Dialect.GOOGLESQL
) -> Statement:
    """Return the text of the query, with four bound parameters, which GoogleSQL names."""
    if dialect is Dialect.POSTGRESQL:
        return Statement(
            # A function of the stream's name as it is, which without quotes would be one in lower case.
            f'SELECT * FROM "spanner"."read_json_{change_stream}"($1, $2, $3, $4, null)',  # noqa: S608  an identifier
            {
                "p1": timestamp(query.start),
                "p2": timestamp(query.end),
                "p3": string(None if query.token == ROOT else query.token),
                "p4": int64(query.heartbeat_milliseconds),
            },
        )
    return Statement(
        f"SELECT ChangeRecord FROM READ_{change_stream} ("  # noqa: S608  a checked identifier
        "start_timestamp => @start_timestamp, "
        "end_timestamp => @end_timestamp, "
        "partition_token => @partition_token, "
        "heartbeat_milliseconds => @heartbeat_milliseconds)",
        {
            "start_timestamp": timestamp(query.start),
            "end_timestamp": timestamp(query.end),
            "partition_token": string(None if query.token == ROOT else query.token),
            "heartbeat_milliseconds": int64(query.heartbeat_milliseconds),
        },
    )


class SpannerChangeStream:
    """A change stream, in the dialect of its database."""

    def __init__(self, database: SpannerDatabaseClient, change_stream: str) -> None:
        self._database = database
        self._change_stream = change_stream
        self._silences: Counter[PartitionToken] = Counter()
        """How often in a row a query of a partition was given up before it said anything."""

    async def read(self, query: SpannerStreamQuery) -> AsyncGenerator[Sequence[StreamRecord], None]:
        """Yield the records of a partition from the start asked for, in commit order; inclusive at both ends.

        Those that have come come together, but so that the event loop has its turns between them.
        """
        # A healthy query says something at every heartbeat; one that does not has lost its connection unnoticed.
        timeout = max(_STUCK_AFTER_HEARTBEATS * query.heartbeat_milliseconds / 1000, _STUCK_AFTER_SECONDS)
        silences = self._silences
        opening = timeout + opening_seconds(silences[query.token])
        opened = False
        with self._errors(query):
            statement = change_stream_query(self._change_stream, query, self._database.dialect)
            asked = self._database.reading(statement, await self._database.session(), _STRONG)
            rows = StreamRows()
            try:
                async with aclosing(
                    self._database.portions("ExecuteStreamingSql", ExecuteSqlRequest.pb(asked))
                ) as portions:
                    while True:
                        async with asyncio.timeout(timeout if opened else opening):
                            responses = await anext(portions, None)
                        if not opened:
                            opened = True
                            del silences[query.token]  # of a Counter: also where there were none
                        if responses is None:
                            rows.end()
                            return
                        for records in rows.records(responses):
                            yield records
                            await asyncio.sleep(0)
            except TimeoutError:
                if not opened:
                    silences[query.token] += 1
                raise

    @contextmanager
    def _errors(self, query: SpannerStreamQuery) -> Iterator[None]:
        what = f"read change stream {self._change_stream}"
        try:
            with self._database.errors(what):
                yield
        except TimeoutError as error:
            structlog.get_logger().warning("change_stream_was_silent", partition_token=query.token)
            raise TransientError(f"{what}: no record and no heartbeat in time") from error
        except MisconfiguredError as error:
            if isinstance(error.__cause__, OutOfRange) and _OUTSIDE_PARTITION in str(error):
                raise StartPastEndError("position-past-end", f"{error.message}\n{_FOREIGN_POSITION}") from error
            if isinstance(error.__cause__, OutOfRange):
                raise StartTooOldError("position-too-old", f"{error.message}\n{_OUT_OF_RANGE}") from error
            if isinstance(error.__cause__, InvalidArgument) and "partition_token" in str(error):
                raise MisconfiguredError("partition-token-unknown", f"{error.message}\n{_FOREIGN_PARTITION}") from error
            raise


_OUT_OF_RANGE: Final = (
    "The position is outside what the change stream keeps. Changes between it and the earliest time named above "
    "are lost to it. On a first start, give a START_TIMESTAMP within that range. Where the partition table has an "
    f"older position, {RESTART_WITH_ALL_ROWS}. For the next time, let the stream keep more: ALTER CHANGE STREAM ... "
    "SET OPTIONS (retention_period = '7d') (in the PostgreSQL dialect without the word OPTIONS)."
)
_OUTSIDE_PARTITION: Final = "start_timestamp is invalid for the partition"
_FOREIGN_POSITION: Final = (
    "The partition table holds a position that this partition never had. Start again with another PARTITION_TABLE and "
    "a START_TIMESTAMP at or before that position, and nothing is lost."
)
_FOREIGN_PARTITION: Final = (
    "The partition table names partitions that this change stream does not know: the stream was made again under its "
    f"name, or the emulator was restarted: {RESTART_WITH_ALL_ROWS}."
)


class StreamRows:
    """The rows of a result, from responses that may cut one anywhere."""

    def __init__(self) -> None:
        self._decoder: RecordDecoder | JsonRecordDecoder | None = None
        self._chunks = ChunkedValue()

    def records(self, responses: Sequence[bytes]) -> Iterator[Sequence[StreamRecord]]:
        """Yield the records that are whole with the next PartialResultSets, some at a time.

        TransientError, MisconfiguredError, after the records before that.
        """
        found: list[StreamRecord] = []
        try:
            for response in responses:
                for records in self._rows(response):
                    found += records
                    if len(found) >= _RECORDS:
                        yield found
                        found = []
        except (TransientError, MisconfiguredError):
            if found:
                yield found
            raise
        if found:
            yield found

    def _rows(self, response: bytes) -> Iterator[Sequence[StreamRecord]]:
        """Yield the records of each row that is whole with the next response."""
        try:
            result = Result.FromString(response)
        except DecodeError as error:
            raise TransientError(f"a response of {len(response)} bytes cannot be read") from error
        if self._decoder is None:
            self._decoder = _decoder(ResultSetMetadata.pb().FromString(result.metadata).row_type)
        last = len(result.values) - 1
        for index, value in enumerate(result.values):
            cut = index == last and result.chunked_value
            if cut or self._chunks.started:
                self._chunks.add(value_from_wire(Value.FromString(value)))
                if cut:
                    return
                yield self._decoder.decode(_wire(self._chunks.take()))
            else:
                yield self._decoder.decode(value)

    def end(self) -> None:
        """Check that no row was left in pieces: a stream cut off without an error is not a complete one."""
        if self._chunks.started:
            raise TransientError("a change stream query ended in the middle of a record")


def _decoder(row_type: Any) -> RecordDecoder | JsonRecordDecoder:
    """Return what decodes rows of this form: arrays of structs in GoogleSQL, JSON documents in PostgreSQL."""
    is_json = len(row_type.fields) == 1 and row_type.fields[0].type_.code == TypeCode.JSON
    return JsonRecordDecoder() if is_json else RecordDecoder(row_type)


def _wire(value: Any) -> bytes:
    """Return a value that was put together as the wire has it."""
    whole = Value(string_value=value) if isinstance(value, str) else Value(list_value=row(value))
    return whole.SerializeToString()
