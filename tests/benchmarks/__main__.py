"""`make bench`: the numbers. A table on the screen, and the same in ``build/bench.json``.

What is measured, against what, and why it is honest is told in ``tests/benchmarks/README.md``.
"""

import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

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

_WIDE: Final = 160
_PARTS: Final[Mapping[str, Sequence[Callable[[Platform, Sizes], list[Measured]]]]] = {
    "start": [measure_start],
    "drain": [measure_drain],
    "cluster": [measure_cluster],
    "executors": [measure_executors],
    "java": [measure_java],
    "flatness": [measure_flatness],
    "backlog": [measure_backlog],
    "reader": [measure_reader],
    "keys": [measure_keys],
    "completion": [measure_completion],
    "snapshot": [measure_snapshot, measure_bigtable_snapshot],
    "bigtable": [measure_bigtable],
}
"""What measures each part that needs the platform and nothing else."""


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
        case "dead-letters":
            return []  # when the platform has ended
        case "freshness" | "idle":
            steady = [one for one in sizes.parts if one in ("freshness", "idle")]
            return measure_steady(platform, sizes, steady) if part == steady[0] else []  # both on the same pipeline
        case "profile":
            show_profiles(platform, sizes, console)
            return []
        case _:
            return [measured for measure_some in _PARTS[part] for measured in measure_some(platform, sizes)]


def _timed(console: Console) -> PrintLine:
    began = time.monotonic()

    def print_line(text: str) -> None:
        console.print(f"[{time.monotonic() - began:5.1f} s] {text}", markup=False, soft_wrap=True)

    return print_line


if __name__ == "__main__":
    sys.exit(main())
