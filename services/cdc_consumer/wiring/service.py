"""Joins the parts of the consumer: checks at the start, Spark, the query, health and metrics."""

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import structlog
from prometheus_client import CollectorRegistry
from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from services.cdc_consumer.adapters.mask_key import read_mask_key
from services.cdc_consumer.adapters.process_directory import process_directory, remove_leftovers, temporary_places
from services.cdc_consumer.adapters.schema.dataset_defaults import dataset_defaults
from services.cdc_consumer.adapters.schema.tables import check_dataset
from services.cdc_consumer.adapters.spark.checkpoint import (
    move_damaged_checkpoint,
    owned_checkpoint,
    prepare_checkpoint,
    unreadable_offsets,
)
from services.cdc_consumer.adapters.spark.data_source_api import SPARK_DRAINS
from services.cdc_consumer.adapters.spark.options import DriverAddress, SinkOptions, SourceOptions, encode_options
from services.cdc_consumer.adapters.spark.partitioning import numbers_for
from services.cdc_consumer.adapters.spark.spark_session import (
    PYTHON_LATE,
    CheckpointDamagedError,
    Java,
    PythonLateError,
    QueryFailedError,
    SubmittedSpark,
    check_java,
    driver_host,
    end_processes_of_the_start,
    ending_with,
    error_of,
    executor_slots,
    full_disk_reported,
    is_submitted,
    query_error,
    spark_settings,
    start_error,
    starting_java,
    stderr_as_log_lines,
)
from services.cdc_consumer.adapters.status.mirrors import label_recreated, mirror_watermarks, read_mirrors
from services.cdc_consumer.adapters.stream.pubsub_source import PubsubDataSource
from services.cdc_consumer.adapters.stream.reports import DriverServer, receiving_reports
from services.cdc_consumer.adapters.stream.state_directory import (
    MIRRORS,
    StateFile,
    choose_state_directory,
    subscription_scope,
)
from services.cdc_consumer.app.status.apply_watermarks import ApplyWatermarks
from services.cdc_consumer.app.status.metrics import ConsumerMetrics
from services.cdc_consumer.app.status.oldest_messages import OldestMessages
from services.cdc_consumer.app.status.status import ConsumerStatus
from services.cdc_consumer.app.stream.dead_letter_limit import DEAD_LETTERS_FILE, DeadLetterLimit
from services.cdc_consumer.app.stream.deferrals import DEFERRALS_FILE, Deferrals
from services.cdc_consumer.core.stream.counts import Report
from services.cdc_consumer.settings import Settings
from services.cdc_consumer.wiring.bigquery_cdc import BigQueryCdcDataSource
from services.cdc_consumer.wiring.delete_missing_rows import deleting
from shared.bigquery.client import open_client
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.contracts.timestamps import format_timestamp
from shared.pubsub.channels import stoppable_channel
from shared.pubsub.leases import ack_deadline_of
from shared.pubsub.names import subscription_path, topic_path
from shared.pubsub.topology import check_subscription
from shared.runtime.clock import SystemClock
from shared.runtime.health import Health, serving_health
from shared.runtime.metrics import TOPICS
from shared.runtime.retries import retrying
from shared.runtime.service import started, stopped
from shared.runtime.settings import read_settings
from shared.runtime.stop import Stop, stop_on_signals
from shared.runtime.tables_file import load_tables_file

FAILED: Final = 1
LEFT: Final = 3

_IDLE_WAIT: Final = timedelta(seconds=4)  # what a stop may have to wait for while there is nothing to do
_FINISH_WITHIN: Final = timedelta(seconds=5.5)  # of the ten that a stop may take: Spark's own end needs the rest
_GONE: Final = timedelta(seconds=7)  # of Spark, whatever it does: a busy machine takes long to end it
_ANSWERS_WITHIN: Final = timedelta(seconds=5)  # BigQuery, at the start: a stop has to wait for the call under way
_POLL: Final = timedelta(milliseconds=200)
_DRAINED: Final = "drained"
_EXECUTORS_WITHIN: Final = timedelta(minutes=5)
_BEGINS_WITHIN: Final = timedelta(minutes=2)
"""How long a query is started again that waits for a Python process in vain; a restart of the service is slower."""


