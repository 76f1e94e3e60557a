"""The rows of a table as they were at a time, by the Read call: in key order, from any key on, in both dialects.

No SQL: a range of keys in SQL would have to say again how each type, NULL and descending part of a key sorts. Sources:
Spanner, RPC reference, `ReadRequest` and `KeyRange`; "Reads outside of transactions", exact staleness; "Data Boost";
"Directed reads": of any read-only transaction. `PartitionRead` has no field for replicas, the reading of a part has.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from datetime import timedelta
from typing import Any, Final

import msgspec
from google.api_core.exceptions import FailedPrecondition, GoogleAPICallError, InvalidArgument, NotFound, OutOfRange
from google.cloud.spanner_v1 import (
    BeginTransactionRequest,
    PartialResultSet,
    PartitionOptions,
    PartitionReadRequest,
    ReadRequest,
    RequestOptions,
    Session,
    TransactionSelector,
)
from google.cloud.spanner_v1.types import KeyRange, KeySet
from google.protobuf.struct_pb2 import ListValue

from services.spanner_reader.adapters.spanner.chunks import RowValues
from services.spanner_reader.adapters.spanner.connection import TIMEOUT, SpannerDatabaseClient, read_only_at, row
from services.spanner_reader.core.snapshot.snapshot import KeyText
from services.spanner_reader.ports import NotReadableError, WatchedTable
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.contracts.timestamps import Nanoseconds

_response: Final = PartialResultSet.pb().FromString
_TIMEOUT: Final = timedelta(seconds=60)
"""Without another response for so long, a reading has lost its connection unnoticed."""
_OPENING_TIMEOUT: Final = timedelta(minutes=5)
"""So long a reading may take to begin: behind what the database's users ask for, or on computers made for it."""
_MOST_PARTS: Final = 200
"""As many ranges a table is cut into: each is a row of the table of snapshots. Spanner takes no notice of that wish."""
_LOW: Final = RequestOptions(priority=RequestOptions.Priority.PRIORITY_LOW)
"""What the database's users ask for comes first, and the change stream as well."""

_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(list[object]).decode
_NOT_THEN: Final = (FailedPrecondition, OutOfRange, NotFound, InvalidArgument)


