"""The drain: a backlog released at once, through the real consumer, to accepted and to applied; and a baseline's.

*Accepted* is against the null write server, since BigQuery's own work is on other machines: the time from the release
of the backlog to the last row accepted. *Applied* is against the stand-in, whose work is on this machine and counts
in full: the time from the release until a query over every table has answered with everything in it. That it is
everything, and right, is then proven by reading every row and comparing every value.
"""

import json
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from deploy.local.platform.emulators import ROOT
from deploy.local.platform.services import Pipeline, Service
from deploy.local.platform.target import BigQueryDataset
from tests.benchmarks.backlog import Backlog, one_change_a_message, pack, release
from tests.benchmarks.cpu import CpuTimes, cpu_times, used_by_role
from tests.benchmarks.pipelines import PROJECT, Platform, paused, running_consumer, settled, wait_until
from tests.benchmarks.results import Measured
from tests.benchmarks.sizes import Sizes
from tests.benchmarks.workload import TABLES, Workload, bigquery_schema, differences

ACCEPTED_TARGET = 200_000
APPLIED_TARGET = 100_000
ZIPF_TARGET = 0.15
CPU_TARGET = 7.0
"""Microseconds for a change, of all processes of the consumer."""
KINDS = ("uniform", "zipf")
SLOW_RATE = 10_000
_SLOW_SHARE = 3
"""The backlog that is packed slowly has a third as many changes as the others."""
_ASK_EVERY = 0.5
"""Seconds after which a consumer is asked again how far it is: an answer costs it 30 ms where it has 100 tables."""
_WARM_UP_SHARE = 3
"""The warm-up has a third as many changes as a run: Spark's workers are there then, and the JVM has compiled."""


@dataclass
class Drained:
    """What came of some runs of one kind."""

    rates: list[float] = field(default_factory=list)
    written: list[float] = field(default_factory=list)
    """BigQuery rows written for each change."""
    cpu: list[Mapping[str, float]] = field(default_factory=list)
    """Microseconds of CPU for each change, by who used them."""


@dataclass(frozen=True)
class Backlogs:
    """What is drained: a warm-up, then a backlog a run, of uniform keys and then of Zipf's; later ones are newer."""

    warm_up: Backlog
    uniform: Sequence[Backlog]
    zipf: Sequence[Backlog]
    slow: Sequence[Backlog]
    """Of uniform keys, packed at `SLOW_RATE`; they are drained to accepted only."""
    final: Mapping[str, Mapping[int, int]]
    """By table and key, which change is to be there in the end."""

    def of(self, kind: str) -> Sequence[Backlog]:
        """Return the backlogs of a kind."""
        return {"zipf": self.zipf, "slow": self.slow}.get(kind, self.uniform)


