"""What a task of the sink `bigquery_cdc` does: the composition root on an executor.

Spark keeps the worker processes from one task to the next, so what a task opens here the next one finds open.
"""

import functools
import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from services.cdc_consumer.adapters.bigquery.append_connection import open_storage_channel
from services.cdc_consumer.adapters.bigquery.append_stream import AppendStreams
from services.cdc_consumer.adapters.mask_key import read_mask_key
from services.cdc_consumer.adapters.schema.tables import BigQueryTables
from services.cdc_consumer.adapters.spark.options import SinkOptions
from services.cdc_consumer.adapters.stream.message_data import unpack, with_data
from services.cdc_consumer.adapters.stream.reports import (
    DriverPoisonLimit,
    check_driver_answers,
    request_at_driver_stop,
    send_report,
)
from services.cdc_consumer.adapters.stream.state_directory import CrashCountsOnDisk, StateFile, subscription_scope
from services.cdc_consumer.app.stream.dead_letter_limit import DeadLetterLimit
from services.cdc_consumer.app.stream.deferrals import DEFERRALS_FILE, Deferrals
from services.cdc_consumer.app.stream.micro_batch import Memory, Ports, apply, leave
from services.cdc_consumer.app.stream.trouble import RetryLimits
from services.cdc_consumer.core.schema.destinations import Plan
from services.cdc_consumer.core.stream.counts import Appends, Counts, Report, TableNote
from services.cdc_consumer.core.stream.task_totals import TaskTotals
from shared.bigquery.client import open_client
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.contracts.tables_file import read_tables_file
from shared.pubsub.channels import open_channel
from shared.pubsub.dead_letters import DeadLetterPublisher
from shared.pubsub.leases import LONGEST_DEADLINE, PubsubLeases, ack_deadline_of
from shared.runtime.clock import SystemClock
from shared.runtime.logs import configure_logs, log_whatever_happens
from shared.runtime.metrics import RETRIED
from shared.runtime.retries import name_emulators, retrying
from shared.runtime.stop import Stop

_FIRST_ANSWER: Final = timedelta(seconds=30)


def write_messages(options: SinkOptions, batches: Sequence[pa.RecordBatch]) -> Counts:
    """Apply one task's messages and return what became of them. What fails has given its messages back."""
    if not any(batch.num_rows for batch in batches):
        return Counts()
    messages, damaged = unpack(batches)
    try:
        composed = _composed(os.getpid(), options)
    except BaseException:
        _release(options, messages)
        raise
    leases = composed.leases
    oldest = pc.min(messages["publish_time"].cast(pa.int64())).as_py()

    before, retries = composed.writer.appends, RETRIED.made()

    def report(counts: Counts | None = None, oldest_outstanding: int | None = None, *, ended: bool = False) -> None:
        writer = composed.writer
        sent = Report(
            counts=counts or Counts(),
            process=f"{socket.gethostname()}:{os.getpid()}",
            appends=writer.appends.since(before) if ended else Appends(),
            retries=RETRIED.since(retries) if ended else {},
            connections=writer.connections_open,
            oldest_outstanding=oldest_outstanding,
        )
        send_report(options.driver, sent)

    def waiting(table: str = "", why: str = "") -> None:
        report(Counts(tables={table: TableNote(deferred=why)} if table else {}), oldest)

    report(oldest_outstanding=oldest)
    ports = replace(composed.ports, waiting=waiting)
    acked, deferred, released = leases.acked, leases.deferred_count, leases.released
    try:
        whole = _with_data(options, messages, damaged, leases)
        counts = apply(whole, ports, composed.memory, composed.stop, SystemClock())
    except BaseException as error:  # a task that fails has no commit message, so it reports by itself
        if isinstance(error, TransientError | MisconfiguredError):  # what it was about to dead-letter comes again
            composed.memory.dead_letter_limit.remember(TaskTotals())
        left = Counts(
            messages=len(messages),
            acked=leases.acked - acked,
            deferred=leases.deferred_count - deferred,
            deferred_until=leases.deferred_until,
            released=leases.released - released,
        )
        composed.deferrals.take(left)
        report(left, ended=True)
        raise
    composed.deferrals.take(counts)
    report(ended=True)
    return counts


