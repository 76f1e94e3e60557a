"""How much CPU a process tree has used, as the operating system counts it."""

from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil

from deploy.local.platform.processes import Process


class OneProcess(NamedTuple):
    """A process of a tree: ``jvm``, ``python`` below it, ``driver`` above it."""

    role: str
    pid: int
    created: float


CpuTimes = Mapping[OneProcess, float]
"""The CPU seconds, of user and system, that each process has used itself."""


def cpu_times(*processes: Process) -> CpuTimes:
    """Return what the processes and all below them have used so far."""
    found: dict[OneProcess, float] = {}
    for process in processes:
        root = psutil.Process(process.pid)
        below = {child.pid for jvm in root.children() if _is_java(jvm) for child in jvm.children(recursive=True)}
        for one in (root, *root.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                times = one.cpu_times()
                role = "jvm" if _is_java(one) else "python" if one.pid in below else "driver"
                found[OneProcess(role, one.pid, one.create_time())] = times.user + times.system
    return found


def used_by_role(before: CpuTimes, after: CpuTimes) -> Mapping[str, float]:
    """Return the CPU seconds that were used between two samples, by role.

    Each process is compared with itself, for the sum over a tree goes down when a process ends: Spark's Python daemon
    ignores SIGCHLD, so the system adds the time of a worker that ended to no other process.
    """
    used = dict.fromkeys((one.role for one in (*before, *after)), 0.0)
    for one, seconds in after.items():
        used[one.role] += seconds - before.get(one, 0.0)
    return used


def used_since(before: CpuTimes, *processes: Process) -> float:
    """Return the CPU seconds that the processes and all below them have used since a sample of them."""
    return sum(used_by_role(before, cpu_times(*processes)).values())


def jvm_threads(process: Process) -> Mapping[str, float]:
    """Return the CPU seconds of the threads of the JVM below a process, by what they are."""
    found: defaultdict[str, float] = defaultdict(float)
    for child in psutil.Process(process.pid).children(recursive=True):
        if not _is_java(child):
            continue
        for task in Path(f"/proc/{child.pid}/task").iterdir():
            with suppress(OSError, ValueError):
                nanoseconds = int((task / "schedstat").read_text().split()[0])
                found[_kind((task / "comm").read_text().strip())] += nanoseconds / 1e9
    return dict(found)


def _is_java(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.name() == "java"
    return False


def _kind(thread: str) -> str:
    for start, kind in _KINDS.items():
        if thread.startswith(start):
            return kind
    return "the rest"


_KINDS = {
    "Executor task": "tasks",
    "stdout writer": "rows to Python",
    "Writer for": "rows to Python",
    "C1 Compiler": "compiler",
    "C2 Compiler": "compiler",
    "GC Thread": "garbage collector",
    "G1 ": "garbage collector",
    "VM Thread": "garbage collector",
    "stream executio": "micro-batch planning",  # the kernel keeps fifteen characters of a name
    "dag-scheduler": "scheduler",
    "dispatcher": "scheduler",
    "task-result": "scheduler",
}