@dataclass(frozen=True, slots=True)
class TablesForWorkers:
    """What workers, which do not see this machine's disk, have to know of the tables file."""

    text: str
    mask_key: str
    """The fingerprint of the mask key; empty: none is needed."""


StartJava = Callable[[Settings, Stop], AbstractContextManager[Java | SubmittedSpark]]


def service(start_java: StartJava) -> int:
    """Run the service as the environment says; return the exit code. ``start_java``: where it has its session from."""
    log = structlog.get_logger()
    with stop_on_signals() as stop:
        try:
            settings = read_settings(Settings, os.environ)
            started("cdc_consumer", settings, os.environ)
            remove_leftovers(temporary_places(os.environ))
            with full_disk_reported(), owned_checkpoint(settings.checkpoint_location):
                try:
                    if (unreadable := unreadable_offsets(settings.checkpoint_location)) is not None:
                        raise CheckpointDamagedError(f"the last line of {unreadable}")
                    done = serve(settings, start_java, stop)
                except CheckpointDamagedError as error:
                    moved_to = move_damaged_checkpoint(settings.checkpoint_location)
                    if moved_to is None:
                        raise
                    log.error("checkpoint_damaged", error=str(error), moved_to=str(moved_to))  # noqa: TRY400  as below
                    return FAILED
            if not done:
                return LEFT
        except (QueryFailedError, TransientError, Py4JError, ConnectionError) as error:  # the last two: Spark has died
            if not stop.requested:
                log.error("service_failed", error=str(error) or type(error).__name__)  # noqa: TRY400  the message is the whole story
                return FAILED
            log.warning("stopped_in_mid_batch", error=str(error))  # its outstanding messages have been nacked
    stopped()
    return 0


def serve(settings: Settings, start_java: StartJava, stop: Stop) -> bool:
    """Check what can be checked, and run the query until it is asked to stop, fails or has drained the subscription.

    Return whether that is all: if it has drained it, nothing was deferred, and nothing is that an earlier run deferred.
    """
    log = structlog.get_logger()
    tables_text, tables = load_tables_file(settings.tables_file)
    mask_key = read_mask_key(tables)
    datasets = [settings.bigquery_dataset, *sorted(tables.datasets - {settings.bigquery_dataset})]
    health = Health(settings.liveness)
    registry = CollectorRegistry()
    oldest_messages = OldestMessages(SystemClock(), settings.liveness, settings.delete_missing_rows_after)
    metrics = ConsumerMetrics(registry, SystemClock(), oldest_messages)
    client = open_client(settings.dataset_project, settings.bigquery_emulator_host)
    status = ConsumerStatus(
        SystemClock(),
        lambda more: read_mirrors(client, settings.dataset_project, [*datasets, *sorted({*more} - {*datasets})]),
        lambda mirror: label_recreated(client, settings.dataset_project, settings.bigquery_dataset, mirror),
        mirrors_kept(settings),
        oldest_messages,
        settings.refused_after,
    )

    metrics.show_tables(status.failing, status.refused, status.pending_resync)
    health.not_ready_while(status.not_pulled)

    def read_watermarks() -> Mapping[str, datetime]:
        found = mirror_watermarks(client, settings.dataset_project, settings.bigquery_dataset, status.mirrors())
        status.applied_up_to(found)
        return found

    watermarks = ApplyWatermarks(registry, read_watermarks)
    deferrals = Deferrals(state_file(settings, DEFERRALS_FILE), SystemClock())
    limit = dead_letter_limit(settings)

    def take(report: Report) -> None:  # also of a task that waits for a service: it lives, a restart would not help
        metrics.take(report)
        status.take(report)
        deferrals.take(report.counts)
        health.progressed()

    def ask() -> Mapping[str, object]:
        return status.document(ready=health.ready, alive=health.alive)

    with (
        serving_health(health, registry, stop, settings.host, settings.port, ask),
        process_directory() as exchange,
        ending_with(stop, _GONE),
        start_java(settings, stop) as starting,  # Java starts while the rest is checked
    ):
        ack_deadline = check_start(settings, datasets, health, stop)
        try:
            with (
                receiving_reports(take, limit) as reports,
                status.polling_labels(),
                watermarks.showing(),
                deleting(settings, status, os.environ, stop),
                spark(settings, starting, stop) as session,
            ):
                if stop.requested:
                    return True
                for_workers = TablesForWorkers(tables_text, mask_key.fingerprint if mask_key else "")
                run_query(session, settings, for_workers, ack_deadline, exchange, reports, health, stop)
        finally:
            log.info("leases_counted", **metrics.left())
    deferred, until = metrics.leases["deferred"], deferrals.until()
    if stop.requested or not (deferred or until):
        return True
    fix = "fix what is reported of the tables, now or by the run that deferred them; a later run takes the messages"
    again = None if until is None else format_timestamp(until)
    log.warning("messages_left", deferred=deferred, tables=status.deferred(), come_again=again, fix=fix)
    return False


