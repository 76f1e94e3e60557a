"""The two change-stream calls: what is asked for, and from where it is served.

Source: google/bigtable/v2/bigtable.proto, GenerateInitialChangeStreamPartitions and ReadChangeStream. Not documented,
and so our choice: an expired position is OUT_OF_RANGE, a start before the stream's creation and a token of an earlier
epoch are INVALID_ARGUMENT, a partition that is not served as it is asked for gets its CloseStream at once.
"""

from collections.abc import AsyncIterator, Callable
from typing import Any, Final

from emulators.bigtable_streams.change_log import ChangeLog
from emulators.bigtable_streams.key_range import KeyRange, exactly_covers, read_range
from emulators.bigtable_streams.profiles import Profiles
from emulators.bigtable_streams.protocol import (
    GenerateInitialChangeStreamPartitionsRequest,
    GenerateInitialChangeStreamPartitionsResponse,
    ReadChangeStreamRequest,
)
from emulators.bigtable_streams.refusals import invalid, precondition
from emulators.bigtable_streams.serving import OpenStream, Serving, Streams, expired
from emulators.bigtable_streams.tables import Table, Tables
from emulators.bigtable_streams.tokens import Position, cut_to, decode_token

_HEARTBEAT_SECONDS: Final = 5.0


class Reading:
    """Serves both calls."""

    def __init__(self, tables: Tables, profiles: Profiles, streams: Streams, now: Callable[[], int]) -> None:
        self._tables = tables
        self._profiles = profiles
        self._streams = streams
        self._now = now

    async def initial_partitions(self, data: bytes) -> AsyncIterator[bytes]:
        """Serve GenerateInitialChangeStreamPartitions."""
        request = GenerateInitialChangeStreamPartitionsRequest.FromString(data)
        _, log = await self._open(request)
        for partition in list(log.partitions):
            answer = GenerateInitialChangeStreamPartitionsResponse()
            partition.range.fill(answer.partition.row_range)
            yield answer.SerializeToString()

    async def read(self, data: bytes) -> AsyncIterator[bytes]:
        """Serve ReadChangeStream."""
        request = ReadChangeStreamRequest.FromString(data)
        table, log = await self._open(request)
        wanted = _requested_range(request)
        positions = self._start(request, wanted, log)
        end = request.end_time.ToMicroseconds() if request.HasField("end_time") else None
        seconds = request.heartbeat_duration.ToMicroseconds() / 1e6 or _HEARTBEAT_SECONDS
        stream = OpenStream(table.name, log, wanted, positions)
        self._streams.open.add(stream)
        self._streams.opened += 1
        try:
            async for message in Serving(stream, self._streams, end, seconds).messages():
                stream.cut_if_due()
                yield message.SerializeToString()
                stream.count()
        finally:
            self._streams.open.discard(stream)

    async def _open(self, request: Any) -> tuple[Table, ChangeLog]:
        self._profiles.check_single_cluster(request.table_name, request.app_profile_id)
        table = await self._tables.get(request.table_name)
        if table.log is None:
            raise precondition(f"Change stream is not enabled for table {table.name}")
        table.log.trim(self._now() - table.retention_micros)
        return table, table.log

    def _start(self, request: Any, wanted: KeyRange, log: ChangeLog) -> tuple[Position, ...]:
        match request.WhichOneof("start_from"):
            case "continuation_tokens":
                return _positions_of(request, wanted, log)
            case "start_time":
                time = request.start_time.ToMicroseconds()
                now = self._now()
                if time > now:
                    raise invalid(f"start_time is in the future: {request.start_time.ToJsonString()}")
                if time < log.since:
                    raise invalid(
                        f"start_time is before the change stream was created: {request.start_time.ToJsonString()}"
                    )
                if time < log.trimmed_until:
                    raise expired()
                return (Position(wanted.start, wanted.end, log.index_at(wanted, time)),)
            case _:
                return (Position(wanted.start, wanted.end, log.next_index),)


def _requested_range(request: Any) -> KeyRange:
    try:
        return read_range(request.partition.row_range)
    except ValueError as error:
        raise invalid(f"the partition is not a range of keys: {error}") from error


def _positions_of(request: Any, wanted: KeyRange, log: ChangeLog) -> tuple[Position, ...]:
    ranges: list[KeyRange] = []
    positions: list[Position] = []
    for each in request.continuation_tokens.tokens:
        try:
            part = read_range(each.partition.row_range)
            token = decode_token(each.token)
        except ValueError as error:
            raise invalid(f"invalid continuation token: {error}") from error
        if token.epoch != log.epoch:
            raise invalid("the continuation token is of a change stream that was disabled or whose table was dropped")
        if not token.range.covers(part):
            raise invalid(f"the continuation token is not of its partition {part}")
        ranges.append(part)
        positions.extend(cut_to(token.positions, part))
    if not exactly_covers(ranges, wanted):
        # As documented of ReadChangeStreamRequest: a single token's partition is the request's, several cover it.
        unset = "" if request.HasField("partition") else ", which is all keys, for the request names no partition"
        raise invalid(
            "the partitions of the continuation tokens must exactly cover the requested partition "
            f"{wanted}{unset}: name the token's partition in the request"
        )
    positions.sort(key=lambda position: position.start)
    if any(log.expired(position) for position in positions):
        raise expired()
    return tuple(positions)
