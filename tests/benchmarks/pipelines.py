"""What is measured, started: emulators, stand-in, null write server, and the real services as processes."""

import json
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final

import grpc

from deploy.local.platform import emulators
from deploy.local.platform.emulators import ROOT, free_port
from deploy.local.platform.processes import Process, Processes, StopRequestedError
from deploy.local.platform.services import CONSUMER, Pipeline, Service, wait_until_ready
from deploy.local.platform.stack import PrintLine
from deploy.local.platform.target import BigQueryDataset
from shared.pubsub.channels import open_channel
from shared.pubsub.topology import create_topology
from tests.benchmarks.null_write_server import STATS
from tests.benchmarks.workload import CHANGE_STREAM

PROJECT: Final = "bench"
TIMEOUT: Final = timedelta(minutes=5)
_PULL_LASTS: Final = 5.5  # seconds; of the source's pull from an emulator
ASK_EVERY: Final = 2.0
"""Seconds after which a reader whose CPU is measured is asked again how far it is: an answer costs it 4 ms."""
SAMPLES: Final = "MILLRACE_BENCH_SAMPLES"
"""The variable that tells a sampled process where to write what it was seen doing."""


@dataclass(frozen=True)
class NullWriteServer:
    """The write API that keeps nothing."""

    process: Process
    address: str
    channel: grpc.Channel

    def stats(self) -> Mapping[str, Any]:
        """Return rows and appends accepted so far, and the time of the last."""
        untyped: Any = self.channel  # bytes as they are, which the stubs do not foresee
        answer: bytes = untyped.unary_unary(STATS)(b"", timeout=30)
        counted: Mapping[str, Any] = json.loads(answer)
        return counted


@dataclass(frozen=True)
class Platform:
    """What all parts of a benchmark stand on."""

    processes: Processes
    channel: grpc.Channel
    """To Pub/Sub."""
    pubsub: str
    rest: str
    grpc: str
    null: NullWriteServer
    print_line: PrintLine

    def pipeline(
        self, name: str, *, null: bool = False, ack_deadline: timedelta | None = None, **more: str
    ) -> Pipeline:
        """Return a pipeline of its own topics and dataset, both of which it makes."""
        made = Pipeline(
            **{
                "spanner": "",
                "database": "",
                "instance": "bench",
                "change_stream": CHANGE_STREAM,
                "pubsub": self.pubsub,
                "bigquery_rest": self.rest,
                "bigquery_grpc": self.null.address if null else self.grpc,
                "project": PROJECT,
                "name": name,
                **more,
            }
        )
        topology = made.topology if ack_deadline is None else replace(made.topology, ack_deadline=ack_deadline)
        create_topology(self.channel, topology)
        with closing(self.dataset(made)) as dataset:
            dataset.create()
        return made

    def dataset(self, pipeline: Pipeline) -> BigQueryDataset:
        """Return a client of a pipeline's dataset."""
        return BigQueryDataset(self.rest, PROJECT, pipeline.dataset)

    def stand_in(self) -> Process:
        """Return the process of the BigQuery stand-in."""
        return next(one for one in self.processes.running if one.name == "bigquery_stand_in")


@contextmanager
def running_platform(processes: Processes, print_line: PrintLine) -> Iterator[Platform]:
    """Run the Pub/Sub emulator, the BigQuery stand-in and the null write server."""
    with ExitStack() as stack:
        pubsub = stack.enter_context(emulators.pubsub_emulator(processes, heap="10g"))
        rest, write_api = stack.enter_context(emulators.bigquery_stand_in(processes))
        null = stack.enter_context(_null_write_server(processes))
        channel = stack.enter_context(open_channel(pubsub))
        yield Platform(processes, channel, pubsub, rest, write_api, null, print_line)


@contextmanager
def running_consumer(platform: Platform, pipeline: Pipeline, name: str, **more: str) -> Iterator[Service]:
    """Run the consumer of a pipeline; ``more`` are settings, and variables, that replace or add to the pipeline's."""
    checkpoint = platform.processes.directory / f"{name}-checkpoint"
    environment = {**pipeline.consumer_environment(checkpoint), **more}
    with running_service(platform.processes, CONSUMER, name, environment) as service:
        yield service


@contextmanager
def running_service(processes: Processes, module: str, name: str, environment: Mapping[str, str]) -> Iterator[Service]:
    """Run a service, ready to work; it is sampled if the environment says where the samples go."""
    port = free_port()
    path = str(ROOT)
    if SAMPLES in environment:  # Python imports a `sitecustomize` at its start, in Spark's workers too
        path = f"{ROOT / 'tests' / 'benchmarks' / 'sampling'}:{path}"
    settings = {"LOG_LEVEL": "WARNING", **environment, "PORT": str(port), "PYTHONPATH": path}
    service = Service(processes.start(name, [sys.executable, "-m", module], settings), port)
    try:
        wait_until_ready(processes, service)
        yield service
    finally:
        service.process.signal(signal.SIGCONT)
        service.process.end()


@contextmanager
def paused(service: Service) -> Iterator[None]:
    """Stop a service, its processes and threads as they are, while the block runs.

    The block begins when the pull that a consumer waits in is over: else the emulator would answer it with messages
    that the stopped process takes too late, and nobody would have them until their ack deadline has passed.
    """
    service.process.signal(signal.SIGSTOP)
    try:
        time.sleep(_PULL_LASTS)  # nothing shows that a pull of the emulator is over
        yield
    finally:
        service.process.signal(signal.SIGCONT)


def wait_until(platform: Platform, done: Callable[[], bool], what: str, every: float = 0.1) -> None:
    """Wait for something while all processes live."""
    deadline = time.monotonic() + TIMEOUT.total_seconds()
    while not done():
        platform.processes.check()
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {TIMEOUT} for {what}, in vain")
        if platform.processes.stop.wait(timedelta(seconds=every)):
            raise StopRequestedError(f"asked to stop while waiting for {what}")


@contextmanager
def _null_write_server(processes: Processes) -> Iterator[NullWriteServer]:
    module = "tests.benchmarks.null_write_server"
    process = processes.start("null_write_server", [sys.executable, "-m", module], {"PYTHONPATH": str(ROOT)})

    def address() -> str | None:
        lines = [line for line in process.output().splitlines() if line.startswith("{")]
        return f"{emulators.HOST}:{json.loads(lines[0])['port']}" if lines else None

    try:
        found = processes.wait_until(address, "the null write server", timedelta(seconds=60))
        with grpc.insecure_channel(found) as channel:
            yield NullWriteServer(process, found, channel)
    finally:
        process.end()


def settled(consumer: Service) -> int:
    """Return how many changes a consumer has applied, as themselves or in a newer one of the same row."""
    counted = consumer.metrics()
    names = ("millrace_consumer_written_rows_total", "millrace_consumer_superseded_changes_total")
    return int(sum(counted[name] for name in names))
