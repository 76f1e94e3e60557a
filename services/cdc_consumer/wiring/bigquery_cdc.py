"""BigQuery change data capture as a Spark streaming sink: ``writeStream.format("bigquery_cdc")``.

    spark.dataSource.register(BigQueryCdcDataSource)
    messages.repartition(2, "task").writeStream.format("bigquery_cdc")
        .options(**encode_options(SinkOptions(...))).option("checkpointLocation", ...).start()

Takes the portions of messages of the ``pubsub`` source and settles each message itself, in the task, once its changes
are durable. No more tasks than slots: no process extends the leases of a task that waits for a slot.

The option ``settings`` holds the JSON of `SinkOptions` (`encode_options`). `commit` and `abort` run in a process on the
driver's machine, which has nothing but the tasks' counts. As in `pubsub_source`, what takes long to import is imported
by those processes alone that need it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSource, WriterCommitMessage
from pyspark.sql.types import StructType

from services.cdc_consumer.adapters.spark.data_source_api import DataSourceStreamArrowWriter
from services.cdc_consumer.adapters.spark.options import SinkOptions, decode_options
from services.cdc_consumer.adapters.stream.data_files import forget_data
from services.cdc_consumer.core.stream.counts import Counts
from shared.contracts.errors import MisconfiguredError
from shared.runtime.garbage import exempt_imports

if TYPE_CHECKING:
    import pyarrow as pa

_NEEDED: Final = ("task", "checksum", "messages")


@dataclass
class Committed(WriterCommitMessage):
    """What travels from a task to the driver."""

    counts: Counts


class BigQueryCdcDataSource(DataSource):
    """The data source ``bigquery_cdc``."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "bigquery_cdc"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802, ARG002
        """Return the writer; MisconfiguredError where the options or the columns are not right."""
        exempt_imports()
        missing = [name for name in _NEEDED if name not in schema.fieldNames()]
        if missing:
            raise MisconfiguredError(
                "sink-columns-missing",
                f"the bigquery_cdc sink takes the rows of the pubsub source; columns are missing: {', '.join(missing)}",
            )
        return BigQueryCdcWriter(decode_options(SinkOptions, self.options))


class BigQueryCdcWriter(DataSourceStreamArrowWriter):
    """`write` runs in the workers, `commit` and `abort` on the driver's machine; they share commit messages only."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator["pa.RecordBatch"]) -> Committed:
        """Apply one task's messages and return what became of them. What fails has given its messages back."""
        from services.cdc_consumer.wiring.sink_task import write_messages  # noqa: PLC0415  a task alone needs it

        exempt_imports()
        return Committed(write_messages(self._options, list(iterator)))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Hand the counts of a micro-batch on: to the driver's metrics, or else to the log."""
        if self._options.data_directory:
            forget_data(Path(self._options.data_directory))
        self._report(messages, batchId, failed=False)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Do the same for what the tasks that did not fail have done."""
        self._report(messages, batchId, failed=True)

    def _report(self, messages: Sequence[WriterCommitMessage | None], batch_id: int, *, failed: bool) -> None:
        exempt_imports()
        counts = Counts()
        for message in messages:
            if isinstance(message, Committed):
                counts = counts.plus(message.counts)
        if not counts.messages:
            return
        from services.cdc_consumer.adapters.stream.reports import report_micro_batch  # noqa: PLC0415  planning does without

        report_micro_batch(self._options.driver, batch_id, counts, failed=failed, log_level=self._options.log_level)
