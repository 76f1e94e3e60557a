"""One stream from its start to its CloseStream: which message comes next.

Between any two records it checks whether the stream has to close, so no number of writes keeps a CloseStream or a
heartbeat back. A split or merge closes it at once, however far it is behind: the tokens say where to go on.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

import grpc

from emulators.bigtable_streams.change_log import ChangeLog, Partition, Record
from emulators.bigtable_streams.data_changes import ChunkLimits, messages_of
from emulators.bigtable_streams.key_range import KeyRange
from emulators.bigtable_streams.protocol import ReadChangeStreamResponse
from emulators.bigtable_streams.refusals import RefusedError, precondition
from emulators.bigtable_streams.tokens import Position, Token, advanced, cut_to

_OUT_OF_RANGE: Final = grpc.StatusCode.OUT_OF_RANGE.value[0]
_BATCH: Final = 64


@dataclass(eq=False)
class OpenStream:
    """One ReadChangeStream call that is being served, and what a test has in mind for it."""

    table: str
    log: ChangeLog
    range: KeyRange
    positions: tuple[Position, ...]
    cut_after: int | None = None
    """How many messages it still sends before it breaks off; None: it does not."""
    cut_status: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE

    @property
    def behind(self) -> int:
        """Return how many records of its range it has not delivered."""
        return self.log.count_from(self.positions)

    def cut_if_due(self) -> None:
        """Raise the refusal that cuts the stream, in the middle of a change if it so happens."""
        if self.cut_after is not None and self.cut_after <= 0:
            raise RefusedError(self.cut_status, "the stream was cut on demand")

    def count(self) -> None:
        """Note that a message was sent."""
        if self.cut_after is not None:
            self.cut_after -= 1


@dataclass(eq=False)
class Streams:
    """Every stream that is open, and how all of them are served."""

    limits: ChunkLimits = field(default_factory=ChunkLimits)
    seconds_per_change: float = 0.0
    paused: bool = False
    """While this is True, streams deliver no changes; heartbeats and CloseStream go on."""
    open: set[OpenStream] = field(default_factory=set)
    opened: int = 0


class Serving:
    """One stream."""

    def __init__(self, stream: OpenStream, streams: Streams, end: int | None, heartbeat_seconds: float) -> None:
        self._log = stream.log
        self._stream = stream
        self._streams = streams
        self._end = end
        self._heartbeat_seconds = heartbeat_seconds
        self._watermark = 0

    async def messages(self) -> AsyncIterator[Any]:
        """Yield every message of the stream; RefusedError where it breaks off."""
        loop = asyncio.get_running_loop()
        partition = self._log.partition_of(self._stream.range)
        heartbeat_at = loop.time() + self._heartbeat_seconds
        while partition is not None and partition.is_open():
            self._refuse_if_gone()
            self._stream.cut_if_due()
            due = [] if self._streams.paused else list(islice(self._due(partition), _BATCH))
            for record in due:
                if self._end is not None and record.commit > self._end:
                    if record.watermark > self._end:
                        yield _finished()
                        return
                else:
                    for message in messages_of(record, self._streams.limits, self._token(record.index + 1)):
                        yield message
                self._stream.positions = advanced(self._stream.positions, record.index + 1)
                self._watermark = max(self._watermark, record.watermark)
                if self._streams.seconds_per_change:
                    await asyncio.sleep(self._streams.seconds_per_change)
                if not partition.is_open() or self._log.ended or self._streams.paused or loop.time() >= heartbeat_at:
                    break
            if not partition.is_open():
                break
            behind = next(self._due(partition), None) is not None
            if not behind:
                self._stream.positions = advanced(self._stream.positions, self._log.next_index)
                if self._end is not None and self._log.low_watermark() > self._end:
                    yield _finished()
                    return
            if loop.time() >= heartbeat_at:
                heartbeat_at = loop.time() + self._heartbeat_seconds
                yield self._heartbeat(partition)
            elif not behind or self._streams.paused:
                await partition.bell.wait(min(heartbeat_at - loop.time(), self._until_end()))
        self._refuse_if_gone()
        yield self._closed()

    def _due(self, partition: Partition) -> Iterator[Record]:
        """Yield what is not delivered yet, skipping what a range that is further on has had already."""
        positions = self._stream.positions
        for place in range(partition.first_from(min(each.index for each in positions)), len(partition.records)):
            record = partition.records[place]
            if len(positions) == 1 or any(record.row_key in p.range and record.index >= p.index for p in positions):
                yield record

    def _token(self, index: int, keys: KeyRange | None = None) -> str:
        positions = self._stream.positions if keys is None else cut_to(self._stream.positions, keys)
        return Token(self._log.epoch, advanced(positions, index)).encode()

    def _heartbeat(self, partition: Partition) -> Any:
        message = ReadChangeStreamResponse()
        token = message.heartbeat.continuation_token
        self._stream.range.fill(token.partition.row_range)
        token.token = self._token(0)
        pending = next(self._due(partition), None)
        watermark = self._log.low_watermark() if pending is None else min(pending.commit - 1, pending.watermark)
        self._watermark = max(self._watermark, watermark)  # a late record that is due does not take it back
        message.heartbeat.estimated_low_watermark.FromMicroseconds(self._watermark)
        return message

    def _closed(self) -> Any:
        message = ReadChangeStreamResponse()
        close = message.close_stream
        close.status.code = _OUT_OF_RANGE
        close.status.message = "the partition was split, merged or moved"
        for partition in self._log.overlapping(self._stream.range):
            shared = partition.range.within(self._stream.range)
            assert shared is not None
            token = close.continuation_tokens.add()
            shared.fill(token.partition.row_range)
            token.token = self._token(0, shared)
            partition.range.fill(close.new_partitions.add().row_range)
        return message

    def _until_end(self) -> float:
        if self._end is None:
            return self._heartbeat_seconds
        return max((self._end - self._log.low_watermark()) / 1e6, 0.001)

    def _refuse_if_gone(self) -> None:
        if self._log.ended:
            raise precondition(f"Change stream is not enabled any more for table {self._stream.table}")
        if any(self._log.expired(position) for position in self._stream.positions):
            raise expired()


def expired() -> RefusedError:
    """Make the refusal of a position that is older than what is kept."""
    return RefusedError(grpc.StatusCode.OUT_OF_RANGE, "the position is older than the change stream's retention period")


def _finished() -> Any:
    message = ReadChangeStreamResponse()
    message.close_stream.status.SetInParent()
    return message
