"""A reader as a process whose change stream is scripted."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from deploy.local.platform.processes import Process, Processes
from deploy.local.platform.source import SpannerDatabase
from services.spanner_reader.core.stream.records import ROOT, DataChangeRecord, PartitionToken
from shared.contracts.timestamps import Nanoseconds
from shared.pubsub.channels import open_channel
from tests.integration.pubsub_topics import a_topology
from tests.integration.scripted_spanner import ScriptedSpanner, ScriptedStream
from tests.integration.scripted_spanner_rows import Form
from tests.unit.spanner_reader.scripts import a_record, children
from tests.worlds.spanner_pipeline import DDL, SpannerPipeline

T1, T2, T3, T4, T5 = (PartitionToken(f"token_{number}") for number in range(1, 6))
SECOND = 1_000_000_000


class Scripted:
    """A pipeline whose change stream is scripted."""

    def __init__(self, pipeline: SpannerPipeline) -> None:
        self.pipeline = pipeline
        self.begun = pipeline.database.now()
        self.stream = ScriptedStream(Nanoseconds(self.begun - 3_600 * SECOND), form=Form(absent="null", piece=64))
        self.server = ScriptedSpanner("Everything", self.stream, pipeline.database.instance.address)
        self._written = 0

    def time(self) -> Nanoseconds:
        """Return the next commit timestamp."""
        self._written += 1
        return Nanoseconds(self.begun + self._written * 1_000)

    def write(self, token: PartitionToken, rows: int = 1, after: int = 0) -> None:
        """Commit rows in a partition, each in a transaction of its own."""
        for _row in range(rows):
            time, key = Nanoseconds(max(self.time(), after + 1_000 * self._written)), len(self.pipeline.committed)
            record: DataChangeRecord = replace(a_record(time, key), table="Planes")
            self.stream.add(token, record)
            self.pipeline.committed.append((key, time))

    def end(self, token: PartitionToken, *born: PartitionToken, parents: tuple[PartitionToken, ...]) -> Nanoseconds:
        """End a partition after all that it holds; return when. The parents of a child end at the same time."""
        time = Nanoseconds(self.begun + SECOND)
        self.stream.add(token, children(time, *born, parents=parents))
        return time

    def start(self, **variables: str) -> Process:
        """Start a reader and wait until it is ready."""
        return self.pipeline.start(**{"SPANNER_EMULATOR_HOST": self.server.address, "LEASE_DURATION": "3s"} | variables)

    def state_of(self, token: PartitionToken) -> str:
        sql = f"SELECT state FROM millrace_partitions WHERE token = '{token}'"
        return "".join(str(row["state"]) for row in self.pipeline.partitions.query(sql))

    def leases(self) -> list[object]:
        """Return how many live leases the readers have, the fewest first."""
        sql = (
            "SELECT COUNT(*) AS held FROM millrace_partitions "
            "WHERE lease_until > CURRENT_TIMESTAMP() AND state != 'FINISHED' GROUP BY owner ORDER BY held"
        )
        return [row["held"] for row in self.pipeline.partitions.query(sql)]


@contextmanager
def scripted_reader(
    database: Callable[..., SpannerDatabase], pubsub_emulator: str, new_processes: Processes
) -> Iterator[Scripted]:
    """Return a pipeline whose change stream is scripted, with four partitions."""
    with open_channel(pubsub_emulator) as channel:
        made = database(*DDL), database()
        scripted = Scripted(SpannerPipeline(*made, pubsub_emulator, channel, a_topology(channel), new_processes))
        scripted.stream.add(ROOT, children(scripted.time(), T1, T2, T3, T4))
        yield scripted
        new_processes.end_all()
        scripted.server.stop()
