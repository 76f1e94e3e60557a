"""Upserts and deletes into BigQuery on default streams that stay open: one connection per process and table, or two.

Sources: BigQuery, "Introduction to the Storage Write API" (default stream, errors) and its best practices (reuse
connections, do not wait for each append; Python has no multiplexing). Rows may be sent twice: the change sequence
number of each makes that harmless, which is why anything without an answer is simply sent again.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from datetime import timedelta
from math import inf
from time import monotonic
from typing import Any, Final
from weakref import WeakSet

import grpc
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import structlog
from google.rpc.status_pb2 import Status

from services.cdc_consumer.adapters.bigquery.append_connection import (
    AppendConnection,
    AppendLimits,
    AppendRequest,
    ConnectionPool,
    Lost,
    opening,
)
from services.cdc_consumer.adapters.bigquery.errors import append_error, code_name, is_exhausted
from services.cdc_consumer.adapters.bigquery.row_encoder import RowEncoder
from services.cdc_consumer.core.schema.tables import TableDefinition
from services.cdc_consumer.core.stream.columns import conform
from services.cdc_consumer.core.stream.counts import Appends
from services.cdc_consumer.ports import Heard, RowError, TableTroubleError
from shared.contracts.errors import TransientError
from shared.contracts.reasons import Reason
from shared.contracts.timestamps import nanoseconds
from shared.runtime.clock import Monotonic, SteadyClock
from shared.runtime.stop import Stop

_ROW_OVERHEAD: Final = 6  # tag and length of a row inside the request
_CONTROL: Final = -1  # the index of a row that is sent again only to see whether the table still takes it
_FRUITLESS: Final = 32
"""Refusals without a row to blame, and nothing accepted between them, after which it is not the rows but the table."""

_AT_ONCE: Final = -inf
"""Until when to wait (`time.monotonic`): not at all."""

_GUESSES: Final = 3
"""So many connections have to end with a row as the oldest of several requests, before that row is blamed."""


class AppendStreams:
    """The CdcWriter on BigQuery's Storage Write API. Keep it for the process; not for several threads at once."""

    def __init__(
        self,
        channel: grpc.Channel,
        project: str,
        dataset: str,
        stop: Stop,
        clock: SteadyClock,
        limits: AppendLimits | None = None,
    ) -> None:
        self._project = project
        self._dataset = dataset
        self._stop = stop
        self._clock = clock
        self._limits = limits or AppendLimits()
        self._pool = ConnectionPool(channel, self._limits, stop, clock)
        self._streams: dict[TableDefinition, _Stream] = {}

    @property
    def connections_opened(self) -> int:
        """Return how many connections have been opened, those that were closed again included."""
        return self._pool.opened

    @property
    def connections_open(self) -> int:
        """Return how many connections are open."""
        return self._pool.open_now

    @property
    def appends(self) -> Appends:
        """Return what went over all connections so far."""
        return self._pool.appends

    def append(self, definition: TableDefinition, rows: pa.Table) -> "StreamAppend":
        """Start to append rows; as `CdcWriter.append`."""
        stream = self._stream(definition)
        stream.last_used = self._clock.monotonic()
        self._close_unneeded(stream)
        appending = StreamAppend(stream, stream.encoder.encode(conform(rows, stream.encoder.definition)), self._stop)
        appending.send_what_fits()
        return appending

    def close(self) -> None:
        """End every connection and its thread."""
        for stream in self._streams.values():
            stream.close()
        self._streams.clear()

    def _stream(self, definition: TableDefinition) -> "_Stream":
        """Return the stream to use for rows of a definition.

        Rows of an older column list ride along on a wider one that BigQuery is known to take, so that a table has one
        connection; while a new column is not visible yet each list has its own, so that the old one does not wait.
        """
        table = definition.identity
        for stream in [one for one in self._streams.values() if one.table == table]:
            if stream.accepted and stream.encoder.definition != definition and _covers(stream, definition):
                narrow = self._streams.get(definition)
                if narrow is not None and narrow.idle:
                    self._drop(narrow, "replaced")
                return stream
        if definition not in self._streams:
            dataset = f"projects/{self._project}/datasets/{definition.dataset or self._dataset}"
            path = f"{dataset}/tables/{definition.name}/streams/_default"
            self._streams[definition] = _Stream(self._pool, path, definition, self._limits)
        return self._streams[definition]

    def _close_unneeded(self, used: "_Stream") -> None:
        before = used.last_used - nanoseconds(self._limits.close_after_idle)
        for stream in [one for one in self._streams.values() if one.last_used <= before]:
            if stream is not used and stream.idle:
                self._drop(stream, "idle")

    def _drop(self, stream: "_Stream", why: str) -> None:
        stream.close()
        del self._streams[stream.encoder.definition]
        structlog.get_logger().info("append_stream_closed", table=stream.table, why=why)


