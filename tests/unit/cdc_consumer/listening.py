"""A driver that listens for what Spark's processes report and ask."""

import queue
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from services.cdc_consumer.adapters.spark.options import DriverAddress, SinkOptions
from services.cdc_consumer.adapters.stream.reports import receiving_reports
from services.cdc_consumer.app.stream.dead_letter_limit import POISON_LIMIT, DeadLetterLimit
from services.cdc_consumer.core.stream.counts import Report

NOWHERE = "127.0.0.1:9"
OPTIONS = SinkOptions(
    subscription="projects/p/subscriptions/s",
    dead_letter_topic="projects/p/topics/d",
    project="p",
    dataset="mirror",
    ack_deadline=timedelta(seconds=60),
    bigquery_emulator_host=NOWHERE,
    bigquery_storage_emulator_host=NOWHERE,
)
"""A sink's, which finds no BigQuery."""


@contextmanager
def listening(take: Callable[[Report], None], limit: int = POISON_LIMIT) -> Iterator[DriverAddress]:
    """Listen while the block runs; yield where."""
    with receiving_reports(take, DeadLetterLimit(limit)) as server:
        yield server.listen("127.0.0.1")


@contextmanager
def heard(limit: int = POISON_LIMIT) -> Iterator[tuple[DriverAddress, "queue.Queue[Report]"]]:
    """Listen while the block runs; yield where, and the reports that have come."""
    reports: queue.Queue[Report] = queue.Queue()
    with listening(reports.put, limit) as driver:
        yield driver, reports
