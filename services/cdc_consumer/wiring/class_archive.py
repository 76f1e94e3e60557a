"""Make the archive of the classes that Spark's Java loads for the consumer: `make archive`, and the image's build.

With the archive Java maps the classes that it would otherwise load, verify and link one by one at every start. It is
made by a start of Spark that runs the consumer's query once, with a source of three rows and a sink that keeps nothing.
Without an archive, or with one of another Java or another Spark, Spark starts all the same, with more work.
"""

import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition, WriterCommitMessage
from pyspark.sql.types import StructType

from services.cdc_consumer.adapters.spark.checkpoint import prepare_checkpoint
from services.cdc_consumer.adapters.spark.data_source_api import (
    DataSourceStreamArrowWriter,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
    as_spark_asks,
)
from services.cdc_consumer.adapters.spark.spark_session import (
    JAVA_OPTIONS,
    QueryFailedError,
    check_java,
    class_archive,
    spark_settings,
    starting_java,
)
from services.cdc_consumer.core.stream.messages import PORTION_DDL, PORTION_SCHEMA
from shared.contracts.errors import MisconfiguredError
from shared.runtime.stop import Stop

_TASKS: Final = 2
_LONGEST: Final = 300  # seconds; of a query that takes few


class _Rows(DataSource):
    """A source of one micro-batch."""

    @classmethod
    def name(cls) -> str:
        return "rows"

    def schema(self) -> str:
        return PORTION_DDL

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802, ARG002
        return as_spark_asks(_RowsReader())


class _RowsReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"batch": 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(1)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        pass

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802, ARG002
        return {"batch": 1}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:  # noqa: ARG002
        return [InputPartition(number) for number in range(_TASKS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        yield pa.RecordBatch.from_pylist([{"task": 0, "checksum": 0, "messages": b"m"}], schema=PORTION_SCHEMA)


class _Nothing(DataSource):
    """A sink that keeps nothing."""

    @classmethod
    def name(cls) -> str:
        return "nothing"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802, ARG002
        return _NothingWriter()


class _NothingWriter(DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _batch in iterator:
            pass
        return WriterCommitMessage()


def main() -> int:
    """Make the archive; where that cannot be done, print why and change nothing."""
    archive = class_archive()
    try:
        check_java(os.environ)
        with tempfile.TemporaryDirectory(dir=archive.parent, prefix=f"{archive.name}-") as directory:
            made = Path(directory, archive.name)
            _write(made, directory)
            made.replace(archive)
    except (MisconfiguredError, OSError, RuntimeError, QueryFailedError, PySparkException, Py4JError) as error:
        sys.stderr.write(f"no archive of Spark's classes was made, so each start takes some seconds more: {error}\n")
    else:
        sys.stdout.write(f"{archive}: {archive.stat().st_size >> 20} MB\n")
    return 0


def _write(archive: Path, directory: str) -> None:
    settings = spark_settings(f"local[{_TASKS}]", "1g", _TASKS, archived=False)  # a Java that takes one writes none
    settings[JAVA_OPTIONS] += f' "-XX:ArchiveClassesAtExit={archive}" -Xlog:cds*=off'
    with starting_java(os.environ, settings, Stop()) as java:
        session = java.open_session()
        try:
            _run_query(session, directory)
        finally:
            session.stop()
    if java.wait() or not archive.is_file():
        raise RuntimeError("Java ended without writing it")


def _run_query(session: SparkSession, directory: str) -> None:
    """Run the query that the consumer runs, as far as Java is concerned."""
    session.dataSource.register(_Rows)
    session.dataSource.register(_Nothing)
    rows = session.readStream.format("rows").load().repartition(_TASKS, "task")
    checkpoint = prepare_checkpoint(session, f"{directory}/checkpoint")
    writer = rows.writeStream.format("nothing").option("checkpointLocation", checkpoint)
    query = writer.trigger(availableNow=True).start()
    if not query.awaitTermination(_LONGEST):
        raise RuntimeError(f"Spark's query has not ended after {_LONGEST} seconds")


if __name__ == "__main__":
    sys.exit(main())
