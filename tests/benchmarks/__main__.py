"""`make bench`: the numbers. A table on the screen, and the same in ``build/bench.json``.

What is measured, against what, and why it is honest is told in ``tests/benchmarks/README.md``.
"""

import os
import shutil
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from deploy.local.platform.emulators import ROOT, find_java, find_sdk
from deploy.local.platform.processes import ProcessDiedError, Processes, StopRequestedError
from deploy.local.platform.services import child_environment
from deploy.local.platform.stack import PrintLine
from shared.contracts.errors import MisconfiguredError
from shared.runtime.settings import read_settings
from shared.runtime.stop import stop_on_signals
from tests.benchmarks.bigtable import measure_bigtable
from tests.benchmarks.bigtable_snapshot import measure_bigtable_snapshot
from tests.benchmarks.cluster import measure_cluster
from tests.benchmarks.completion import measure_completion
from tests.benchmarks.dead_letters import measure_dead_letters
from tests.benchmarks.drain import measure_drain
from tests.benchmarks.executors import measure_executors
from tests.benchmarks.flatness import measure_backlog, measure_flatness
from tests.benchmarks.freshness import measure_steady
from tests.benchmarks.keys import measure_keys
from tests.benchmarks.peer import measure_java
from tests.benchmarks.pipelines import Platform, running_platform
from tests.benchmarks.profile import show_profiles
from tests.benchmarks.reader import measure_reader
from tests.benchmarks.results import Measured, as_table, write_json
from tests.benchmarks.sizes import Sizes
from tests.benchmarks.snapshot import measure_snapshot
from tests.benchmarks.start import measure_start

_WIDE = 160


def main() -> int:
    """Measure what is asked for; say what went wrong in words."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _WIDE
    output = Path(os.environ.get("BENCH_OUTPUT") or ROOT / "build" / "bench.json")
    with stop_on_signals() as stop:
        try:
            sizes = read_settings(Sizes, os.environ)
            measured = []
            if set(sizes.parts) - {"dead-letters"}:
                find_sdk(os.environ)
                find_java(os.environ)
                logs = output.parent / "bench-logs"
                shutil.rmtree(logs, ignore_errors=True)
                with (
                    Processes(logs, child_environment(os.environ), stop) as processes,
                    running_platform(processes, _timed(console)) as platform,
                ):
                    measured += measure(platform, sizes, console)
            if "dead-letters" in sizes.parts:  # of a store alone: no platform, no pipeline
                measured += _at(os.getloadavg()[0], measure_dead_letters(sizes, _timed(console)))
        except (MisconfiguredError, ProcessDiedError, StopRequestedError) as error:
            console.print(str(error), markup=False, soft_wrap=True)
            return 1
    if measured:  # not of a profile alone
        console.print(as_table(measured))
        write_json(output, measured)
        console.print(f"written to {output}", soft_wrap=True)
    return 0


def measure(platform: Platform, sizes: Sizes, console: Console) -> list[Measured]:
    """Run the parts that are asked for."""
    measured: list[Measured] = []
    for part in sizes.parts:
        load = os.getloadavg()[0]
        platform.print_line(f"{part}: load average {load:.1f} on {os.cpu_count()} cores")
        measured += _at(load, _measure(part, platform, sizes, console))
    return measured


def _at(load: float, measured: list[Measured]) -> list[Measured]:
    today = datetime.now(UTC).date().isoformat()
    return [replace(one, date=today, load=round(load, 1)) for one in measured]


def _measure(part: str, platform: Platform, sizes: Sizes, console: Console) -> list[Measured]:
    match part:
        case "start":
            return measure_start(platform, sizes)
        case "drain":
            return measure_drain(platform, sizes)
        case "cluster":
            return measure_cluster(platform, sizes)
        case "executors":
            return measure_executors(platform, sizes)
        case "java":
            return measure_java(platform, sizes)
        case "flatness":
            return measure_flatness(platform, sizes)
        case "backlog":
            return measure_backlog(platform, sizes)
        case "reader":
            return measure_reader(platform, sizes)
        case "keys":
            return measure_keys(platform, sizes)
        case "completion":
            return measure_completion(platform, sizes)
        case "snapshot":
            return [*measure_snapshot(platform, sizes), *measure_bigtable_snapshot(platform, sizes)]
        case "bigtable":
            return measure_bigtable(platform, sizes)
        case "dead-letters":
            return []  # when the platform has ended
        case "freshness" | "idle":
            steady = [one for one in sizes.parts if one in ("freshness", "idle")]
            return measure_steady(platform, sizes, steady) if part == steady[0] else []  # both on the same pipeline
        case _:
            show_profiles(platform, sizes, console)
            return []


def _timed(console: Console) -> PrintLine:
    began = time.monotonic()

    def print_line(text: str) -> None:
        console.print(f"[{time.monotonic() - began:5.1f} s] {text}", markup=False, soft_wrap=True)

    return print_line


if __name__ == "__main__":
    sys.exit(main())
