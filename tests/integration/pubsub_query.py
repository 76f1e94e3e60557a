"""A small Spark query over the `pubsub` source, for its tests: a sink that acknowledges and keeps a journal."""

import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, WriterCommitMessage
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from services.cdc_consumer.adapters.spark.data_source_api import DataSourceStreamArrowWriter
from services.cdc_consumer.adapters.spark.options import SourceOptions, encode_options
from services.cdc_consumer.adapters.spark.partitioning import numbers_for
from services.cdc_consumer.adapters.spark.spark_session import starting_java
from services.cdc_consumer.adapters.stream.message_data import unpack
from services.cdc_consumer.adapters.stream.pubsub_source import PubsubDataSource
from shared.pubsub.channels import open_channel
from shared.pubsub.leases import PubsubLeases
from shared.runtime.stop import Stop

ROOT = Path(__file__).resolve().parents[2]


class AcknowledgingSink(DataSource):
    """Acknowledges what it is given, and writes down what it got and when."""

    @classmethod
    def name(cls) -> str:
        return "acknowledging"

    def streamWriter(self, schema: StructType, overwrite: bool) -> "AcknowledgingWriter":  # noqa: N802
        return AcknowledgingWriter(dict(self.options))


class AcknowledgingWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: Mapping[str, str]) -> None:
        self.options = {name.lower(): value for name, value in options.items()}

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        rows = unpack(iterator)[0].to_pylist()
        if rows:
            self.note(event="taken", messages=[row["message_id"] for row in rows])
            threading.Event().wait(float(self.options.get("hold", "0")))
            with open_channel(self.options["emulatorhost"]) as channel:
                leases = PubsubLeases(channel, self.options["subscription"], timedelta(seconds=10), Stop())
                leases.ack([row["ack_id"] for row in rows])
            self.note(event="acked", messages=[row["message_id"] for row in rows])
        return WriterCommitMessage()

    def note(self, **fields: Any) -> None:
        with Path(self.options["journal"], f"{os.getpid()}.jsonl").open("a") as file:
            file.write(json.dumps({"at": time.time(), **fields}) + "\n")


def read_journal(directory: Path, event: str) -> list[dict[str, Any]]:
    """Return the events of a kind that the sink wrote down, in order of time; not what it is just writing."""
    written = [path.read_text().rpartition("\n")[0] for path in directory.glob("*.jsonl")]
    lines = [line for text in written for line in text.splitlines()]
    return sorted((one for one in map(json.loads, lines) if one["event"] == event), key=lambda one: float(one["at"]))


def messages_in(directory: Path, event: str) -> list[str]:
    """Return the message ids of a kind of event, repeats included."""
    return [identity for one in read_journal(directory, event) for identity in one["messages"]]


@contextmanager
def spark_session(directory: Path) -> Iterator[SparkSession]:
    """Run Spark on this machine's two cores for the block."""
    # The workers import this package and the source's, from wherever the tests were started.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings = {
        "spark.master": "local[2]",
        "spark.app.name": "pubsub source",
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "512m",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
    }
    # As the consumer does, by no fork: the tests of this process have used gRPC.
    with starting_java(os.environ, settings, Stop()) as java:
        session = java.open_session()
        session.dataSource.register(PubsubDataSource)
        session.dataSource.register(AcknowledgingSink)
        try:
            yield session
        finally:
            for query in session.streams.active:
                query.stop()
            session.stop()


def start_query(
    session: SparkSession,
    directory: Path,
    emulator: str,
    subscription: str,
    *,
    hold_seconds: float = 0,
    trigger: Mapping[str, Any] | None = None,
    **options: Any,
) -> StreamingQuery:
    """Start the query: source, messages of a key together, acknowledging sink; the journal is in ``directory``."""
    (directory / "journal").mkdir(exist_ok=True)
    numbers = numbers_for(2)
    source = SourceOptions(subscription=subscription, emulator_host=emulator, sink_tasks=numbers, **options)
    messages = session.readStream.format("pubsub").options(**encode_options(source)).load()
    writer = (
        messages.repartition(2, "task")
        .writeStream.format("acknowledging")
        .option("subscription", subscription)
        .option("emulatorHost", emulator)
        .option("journal", str(directory / "journal"))
        .option("hold", str(hold_seconds))
        .option("checkpointLocation", str(directory / "checkpoint"))
    )
    return writer.trigger(**trigger).start() if trigger else writer.start()