def pack_backlogs(platform: Platform, sizes: Sizes, kinds: Sequence[str] = KINDS) -> Backlogs:
    """Pack a warm-up and the backlogs of each kind."""
    workload, apart = Workload(sizes.keys, seed=1), Workload(sizes.keys, seed=2)

    def packed(name: str, changes: int, kind: str) -> Backlog:
        slow = kind == "slow"
        records = (apart if slow else workload).records(changes // (_SLOW_SHARE if slow else 1), zipf=kind == "zipf")
        rate = min(SLOW_RATE, sizes.rate) if slow else sizes.rate
        backlog = pack(platform.pubsub, PROJECT, f"packed-{name}", records, rate, platform.processes.stop)
        platform.processes.check()
        platform.print_line(f"  {name}: {backlog}")
        return backlog

    warm_up = packed("warm-up", max(100, sizes.changes // _WARM_UP_SHARE), "uniform")
    runs = {
        kind: [packed(f"{kind}-{number}", sizes.changes, kind) for number in range(1, sizes.runs + 1)] for kind in kinds
    }
    return Backlogs(warm_up, runs.get("uniform", []), runs.get("zipf", []), runs.get("slow", []), workload.rows)


def measure_drain(platform: Platform, sizes: Sizes) -> list[Measured]:
    """Measure both distributions of keys, to accepted and to applied, each uniform run with one of the baseline."""
    baseline = Baseline(platform, sizes)
    backlogs = pack_backlogs(platform, sizes, (*KINDS, "slow"))
    accepted, slow_to_accepted, called_back = _accepted(platform, backlogs, baseline)
    applied, slow_to_applied = _applied(platform, backlogs, baseline)
    found: list[Measured] = []
    for kind, suffix in zip(KINDS, ("", ".zipf"), strict=True):
        uniform = kind == "uniform"
        found += [
            Measured(
                name=f"drain.accepted{suffix}",
                unit="changes/s",
                runs=accepted[kind].rates,
                baseline_runs=slow_to_accepted if uniform else (),
                at_least=ACCEPTED_TARGET if uniform else None,
                note=f"{kind} keys, null write server, {_sizes(backlogs.of(kind))}",
            ),
            Measured(
                name=f"drain.accepted{suffix}.cpu",
                unit="us/change",
                runs=[consumer_cpu(one) for one in accepted[kind].cpu],
                below=CPU_TARGET if uniform else None,
                note="all processes of the consumer",
            ),
            *cpu_of(f"drain.accepted{suffix}.cpu", accepted[kind]),
            Measured(
                name=f"drain.applied{suffix}",
                unit="changes/s",
                runs=applied[kind].rates,
                baseline_runs=slow_to_applied if uniform else (),
                at_least=APPLIED_TARGET if uniform else None,
                note=f"{kind} keys, stand-in, until all is queried; every value compared",
            ),
            *cpu_of(f"drain.applied{suffix}.cpu", applied[kind]),
            Measured(
                name=f"amplification.{kind}",
                unit="rows/change",
                runs=accepted[kind].written,
                below=None if uniform else ZIPF_TARGET,
                note=f"{sizes.keys:,} keys{'' if uniform else ', exponent 1.1'}",
            ),
        ]
    found.append(
        Measured(
            name="drain.accepted.high_level_subscriber",
            unit="changes/s",
            runs=called_back,
            note="not Millrace: the baseline of drain.accepted with google-cloud-pubsub's subscribe and its callbacks",
        )
    )
    found.append(
        Measured(
            name=f"drain.accepted.packed_at_{SLOW_RATE}",
            unit="changes/s",
            runs=accepted["slow"].rates,
            note=f"uniform keys, null write server, {_sizes(backlogs.slow)}",
        )
    )
    return found


def _accepted(
    platform: Platform, backlogs: Backlogs, baseline: "Baseline"
) -> tuple[dict[str, Drained], list[float], list[float]]:
    pipeline = platform.pipeline("accepted", null=True)
    found, slow, called_back = {kind: Drained() for kind in (*KINDS, "slow")}, [], []
    with running_consumer(platform, pipeline, "consumer-accepted") as consumer:
        drain_to_accepted(platform, pipeline, consumer, backlogs.warm_up, Drained())
        for kind, drained in found.items():
            for backlog in backlogs.of(kind):
                drain_to_accepted(platform, pipeline, consumer, backlog, drained)
                if kind == "uniform":
                    with paused(consumer):
                        slow.append(baseline.run(platform.null.address))
                        called_back.append(baseline.run(platform.null.address, "high-level"))
    return found, slow, called_back


def _applied(platform: Platform, backlogs: Backlogs, baseline: "Baseline") -> tuple[dict[str, Drained], list[float]]:
    pipeline = platform.pipeline("applied")
    found, slow = {kind: Drained() for kind in KINDS}, []
    with (
        closing(platform.dataset(pipeline)) as dataset,
        running_consumer(platform, pipeline, "consumer-applied") as consumer,
    ):
        _drain_to_applied(platform, pipeline, consumer, dataset, backlogs.warm_up, Drained())
        for kind in KINDS:
            for backlog in backlogs.of(kind):
                _drain_to_applied(platform, pipeline, consumer, dataset, backlog, found[kind])
                if kind == "uniform":
                    with paused(consumer):
                        slow.append(baseline.run(platform.grpc))
        _prove(platform, dataset, backlogs)
    return found, slow


def drain_to_accepted(
    platform: Platform, pipeline: Pipeline, consumer: Service, backlog: Backlog, into: Drained
) -> None:
    """Drain one backlog to the null write server, from its release to the last row accepted."""
    before, counted = platform.null.stats(), settled(consumer)
    with paused(consumer):
        release(platform.channel, pipeline.topology.topic, backlog.messages)
        cpu = _cpu(platform, consumer)
        began = time.time()
    wait_until(
        platform, lambda: settled(consumer) >= counted + backlog.changes, "the backlog to be drained", _ASK_EVERY
    )
    after = platform.null.stats()
    _take(platform, into, backlog, float(after["last"]) - began, int(after["rows"]) - int(before["rows"]))
    into.cpu.append(_spent(cpu, _cpu(platform, consumer), backlog))


def _drain_to_applied(
    platform: Platform,
    pipeline: Pipeline,
    consumer: Service,
    dataset: BigQueryDataset,
    backlog: Backlog,
    into: Drained,
) -> None:
    counted, written = settled(consumer), _written(consumer)
    with paused(consumer):
        release(platform.channel, pipeline.topology.topic, backlog.messages)
        cpu = _cpu(platform, consumer)
        began = time.time()
    wait_until(platform, lambda: settled(consumer) >= counted + backlog.changes, "the backlog to be drained", 0.05)
    for table in TABLES:
        dataset.query(f"SELECT count(*), max(_millrace_commit_timestamp), max(note) FROM {table}")
    seconds = time.time() - began
    _take(platform, into, backlog, seconds, _written(consumer) - written)
    into.cpu.append(_spent(cpu, _cpu(platform, consumer), backlog))


def _take(platform: Platform, into: Drained, backlog: Backlog, seconds: float, rows: int) -> None:
    into.rates.append(backlog.changes / seconds)
    into.written.append(rows / backlog.changes)
    platform.print_line(f"  {backlog.changes / seconds:,.0f} changes/s, {rows / backlog.changes:.3f} rows written each")


def _prove(platform: Platform, dataset: BigQueryDataset, backlogs: Backlogs) -> None:
    """Read every row and compare every value with what the changes leave behind."""
    for table in TABLES:
        found = dataset.query(f"SELECT * FROM {table}")
        different = differences(backlogs.final[table], found)
        if different:
            raise AssertionError(f"{table}: {len(different)} rows differ, first {'; '.join(different[:3])}")
    rows = sum(len(each) for each in backlogs.final.values())
    platform.print_line(f"  {rows:,} rows, every value as it should be")


def _cpu(platform: Platform, consumer: Service) -> Mapping[str, CpuTimes]:
    emulator = next(one for one in platform.processes.running if one.name == "pubsub_emulator")
    return {
        "consumer": cpu_times(consumer.process),
        "Pub/Sub emulator": cpu_times(emulator),
        "stand-in": cpu_times(platform.stand_in(), platform.null.process),
    }


def _spent(before: Mapping[str, CpuTimes], after: Mapping[str, CpuTimes], backlog: Backlog) -> Mapping[str, float]:
    used = {who: used_by_role(before[who], after[who]) for who in after}
    by_name = {f"consumer {role}": seconds for role, seconds in used.pop("consumer").items()}
    by_name |= {who: sum(roles.values()) for who, roles in used.items()}
    return {name: seconds * 1e6 / backlog.changes for name, seconds in by_name.items()}


def cpu_of(name: str, drained: Drained) -> list[Measured]:
    """Return who used how much CPU for a change, the emulator and the stand-in among them."""
    return [
        Measured(
            name=f"{name}.{who.replace(' ', '_').replace('/', '').lower()}",
            unit="us/change",
            runs=[run[who] for run in drained.cpu],
        )
        for who in drained.cpu[0]
    ]


def consumer_cpu(spent: Mapping[str, float]) -> float:
    """Return what all processes of the consumer together used for a change."""
    return sum(seconds for who, seconds in spent.items() if who.startswith("consumer"))


def _sizes(backlogs: Sequence[Backlog]) -> str:
    messages = sum(len(one.messages) for one in backlogs)
    changes = sum(one.changes for one in backlogs)
    return f"{changes / messages:.1f} changes a message, packed at {changes / sum(b.seconds for b in backlogs):,.0f}/s"


def _written(consumer: Service) -> int:
    return int(consumer.metrics()["millrace_consumer_written_rows_total"])


class Baseline:
    """The plain way, as a process: pull, decode and encode message by message, append, wait, ack."""

    def __init__(self, platform: Platform, sizes: Sizes) -> None:
        self._platform = platform
        self._pipeline = platform.pipeline("baseline")
        self._subscribers = 0
        with closing(platform.dataset(self._pipeline)) as dataset:
            for table in TABLES:
                dataset.query(bigquery_schema(table))
        workload = Workload(sizes.keys, seed=99)
        self._messages = one_change_a_message(workload.records(sizes.baseline_changes)).messages

    def run(self, write_api: str, subscriber: str = "generated") -> float:
        """Return how many changes a second it takes from Pub/Sub to accepted and acked, by a client of this kind."""
        topology = self._pipeline.topology
        if subscriber == "high-level":  # the emulator goes on sending to a stream whose process has ended
            self._subscribers += 1
            topology = self._platform.pipeline(f"subscriber-{self._subscribers}").topology
        release(self._platform.channel, topology.topic, self._messages)
        answers = run_module(
            self._platform,
            "tests.benchmarks.baseline_consumer",
            {
                "pubsub": self._platform.pubsub,
                "subscription": topology.subscription,
                "write_api": write_api,
                "tables": f"projects/{PROJECT}/datasets/{self._pipeline.dataset}/tables",
                "messages": len(self._messages),
                "subscriber": subscriber,
            },
        )
        rate = len(self._messages) / answers["seconds"]
        self._platform.print_line(f"  baseline, {subscriber} client: {rate:,.0f} changes/s")
        return rate


def run_module(platform: Platform, module: str, given: Mapping[str, object], **environment: str) -> Mapping[str, float]:
    """Run a module as a process to its end; it is told by its argument and answers with a line of JSON."""
    words = [sys.executable, "-m", module, json.dumps(given)]
    return run_command(platform, module.rpartition(".")[2], words, PYTHONPATH=str(ROOT), **environment)


def run_command(platform: Platform, name: str, words: Sequence[str], **environment: str) -> Mapping[str, float]:
    """Run a command to its end; it answers with a line of JSON."""
    process = platform.processes.start(name, words, environment)
    process.expected_to_end = True
    wait_until(platform, lambda: process.exit_code is not None, f"{name} to end")
    lines = [line for line in process.output().splitlines() if line.startswith("{")]
    if process.exit_code or not lines:
        raise RuntimeError(process.obituary())
    answer: Mapping[str, float] = json.loads(lines[-1])
    return answer
