"""What becomes of a micro-batch's counts, in the process of the sink on the driver's machine."""

import structlog

from services.cdc_consumer.adapters.spark.options import SinkOptions
from services.cdc_consumer.adapters.stream.reports import send_report
from services.cdc_consumer.core.stream.counts import Counts, Report
from shared.runtime.logs import configure_logs


def report_micro_batch(options: SinkOptions, batch_id: int, counts: Counts, *, failed: bool) -> None:
    """Hand the counts of a micro-batch on: to the log, and to the driver's metrics where a driver listens."""
    configure_logs("cdc_consumer", options.log_level)
    log = structlog.get_logger()
    if failed:
        log.info("micro_batch_failed", batch=batch_id, **counts.fields())
    else:
        log.info("micro_batch_applied", batch=batch_id, **counts.fields())
    send_report(options.driver, Report(counts=counts))
