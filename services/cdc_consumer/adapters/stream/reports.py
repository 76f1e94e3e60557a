"""What Spark's processes say to the driver, ask of it and hear from it, on whatever machine they run.

The driver listens at one address, which goes with the options of source and sink to each process, with a secret. Each
line of a connection is JSON: a report, which is dropped where nothing receives it, because no message is lost by it; a
question to the dead-letter limit, which is answered; or the wish to hear of a stop. A process that cannot connect does
not work: it could dead-letter nothing.
"""

import asyncio
import contextlib
import functools
import hmac
import os
import secrets
import socket
import threading
from collections.abc import Callable, Collection, Coroutine, Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import msgspec
import structlog

from services.cdc_consumer.adapters.spark.options import DriverAddress
from services.cdc_consumer.core.stream.counts import Counts, Report
from services.cdc_consumer.core.stream.task_totals import TaskTotals
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.runtime.logs import configure_logs
from shared.runtime.stop import Stop

if TYPE_CHECKING:  # the process that commits imports nothing of Arrow
    from services.cdc_consumer.ports import SharedPoisonLimit

_LARGEST: Final = 64 << 20  # bytes of a line: a report has a note for each of a task's tables
_TIMEOUT: Final = 1.0  # seconds: the driver does nothing else with a report than to add it up
_CONNECTED_WITHIN: Final = 10.0
_ANSWERED_WITHIN: Final = 60.0
_RECONNECTED_AFTER: Final = timedelta(seconds=1)
_CONNECTS: Final = 3
"""Attempts in a row that fail before the driver is taken to be gone; one that is refused is enough."""
_LAST_WORDS: Final = 3.0  # seconds in which processes that are about to end may still say something
_RELEASED_WITHIN: Final = 4.0  # seconds in which a task releases its messages: for three it awaits BigQuery's answer
_SILENCE: Final = 0.5
_TURNS: Final = 50
_STOP: Final = b"stop\n"


class _Line(msgspec.Struct, omit_defaults=True):
    report: Report | None = None
    judge: TaskTotals | None = None
    """To be answered: with why the limit has tripped, or an empty text."""
    remember: TaskTotals | None = None
    hear_of_stop: bool = False


def send_report(address: DriverAddress | None, report: Report) -> None:
    """Send a report to the driver; drop it if nothing receives there."""
    if address is not None:
        with contextlib.suppress(OSError):
            _connection(os.getpid(), address).send(_Line(report=report))


def report_micro_batch(
    address: DriverAddress | None, batch_id: int, counts: Counts, *, failed: bool, log_level: str
) -> None:
    """Log what became of a micro-batch, in the process that commits it, and send the counts to the driver."""
    configure_logs("cdc_consumer", log_level)
    log = structlog.get_logger()
    if failed:
        log.info("micro_batch_failed", batch=batch_id, **counts.fields())
    else:
        log.info("micro_batch_applied", batch=batch_id, **counts.fields())
    send_report(address, Report(counts=counts))


def check_driver_answers(address: DriverAddress) -> None:
    """Raise MisconfiguredError where this process cannot reach the driver."""
    try:
        _connect(address).close()
    except OSError as error:
        raise MisconfiguredError(
            "consumer-not-reached",
            f"a task on {socket.gethostname()} does not reach the consumer at {address.host}:{address.port}: {error}. "
            "Spark's tasks report there: let executors connect to spark.driver.host on all ports, or name one "
            "(TASKS_PORT) and let them connect to that",
        ) from error


def request_at_driver_stop(address: DriverAddress, stop: Stop) -> None:
    """Request ``stop`` once the driver says so or is gone."""

    def listen() -> None:
        failed = 0
        while not stop.requested:
            heard = b""
            try:
                connected = _connect(address)
            except OSError as error:
                failed += 1
                if isinstance(error, ConnectionRefusedError) or failed == _CONNECTS:  # nothing listens there
                    heard = _STOP
            else:
                failed = 0
                with connected, contextlib.suppress(OSError):
                    connected.sendall(_encoded(_Line(hear_of_stop=True)))
                    heard = connected.recv(len(_STOP))
            if heard:
                stop.request()
            stop.wait(_RECONNECTED_AFTER)

    threading.Thread(target=listen, name="driver's stop", daemon=True).start()


