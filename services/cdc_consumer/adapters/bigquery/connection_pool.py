"""The open AppendRows connections of a process: as few as do, and never more than a limit.

Sources: BigQuery, "BigQuery Storage Write API best practices" (limit the number of connections; Python has no
multiplexing) and "Quotas and limits" (concurrent connections, told by RESOURCE_EXHAUSTED when one more is opened).
"""

from dataclasses import dataclass
from datetime import timedelta

import grpc
import structlog

from services.cdc_consumer.adapters.bigquery.append_connection import AppendConnection
from services.cdc_consumer.core.stream.counts import Appends
from shared.contracts.timestamps import Nanoseconds
from shared.runtime.clock import Clock
from shared.runtime.stop import Stop


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Sizes and times of append streams. BigQuery takes requests of 10 MB; nothing is gained above 4 MB."""

    request_bytes: int = 2_000_000
    largest_request_bytes: int = 9_000_000
    window_bytes: int = 8_000_000
    connections: int = 20
    """Open at once, of all tables."""
    connections_of_table: int = 2
    full_sends: int = 8
    """So many requests in a row that fill their connection's window, and the table gets another connection."""
    answer_within: timedelta = timedelta(seconds=60)
    close_after_idle: timedelta = timedelta(minutes=5)  # BigQuery itself closes after ten


class ConnectionPool:
    """Opens connections and closes them where others need one more. Not for several threads at once."""

    def __init__(self, channel: grpc.Channel, limits: Limits, stop: Stop, clock: Clock) -> None:
        self._channel = channel
        self._limits = limits
        self._stop = stop
        self._clock = clock
        self._open: list[AppendConnection] = []  # the one that was used longest ago first
        self._limit = limits.connections
        self._lowered_at: Nanoseconds | None = None
        self._past = Appends()  # over connections that are closed
        self.opened = 0

    @property
    def open_now(self) -> int:
        """Return how many connections are open."""
        return sum(not one.ended for one in self._open)

    @property
    def appends(self) -> Appends:
        """Return what went over all connections so far."""
        total = self._past
        for one in self._open:
            total = total.plus(one.appends)
        return total

    def open(self, table: str, path: str, first: bytes, *, wait: bool) -> AppendConnection | None:
        """Open a connection, in an idle one's place where there are too many.

        Where none is idle: None, or wait until one is. TransientError if asked to stop meanwhile.
        """
        if not self._make_room(wait):
            return None
        self.opened += 1
        structlog.get_logger().info("append_connection_opened", table=table, opened=self.opened)
        limits = self._limits
        connection = AppendConnection(self._channel, path, first, limits.window_bytes, limits.answer_within)
        self._open.append(connection)
        return connection

    def used(self, connection: AppendConnection) -> None:
        """Take note that a connection is in use: others are closed before it."""
        if self._open and self._open[-1] is not connection and connection in self._open:
            self._open.remove(connection)
            self._open.append(connection)

    def close(self, connection: AppendConnection) -> None:
        """End a connection and its thread."""
        connection.close()
        if any(one is connection for one in self._open):
            self._past = self._past.plus(connection.appends)
        self._open = [one for one in self._open if one is not connection]

    def refused(self) -> bool:
        """BigQuery takes no more connections: be content with those that are open; tell whether there are any.

        Others may hold the rest, so after a while more are tried again.
        """
        self._forget_ended()
        if not self._open:
            return False
        self._limit = len(self._open)
        self._lowered_at = self._clock.now()
        structlog.get_logger().warning("append_connections_limited", connections=self._limit)
        return True

    def _make_room(self, wait: bool) -> bool:
        self._forget_ended()
        while len(self._open) >= self._limit_now():
            idle = next((one for one in self._open if one.idle), None)
            if idle is not None:
                self.close(idle)
            elif wait:
                self._open[0].wait_until_idle(self._stop)
            else:
                return False
        return True

    def _limit_now(self) -> int:
        if self._lowered_at is not None:
            since = timedelta(microseconds=(self._clock.now() - self._lowered_at) // 1000)
            if since >= self._limits.close_after_idle:
                self._limit, self._lowered_at = self._limits.connections, None
        return self._limit

    def _forget_ended(self) -> None:
        for one in [one for one in self._open if one.ended]:
            self.close(one)