class SpannerRows:
    """The rows of the tables of one database."""

    def __init__(self, database: SpannerDatabaseClient, *, data_boost: bool) -> None:
        """With ``data_boost`` the rows are read by computers other than the instance's own, and are paid for.

        Such rows come in no order: `PartitionRead` promises none, not even within one of its parts.
        """
        self._database = database
        self._data_boost = data_boost
        self.in_key_order = not data_boost

    def read(
        self,
        table: WatchedTable,
        at: Nanoseconds,
        *,
        after: KeyText | None,
        until: KeyText | None,
        in_key_order: bool = False,
    ) -> AsyncGenerator[Sequence[Sequence[object]], None]:
        """Yield rows, some at a time: behind ``after`` up to and with ``until``; in key order without Data Boost."""
        read = self._read if in_key_order or not self._data_boost else self._read_by_parts
        return read(table, at, _keys(after, until))

    def read_keys(
        self, table: WatchedTable, at: Nanoseconds, keys: Sequence[KeyText]
    ) -> AsyncGenerator[Sequence[Sequence[object]], None]:
        """Yield the rows that there are under some keys, some at a time."""
        return self._read(table, at, KeySet(keys=[_wire(key) for key in keys]))

    async def _read(
        self, table: WatchedTable, at: Nanoseconds, keys: KeySet
    ) -> AsyncGenerator[Sequence[Sequence[object]], None]:
        request = ReadRequest(
            session=await self._session(table),
            transaction=read_only_at(at),
            table=table.name,
            columns=[column.name for column in table.column_types],
            key_set=keys,
            request_options=_LOW,
            directed_read_options=self._database.options.directed_reads,
        )
        async with aclosing(self._rows(table, request)) as batches:
            async for rows in batches:
                yield rows

    async def _read_by_parts(
        self, table: WatchedTable, at: Nanoseconds, keys: KeySet
    ) -> AsyncGenerator[Sequence[Sequence[object]], None]:
        columns = [column.name for column in table.column_types]
        async with self._partitions(table, at, columns, keys) as (reading, tokens):
            for token in tokens:
                request = ReadRequest(
                    **reading, columns=columns, key_set=keys, partition_token=token, data_boost_enabled=True
                )
                async with aclosing(self._rows(table, request)) as batches:
                    async for rows in batches:
                        yield rows

    async def cuts(self, table: WatchedTable, at: Nanoseconds) -> Sequence[KeyText]:
        """Return first keys of the parts that Spanner itself would read a table in, but for the first part's.

        Spanner says where its parts begin only by their first rows; and it is Spanner that sorts them, by being asked
        for the rows of just these keys.
        """
        everything = _keys(None, None)
        key = list(table.primary_key)
        firsts: list[ListValue] = []
        cuts: list[KeyText] = []
        async with self._partitions(table, at, key, everything) as (reading, tokens):
            for token in spread(tokens, _MOST_PARTS) if len(tokens) > 1 else ():
                request = ReadRequest(**reading, columns=key, key_set=everything, partition_token=token)
                async with aclosing(self._rows(table, request, columns=key)) as batches:
                    async for rows in batches:
                        firsts.append(row(list(rows[0])))
                        break
            if len(firsts) > 1:
                request = ReadRequest(**reading, columns=key, key_set=KeySet(keys=firsts))
                async with aclosing(self._rows(table, request, columns=key)) as batches:
                    async for rows in batches:
                        cuts += [KeyText(_encode(one).decode()) for one in rows]
        return cuts[1:]

    @asynccontextmanager
    async def _partitions(
        self, table: WatchedTable, at: Nanoseconds, columns: Sequence[str], keys: KeySet
    ) -> AsyncIterator[tuple[Mapping[str, Any], Sequence[bytes]]]:
        """Yield the parts that Spanner would read keys in, and what every request says that reads some of them.

        In a session of its own: the emulator ends a session's transaction when another begins.
        """
        database = self._database
        how: Mapping[str, Any] = {"retry": None, "timeout": TIMEOUT, "metadata": database.metadata}
        with self._errors(table):
            request = {"database": database.name, "session": Session(creator_role=database.options.role or "")}
            session = str((await database.client.create_session(request=request, **how)).name)
        try:
            with self._errors(table):
                begin = BeginTransactionRequest(session=session, options=read_only_at(at).single_use)
                begun = await database.client.begin_transaction(begin, **how)
                reading = {"session": session, "transaction": TransactionSelector(id=begun.id), "table": table.name}
                asked = PartitionReadRequest(
                    **reading,
                    columns=columns,
                    key_set=keys,
                    partition_options=PartitionOptions(max_partitions=_MOST_PARTS),
                )
                found = await database.client.partition_read(asked, **how)
            how_read = {"request_options": _LOW, "directed_read_options": database.options.directed_reads}
            yield {**reading, **how_read}, [one.partition_token for one in found.partitions]
        finally:
            with suppress(GoogleAPICallError):  # it ends by itself after an hour
                await database.client.delete_session(name=session, **how)

    async def _session(self, table: WatchedTable) -> str:
        with self._errors(table):
            return await self._database.session()

    async def _rows(
        self, table: WatchedTable, request: ReadRequest, columns: Sequence[str] | None = None
    ) -> AsyncGenerator[Sequence[Sequence[object]], None]:
        """Yield what a reading returns, whole rows of each response together."""
        width = len(table.column_types if columns is None else columns)
        with self._errors(table):
            values = RowValues(width)
            timeout = _OPENING_TIMEOUT
            async with aclosing(self._database.portions("StreamingRead", ReadRequest.pb(request))) as portions:
                while True:
                    async with asyncio.timeout(timeout.total_seconds()):
                        responses = await anext(portions, None)
                    timeout = _TIMEOUT
                    if responses is None:
                        values.end()
                        return
                    for response in responses:
                        if rows := values.rows(_response(response)):
                            yield rows

    @contextmanager
    def _errors(self, table: WatchedTable) -> Iterator[None]:
        what = f"read the rows of table {table.name}"
        try:
            with self._database.errors(what):
                yield
        except TimeoutError as error:
            raise TransientError(f"{what}: no rows in time") from error
        except MisconfiguredError as error:
            if isinstance(error.__cause__, _NOT_THEN):
                raise NotReadableError(error.code, error.message) from error
            raise


def spread(tokens: Sequence[bytes], most: int) -> Sequence[bytes]:
    """Return as many of some tokens at most, from all over them."""
    if len(tokens) <= most:
        return tokens
    return [tokens[place * len(tokens) // most] for place in range(most)]


def _keys(after: KeyText | None, until: KeyText | None) -> KeySet:
    """Return the keys of a range: an empty list stands for the table's beginning, and for its end."""
    end = _wire(until)
    key_range = KeyRange(start_closed=_wire(None), end_closed=end)
    if after is not None:
        key_range = KeyRange(start_open=_wire(after), end_closed=end)
    return KeySet(ranges=[key_range])


def _wire(key: KeyText | None) -> ListValue:
    return row([] if key is None else _decode(key))