class DriverPoisonLimit:
    """The port PoisonLimit, counted by the driver for the tasks of all machines."""

    def __init__(self, address: DriverAddress) -> None:
        self._address = address

    def judge(self, seen: TaskTotals) -> None:
        """Return if so much may be dead-lettered; MisconfiguredError if not, TransientError without an answer."""
        if not seen.has_poison:
            return
        try:
            refusal = _connection(os.getpid(), self._address).ask(_Line(judge=seen))
        except OSError as error:
            raise TransientError(f"the consumer, which counts dead letters, does not answer: {error}") from error
        if refusal:
            raise MisconfiguredError.from_text(refusal, "driver-refused")

    def remember(self, seen: TaskTotals) -> None:
        """Count this in place of what was judged last; where the driver does not hear it, it counts the latter."""
        with contextlib.suppress(OSError):
            _connection(os.getpid(), self._address).send(_Line(remember=seen))


class _Connection:
    """One connection of a process, made when it is needed and again after a failure. Safe to use from any thread."""

    def __init__(self, address: DriverAddress) -> None:
        self._address = address
        self._lock = threading.Lock()
        self._connected: socket.socket | None = None

    def send(self, line: _Line) -> None:
        """Send a line; OSError where that fails."""
        with self._lock:
            self._send(line)

    def ask(self, line: _Line) -> str:
        """Send a line and return the answer; OSError where there is none.

        A connection that was made earlier may have ended since, so then another is tried. If only the answer was lost,
        the driver counts both questions: rather too much poison than too little.
        """
        with self._lock:
            made_earlier = self._connected is not None
            try:
                return self._ask(line)
            except OSError:
                if not made_earlier:
                    raise
                return self._ask(line)

    def _ask(self, line: _Line) -> str:
        connected = self._send(line)
        try:
            connected.settimeout(_ANSWERED_WITHIN)
            with connected.makefile("rb") as answers:
                answer = msgspec.json.decode(answers.readline(), type=str)
            connected.settimeout(_TIMEOUT)
        except (OSError, msgspec.DecodeError) as error:
            self._close()
            raise ConnectionError(str(error)) from error
        return answer

    def _send(self, line: _Line) -> socket.socket:
        if self._connected is None:
            self._connected = _connect(self._address)
            self._connected.settimeout(_TIMEOUT)
        try:
            self._connected.sendall(_encoded(line))
        except OSError:
            self._close()
            raise
        return self._connected

    def _close(self) -> None:
        if self._connected is not None:
            self._connected.close()
            self._connected = None


# One per process: a connection does not survive a fork.
@functools.cache
def _connection(_process: int, address: DriverAddress) -> _Connection:
    return _Connection(address)


def _connect(address: DriverAddress) -> socket.socket:
    connected = socket.create_connection((address.host, address.port), _CONNECTED_WITHIN)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connected.settimeout(None)
    connected.sendall(address.secret.encode())
    return connected


def _encoded(line: _Line) -> bytes:
    return msgspec.json.encode(line) + b"\n"