class _Stream:
    """A table's default stream for one definition: how its rows are encoded, and the connections open for them."""

    def __init__(self, pool: ConnectionPool, path: str, definition: TableDefinition, limits: AppendLimits) -> None:
        self.path = path
        self.table = definition.identity
        self.encoder = RowEncoder(definition)
        self.first = opening(path, self.encoder.descriptor)
        self.limits = limits
        self.last_used = Monotonic(0)
        self.accepted = False
        """Whether BigQuery has taken rows of this definition, and has not complained of the table since."""
        self.appendings: WeakSet[StreamAppend] = WeakSet()
        """Those that have rows without an answer and may yet need a connection; an unreferenced one is gone."""
        self._pool = pool
        self._connections: list[AppendConnection] = []
        self._full_sends = 0

    @property
    def idle(self) -> bool:
        """Return whether every row has its answer: only then may the stream be dropped."""
        return not self.appendings and all(one.idle for one in self._connections)

    @property
    def largest_row(self) -> int:
        """Return how many bytes a row may have: what fits beside the opening into the largest request."""
        return self.limits.largest_request_bytes - len(self.first) - 64

    def send(self, request: AppendRequest, stop: Stop, until: float) -> bool:
        """Send a request; return whether it was: not where no connection has room for it by then (`time.monotonic`).

        What it was sent on may have ended already: its answer says so.
        """
        connection = self._with_room(request)
        if connection is None:
            connection = self._connections[0] if self._connections else self._open(until)
        if connection is None or not connection.send(request, stop, until):
            return False
        self._pool.used(connection)
        self._full_sends = 0 if connection.has_room(request) else self._full_sends + 1
        return True

    def too_many_connections(self) -> bool:
        """BigQuery does not take another connection; return whether some other may be closed for it."""
        return self._pool.refused()

    def _with_room(self, request: AppendRequest) -> AppendConnection | None:
        """Return a connection that takes a request at once; another is opened if there is none, or they stay full."""
        for one in [one for one in self._connections if one.ended]:
            self._pool.close(one)
        self._connections = [one for one in self._connections if not one.ended]
        found = next((one for one in self._connections if one.has_room(request)), None)
        stay_full = self._full_sends >= self.limits.full_sends
        if found is None and (
            not self._connections or (stay_full and len(self._connections) < self.limits.connections_of_table)
        ):
            return self._open(_AT_ONCE)
        return found

    def _open(self, until: float) -> AppendConnection | None:
        opened = self._pool.open(self.table, self.path, self.first, until)
        if opened is not None:
            self._connections.append(opened)
            self._full_sends = 0
        return opened

    def give_up(self) -> None:
        """Forget what BigQuery knows of the table: only a new connection sees what has changed in it."""
        self.accepted = False
        self.close()

    def close(self) -> None:
        """End the connections; the next use opens another."""
        for one in self._connections:
            self._pool.close(one)
        self._connections.clear()


class _NotYetError(Exception):
    """The time to wait for answers is over."""


