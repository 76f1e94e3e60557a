"""How the consumer's rate grows with its executors, where a cgroup gives each a tenth of a core.

Eight of them leave one of two cores to the driver, the Pub/Sub emulator and the null write server, which have no limit.
What counts is the ratio to one executor: no machine has such a core.
"""

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final

from deploy.local.platform.processes import Process
from deploy.local.platform.services import Pipeline, Service
from tests.benchmarks.backlog import Backlog, release
from tests.benchmarks.cpu import cpu_times
from tests.benchmarks.drain import Drained, drain_to_accepted, pack_backlogs
from tests.benchmarks.flatness import most_memory
from tests.benchmarks.pipelines import Platform, running_consumer, settled, wait_until
from tests.benchmarks.results import Measured
from tests.benchmarks.sizes import Sizes
from tests.worlds.consumer import executors as executors_of

_CGROUPS: Final = Path("/sys/fs/cgroup/cpu")
"""Of cgroup v1."""
_EXECUTORS: Final = (1, 2, 4, 8)
_SHARE: Final = 0.1
_PERIOD: Final = 100_000
"""Microseconds in each of which an executor gets its share."""
_BYTES: Final = 64 << 20
"""Of a micro-batch and a task, by default. A tenth of it takes an executor as long as all of it with a whole core."""
_UNITS: Final = {
    "accepted": "changes/s",
    "cpu": "us/change",
    "driver_cpu": "ms/micro-batch",
    "used": "of its share",
    "memory": "MB",
    "messages_again": "messages",
}


def measure_executors(platform: Platform, sizes: Sizes) -> list[Measured]:
    """Measure the drain by executors of one task each; nothing where no cgroup can be made."""
    if not os.access(_CGROUPS / "cgroup.procs", os.W_OK):
        platform.print_line(f"  not measured: that takes root, and cgroup v1 in {_CGROUPS}")
        return []
    backlogs, found, alone = pack_backlogs(platform, sizes, ("uniform",)), list[Measured](), 0.0
    for number in _EXECUTORS:
        pipeline, runs = platform.pipeline(f"executors-{number}", null=True), defaultdict[str, list[float]](list)
        settings = {
            "SPARK_MASTER": f"local-cluster[{number},1,1024]",
            "PYSPARK_SUBMIT_ARGS": "--conf spark.executor.extraJavaOptions=-XX:ActiveProcessorCount=1 pyspark-shell",
            "TASKS": str(number),
            "MICRO_BATCH_BYTES": str(int(_BYTES * number * _SHARE)),
        }
        with running_consumer(platform, pipeline, f"consumer-executors-{number}", **settings) as consumer:
            for _ in range(2):  # with whole cores: Java would compile for minutes
                wanted = settled(consumer) + backlogs.warm_up.changes
                release(platform.channel, pipeline.topology.topic, backlogs.warm_up.messages)
                wait_until(platform, partial(_has_settled, consumer, wanted), "the warm-up to be drained")
            with _held(consumer.process) as groups:
                for backlog in backlogs.uniform:
                    part = backlogs.warm_up if number <= 2 else backlog  # they take long
                    for name, value in _drain(platform, pipeline, consumer, part, groups).items():
                        runs[name].append(value)
        alone = alone or median(runs["accepted"])
        for name, unit in _UNITS.items():
            baseline = [alone * number] if name == "accepted" else ()
            found.append(
                Measured(name=f"executors.{number}.{name}", unit=unit, runs=runs[name], baseline_runs=baseline)
            )
    return found


def _has_settled(consumer: Service, changes: int) -> bool:
    return settled(consumer) >= changes


def _drain(
    platform: Platform, pipeline: Pipeline, consumer: Service, backlog: Backlog, groups: Sequence[Path]
) -> Mapping[str, float]:
    drained, cpu, before = Drained(), cpu_times(consumer.process), consumer.metrics()
    with most_memory(consumer.process) as memory:
        drain_to_accepted(platform, pipeline, consumer, backlog, drained)
    executors, used = {pid for group in groups for pid in _members(group)}, defaultdict[str, float](float)
    for one, seconds in cpu_times(consumer.process).items():
        used["executors" if one.pid in executors else one.role] += seconds - cpu.get(one, 0.0)
    more = {name: value - before.get(name, 0.0) for name, value in consumer.metrics().items()}
    return {
        "accepted": drained.rates[0],
        "cpu": used["executors"] * 1e6 / backlog.changes,
        # of Java and the processes that plan; the consumer's own answers `settled` most of the time
        "driver_cpu": (used["jvm"] + used["python"]) * 1e3 / more["millrace_consumer_micro_batches_total"],
        "used": used["executors"] * drained.rates[0] / backlog.changes / (len(groups) * _SHARE),
        "memory": memory.most / 1e6,
        "messages_again": more["millrace_leases_acquired_total"] - len(backlog.messages),
    }


@contextmanager
def _held(consumer: Process) -> Iterator[Sequence[Path]]:
    """Hold each executor, with its workers, to its share; give the cgroups."""
    groups = []
    for process in executors_of(consumer):
        groups.append(_CGROUPS / f"millrace-executor-{process.pid}")
        groups[-1].mkdir()
        (groups[-1] / "cpu.cfs_period_us").write_text(str(_PERIOD))
        (groups[-1] / "cpu.cfs_quota_us").write_text(str(int(_PERIOD * _SHARE)))
        _move([process.pid, *(one.pid for one in process.children(recursive=True))], groups[-1])
    try:
        yield groups
    finally:
        for group in groups:
            _move(_members(group), _CGROUPS)
            group.rmdir()


def _members(group: Path) -> Sequence[int]:
    return [int(pid) for pid in (group / "cgroup.procs").read_text().split()]


def _move(processes: Iterable[int], group: Path) -> None:
    for pid in processes:
        with suppress(ProcessLookupError):  # it has ended
            (group / "cgroup.procs").write_text(str(pid))
