"""A reader of a Bigtable change stream, small and exact, for the tests of the front.

It checks the rules of the protocol as it goes, and that no range is handed on twice or lost. What it has read, it gives
as records.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import grpc
from google.cloud.bigtable_v2 import types as data_types

from deploy.local.bigtable_change_streams.key_range import KeyRange, exactly_covers, read_range

_ReadChangeStreamRequest: Final[Any] = data_types.ReadChangeStreamRequest.pb()
_ReadChangeStreamResponse: Final[Any] = data_types.ReadChangeStreamResponse.pb()
_PartitionsRequest: Final[Any] = data_types.GenerateInitialChangeStreamPartitionsRequest.pb()
_PartitionsResponse: Final[Any] = data_types.GenerateInitialChangeStreamPartitionsResponse.pb()
_Mutation: Final[Any] = data_types.Mutation.pb()
_SERVICE: Final = "/google.bigtable.v2.Bigtable"
_DataChange: Final = _ReadChangeStreamResponse.DataChange
_OUT_OF_RANGE: Final = grpc.StatusCode.OUT_OF_RANGE.value[0]
_WHOLE: Final = KeyRange()
_PATIENCE_SECONDS: Final = 0.15
"""After how long a token that waits for the others of its partition is asked where its keys are served now."""


@dataclass(frozen=True)
class ReadRecord:
    """One change as it was put together. ``entries`` are mutations with whole values; times in microseconds."""

    row_key: bytes
    kind: int
    cluster: str
    commit: int
    tiebreaker: int
    entries: tuple[Any, ...]

    @property
    def identity(self) -> tuple[bytes, int, int, str]:
        """Return what no two changes have in common."""
        return self.row_key, self.commit, self.tiebreaker, self.cluster


Tokens = Mapping[KeyRange, str]


class ReplayReader:
    """Reads a whole table, through every split and merge, until it is cancelled."""

    def __init__(self, channel: grpc.aio.Channel, table: str, since: int, heartbeat_seconds: float = 0.05) -> None:
        self._table = table
        self._since = since
        self._heartbeat_seconds = heartbeat_seconds
        self._open = channel.unary_stream(
            f"{_SERVICE}/ReadChangeStream",
            request_serializer=_ReadChangeStreamRequest.SerializeToString,
            response_deserializer=_ReadChangeStreamResponse.FromString,
        )
        self._partitions = channel.unary_stream(
            f"{_SERVICE}/GenerateInitialChangeStreamPartitions",
            request_serializer=_PartitionsRequest.SerializeToString,
            response_deserializer=_PartitionsResponse.FromString,
        )
        self.records: list[ReadRecord] = []
        """Every change in the order it was read, repeated ones too."""
        self.counts: Counter[str] = Counter()
        self._streams: dict[KeyRange, dict[KeyRange, str]] = {}
        self._waiting: defaultdict[KeyRange, dict[KeyRange, str]] = defaultdict(dict)
        self._since_when: dict[KeyRange, float] = {}
        self._tasks: asyncio.TaskGroup | None = None

    def tokens(self) -> Tokens:
        """Return how far every range has been read; the ranges cover the table exactly."""
        held: dict[KeyRange, str] = {}
        for tokens in [*self._streams.values(), *self._waiting.values()]:
            held.update(tokens)
        return held

    async def run(self) -> None:
        """Read until cancelled; AssertionError where the front breaks a rule of the protocol."""
        async with asyncio.TaskGroup() as self._tasks:
            request = _PartitionsRequest(table_name=self._table)
            initial = [read_range(each.partition.row_range) async for each in self._partitions(request)]
            assert exactly_covers(initial, _WHOLE)
            for keys in initial:
                self._start(keys, {})
            while True:
                await asyncio.sleep(_PATIENCE_SECONDS / 3)
                self._reconcile()

    def _start(self, keys: KeyRange, tokens: dict[KeyRange, str]) -> None:
        assert self._tasks is not None
        assert keys not in self._streams, f"{keys} is streamed already"
        self._streams[keys] = tokens
        self.counts["streams"] += 1
        self._tasks.create_task(self._follow(keys))

    async def _follow(self, keys: KeyRange) -> None:
        while True:
            try:
                close = await self._read(keys)
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise
                self.counts["cut"] += 1
            else:
                self._hand_on(keys, close)
                return

    async def _read(self, keys: KeyRange) -> Any:
        """Read a stream until it closes; return the CloseStream."""
        call = self._open(self._request(keys, self._streams[keys]))
        pending: list[Any] = []
        watermark = 0
        async for message in call:
            match message.WhichOneof("stream_record"):
                case "data_change":
                    pending.append(message.data_change)
                    if message.data_change.done:
                        record = put_together(pending)
                        assert record.row_key in keys
                        assert record.commit > watermark or record.tiebreaker, "only what comes from afar is late"
                        self.records.append(record)
                        self._streams[keys] = {keys: message.data_change.token}
                        pending = []
                case "heartbeat":
                    assert not pending, "a heartbeat in the middle of a change"
                    token = message.heartbeat.continuation_token
                    assert read_range(token.partition.row_range) == keys
                    self._streams[keys] = {keys: token.token}
                    assert message.heartbeat.estimated_low_watermark.ToMicroseconds() >= watermark
                    watermark = message.heartbeat.estimated_low_watermark.ToMicroseconds()
                case "close_stream":
                    assert not pending, "a stream closed in the middle of a change"
                    return message.close_stream
                case unknown:
                    raise AssertionError(f"unknown message {unknown}")
        raise AssertionError("a stream ended without CloseStream")

    def _request(self, keys: KeyRange, tokens: Tokens) -> Any:
        request = _ReadChangeStreamRequest(table_name=self._table)
        keys.fill(request.partition.row_range)
        request.heartbeat_duration.FromMicroseconds(int(self._heartbeat_seconds * 1e6))
        if not tokens:
            request.start_time.FromMicroseconds(self._since)
        for part, token in tokens.items():
            given = request.continuation_tokens.tokens.add(token=token)
            part.fill(given.partition.row_range)
        return request

    def _hand_on(self, keys: KeyRange, close: Any) -> None:
        self.counts["closed"] += 1
        assert close.status.code == _OUT_OF_RANGE, close
        assert len(close.continuation_tokens) == len(close.new_partitions) > 0
        parts = [read_range(each.partition.row_range) for each in close.continuation_tokens]
        assert exactly_covers(parts, keys), f"{keys} closed with tokens of {parts}"
        del self._streams[keys]
        for part, token, new in zip(parts, close.continuation_tokens, close.new_partitions, strict=True):
            partition = read_range(new.row_range)
            assert partition.covers(part)
            self._wait(partition, part, token.token)

    def _wait(self, partition: KeyRange, part: KeyRange, token: str) -> None:
        waiting = self._waiting[partition]
        waiting[part] = token
        self._since_when.setdefault(partition, asyncio.get_running_loop().time())
        if exactly_covers(waiting, partition):
            self._stop_waiting(partition)
            self._start(partition, waiting)

    def _stop_waiting(self, partition: KeyRange) -> None:
        del self._waiting[partition], self._since_when[partition]

    def _reconcile(self) -> None:
        """Ask anew where keys are served whose partition has not been completed: it may never be."""
        now = asyncio.get_running_loop().time()
        for partition in [one for one, since in self._since_when.items() if now - since > _PATIENCE_SECONDS]:
            tokens = self._waiting[partition]
            self._stop_waiting(partition)
            for part, token in tokens.items():
                self.counts["reconciled"] += 1
                self._start(part, {part: token})


def put_together(messages: Sequence[Any]) -> ReadRecord:
    """Return the change that the messages make up; AssertionError where they break the documented rules."""
    first, last = messages[0], messages[-1]
    user = first.type_ == _DataChange.Type.Value("USER")
    assert user or first.type_ == _DataChange.Type.Value("GARBAGE_COLLECTION")
    assert bool(first.source_cluster_id) is user
    assert first.row_key
    assert first.HasField("commit_timestamp")
    assert last.token
    assert last.HasField("estimated_low_watermark")
    for message in messages[1:]:
        assert message.type_ == _DataChange.Type.Value("CONTINUATION")
        assert not message.row_key
        assert not message.HasField("commit_timestamp")
    for message in messages[:-1]:
        assert not message.done
        assert not message.token
    entries: list[Any] = []
    pieces: list[bytes] = []
    for chunk in (chunk for message in messages for chunk in message.chunks):
        info = chunk.chunk_info
        if not chunk.HasField("chunk_info"):
            assert not pieces
            entries.append(chunk.mutation)
            continue
        assert info.chunked_value_offset == sum(map(len, pieces))
        if not pieces:
            entries.append(_Mutation.FromString(chunk.mutation.SerializeToString()))
        pieces.append(chunk.mutation.set_cell.value)
        if info.last_chunk:
            whole = b"".join(pieces)
            assert len(whole) == info.chunked_value_size
            entries[-1].set_cell.value = whole
            pieces = []
    assert not pieces
    assert entries
    return ReadRecord(
        row_key=first.row_key,
        kind=first.type_,
        cluster=first.source_cluster_id,
        commit=first.commit_timestamp.ToMicroseconds(),
        tiebreaker=first.tiebreaker,
        entries=tuple(entries),
    )


async def ended(task: asyncio.Task[None]) -> None:
    """Cancel a task and wait for it; what it failed with before is raised."""
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