class StreamAppend:
    """Rows on their way into a table: cut into requests, sent again until each has an answer of its own."""

    def __init__(self, stream: _Stream, encoded: pa.BinaryArray, stop: Stop) -> None:
        self._stream = stream
        self._table = stream.table
        self._stop = stop
        self._refused: list[RowError] = []
        self._unblamed: list[AppendRequest] = []  # refused alone, no row error: bad rows if others pass, else the table
        self._control: bytes | None = None  # a row that was accepted
        self._fruitless = 0
        self._answers = 0  # that have come
        self._lost_before = False  # a connection that ends is replaced once; the second time in a row is for the caller
        self._until = inf  # when to stop waiting, for now
        self._doubted: deque[AppendRequest] = deque()  # refused alone, but maybe for one that was behind them
        self._waiting: deque[AppendRequest] = deque(self._cut(encoded))
        self._sent: deque[AppendRequest] = deque()
        stream.appendings.add(self)

    def send_what_fits(self) -> None:
        """Send as much as the connections take without waiting."""
        while self._waiting and self._send(_AT_ONCE):
            if isinstance(self._sent[-1].answer, Lost | Status):  # the connection is gone already: `refused` sees to it
                return

    def hear(self, within: timedelta) -> Heard:
        """Take in the answers that come within a time; as `PendingAppend.hear`."""
        began, before = monotonic(), self._answers
        self._until = began + within.total_seconds()
        try:
            self.refused()
        except _NotYetError:
            waited = bool(self._sent) and self._sent[0].sent_at <= began
            return Heard.NOTHING if waited and self._answers == before else Heard.SOME
        finally:
            self._until = inf
        return Heard.ALL

    def refused(self) -> Sequence[RowError]:
        """Wait until every row is accepted or refused; as `PendingAppend.refused`."""
        self._stream.appendings.add(self)
        self._hear_all()
        while self._unblamed and self._fruitless:  # nothing was accepted since: is it the rows, or the table by now?
            if self._control is None:
                raise self._table_trouble(self._unblamed[0].answer)
            self._waiting.append(AppendRequest([self._control], [_CONTROL]))
            self._hear_all()
        self._refused += [
            RowError(request.indices[0], Reason.REFUSED_BY_BIGQUERY, request.answer.message)
            for request in self._unblamed
        ]
        self._unblamed.clear()
        self._stream.appendings.discard(self)
        return sorted(self._refused, key=lambda error: error.index)

    def leave(self) -> None:
        """Wait no more; as `PendingAppend.leave`. The connection's place is free for another."""
        for request in self._sent:
            if request.answer is None and request.connection is not None:
                request.connection.cancel()
        self._stream.appendings.discard(self)

    def _hear_all(self) -> None:
        """Send what is left and take every answer in."""
        for request in self._answered():
            match request.answer:
                case Lost() | Status() as end:
                    error = self._connection_ended(request, end)
                    if error is not None and self._one_too_many(request, end):
                        continue
                    if error is not None and (self._lost_before or not _fixed_by_another_connection(error)):
                        self._lost_before = False
                        raise error
                    self._lost_before = True
                case response if response.HasField("error") or response.row_errors:
                    self._answers += 1
                    self._refuse(request, response)
                case _:
                    self._answers += 1
                    self._lost_before, self._fruitless = False, 0
                    self._stream.accepted = True
                    self._control = request.rows[0]

    def _answered(self) -> Iterator[AppendRequest]:
        """Yield requests as their answers come, sending the others as room is made, until none is left.

        _NotYetError: the time is over; what has no answer is as it was.
        """
        while self._waiting or self._sent or self._doubted:
            if not self._waiting and not self._sent:
                self._waiting.append(self._doubted.popleft())  # with none behind it
            if not self._sent or self._sent[0].answer is None:  # else first hear what there is to say
                self.send_what_fits()
            if not self._sent and not self._send(self._until):
                raise _NotYetError
            if not self._has_answer(self._sent[0]):
                raise _NotYetError
            yield self._sent.popleft()

    def _has_answer(self, request: AppendRequest) -> bool:
        if request.answer is not None or request.connection is None:
            return True
        return request.connection.wait_for(lambda: request.answer is not None, self._stop, self._until)

    def _send(self, until: float) -> bool:
        sent = self._stream.send(self._waiting[0], self._stop, until)
        if sent:
            self._sent.append(self._waiting.popleft())
        return sent

    def _connection_ended(self, request: AppendRequest, end: Lost | Status) -> Exception | None:
        """Put what has no answer back to be sent again; return what the connection's end means for the caller."""
        lost = [request for request in self._sent if isinstance(request.answer, Lost)]
        self._sent = deque(request for request in self._sent if not isinstance(request.answer, Lost))
        self._waiting.extendleft(reversed(lost))
        if isinstance(end, Status):
            return self._judge(request, end)
        self._waiting.appendleft(request)
        return TransientError(f"table {self._table}: the connection ended before BigQuery had answered")

    def _one_too_many(self, request: AppendRequest, end: Lost | Status) -> bool:
        """Return whether it was the connection that BigQuery did not take, and another can be closed for it."""
        connection = request.connection
        new = connection is not None and not connection.proven
        return new and isinstance(end, Status) and is_exhausted(end) and self._stream.too_many_connections()

    def _refuse(self, request: AppendRequest, response: Any) -> None:
        """Deal with a response that is not an acceptance: none of the request's rows was appended."""
        bad = {error.index: error.message for error in response.row_errors if 0 <= error.index < len(request.rows)}
        if not bad:  # no row is named, or none that was sent
            error = self._judge(request, response.error)
            if error is not None:
                raise error
            return
        if request.indices[0] == _CONTROL:
            raise self._table_trouble(response.error)
        self._refused += [
            RowError(request.indices[index], Reason.REFUSED_BY_BIGQUERY, message) for index, message in bad.items()
        ]
        good = [index for index in range(len(request.rows)) if index not in bad]
        if good:
            self._waiting.appendleft(_part(request, good))

    def _judge(self, request: AppendRequest, status: Status) -> Exception | None:
        """Put the rows of a request refused as a whole where they belong; return what is to be raised, if anything.

        A request refused without a word about rows is halved, down to the row that provokes it.
        """
        error = append_error(self._table, status)
        if error is not None:
            self._waiting.appendleft(request)
            if isinstance(error, TableTroubleError):
                self._stream.give_up()
            return error
        self._fruitless += 1
        if request.indices[0] == _CONTROL:  # the table does not take what it has taken before
            return self._table_trouble(status)
        if len(request.rows) == 1 and request.is_guess and request.guesses < _GUESSES:
            self._doubted.append(request)
        elif len(request.rows) == 1:
            request.answer = status
            self._unblamed.append(request)
        else:
            middle = len(request.rows) // 2
            self._waiting.appendleft(_part(request, range(middle, len(request.rows))))
            self._waiting.appendleft(_part(request, range(middle)))
        return self._table_trouble(status) if self._fruitless >= _FRUITLESS else None

    def _table_trouble(self, status: Status) -> TableTroubleError:
        self._waiting.extend(self._unblamed)
        self._unblamed.clear()
        self._fruitless = 0
        self._stream.give_up()
        return TableTroubleError(
            f"table {self._table}: every append is refused: {status.message}", code=code_name(status)
        )

    def _cut(self, encoded: pa.BinaryArray) -> Sequence[AppendRequest]:
        """Cut rows into requests by their bytes; a row too large for any request is refused here and never sent."""
        sizes = pc.binary_length(encoded).to_numpy(zero_copy_only=False).astype(np.int64)
        limit = self._stream.largest_row
        self._refused += [
            RowError(int(index), Reason.TOO_LARGE, f"{sizes[index]} bytes as a row; an append takes {limit}")
            for index in np.flatnonzero(sizes > limit)
        ]
        fitting = np.flatnonzero(sizes <= limit)
        ends = np.cumsum(sizes[fitting] + _ROW_OVERHEAD)
        rows = encoded.take(pa.array(fitting)).to_pylist()
        indices = fitting.tolist()
        requests = []
        start, sent = 0, 0
        while start < len(rows):
            end = max(start + 1, int(np.searchsorted(ends, sent + self._stream.limits.request_bytes, side="right")))
            requests.append(AppendRequest(rows[start:end], indices[start:end]))
            start, sent = end, int(ends[end - 1])
        return requests


def _part(request: AppendRequest, positions: Sequence[int]) -> AppendRequest:
    return AppendRequest([request.rows[p] for p in positions], [request.indices[p] for p in positions])


def _covers(stream: _Stream, definition: TableDefinition) -> bool:
    """Return whether rows of a definition can be written on the stream of another of the same table."""
    wider = stream.encoder.definition
    return wider.primary_key == definition.primary_key and set(wider.columns) >= set(definition.columns)


def _fixed_by_another_connection(error: Exception) -> bool:
    return isinstance(error, TransientError) and not isinstance(error, TableTroubleError)
