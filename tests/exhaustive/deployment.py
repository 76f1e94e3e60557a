"""A pipeline from a source of each kind, with load on both: its four services, the state that they keep, its tables.

More than one may read the same sources, each service may be of another version, and all of it can be lost.
"""

import json
import os
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

from google.pubsub_v1 import PublisherClient, SubscriberClient
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport

from deploy.local.platform.emulators import ROOT
from deploy.local.platform.processes import Processes
from deploy.local.platform.services import (
    CONSUMER,
    AnyPipeline,
    BigtablePipeline,
    Flow,
    Service,
    dead_letters_in,
    start_consumer,
    start_dead_letter,
    start_reader,
)
from deploy.local.platform.target import BigQueryDataset
from tests.conftest import PROJECT
from tests.e2e.load import Load, mirrored
from tests.e2e.rig import PAUSE, Rig
from tests.integration.bigtable_front import INSTANCE, FrontTable

TIMEOUT: Final = timedelta(minutes=6)
READERS: Final = ("spanner_reader", "bigtable_reader")
ALL: Final = (*READERS, "cdc_consumer", "dead_letter")
TABLES: Final = ("Singers", "Tags")
SETTINGS: Final = {"POISON_LIMIT": "1000000"}


class Deployment:
    """One pipeline: the services that run, and what they share."""

    def __init__(
        self, rig: Rig, table: FrontTable, processes: Processes, consumer: str = CONSUMER, flow: Flow | None = None
    ) -> None:
        """``consumer``: the module that runs as it. ``flow``: the rig's, if none is given."""
        flow = flow or rig.standing.flow
        self.rig = rig
        self.source = table
        self.spanner = replace(rig.pipeline, **asdict(flow))
        self.bigtable: BigtablePipeline = replace(rig.standing.bigtable(table), **asdict(flow))
        self.flow = flow
        self.processes = processes
        self.target = BigQueryDataset(flow.bigquery_rest, flow.project, flow.dataset)
        self.running: dict[str, Service] = {}
        self.partitions = f"partitions_{uuid.uuid4().hex[:8]}"
        """The partition table of each reader."""
        self.more: dict[str, dict[str, str]] = {}
        """Settings of a service beside the pipeline's."""
        self._consumer = consumer

    @property
    def tables(self) -> tuple[str, ...]:
        """Return the names of the tables in BigQuery."""
        return *(self.rig.named(table) for table in TABLES), self.bigtable.table

    @property
    def mirrors(self) -> Sequence[tuple[AnyPipeline, Sequence[str]]]:
        """Return the tables in BigQuery of each source."""
        return (self.spanner, self.tables[:-1]), (self.bigtable, self.tables[-1:])

    @property
    def store(self) -> Path:
        """Return the file of the dead-letter service."""
        return dead_letters_in(self.processes.directory)

    @property
    def checkpoint(self) -> Path:
        """Return the directory that the consumer keeps its progress in."""
        return self.processes.directory / "cdc_consumer-checkpoint"

    def launch(self, name: str, **settings: str) -> Service:
        """Start a service."""
        settings = {**SETTINGS, **self._reading(name), **self.more.get(name, {}), **settings}
        starts: Mapping[str, Callable[[], Service]] = {
            "spanner_reader": lambda: start_reader(self.processes, self.spanner, name, start=None, **settings),
            "bigtable_reader": lambda: start_reader(self.processes, self.bigtable, name, start=None, **settings),
            "cdc_consumer": lambda: start_consumer(self.processes, self.flow, module=self._consumer, **settings),
            "dead_letter": lambda: start_dead_letter(self.processes, self.flow, **settings),
        }
        return starts[name]()

    def _reading(self, name: str) -> Mapping[str, str]:
        """Return what a reader's settings have beside those of a pipeline; its source is in the tests' project."""
        return {"GOOGLE_CLOUD_PROJECT": PROJECT, "PARTITION_TABLE": self.partitions} if name in READERS else {}

    def start(self, *names: str, **settings: str) -> None:
        """Start services, and wait until they are ready; each runs the code that it was asked for."""
        self.running |= {name: self.launch(name, **settings) for name in names}
        self.rig.wait_until_ready(*(self.running[name] for name in names), timeout=TIMEOUT)
        code = f"PYTHONPATH={settings.get('PYTHONPATH', ROOT)}".encode()
        for name in names:
            assert code in Path(f"/proc/{self.running[name].process.pid}/environ").read_bytes().split(b"\0")

    def stop(self, *names: str) -> None:
        """Ask services to end, which they do in time and without an error."""
        ended(*(self.running.pop(name) for name in names))

    def kill(self, *names: str) -> None:
        """Kill services."""
        for name in names:
            self.running.pop(name).process.kill()

    def replace(self, name: str, **settings: str) -> None:
        """Stop a service, start it with other settings, and see that changes flow."""
        self.stop(name)
        self.start(name, **settings)
        self.wait_until_it_flows()

    def join(self, *names: str, **settings: str) -> None:
        """Start readers beside those that run, see that changes flow, and stop the former."""
        former = [self.running[name] for name in names]
        self.start(*names, **settings)
        self.wait_until_it_flows()
        ended(*former)
        self.wait_until_it_flows()

    def wait(self, ready: Callable[[], bool], what: str) -> None:
        """Wait for something to come true while no service dies unasked."""
        self.rig.wait(ready, what, TIMEOUT, PAUSE)

    def wait_until_it_flows(self) -> None:
        """Wait until changes that are committed from now on are in BigQuery, of both sources."""
        since = datetime.now(UTC)
        for table in (self.rig.named("Singers"), self.bigtable.table):
            self.wait(lambda table=table: self.newest(table) > since, f"changes of {table}")  # type: ignore[misc]

    def newest(self, table: str) -> datetime:
        """Return when the newest change of a table was committed that is in BigQuery."""
        rows = self.target.rows(table) or []
        return max((row["_millrace_commit_timestamp"] for row in rows), default=datetime.min.replace(tzinfo=UTC))

    def create(self) -> None:
        """Make what the first steps make: topics and subscriptions, the dataset, a database for a partition table."""
        self.flow.create_topics()
        self.target.create()

    def lose(self, *, mirrors: bool) -> None:
        """Kill the services and delete what they kept: progress, topics, checkpoint, store, and maybe the dataset."""
        self.kill(*self.running)
        topology = self.flow.topology
        publisher = PublisherClient(transport=PublisherGrpcTransport(channel=self.rig.standing.channel))
        subscriber = SubscriberClient(transport=SubscriberGrpcTransport(channel=self.rig.standing.channel))
        for subscription in (topology.subscription, topology.dead_letter_subscription):
            subscriber.delete_subscription(request={"subscription": subscription}, timeout=30)
        for topic in (topology.topic, topology.dead_letter_topic):
            publisher.delete_topic(request={"topic": topic}, timeout=30)
        self.source.front.tables.delete_table(name=f"{INSTANCE}/tables/{self.partitions}")
        self.rig.partitions.drop()
        self.rig.partitions = self.rig.database.instance.create_database([])
        self.spanner = replace(self.spanner, partition_database=self.rig.partitions.name)
        shutil.rmtree(self.checkpoint)
        for file in self.processes.directory.glob(f"{self.store.name}*"):
            file.unlink()
        if mirrors:
            self.target.delete()

    def wait_until_equal(self, load: Load, dead_letters: int) -> None:
        """Wait until all that was written is in BigQuery, and so many dead letters in the store."""
        self.rig.wait_until_equal(TABLES, TIMEOUT, self.target)
        self.wait(lambda: mirrored(self.target.rows(self.bigtable.table) or []) == load.cells, "Bigtable's rows")
        self.wait(lambda: stored(self.store) == dead_letters, f"{dead_letters} dead letters")

    def differences(self, mirrors: tuple[AnyPipeline, Sequence[str]]) -> Mapping[str, str]:
        """Return the keys of rows that `reconcile` reports of tables of a source, and what it reports of each."""
        pipeline, tables = mirrors
        code, found = self.command(CONSUMER, "reconcile", *tables, "--settle", "15s", pipeline=pipeline)
        different = {str(one["key"][0]): one["kind"] for table in found["tables"] for one in table["differences"]}
        assert found["not_compared"] == []
        assert code == (1 if different else 0), found
        return different

    def snapshot(self, pipeline: AnyPipeline, *more: str) -> Sequence[Mapping[str, Any]]:
        """Ask for a snapshot of a source's tables, or with ``--status`` how they are."""
        whole = () if isinstance(pipeline, BigtablePipeline) or "--status" in more else ("--all",)
        _code, answer = self.command(pipeline.module, "snapshot", *whole, *more, pipeline=pipeline)
        found: Sequence[Mapping[str, Any]] = answer["snapshots"]
        return found

    def delete_missing_rows(self, mirrors: tuple[AnyPipeline, Sequence[str]], before: str | None = None) -> None:
        """Wait until tables are complete by a snapshot, and delete what is older and not in their source.

        ``before``: what the tables had rows deleted up to before that snapshot.
        """
        pipeline, tables = mirrors
        for table in tables:
            self.wait(lambda table=table: self.delete_before(table) not in (None, before), f"{table} to be complete")  # type: ignore[misc]
            delete_missing_rows = (
                "delete-missing-rows",
                table,
                "--before",
                str(self.delete_before(table)),
                "--execute",
            )
            done = partial(self.command, CONSUMER, *delete_missing_rows, pipeline=pipeline)
            self.wait(lambda done=done: done()[0] == 0, f"the deletion of missing rows of {table}")  # type: ignore[misc]

    def delete_before(self, table: str) -> str | None:
        """Return what the consumer says that rows of a table have to be as new as; None: they are."""
        tables = self.running["cdc_consumer"].status().get("tables", ())
        since: str | None = next(
            (one.get("delete_missing_rows_before") for one in tables if one["table"] == table), None
        )
        return since

    def highest_version(self) -> datetime:
        """Return the highest version of Bigtable's mirror, as a time: by the query of the documentation."""
        micros = "CAST(CONCAT('0x', SUBSTR(MAX(_millrace_sequence), 1, 16)) AS INT64)"
        (row,) = self.target.query(f"SELECT TIMESTAMP_MICROS({micros}) AS highest FROM `{self.bigtable.table}`")
        highest: datetime = row["highest"]
        return highest

    def command(self, module: str, *words: str, pipeline: AnyPipeline | None = None, code: Path = ROOT) -> Any:
        """Run a command of a service that prints JSON; return its exit code, and what it prints."""
        if words[0] in ("reconcile", "delete-missing-rows"):
            words = (*words, "--source", shlex.join([sys.executable, "-m", (pipeline or self.spanner).module, "rows"]))
        ran = self.run(module, *words, "--json", pipeline=pipeline, code=code)
        assert ran.stdout, (words, ran.stderr)
        return ran.returncode, json.loads(ran.stdout)

    def run(
        self, module: str, *words: str, pipeline: AnyPipeline | None = None, code: Path = ROOT, **settings: str
    ) -> "subprocess.CompletedProcess[str]":
        """Run a command of a service, with the settings of the services and of a reader."""
        pipeline = pipeline or self.spanner
        reader = "bigtable_reader" if pipeline is self.bigtable else "spanner_reader"
        environment = {
            **self.processes.environment,
            **self.flow.dead_letter_environment(self.store),
            **pipeline.consumer_environment(self.checkpoint),
            **pipeline.reader_environment(),
            **self._reading(reader),
            **self.more.get(reader, {}),
            "PYTHONPATH": str(code),
            **settings,
        }
        return subprocess.run(
            [sys.executable, "-m", module, *words],
            env=environment,
            cwd=self.processes.directory,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )


def ended(*services: Service) -> None:
    """Ask services to end, which they do without an error, however long a busy machine takes for it."""
    for service in services:
        service.process.expected_to_end = True
        os.kill(service.process.pid, signal.SIGTERM)
    for service in services:
        assert service.process.wait(TIMEOUT) == 0, service.process.obituary()


def stored(store: Path) -> int:
    """Return how many dead letters a store of any version has."""
    with closing(sqlite3.connect(store)) as database:
        count: int = database.execute("SELECT COUNT(*) FROM letters").fetchone()[0]
    return count
