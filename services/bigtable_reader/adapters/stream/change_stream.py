"""The change stream of a table: its partitions, and the records of a key range as they come.

A call is made once and stays open until the server ends it: progress is saved beside it, so that nothing is read twice
because something was saved. The audit log has an error for each call that a client cancels: the reader cancels a call
only when it stops, pauses or hands a partition over, when its lease is lost, and when the call is silent or broken.

What breaks a call off is a TransientError, and the next call begins at the last token. Any refusal that may mean a lost
position is taken for one only where a call is opened: of a stream that has given records it says what the next call
will be told.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, Final

import grpc
import structlog
from google.cloud.bigtable_v2.types import (
    GenerateInitialChangeStreamPartitionsRequest,
    GenerateInitialChangeStreamPartitionsResponse,
    ReadChangeStreamRequest,
    ReadChangeStreamResponse,
)
from google.protobuf.unknown_fields import UnknownFieldSet

from services.bigtable_reader.adapters.bigtable.connection import BigtableChannels, Method, Table
from services.bigtable_reader.adapters.stream.stream_messages import CHANGE_WITH_ENTRIES, CHANGE_WITHOUT_ENTRIES
from services.bigtable_reader.core.stream.merging import MOST_BYTES, BrokenStreamError, Kept, Merging, key_range
from services.bigtable_reader.core.stream.partitions import RESTART_AFTER_LOST_CHANGES
from services.bigtable_reader.core.stream.records import (
    BigtableStreamQuery,
    CloseStream,
    KeyRange,
    Microseconds,
    StreamRecord,
)
from services.bigtable_reader.ports import PositionLostError, StreamGoneError
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.pubsub.errors import status_of
from shared.streams.connections import opening_seconds

_PARTITIONS: Final = Method(
    "GenerateInitialChangeStreamPartitions",
    GenerateInitialChangeStreamPartitionsRequest.pb(),
    GenerateInitialChangeStreamPartitionsResponse.pb(),
)
_READ: Final = Method("ReadChangeStream", ReadChangeStreamRequest.pb(), ReadChangeStreamResponse.pb())
_response: Final = _READ.response.FromString

_PARTITIONS_TIMEOUT: Final = 60.0
_AT_ONCE: Final = 256
"""Messages that are made records of at a time."""
_STUCK_AFTER_HEARTBEATS: Final = 3
_ENDING_SECONDS: Final = 5.0
"""How long the server may take to end a call after its CloseStream, before the call is cancelled."""
_OK: Final = 0
_OUT_OF_RANGE: Final = 11  # of a CloseStream: the partition was split or merged
_TRANSIENT_CODES: Final = frozenset({1, 2, 4, 8, 10, 13, 14})
_MAY_BE_LOST: Final = (
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.OUT_OF_RANGE,
    grpc.StatusCode.FAILED_PRECONDITION,
)
_OF_A_PROFILE: Final = ("app profile", "app_profile", "routing", "single-cluster", "single cluster")
_OF_THE_STREAM: Final = ("not enabled", "disabled", "no change stream", "does not have a change stream")


class BigtableChangeStream:
    """The change stream of one table, read through one app profile."""

    def __init__(
        self, channels: BigtableChannels, table: Table, *, keep: Kept = "all", most_bytes: int = MOST_BYTES
    ) -> None:
        """Take what is kept of the entries of changes, and how many bytes of one change are held at most."""
        self._channels = channels
        self._table = table
        self._keep: Kept = keep
        self._most_bytes = most_bytes

    async def initial_partitions(self) -> Sequence[KeyRange]:
        """Return the partitions as they are now. TransientError; MisconfiguredError, naming the fix."""
        request = _PARTITIONS.request(table_name=self._table.name, app_profile_id=self._table.app_profile)
        try:
            responses = self._channels.stream(_PARTITIONS, self._table, request, timeout=_PARTITIONS_TIMEOUT)
            async with aclosing(responses):
                found = sorted([key_range(response.partition.row_range) async for response in responses])
        except BrokenStreamError as error:
            raise TransientError(f"the partitions of {self._table.id} as they are now: {error}") from error
        except MisconfiguredError as error:
            raise MisconfiguredError(
                "bigtable-stream-refused", f"{error.message}\n{_fix_of(self._table, error)}"
            ) from error
        if not found:
            raise TransientError(f"the partitions of {self._table.id} as they are now: none was named")
        return found

    async def read(self, query: BigtableStreamQuery) -> AsyncGenerator[Sequence[StreamRecord], None]:
        """Yield the records of a range in the order of the stream, many at a time; see the port for what ends it."""
        log = structlog.get_logger()
        # A healthy stream says something at every heartbeat; one that does not has lost its connection unnoticed.
        timeout = _STUCK_AFTER_HEARTBEATS * query.heartbeat_milliseconds / 1000
        silences = self._channels.silences
        asked = (self._table, query.range)
        opening = timeout + opening_seconds(silences[asked])
        merging = Merging(keep=self._keep, most_bytes=self._most_bytes)
        opened = False
        try:
            portions = self._channels.portions(_READ, self._table, _request(self._table, query), timeout=None)
            async with aclosing(portions):
                while True:
                    async with asyncio.timeout(timeout if opened else opening):
                        portion = await anext(portions, None)
                    if portion is None:
                        raise TransientError("the change stream ended without a CloseStream")
                    if not opened:
                        opened = True
                        del silences[asked]  # of a Counter: also where there were none
                    for first in range(0, len(portion), _AT_ONCE):
                        records, broken = records_of(merging, portion[first : first + _AT_ONCE])
                        closed = records.pop() if records and isinstance(records[-1], CloseStream) else None
                        if records:
                            yield records
                        if broken is not None:
                            raise broken
                        if isinstance(closed, CloseStream):
                            await _ended_by_server(portions)
                            if closed.amiss:
                                log.warning("stream_closed_inconsistently", range=str(query.range), amiss=closed.amiss)
                            _require_an_end(closed)
                            yield [closed]
                            return
        except TimeoutError as error:
            silences[asked] += not opened
            log.warning("change_stream_was_silent", range=str(query.range), seconds=timeout if opened else opening)
            raise TransientError(f"change stream of {self._table.id}: no record and no heartbeat in time") from error
        except BrokenStreamError as error:
            log.warning("change_stream_protocol_violated", range=str(query.range), error=str(error))
            raise TransientError(f"change stream of {self._table.id}: {error}") from error
        except MisconfiguredError as error:
            raise self._refused(error, query, opened=opened) from error

    def _refused(self, error: MisconfiguredError, query: BigtableStreamQuery, *, opened: bool) -> Exception:
        """Return what a refusal means."""
        code, _message = status_of(error.__cause__)
        if code is None:  # our own
            return error
        if code not in _MAY_BE_LOST:
            return MisconfiguredError("bigtable-stream-refused", f"{error.message}\n{_fix_of(self._table, error)}")
        if opened:
            return TransientError(f"{error} (after records had come: the next call will report it)")
        if _mentions(error, *_OF_A_PROFILE):  # whatever the code is
            return MisconfiguredError("bigtable-stream-refused", f"{error.message}\n{_fix_of(self._table, error)}")
        if _mentions(error, *_OF_THE_STREAM):
            return StreamGoneError("bigtable-stream-not-enabled", f"{error.message}\n{_fix_of(self._table, error)}")
        return PositionLostError(
            "bigtable-position-refused", f"{error.message}\nrange {query.range}, {_asked_for(query)}. {_POSITION_LOST}"
        )


async def _ended_by_server(portions: AsyncGenerator[Sequence[bytes], None]) -> None:
    """Return when the server has ended the call, as it does right behind a CloseStream.

    A call that the client cancels instead is an error in the audit log, one for each split and merge.
    """
    with contextlib.suppress(TimeoutError, TransientError, MisconfiguredError):
        async with asyncio.timeout(_ENDING_SECONDS):
            while await anext(portions, None) is not None:
                pass


def records_of(
    merging: Merging, messages: Sequence[bytes]
) -> tuple[list[StreamRecord], BrokenStreamError | MisconfiguredError | None]:
    """Return the records that are whole with these messages, up to a CloseStream or to what ends them."""
    records: list[StreamRecord] = []
    whole = merging.whole
    quickly = (CHANGE_WITH_ENTRIES if merging.keeps_entries else CHANGE_WITHOUT_ENTRIES).FromString
    try:
        for message in messages:
            record: StreamRecord | None = None
            if not merging.under_way:
                change = quickly(message).data_change
                # A field that this version does not know may be an entry.
                record = None if UnknownFieldSet(change.chunks) else whole(change)
            if record is None:
                record = merging.take(_response(message))
            if record is not None:
                records.append(record)
                if isinstance(record, CloseStream):
                    break
    except (BrokenStreamError, MisconfiguredError) as error:
        return records, error
    return records, None


_CLOSED: Final = (
    "`doctor` checks the table, its change stream and the roles of this identity. Then start the reader again: nothing "
    "is lost, it goes on from where it was"
)


class StreamClosedError(TransientError):
    """Bigtable has closed a stream with OUT_OF_RANGE, and has named no partition that continues it."""

    fix = "where this lasts, the position may be older than the change stream's retention: `status` says how old it is"


_POSITION_LOST: Final = (
    "Bigtable cannot continue from there: the position is older than the change stream's retention, or from before "
    "the table or its stream was made again. Changes in between can no longer be read. The choices: (1) on a first "
    "start, give a START_TIMESTAMP within the retention, after the stream was enabled and not in the future; (2) "
    f"where the partition table holds the position: {RESTART_AFTER_LOST_CHANGES}; (3) the same with SNAPSHOT=never, "
    "if old rows are acceptable until they change: the table is pending resync."
)


def _request(table: Table, query: BigtableStreamQuery) -> Any:
    request = _READ.request(table_name=table.name, app_profile_id=table.app_profile)
    _set_range(request.partition.row_range, query.range)
    if query.position.start is not None:
        _set_time(request.start_time, query.position.start)
    for token in query.position.tokens:
        named = request.continuation_tokens.tokens.add(token=token.token)
        _set_range(named.partition.row_range, token.range)
    if query.end is not None:
        _set_time(request.end_time, query.end)
    seconds, milliseconds = divmod(query.heartbeat_milliseconds, 1000)
    request.heartbeat_duration.seconds = seconds
    request.heartbeat_duration.nanos = milliseconds * 1_000_000
    return request


def _set_range(row_range: Any, wanted: KeyRange) -> None:
    row_range.start_key_closed = wanted.start
    row_range.end_key_open = wanted.end


def _set_time(timestamp: Any, wanted: Microseconds) -> None:
    timestamp.seconds, micros = divmod(wanted, 1_000_000)
    timestamp.nanos = micros * 1000


def _require_an_end(record: CloseStream) -> None:
    """Raise an error for a CloseStream that is neither the end asked for nor a change of partitions."""
    if record.children or record.code == _OK:
        return
    what = f"the change stream was closed with code {record.code}: {record.message}"
    if record.code in _TRANSIENT_CODES:
        raise TransientError(what)
    if record.code == _OUT_OF_RANGE:  # without a child: the next call gets more
        raise StreamClosedError(what)
    raise MisconfiguredError("bigtable-stream-closed", f"{what}\n{_CLOSED}")


def _mentions(error: BaseException, *words: str) -> bool:
    message = status_of(error.__cause__)[1].lower()
    return any(word in message for word in words)


def _asked_for(query: BigtableStreamQuery) -> str:
    if query.position.start is not None:
        return f"from {query.position.start} microseconds since 1970"
    return f"from {len(query.position.tokens)} continuation token(s)"


def _fix_of(table: Table, error: BaseException) -> str:
    """Return what fixes a refusal."""
    code, _message = status_of(error.__cause__)
    instance = table.instance.rpartition("/")[2]
    if code in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED):
        return (
            f"grant this identity roles/bigtable.reader on table {table.id} (it reads rows and the change stream), and "
            "roles/bigtable.user on the partition table"
        )
    if code is grpc.StatusCode.NOT_FOUND:
        profile = table.app_profile or "default"
        return f"there is no table {table.name}, or no app profile {profile}: create it, or name another"
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return "what answers has no change streams: an emulator needs a front that has them"
    if _mentions(error, *_OF_A_PROFILE):
        return single_cluster(table)
    return (
        f"enable the change stream: gcloud bigtable instances tables update {table.id} --instance={instance} "
        "--change-stream-retention-period=7d; and read through an app profile with single-cluster routing"
    )


def single_cluster(table: Table, *, transactional: bool = False) -> str:
    """Return how an app profile is made through which a change stream can be read."""
    writes = " --transactional-writes" if transactional else ""
    return (
        f"gcloud bigtable app-profiles create {table.app_profile or 'PROFILE'} "
        f"--instance={table.instance.rpartition('/')[2]} --route-to=CLUSTER{writes} --description=millrace "
        "(of a profile that is there: update), and name it; take the cluster in the region in which the reader runs"
    )