def mirrors_kept(settings: Settings) -> StateFile:
    """Return what says when each mirror was made, which goes with the checkpoint: without one nothing is kept."""
    directory = choose_state_directory(settings.checkpoint_location) if settings.checkpoint_location else None
    scope = f"{settings.bigquery_emulator_host or ''} {settings.dataset_project} {settings.bigquery_dataset}"
    return StateFile(directory, MIRRORS, scope, valid_for=None)


def state_file(settings: Settings, name: str) -> StateFile:
    """Return a file about this subscription that outlives the process: of deferrals, or of the dead-letter limit."""
    subscription = subscription_path(settings.project, settings.subscription)
    scope = subscription_scope(settings.pubsub_emulator_host, subscription)
    return StateFile(choose_state_directory(settings.checkpoint_location), name, scope)


def dead_letter_limit(settings: Settings) -> DeadLetterLimit:
    """Return the dead-letter limit, which counts on from what the process before has counted."""
    return DeadLetterLimit(settings.poison_limit, state_file(settings, DEAD_LETTERS_FILE))


def run_query(
    session: SparkSession,
    settings: Settings,
    tables: TablesForWorkers,
    ack_deadline: timedelta,
    exchange: Path,
    reports: DriverServer,
    health: Health,
    stop: Stop,
) -> None:
    """Start the query, again where a Python process of it is late, and watch it until it is asked to stop or fails."""
    log = structlog.get_logger()
    if settings.one_machine:
        check_slots(session.sparkContext.defaultParallelism, settings)
    elif not wait_for_slots(lambda: executor_slots(session), settings, health, stop):
        return
    host, bind = ("127.0.0.1",) * 2 if settings.spark_master.startswith("local") else driver_host(session)
    driver = reports.listen(host, bind, settings.tasks_port)

    def stop_tasks() -> None:
        if stop.requested:  # what tasks end with then is no error of Spark's: a line of ours says it
            with suppress(Py4JError, ConnectionError):  # where Java has ended, `watch` finds out
                session.sparkContext.setLogLevel("OFF")
        (exchange / "stop").touch()  # the source starts no further micro-batch
        reports.stop_tasks()  # the sink waits for no service
        if not stop.requested:  # the query has failed, and with the session Spark ends tasks that release messages yet
            reports.take_last_words()

    for attempt in retrying(stop, _BEGINS_WITHIN):
        with attempt:
            try:
                query = start_query(session, settings, tables, ack_deadline, exchange, driver)
            except (PySparkException, Py4JJavaError) as error:
                raise query_error(settings.checkpoint_location, error) from None
            log.info("query_started", query=query.name, ack_deadline_seconds=ack_deadline.total_seconds())
            health.ready = True
            watch(query, health, stop, stop_tasks, exchange / _DRAINED, may_end=settings.trigger == "available-now")


def check_slots(slots: int, settings: Settings) -> None:
    """Raise MisconfiguredError where not all tasks run at once: no process extends the leases of one that waits."""
    if settings.tasks > slots:
        raise MisconfiguredError(
            "too-many-tasks",
            f"TASKS={settings.tasks} is more than the {slots} that SPARK_MASTER={settings.spark_master} can run: "
            "the messages of a task that waits for a slot have leases that are not extended; lower TASKS, or give "
            "Spark more cores",
        )


