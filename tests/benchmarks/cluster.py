"""What the same two cores do as two executors of a cluster, beside Spark in the consumer's own process.

Two consumers, each with a pipeline of its own, drain the same backlogs in turns to the null write server; the other one
is stopped meanwhile. On a cluster data goes from task to task through Spark's shuffle.
"""

from typing import Final

from tests.benchmarks.drain import Drained, cpu_of, drain_to_accepted, pack_backlogs
from tests.benchmarks.pipelines import Platform, paused, running_consumer
from tests.benchmarks.results import Measured
from tests.benchmarks.sizes import Sizes

_CLUSTER: Final = {
    "SPARK_MASTER": "local-cluster[2,1,1024]",
    "PYSPARK_SUBMIT_ARGS": "--conf spark.executor.extraJavaOptions=-XX:ActiveProcessorCount=1 pyspark-shell",
}
"""Executors whose Java sees one core, as in a pod that has one."""
_TARGET: Final = 0.7
"""Of what `local[2]` does."""


def measure_cluster(platform: Platform, sizes: Sizes) -> list[Measured]:
    """Measure the drain by two executors of one core each, each run after one of `local[2]`."""
    backlogs = pack_backlogs(platform, sizes, ("uniform",))
    here, there = platform.pipeline("one-machine", null=True), platform.pipeline("cluster", null=True)
    alone, spread = Drained(), Drained()
    with (
        running_consumer(platform, here, "consumer-one-machine") as one,
        running_consumer(platform, there, "consumer-cluster", **_CLUSTER) as other,
    ):
        for backlog in (backlogs.warm_up, *backlogs.uniform):
            warms_up = backlog is backlogs.warm_up
            with paused(other):
                drain_to_accepted(platform, here, one, backlog, Drained() if warms_up else alone)
            with paused(one):
                drain_to_accepted(platform, there, other, backlog, Drained() if warms_up else spread)
    return [
        Measured(
            name="cluster.accepted",
            unit="changes/s",
            runs=spread.rates,
            baseline_runs=alone.rates,
            times_baseline=_TARGET,
            note="two executors of one core each on the same two cores; the baseline is local[2]",
        ),
        *cpu_of("cluster.accepted.cpu", spread),
    ]
