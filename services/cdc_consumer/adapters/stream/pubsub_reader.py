"""Pulls the messages of the source `pubsub`: in a process on the driver those that are waited for, in tasks the rest.

The first messages are waited for on the driver, where the offset is asked for, and travel in the plan. So an idle
query runs no micro-batch and costs one blocked call; no task ever waits for messages while another holds some; and
how much there is decides how many tasks read. The tasks take what is there and leave.
"""

import functools
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import chain
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import structlog
from pyspark.sql.datasource import InputPartition

from services.cdc_consumer.adapters.spark.data_source_api import ReadAllAvailable, ReadLimit
from services.cdc_consumer.adapters.spark.options import SourceOptions
from services.cdc_consumer.adapters.stream.data_files import DataFile
from services.cdc_consumer.adapters.stream.pulling import Puller, PullLimits, ack_ids, to_portions
from services.cdc_consumer.adapters.stream.reports import send_report
from services.cdc_consumer.core.stream.counts import Counts, Report
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.pubsub.channels import open_channel
from shared.pubsub.leases import PubsubLeases, ack_deadline_of
from shared.pubsub.stubs import PullResponse
from shared.runtime.garbage import exempt_imports
from shared.runtime.logs import configure_logs, log_whatever_happens
from shared.runtime.metrics import RETRIED
from shared.runtime.retries import name_emulators, retrying
from shared.runtime.stop import Stop

_PEEK: Final = 2  # messages waited for: more than one means that there is a backlog, and work for all tasks
_PAUSE: Final = timedelta(milliseconds=200)  # Spark asks again after 10 ms when there is nothing
_EMPTY_ANSWERS: Final = 5  # one after the other, after a wait that found nothing: then the subscription is drained
_COLD_PLANS: Final = 2  # micro-batches, one task and several, whose workers are just being started
_COLD_DEADLINES: Final = 4
_FIRST_BYTES: Final = 16 << 20  # of the first micro-batch: until it is over, the processes that Spark started with live
_SERVICE_PULL: Final = timedelta(minutes=10)
# The emulator answers a waiting pull with nothing shortly before the call's deadline, and goes on serving a cancelled
# one: it leases messages that no task gets. So there a pull is short, and awaited at the end.
_EMULATOR_PULL: Final = timedelta(seconds=5)


@dataclass
class MessagesPartition(InputPartition):
    """What one task reads: the messages that the driver has leased already, and what else there is."""

    index: int
    options: SourceOptions
    limits: PullLimits
    ack_deadline: timedelta
    pulled: bytes = b""
    """A PullResponse."""


@dataclass(slots=True)
class _Pulled:
    """Messages leased on the driver for the micro-batch that ends at ``end``."""

    end: int
    response: Any
    taken_at: float
    planned: bool = False