def _release(options: SinkOptions, messages: pa.Table) -> None:
    """Release the leases of a task that could not be composed, and report it; else they run out by themselves."""
    ack_ids = messages["ack_id"].to_pylist()
    with suppress(MisconfiguredError, TransientError), open_channel(options.pubsub_emulator_host) as channel:
        leases = PubsubLeases(channel, options.subscription, LONGEST_DEADLINE, Stop(), budget=timedelta(0))
        leave(messages, set(ack_ids), leases, RetryLimits(), Stop(), for_later=False)
        send_report(options.driver, Report(counts=Counts(messages=len(ack_ids), released=leases.released)))


def _with_data(options: SinkOptions, messages: pa.Table, damaged: int, leases: PubsubLeases) -> pa.Table:
    directory = options.data_directory
    try:
        if damaged:  # the leases of what is in them run out
            raise ValueError(f"{damaged} portions of messages are not those that were sent, or cannot be unpacked")
        return with_data(messages, Path(directory) if directory else None)
    except BaseException:
        leases.release(messages["ack_id"].to_pylist())
        raise


@dataclass(frozen=True, slots=True)
class _Composed:
    ports: Ports
    leases: PubsubLeases
    writer: AppendStreams
    deferrals: Deferrals
    memory: Memory
    stop: Stop


# One per worker process and sink, kept from task to task: connections stay open, tables stay known. The process id is
# part of the key because a channel does not survive a fork.
@functools.cache
def _composed(_process: int, options: SinkOptions) -> _Composed:
    configure_logs("cdc_consumer", options.log_level)
    log_whatever_happens()
    name_emulators(
        {
            "PUBSUB_EMULATOR_HOST": options.pubsub_emulator_host,
            "BIGQUERY_EMULATOR_HOST": options.bigquery_emulator_host,
            "BIGQUERY_STORAGE_EMULATOR_HOST": options.bigquery_storage_emulator_host,
        }
    )
    stop, clock = Stop(), SystemClock()
    if options.driver is not None:
        check_driver_answers(options.driver)
        request_at_driver_stop(options.driver, stop)
    pubsub = open_channel(options.pubsub_emulator_host)
    storage = open_storage_channel(options.bigquery_storage_emulator_host)
    client = open_client(options.project, options.bigquery_emulator_host)
    deadline = options.ack_deadline or retrying(stop, _FIRST_ANSWER)(ack_deadline_of, pubsub, options.subscription)
    # Retries are not nested: the micro-batch has the one policy, and says meanwhile that it is alive.
    leases = PubsubLeases(pubsub, options.subscription, deadline, stop, budget=timedelta(0))
    writer = AppendStreams(storage, options.project, options.dataset, stop, clock)
    state_directory = Path(options.state_directory) if options.state_directory else None
    scope = subscription_scope(options.pubsub_emulator_host, options.subscription)
    limit = DriverPoisonLimit(options.driver) if options.driver is not None else DeadLetterLimit()
    ports = Ports(
        leases=leases,
        crash_counts=CrashCountsOnDisk(state_directory, scope),
        dead_letters=DeadLetterPublisher(pubsub, options.dead_letter_topic, stop, budget=timedelta(0)),
        tables=BigQueryTables(
            client,
            options.project,
            options.dataset,
            clock_margin=options.clock_margin,
            progressed=lambda: send_report(options.driver, Report()),  # a sign of life
        ),
        writer=writer,
    )
    file = read_tables_file(options.tables_file)
    plan = Plan(file, options.dataset, read_mask_key(file, expected=options.mask_key))
    deferrals = Deferrals(StateFile(state_directory, DEFERRALS_FILE, scope), clock)
    return _Composed(ports, leases, writer, deferrals, Memory(dead_letter_limit=limit, plan=plan), stop)
