"""How long does the consumer take from the start of its process to its first change in BigQuery?

A small backlog of five tables waits in the subscription, so the time ends when the first append is accepted by the
stand-in, after its table has been made. Nothing else starts beside it. A checkpoint of its own for each run.
"""

import time
from contextlib import closing

from tests.benchmarks.backlog import pack, release
from tests.benchmarks.pipelines import PROJECT, Platform, running_consumer, wait_until
from tests.benchmarks.results import Measured
from tests.benchmarks.sizes import Sizes
from tests.benchmarks.workload import Workload

_CHANGES = 500
_TARGET = 15.0
_POLL = 0.02


def measure_start(platform: Platform, sizes: Sizes) -> list[Measured]:
    """Start a consumer for each run; return the seconds until its query runs, and until the first row is accepted."""
    ready, first = [], []
    records = Workload(sizes.keys, seed=5).records(_CHANGES)
    backlog = pack(platform.pubsub, PROJECT, "start", records, sizes.rate, platform.processes.stop)
    for run in range(1, sizes.runs + 1):
        pipeline = platform.pipeline(f"start-{run}")
        release(platform.channel, pipeline.topology.topic, backlog.messages)
        with closing(platform.dataset(pipeline)) as dataset:
            began = time.monotonic()
            with running_consumer(platform, pipeline, f"consumer-start-{run}"):
                ready.append(time.monotonic() - began)
                wait_until(platform, lambda: any(dataset.rows_written().values()), "the first row", every=_POLL)
                first.append(time.monotonic() - began)
        platform.print_line(f"  ready after {ready[-1]:.1f} s, first row after {first[-1]:.1f} s")
    return [
        Measured(name="start.ready", unit="s", runs=ready, note="from the start of the process to the query"),
        Measured(name="start.first_change", unit="s", runs=first, below=_TARGET, note="to the first row in BigQuery"),
    ]