def wait_for_slots(
    slots: Callable[[], int], settings: Settings, health: Health, stop: Stop, within: timedelta = _EXECUTORS_WITHIN
) -> bool:
    """Wait until executors for all tasks have come, alive; return whether to go on, False after a stop.

    MisconfiguredError as `check_slots`, where they do not come ``within`` a time.
    """
    over, logged = time.monotonic() + within.total_seconds(), False
    while (found := slots()) < settings.tasks:
        health.progressed()
        if time.monotonic() >= over:
            check_slots(found, settings)
        if not logged:
            structlog.get_logger().info("executors_awaited", slots=found, tasks=settings.tasks)
            logged = True
        if stop.wait(_POLL):
            return False
    return True


def check_start(settings: Settings, datasets: Iterable[str], health: Health, stop: Stop) -> timedelta:
    """Refuse a subscription or datasets that cannot be relied on; return how long messages are leased for.

    Pub/Sub and BigQuery are waited for, alive: a restart would not bring them back.
    """
    subscription = subscription_path(settings.project, settings.subscription)
    dead_letter_topic = topic_path(settings.project, settings.dead_letter_topic)
    with stoppable_channel(settings.pubsub_emulator_host, stop) as channel:
        topic = check_subscription(
            channel,
            subscription,
            dead_letter_topic=dead_letter_topic,
            keep_messages_for=settings.keep_messages_for,
            stop=stop,
            progressed=health.progressed,
        )
        TOPICS.labels(topic, dead_letter_topic).set(1)
        client = open_client(settings.dataset_project, settings.bigquery_emulator_host)
        for attempt in retrying(stop):
            with attempt:
                health.progressed()
                found = [check_dataset(client, settings.dataset_project, name, _ANSWERS_WITHIN) for name in datasets]
                ack_deadline = ack_deadline_of(channel, subscription)
    for dataset in found:
        if defaults := dataset_defaults(dataset):
            note = "tables are made without them; take them off with bq update, for other tables and for doctor"
            structlog.get_logger().warning(
                "dataset_has_defaults", dataset=dataset.dataset_id, defaults=dict(defaults), note=note
            )
    return ack_deadline


@contextmanager
def java(settings: Settings, stop: Stop) -> Iterator[Java | SubmittedSpark]:
    """Start Spark's Java for the block, if none runs; what it writes to stderr becomes lines of the log."""
    configuration = spark_settings(settings.spark_master, settings.driver_memory, settings.tasks, os.environ)
    if is_submitted(settings.spark_master, os.environ):
        yield SubmittedSpark(configuration)
        return
    check_java(os.environ)
    with ExitStack() as block:
        with stderr_as_log_lines():
            started_java = block.enter_context(starting_java(os.environ, configuration, stop))
        try:
            yield started_java
        except (Py4JError, ConnectionError) as error:
            if stop.requested or (why := started_java.why_ended()) is None:
                raise
            raise QueryFailedError(why) from error


@contextmanager
def spark(settings: Settings, started_java: Java | SubmittedSpark, stop: Stop) -> Iterator[SparkSession]:
    """Start Spark for the block; what prevents it, a stop among it, is one error with Spark's own words."""
    try:
        with ending_with(stop):
            session = started_java.open_session()
    except Exception as error:  # whatever Spark, py4j or Java raise; there is no list of it
        raise start_error(settings.spark_master, error) from error
    try:
        yield session
    finally:
        session.stop()


