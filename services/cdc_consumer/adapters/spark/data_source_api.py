"""What PySpark's data sources have since 4.1 and 4.2, also for the Spark 4.0 and 4.1 of managed services.

From 4.2 on everything here is PySpark's own. Before, three things differ:

| Spark | What it lacks | What stands in |
|---|---|---|
| 4.0 | a stream writer that takes Arrow | its writer of tables that does: a task looks for that class alone |
| 4.0, 4.1 | `latestOffset` with start and limit | the end of the latest plan; the limit of the reader |
| 4.0, 4.1 | a source is asked until it is drained | the reader makes a file then, and the consumer ends the query |
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark import __version__
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from services.cdc_consumer.adapters.spark.spark_version import major_minor

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "SPARK_DRAINS",
    "DataSourceStreamArrowWriter",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxRows",
    "SupportsTriggerAvailableNow",
    "as_spark_asks",
]

_SPARK: Final = major_minor(__version__)
SPARK_DRAINS: Final = _SPARK >= (4, 2)
"""Whether `trigger(availableNow=True)` goes on until the source has nothing left, and not for one micro-batch."""

if TYPE_CHECKING or _SPARK >= (4, 1):
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
else:
    from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter

    class DataSourceStreamArrowWriter(DataSourceStreamWriter, DataSourceArrowWriter):
        """A stream's writer that takes Arrow."""


if TYPE_CHECKING or SPARK_DRAINS:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
else:

    class ReadLimit:
        """How much a micro-batch may take."""

    class ReadAllAvailable(ReadLimit):
        """Everything, which this Spark never asks for."""

    @dataclass
    class ReadMaxRows(ReadLimit):
        """Rows, at most."""

        max_rows: int

    class SupportsTriggerAvailableNow:
        """What this Spark does not look for."""


def as_spark_asks(reader: Any, drained_file: str | None = None) -> DataSourceStreamReader:
    """Return a reader that is written for Spark 4.2 in the form that this Spark asks.

    ``drained_file``: where this Spark does not drain, the file to be made once there is nothing left.
    """
    return reader if SPARK_DRAINS else _StartKept(reader, drained_file)


class _StartKept(DataSourceStreamReader):
    """Gives the reader the start that Spark 4.0 and 4.1 do not.

    They ask for the offset of one micro-batch after they have planned the one before. When a query goes on with its
    checkpoint, they first plan the empty range at the latest offset there.
    """

    def __init__(self, reader: Any, drained_file: str | None) -> None:
        self._reader = reader
        self._drained_file = None if drained_file is None else Path(drained_file)
        self._start: dict[str, int] = reader.initialOffset()

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return self._start

    def latestOffset(self) -> dict[str, int]:  # type: ignore[override]  # noqa: N802  as Spark 4.0 calls it
        if self._drained_file is not None:
            self._reader.prepareForTriggerAvailableNow()
        latest: dict[str, int] = self._reader.latestOffset(self._start, self._reader.getDefaultReadLimit())
        if self._drained_file is not None and latest == self._start:
            self._drained_file.touch()
        return latest

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        self._start = end
        planned: Sequence[InputPartition] = self._reader.partitions(start, end)
        return planned

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        rows: Iterator[pa.RecordBatch] = self._reader.read(partition)
        return rows

    def stop(self) -> None:
        self._reader.stop()
