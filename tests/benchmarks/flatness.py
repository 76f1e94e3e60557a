"""Does a change cost the same in a small and in a large backlog, and with few and with many tables?

One consumer for each size, from its start: a warm-up of the same size for all, then the backlog, to the null write
server. Beside rate and CPU, the most memory that all processes of the consumer had together, and how many messages came
more than once: one does whose ack deadline has expired, which is as short as Pub/Sub allows here.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Final

import psutil

from deploy.local.platform.processes import Process
from tests.benchmarks.backlog import Backlog, pack
from tests.benchmarks.drain import Drained, consumer_cpu, drain_to_accepted
from tests.benchmarks.pipelines import PROJECT, Platform, running_consumer
from tests.benchmarks.results import Measured
from tests.benchmarks.sizes import Sizes
from tests.benchmarks.workload import TABLES, Workload

_BACKLOGS: Final = (100, 10, 1)
"""What the largest backlog is divided by."""
_MANY: Final = (1, 10, 100)
_MB: Final = 1e6
_TIMES: Final = 10
_ACK_DEADLINE: Final = timedelta(seconds=10)
_MOST_MEMORY: Final = 1_500.0
"""MB, of all processes of the consumer."""


def measure_flatness(platform: Platform, sizes: Sizes) -> list[Measured]:
    """Measure backlogs of three sizes in five tables, then the middle one in 1, 10 and 100 tables."""
    found: list[Measured] = []
    for divisor in _BACKLOGS:
        found += _measure(platform, sizes, f"{sizes.flat // divisor}_changes", sizes.flat // divisor, TABLES)
    for number in _MANY:
        tables = [f"t{each:03}" for each in range(number)]
        found += _measure(platform, sizes, f"{number}_tables", sizes.flat // 10, tables)
    return found


def _measure(platform: Platform, sizes: Sizes, name: str, changes: int, tables: Sequence[str]) -> list[Measured]:
    workload, drained, again = Workload(sizes.keys, seed=3, tables=tables), Drained(), 0.0

    def packed(part: str, number: int) -> Backlog:
        stop = platform.processes.stop
        return pack(platform.pubsub, PROJECT, f"flat-{part}-{name}", workload.records(number), sizes.rate, stop, tables)

    warm_up, backlog = packed("warm-up", max(100, sizes.flat // 10)), packed("backlog", changes)
    platform.print_line(f"  {name}: {backlog}")
    pipeline = platform.pipeline(f"flat-{name}", null=True, ack_deadline=_ACK_DEADLINE)
    with running_consumer(platform, pipeline, f"consumer-flat-{name}") as consumer:
        drain_to_accepted(platform, pipeline, consumer, warm_up, Drained())
        leased = consumer.metrics()["millrace_leases_acquired_total"]
        with most_memory(consumer.process) as memory:
            drain_to_accepted(platform, pipeline, consumer, backlog, drained)
        again = consumer.metrics()["millrace_leases_acquired_total"] - leased - len(backlog.messages)
    cost = consumer_cpu(drained.cpu[0])
    platform.print_line(f"  {name}: {cost:.1f} us of CPU each, {memory.most / _MB:,.0f} MB")
    return [
        Measured(name=f"flat.{name}.accepted", unit="changes/s", runs=drained.rates),
        Measured(name=f"flat.{name}.cpu", unit="us/change", runs=[cost], note="all processes of the consumer"),
        Measured(
            name=f"flat.{name}.memory",
            unit="MB",
            runs=[memory.most / _MB],
            below=_MOST_MEMORY,
            note="the most, of all of them",
        ),
        Measured(name=f"flat.{name}.messages_again", unit="messages", runs=[again]),
    ]


def measure_backlog(platform: Platform, sizes: Sizes) -> list[Measured]:
    """Drain a tenth of the largest backlog, and then all of it, by one consumer; the changes are small.

    The whole is the tenth ten times over, so the same changes come again: they are read, parsed and compared as others.
    """
    workload, stop = Workload(sizes.keys, seed=4, small=True), platform.processes.stop
    tenth = pack(platform.pubsub, PROJECT, "backlog", workload.records(sizes.backlog // _TIMES), sizes.rate, stop)
    platform.print_line(f"  {tenth}")
    pipeline, drained = platform.pipeline("backlog", null=True, ack_deadline=_ACK_DEADLINE), Drained()
    with running_consumer(platform, pipeline, "consumer-backlog") as consumer:
        used = []
        for times in (1, _TIMES):
            part = replace(tenth, messages=[*tenth.messages] * times, sizes=[*tenth.sizes] * times)
            leased = consumer.metrics()["millrace_leases_acquired_total"]
            with most_memory(consumer.process) as memory:
                drain_to_accepted(platform, pipeline, consumer, part, drained)
            used.append(memory.most / _MB)
            again = consumer.metrics()["millrace_leases_acquired_total"] - leased - len(part.messages)
    costs = [consumer_cpu(one) for one in drained.cpu]
    note = f"{sizes.backlog:,} changes at once; the baseline is a tenth of them"
    return [
        Measured(name="backlog.accepted", unit="changes/s", runs=drained.rates[1:], note=note),
        Measured(name="backlog.cpu", unit="us/change", runs=costs[1:], baseline_runs=costs[:1]),
        Measured(
            name="backlog.memory",
            unit="MB",
            runs=used[1:],
            baseline_runs=used[:1],
            below=_MOST_MEMORY,
        ),
        Measured(name="backlog.messages_again", unit="messages", runs=[again]),
    ]


class Memory:
    """The most bytes that a process and all below it had together, each second; shared pages count once."""

    def __init__(self) -> None:
        self.most = 0

    def sample(self, process: Process) -> None:
        """Take a sample."""
        with suppress(psutil.Error):
            root = psutil.Process(process.pid)
            self.most = max(self.most, sum(map(_bytes, (root, *root.children(recursive=True)))))


def _bytes(process: psutil.Process) -> int:
    with suppress(OSError):
        for line in Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


@contextmanager
def most_memory(process: Process) -> Iterator[Memory]:
    """Watch the memory of a process and all below it while the block runs."""
    memory, over = Memory(), threading.Event()

    def watch() -> None:
        while not over.wait(1.0):
            memory.sample(process)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield memory
    finally:
        over.set()
        watcher.join()
        memory.sample(process)