def start_query(
    session: SparkSession,
    settings: Settings,
    tables: TablesForWorkers,
    ack_deadline: timedelta,
    exchange: Path,
    driver: DriverAddress,
) -> StreamingQuery:
    """Start the query: subscription -> tasks by ordering key -> BigQuery, evaluated once per micro-batch."""
    session.dataSource.register(PubsubDataSource)
    session.dataSource.register(BigQueryCdcDataSource)
    subscription = subscription_path(settings.project, settings.subscription)
    drain = settings.trigger == "available-now"
    data_directory = None
    if settings.one_machine:  # what messages hold goes past Spark
        (exchange / "data").mkdir(exist_ok=True)
        data_directory = str(exchange / "data")
    source = SourceOptions(
        subscription=subscription,
        emulator_host=settings.pubsub_emulator_host,
        tasks=settings.tasks,
        micro_batch_messages=settings.micro_batch_messages,
        micro_batch_bytes=settings.micro_batch_bytes,
        linger=settings.linger,
        idle_wait=_IDLE_WAIT,
        ack_deadline=ack_deadline,
        stop_file=str(exchange / "stop"),
        drained_file=str(exchange / _DRAINED) if drain and not SPARK_DRAINS else None,
        driver=driver,
        data_directory=data_directory,
        sink_tasks=numbers_for(settings.tasks),
        log_level=settings.log_level,
    )
    state_directory = choose_state_directory(settings.checkpoint_location)
    sink = SinkOptions(
        subscription=subscription,
        dead_letter_topic=topic_path(settings.project, settings.dead_letter_topic),
        project=settings.dataset_project,
        dataset=settings.bigquery_dataset,
        ack_deadline=ack_deadline,
        pubsub_emulator_host=settings.pubsub_emulator_host,
        bigquery_emulator_host=settings.bigquery_emulator_host,
        bigquery_storage_emulator_host=settings.bigquery_storage_emulator_host,
        driver=driver,
        state_directory=str(state_directory) if state_directory else None,
        tables_file=tables.text,
        mask_key=tables.mask_key,
        data_directory=data_directory,
        clock_margin=settings.clock_margin,
        log_level=settings.log_level,
    )
    messages = session.readStream.format("pubsub").options(**encode_options(source)).load()
    if settings.tasks > 1:  # a key's changes of the micro-batch meet in one task, and only the newest is written
        messages = messages.repartition(settings.tasks, "task")
    checkpoint = prepare_checkpoint(session, settings.checkpoint_location or str(exchange / "checkpoint"))
    writer = messages.writeStream.format("bigquery_cdc").queryName("cdc_consumer")
    writer = writer.options(**encode_options(sink), checkpointLocation=checkpoint)
    return (writer.trigger(availableNow=True) if drain and SPARK_DRAINS else writer).start()


def watch(
    query: StreamingQuery, health: Health, stop: Stop, stop_tasks: Callable[[], None], drained: Path, *, may_end: bool
) -> None:
    """Return once the query has been stopped, between two micro-batches if that is soon enough; raise if it fails.

    PythonLateError: it has committed no micro-batch and can be started again; no task has been told to stop.

    ``may_end``: it ends by itself once the subscription is drained, or is ended once there is the file ``drained``.
    """
    starts = True
    while query.isActive and not stop.wait(_POLL):
        if starts and query.lastProgress is not None:  # a micro-batch has been committed
            end_processes_of_the_start()
            starts = False
        if drained.exists():
            query.stop()
        if not query.status["isDataAvailable"]:  # it waits for messages, and gets round to it; tasks report
            health.progressed()
    if stop.requested:
        structlog.get_logger().info("stop_requested")
        stop_tasks()
        _wait_until_idle(query)
    elif (failure := query.exception()) is not None:
        if starts and PYTHON_LATE in str(failure):
            raise PythonLateError(f"{PYTHON_LATE}: {PythonLateError.fix}")
        stop_tasks()  # those that wait for a service, until Spark ends them, release what they hold
    _raise_what_ended(query, may_end=may_end)
    query.stop()


def _wait_until_idle(query: StreamingQuery) -> None:
    """Wait until no micro-batch runs and no pull is under way: a pull cut off would lease messages in vain."""
    pause, deadline = threading.Event(), time.monotonic() + _FINISH_WITHIN.total_seconds()
    while time.monotonic() < deadline:
        if not query.isActive or query.status["message"].startswith("Waiting for data"):
            return
        pause.wait(0.05)
    structlog.get_logger().warning("stopping_in_mid_batch", status=query.status["message"])


def _raise_what_ended(query: StreamingQuery, *, may_end: bool) -> None:
    """Raise what ended a query, if anything has but us or, where it may end, the end of what there was."""
    if query.isActive:
        return
    failure = query.exception()
    if failure is None and may_end:
        structlog.get_logger().info("subscription_drained")
        return
    if failure is None:
        raise QueryFailedError("the query ended without an error")
    raise error_of(str(failure))
