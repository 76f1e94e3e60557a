"""The metric that shows up to when BigQuery has applied what was written to each mirror."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from itertools import islice
from typing import Final

import structlog
from prometheus_client import CollectorRegistry, Gauge

from services.cdc_consumer.app.repeating import repeating
from shared.contracts.errors import MisconfiguredError, TransientError
from shared.runtime.metrics import MOST_TABLES

_FIRST: Final = timedelta(seconds=30)
_EVERY: Final = timedelta(minutes=5)
"""Each query of INFORMATION_SCHEMA is billed for ten megabytes: of one dataset 86 GB a month."""


class ApplyWatermarks:
    """Asks now and then; a watermark that cannot be read stays as it was, and the log has the reason once."""

    def __init__(self, registry: CollectorRegistry, read: Callable[[], Mapping[str, datetime]]) -> None:
        self._read = read
        self._shown: set[str] = set()
        self._error = ""
        self._watermark = Gauge(
            "millrace_consumer_apply_watermark_timestamp_seconds",
            "Unix time up to which BigQuery has applied what was written to a mirror, for the first hundred mirrors.",
            ["table"],
            registry=registry,
        )

    def show(self) -> None:
        """Ask once."""
        try:
            found = dict(islice(sorted(self._read().items()), MOST_TABLES))
        except (TransientError, MisconfiguredError) as error:
            if str(error) != self._error:
                fix = "the metric of apply watermarks needs roles/bigquery.jobUser on the project; nothing else does"
                structlog.get_logger().warning("apply_watermarks_not_read", error=str(error), fix=fix)
            self._error = str(error)
            return
        self._error = ""
        for table, at in found.items():
            self._watermark.labels(table).set(at.timestamp())
        for table in self._shown - found.keys():
            self._watermark.remove(table)
        self._shown = set(found)

    def showing(self) -> AbstractContextManager[None]:
        """Ask every few minutes while the block runs."""
        return repeating("watermarks", self.show, _EVERY, _FIRST)
