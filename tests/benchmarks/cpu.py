"""How much CPU a process tree has used, as the operating system counts it."""

from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from deploy.local.platform.processes import Process


def cpu_seconds(*processes: Process) -> float:
    """Return the CPU seconds, of user and system, that the processes and all below them have used so far."""
    return sum(sum(cpu_by_role(process).values()) for process in processes)


def cpu_by_role(process: Process) -> Mapping[str, float]:
    """Return the CPU seconds of a tree by what its processes are: ``jvm``, ``python`` below it, ``driver`` above it."""
    found: defaultdict[str, float] = defaultdict(float)
    root = psutil.Process(process.pid)
    below = {child.pid for jvm in root.children() if _is_java(jvm) for child in jvm.children(recursive=True)}
    for one in (root, *root.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            times = one.cpu_times()
            used = times.user + times.system + times.children_user + times.children_system
            found["jvm" if _is_java(one) else "python" if one.pid in below else "driver"] += used
    return dict(found)


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
