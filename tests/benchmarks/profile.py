"""Where each microsecond goes: CPU and time by stage, of the consumer in a drain and of both readers in a backlog.

The services run as they are, with a sampler in each of their Python processes (`sampling/sitecustomize.py`); the JVM is
taken apart by its threads. Sampling costs something itself, which is shown; rates are measured without it.
"""

import json
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path

from rich.console import Console

from deploy.local.platform import emulators
from tests.benchmarks import bigtable
from tests.benchmarks.bigtable import MODES, Mode, instance_on, running_bigtable_reader
from tests.benchmarks.cpu import jvm_threads
from tests.benchmarks.drain import Backlogs, Drained, drain_to_accepted, pack_backlogs
from tests.benchmarks.pipelines import SAMPLES, Platform, running_consumer
from tests.benchmarks.reader import STOPPED, fresh_source, pipeline_of, read_backlog, running_reader, running_spanner
from tests.benchmarks.results import profile_table
from tests.benchmarks.sizes import Sizes

Stages = Mapping[str, tuple[float, float]]
_WRITTEN = 1.5
"""Seconds after which what was sampled is in the files: they are written once a second."""


def show_profiles(platform: Platform, sizes: Sizes, console: Console) -> None:
    """Print the profiles of the consumer and of both readers."""
    backlogs = pack_backlogs(platform, sizes, ["uniform"])
    console.print(profile_table(f"consumer, {backlogs.uniform[-1].changes:,} changes", _consumer(platform, backlogs)))
    console.print(profile_table(f"reader, {sizes.records:,} changes", _reader(platform, sizes)))
    for mode in MODES:
        title = f"Bigtable reader, {mode.name}, {sizes.records:,} records"
        console.print(profile_table(title, _bigtable_reader(platform, sizes, mode)))


def _consumer(platform: Platform, backlogs: Backlogs) -> Stages:
    directory = _directory(platform, "samples-consumer")
    pipeline = platform.pipeline("profile", null=True)
    with running_consumer(platform, pipeline, "consumer-profile", **{SAMPLES: str(directory)}) as consumer:
        drain_to_accepted(platform, pipeline, consumer, backlogs.warm_up, Drained())
        for backlog in backlogs.uniform[:-1]:
            drain_to_accepted(platform, pipeline, consumer, backlog, Drained())
        before, jvm = _sums(directory), jvm_threads(consumer.process)
        last = backlogs.uniform[-1]
        drain_to_accepted(platform, pipeline, consumer, last, Drained())
        after_jvm = jvm_threads(consumer.process)
        stages = _per_change(before, _sums(directory), last.changes)
    return {
        **stages,
        **{
            f"JVM: {kind}": ((seconds - jvm.get(kind, 0.0)) * 1e6 / last.changes, 0.0)
            for kind, seconds in after_jvm.items()
        },
    }


def _reader(platform: Platform, sizes: Sizes) -> Stages:
    directory = _directory(platform, "samples-reader")
    with running_spanner(platform) as instance, fresh_source(instance, "profile") as source:
        pipeline = pipeline_of(platform, "profile-reader", source)
        samples = {SAMPLES: str(directory), **STOPPED}
        with running_reader(platform, pipeline, source.database.now(), "reader-profile", **samples) as reader:
            return _of_backlog(directory, sizes, partial(read_backlog, platform, source, reader, sizes.records))


def _bigtable_reader(platform: Platform, sizes: Sizes, mode: Mode) -> Stages:
    directory = _directory(platform, f"samples-bigtable-{mode.name}")
    with emulators.bigtable_front(platform.processes) as front, closing(instance_on(front)) as instance:
        pipeline = bigtable.pipeline_of(platform, instance, f"profile-{mode.name}", mode)
        with running_bigtable_reader(platform, pipeline, **{SAMPLES: str(directory)}, **bigtable.STOPPED) as reader:
            read = partial(bigtable.read_backlog, platform, instance, pipeline, reader, mode, sizes.records)
            return _of_backlog(directory, sizes, read)


def _of_backlog(directory: Path, sizes: Sizes, read: Callable[..., float]) -> Stages:
    """Return what the reading of a backlog took; ``read`` calls ``before_it`` when it begins."""
    before: Stages = {}

    def remember() -> None:
        nonlocal before
        before = _read(directory)

    read(before_it=remember)
    return _per_change(before, _sums(directory), sizes.records)


def _directory(platform: Platform, name: str) -> Path:
    directory = platform.processes.directory / name
    directory.mkdir()
    return directory


def _sums(directory: Path) -> Stages:
    time.sleep(_WRITTEN)  # nothing shows that each process has written what it did until now
    return _read(directory)


def _read(directory: Path) -> Stages:
    sums: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for file in directory.glob("*.json"):
        for stage, (cpu, wall) in json.loads(file.read_text()).items():
            sums[stage][0] += cpu
            sums[stage][1] += wall
    return {stage: (cpu, wall) for stage, (cpu, wall) in sums.items()}


def _per_change(before: Stages, after: Stages, changes: int) -> Stages:
    nothing = (0.0, 0.0)
    found = {}
    for stage, (cpu, wall) in after.items():
        cpu_before, wall_before = before.get(stage, nothing)
        found[stage] = ((cpu - cpu_before) * 1e6 / changes, (wall - wall_before) * 1e6 / changes)
    return {stage: each for stage, each in found.items() if max(each) >= 0.01}