def pull_limits(options: SourceOptions, tasks: int) -> PullLimits:
    """Return what each of so many tasks may take."""
    return PullLimits(
        messages=max(1, options.micro_batch_messages // tasks),
        bytes=max(1, options.micro_batch_bytes // tasks),
        linger=options.linger,
        longest=max(options.linger, options.longest_linger),
    )


class MessagePlanner:
    """Waits for messages and plans their tasks, in a process on the driver."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._pulled: _Pulled | None = None
        self._ack_deadline = options.ack_deadline
        self.drain = False
        """Whether the subscription is to be drained, and not to be waited for."""
        self._drained = False
        self._pulls_fail = False
        self._plans = 0

    def latest_offset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        """Return the next offset once there are messages, or ``start`` after `idle_wait` without any."""
        if isinstance(limit, ReadAllAvailable):
            raise MisconfiguredError(
                "trigger-once-refused",
                "trigger(once=True) asks for everything in one micro-batch, whose leases would end before it does: "
                "use trigger(availableNow=True)",
            )
        end = start["batch"] + 1
        if self._pulled is not None and self._pulled.end == end:
            return {"batch": end}
        self._pulled = None  # those of the micro-batch before are its tasks'
        if self._stopping() or self._drained:
            _pause()
            return start
        response = self._wait_for_messages()
        if response is None:
            return start
        self._pulled = _Pulled(end, response, time.monotonic())
        if self._stopping():
            self.stop()
            return start
        return {"batch": end}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """Plan one task when quiet and at first, all when behind; the first task takes what the driver holds."""
        if start == end:
            return []
        options, deadline = self._options, self._deadline()
        pulled = self._pulled if self._pulled is not None and self._pulled.end == end["batch"] else None
        is_first = not self._plans
        # None is the micro-batch of an earlier run, done again after a restart.
        behind = pulled is None or len(pulled.response.received_messages) >= _PEEK
        tasks = options.tasks if behind and not is_first else 1
        if pulled is not None:
            pulled.planned = True
            self._refresh(pulled, deadline)
        self._plans += 1
        limits = pull_limits(options, tasks)
        if is_first:
            limits = replace(limits, bytes=min(limits.bytes, _FIRST_BYTES))
        plan = [MessagesPartition(index, options, limits, deadline) for index in range(tasks)]
        if pulled is not None:
            left = replace(plan[0].limits, messages=plan[0].limits.messages - len(pulled.response.received_messages))
            plan[0] = replace(plan[0], pulled=pulled.response.SerializeToString(), limits=left)
        return plan

    def stop(self) -> None:
        """Release the leases of messages that no task was planned for, and of what a pull that waits still brings."""
        pulled, self._pulled = self._pulled, None
        clients = self._clients()
        before = clients.leases.released
        if pulled is not None and not pulled.planned:
            clients.leases.release(ack_ids(pulled.response))
        clients.puller.wait_no_more(_EMULATOR_PULL + _PAUSE if self._options.emulator_host else timedelta(0))
        released = clients.leases.released - before
        if released:
            counts = Counts(taken=released, released=released)
            send_report(self._options.driver, Report(counts=counts))

    def _wait_for_messages(self) -> Any | None:
        began, response, retries = time.monotonic(), None, RETRIED.made()
        not_pulled = "" if self._pulls_fail else None
        try:
            response = retrying(Stop(), self._options.idle_wait)(self._pull)
            self._drained = self.drain and response is None
        except TransientError as error:  # Pub/Sub is unavailable and keeps the backlog; the query lives on
            not_pulled = str(error)
            structlog.get_logger().warning("pull_failed", subscription=self._options.subscription, error=not_pulled)
        self._pulls_fail = bool(not_pulled)
        made = RETRIED.since(retries)  # in a process of the source's own, whose metrics are not scraped
        if made or not_pulled is not None:
            send_report(self._options.driver, Report(retries=made, not_pulled=not_pulled))
        if response is None and time.monotonic() - began < _PAUSE.total_seconds():
            _pause()  # an empty answer at once is allowed to Pub/Sub: no reason to ask a hundred times a second
        return response

    def _pull(self) -> Any | None:
        puller, most = self._clients().puller, min(_PEEK, self._options.micro_batch_messages)
        lasts = _EMULATOR_PULL if self._options.emulator_host else _SERVICE_PULL
        began = time.monotonic()
        response = puller.first(self._options.idle_wait, most, lasts, self._stopping)
        while self.drain and response is None and not self._stopping():
            left = self._options.idle_wait - timedelta(seconds=time.monotonic() - began)
            if left <= timedelta(0):  # nothing came, or no answer at all: only answers say "drained"
                return self._pull_again(puller, most)
            _pause()  # an empty answer at once is allowed to Pub/Sub, and no sign that nothing is left
            response = puller.first(left, most, lasts, self._stopping)
        return response

    def _pull_again(self, puller: Puller, most: int) -> Any | None:
        """Return what one of several pulls finds: one alone may be answered with nothing while there is a backlog."""
        for _ in range(_EMPTY_ANSWERS):
            response = puller.now(most)
            if response is not None or self._stopping():
                return response
            _pause()
        return None

    def _refresh(self, pulled: _Pulled, deadline: timedelta) -> None:
        """Extend the leases if Spark took its time, so that the tasks get them at nearly full length.

        At first Spark still has to start the workers, and no process extends the leases meanwhile.
        """
        cold = self._plans < _COLD_PLANS
        if cold or time.monotonic() - pulled.taken_at > deadline.total_seconds() / 3:
            try:
                self._clients().leases.extend(ack_ids(pulled.response), times=_COLD_DEADLINES if cold else 1)
            except TransientError as error:
                structlog.get_logger().warning("leases_not_extended", error=str(error))

    def _stopping(self) -> bool:
        return self._options.stop_file is not None and Path(self._options.stop_file).exists()

    def _deadline(self) -> timedelta:
        if self._ack_deadline is None:
            channel = _channel(os.getpid(), self._options.emulator_host, self._options.log_level)
            ask = retrying(Stop(), timedelta(seconds=30))
            self._ack_deadline = ask(ack_deadline_of, channel, self._options.subscription)
        return self._ack_deadline

    def _clients(self) -> "_Clients":
        return _clients(os.getpid(), self._options, self._deadline())


def read_messages(partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Yield portions of messages, all leases taken; if reading fails or is broken off, all are released."""
    assert isinstance(partition, MessagesPartition)
    exempt_imports()
    clients = _clients(os.getpid(), partition.options, partition.ack_deadline)
    pulled = [PullResponse.FromString(partition.pulled)] if partition.pulled else []
    taken: list[str] = []
    released, unseen = clients.leases.released, clients.puller.released
    with clients.leases.keeper() as keeper, _data_file(partition.options.data_directory) as file:
        try:
            for response in chain(pulled, clients.puller.collect(partition.limits)):
                ids = ack_ids(response)
                taken += ids
                keeper.add(ids)
                yield to_portions(response, partition.options.sink_tasks, file)
        except BaseException:  # GeneratorExit too: Spark throws away what it has been given already
            clients.leases.release(taken)
            raise
        finally:
            counts = Counts(
                taken=len(taken) + clients.puller.released - unseen, released=clients.leases.released - released
            )
            send_report(partition.options.driver, Report(counts=counts))
    structlog.get_logger().debug("leases_taken", partition=partition.index, leases=len(taken))


@dataclass(frozen=True, slots=True)
class _Clients:
    puller: Puller
    leases: PubsubLeases


# A worker process serves one task after another, in changing roles: what it has opened stays open. The process id is
# part of the key because a channel does not survive a fork.
@functools.cache
def _channel(_process: int, emulator_host: str | None, log_level: str) -> Any:
    configure_logs("cdc_consumer", log_level)  # Spark's processes start with none
    log_whatever_happens()
    name_emulators({"PUBSUB_EMULATOR_HOST": emulator_host})
    return open_channel(emulator_host)


@functools.cache
def _clients(process: int, options: SourceOptions, ack_deadline: timedelta) -> _Clients:
    channel = _channel(process, options.emulator_host, options.log_level)
    leases = PubsubLeases(channel, options.subscription, ack_deadline, Stop())
    return _Clients(Puller(channel, options.subscription, leases), leases)


def _data_file(directory: str | None) -> AbstractContextManager[DataFile | None]:
    return nullcontext() if directory is None else DataFile(Path(directory))


def _pause() -> None:
    threading.Event().wait(_PAUSE.total_seconds())
