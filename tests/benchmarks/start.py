"""How long does the consumer take from the start of its process to its first change in BigQuery?

A small backlog of five tables waits in the subscription, so the time ends when the first append is accepted by the
stand-in, after its table has been made. Nothing else starts beside it. A checkpoint of its own for each run.

With an image (BENCH_IMAGE) a consumer in its container is measured, too, from `docker run` on. `docker` has to reach an
engine, as it does under `deploy/local/with_engine.sh`.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from deploy.local.platform.emulators import free_port
from deploy.local.platform.services import Pipeline, Service, wait_until_ready
from tests.benchmarks.backlog import pack, release
from tests.benchmarks.pipelines import PROJECT, Platform, running_consumer, wait_until
from tests.benchmarks.results import Measured
from tests.benchmarks.sizes import Sizes
from tests.benchmarks.workload import Workload

_CHANGES = 500
_TARGET = 15.0
_POLL = 0.02
_IN_CONTAINER: Final = Path("/tmp/checkpoint")
_Running = Callable[[Platform, Pipeline, str], AbstractContextManager[Service]]


def measure_start(platform: Platform, sizes: Sizes) -> list[Measured]:
    """Start a consumer for each run; return the seconds until its query runs, and until the first row is accepted."""
    found = _measure(platform, sizes, "start", running_consumer)
    if sizes.image:
        found += _measure(platform, sizes, "start_in_image", partial(_running_in_container, sizes.image))
    return found


def _measure(platform: Platform, sizes: Sizes, name: str, running: _Running) -> list[Measured]:
    ready, first = [], []
    records = Workload(sizes.keys, seed=5).records(_CHANGES)
    backlog = pack(platform.pubsub, PROJECT, name, records, sizes.rate, platform.processes.stop)
    for run in range(1, sizes.runs + 1):
        pipeline = platform.pipeline(f"{name}-{run}")
        release(platform.channel, pipeline.topology.topic, backlog.messages)
        with closing(platform.dataset(pipeline)) as dataset:
            began = time.monotonic()
            with running(platform, pipeline, f"consumer-{name}-{run}"):
                ready.append(time.monotonic() - began)
                wait_until(platform, lambda: any(dataset.rows_written().values()), "the first row", every=_POLL)
                first.append(time.monotonic() - began)
        platform.print_line(f"  ready after {ready[-1]:.1f} s, first row after {first[-1]:.1f} s")
    return [
        Measured(name=f"{name}.ready", unit="s", runs=ready, note="from the start of the process to the query"),
        Measured(name=f"{name}.first_change", unit="s", runs=first, below=_TARGET, note="to the first row in BigQuery"),
    ]


@contextmanager
def _running_in_container(image: str, platform: Platform, pipeline: Pipeline, name: str) -> Iterator[Service]:
    port = free_port()
    settings = {**pipeline.consumer_environment(_IN_CONTAINER), "LOG_LEVEL": "WARNING", "PORT": str(port)}
    words = [word for setting, value in settings.items() for word in ("--env", f"{setting}={value}")]
    engine = {variable: value for variable, value in os.environ.items() if variable.startswith("DOCKER_")}
    command = ["docker", "run", "--rm", "--network", "host", *words, image]
    service = Service(platform.processes.start(name, command, engine), port)
    try:
        wait_until_ready(platform.processes, service)
        yield service
    finally:
        service.process.end()
