"""A Pub/Sub subscription as a Spark streaming source: ``spark.readStream.format("pubsub")``.

    spark.dataSource.register(PubsubDataSource)
    messages = spark.readStream.format("pubsub").options(**encode_options(SourceOptions(...))).load()

Rows are portions of messages (PORTION_SCHEMA). Each message carries its lease (``ack_id``), and the sink acknowledges
it once it is done: Pub/Sub knows what is done and what is not, the checkpoint only counts micro-batches.
So delivery is at least once, and one evaluation per micro-batch is all a query may have: a second one pulls other
messages.

The option ``settings`` holds the JSON of `SourceOptions` (`encode_options`).

Spark starts a process of its own for each step of planning. Most of them need no more than what is here, so what pulls
(`pubsub_reader`) is imported by those alone that do: that is a second less for each of the others.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from services.cdc_consumer.adapters.spark.data_source_api import (
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
    as_spark_asks,
)
from services.cdc_consumer.adapters.spark.options import SourceOptions, decode_options
from services.cdc_consumer.core.stream.messages import PORTION_DDL
from shared.runtime.garbage import exempt_imports

if TYPE_CHECKING:
    import pyarrow as pa

    from services.cdc_consumer.adapters.stream.pubsub_reader import MessagePlanner


class PubsubDataSource(DataSource):
    """The data source ``pubsub``."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "pubsub"

    def schema(self) -> str:
        """Return the schema of the portions of messages."""
        return PORTION_DDL

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802, ARG002
        """Return the reader; MisconfiguredError where the options are not right."""
        exempt_imports()
        options = decode_options(SourceOptions, self.options)
        return as_spark_asks(PubsubStreamReader(options), options.drained_file)


class PubsubStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Offsets and plans in a process on the driver, `read` in the workers; they share nothing but the partitions."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        """Return where a new checkpoint begins to count."""
        return {"batch": 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit of a micro-batch."""
        return ReadMaxRows(self._options.micro_batch_messages)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Go on until a pull that waited found nothing: until the subscription is drained."""
        self._planner.drain = True

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        """Return the next offset once there are messages, or ``start`` after `idle_wait` without any."""
        return self._planner.latest_offset(start, limit)

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """Plan one task when quiet and at first, all when behind; the first task takes what the driver holds."""
        return self._planner.partitions(start, end)

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        """Yield portions of messages, all leases taken; if reading fails or is broken off, all are released."""
        from services.cdc_consumer.adapters.stream.pubsub_reader import read_messages  # noqa: PLC0415  a task alone

        return read_messages(partition)

    def stop(self) -> None:
        """Release the leases of messages that no task was planned for, and of what a pull that waits still brings."""
        self._planner.stop()

    @cached_property
    def _planner(self) -> "MessagePlanner":
        from services.cdc_consumer.adapters.stream.pubsub_reader import MessagePlanner  # noqa: PLC0415  one process

        return MessagePlanner(self._options)