class DriverServer:
    """The driver's side, on a thread of its own: what is said is handed on one after the other."""

    def __init__(self, take: Callable[[Report], None], limit: "SharedPoisonLimit") -> None:
        self._take = take
        self._limit = limit
        self._secret = secrets.token_hex(16)
        self._loop = asyncio.new_event_loop()
        self._numbers = count(1)
        self._servers: list[asyncio.Server] = []
        self._open: set[asyncio.Task[None]] = set()
        self._hear_of_stop: set[asyncio.StreamWriter] = set()
        self._holding: set[int] = set()  # connections of processes whose task has messages
        self._stopping = False
        self._heard = 0  # connections and lines
        self._thread = threading.Thread(target=self._loop.run_forever, name="reports", daemon=True)
        self._thread.start()

    def listen(self, host: str, bind: str | None = None, port: int = 0) -> DriverAddress:
        """Listen at ``bind``, or else at the host by which others reach it; MisconfiguredError where that fails."""
        try:
            server = self._do(asyncio.start_server(self._serve, bind or host, port, limit=_LARGEST))
        except OSError as error:
            raise MisconfiguredError(
                "cannot-listen-for-tasks",
                f"the consumer cannot listen for the reports of its tasks at {bind or host}:{port}: {error.strerror}; "
                "spark.driver.bindAddress and TASKS_PORT say where",
            ) from error
        self._servers.append(server)
        return DriverAddress(host=host, port=server.sockets[0].getsockname()[1], secret=self._secret)

    def stop_tasks(self) -> None:
        """Let all tasks hear of a stop: those that wait for a service give up."""
        self._do(self._announce_stop())

    def take_last_words(self) -> None:
        """Take what tasks still report that have heard of a stop; return once none holds messages, within seconds."""
        self._do(self._last_words(self._holding, _RELEASED_WITHIN))

    def close(self) -> None:
        """Take what is still said by processes that are ending, and end."""

        async def end() -> None:
            await self._announce_stop()
            await self._last_words()
            for server in self._servers:
                server.close()
            for task in (left := list(self._open)):
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)

        self._do(end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _last_words(self, holding: Collection[int] = (), within: float = _LAST_WORDS) -> None:
        over, heard = self._loop.time() + within, -1
        while (holding or heard < self._heard) and self._loop.time() < over:
            heard = self._heard
            if self._open:
                await asyncio.wait(self._open, timeout=_SILENCE)
            for _ in range(_TURNS):  # what has arrived in a time when this thread did not run
                await asyncio.sleep(0)

    async def _announce_stop(self) -> None:
        self._stopping = True
        for writer in self._hear_of_stop:
            writer.write(_STOP)

    def _do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        self._heard += 1
        process = next(self._numbers)
        try:
            shown = await asyncio.wait_for(reader.readexactly(len(self._secret)), _CONNECTED_WITHIN)
            if hmac.compare_digest(shown, self._secret.encode()):
                while (line := await reader.readline()).endswith(b"\n"):
                    self._answer(msgspec.json.decode(line, type=_Line), process, writer)
        except (OSError, EOFError, TimeoutError, ValueError, msgspec.MsgspecError, asyncio.CancelledError) as error:
            structlog.get_logger().debug("connection_ended", why=repr(error))
        finally:
            self._hear_of_stop.discard(writer)
            self._open.discard(task)
            self._holding.discard(process)
            writer.close()
            self._limit.ended(process)

    def _answer(self, line: _Line, process: int, writer: asyncio.StreamWriter) -> None:
        self._heard += 1
        if line.report is not None:
            self._take(line.report)
            if line.report.process:  # else it is a sign of life, which says nothing of messages
                change = self._holding.discard if line.report.oldest_outstanding is None else self._holding.add
                change(process)
        if line.remember is not None:
            self._limit.remember(line.remember, process)
        if line.judge is not None:
            refusal = ""
            try:
                self._limit.judge(line.judge, process)
            except MisconfiguredError as error:
                refusal = str(error)
            writer.write(msgspec.json.encode(refusal) + b"\n")
        if line.hear_of_stop:
            self._hear_of_stop.add(writer)
            if self._stopping:
                writer.write(_STOP)


@contextmanager
def receiving_reports(take: Callable[[Report], None], limit: "SharedPoisonLimit") -> Iterator[DriverServer]:
    """Hand every report to ``take``, and every question to ``limit``, while the block runs; it has yet to listen."""
    with closing(DriverServer(take, limit)) as server:
        yield server
