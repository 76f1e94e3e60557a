"""The CPU seconds used between two samples of a process tree."""

from tests.benchmarks.cpu import OneProcess, used_by_role

JVM = OneProcess("jvm", 2, 10.0)
WORKER = OneProcess("python", 3, 20.0)
NEXT_WORKER = OneProcess("python", 3, 30.0)
"""It has the number of a worker that ended."""


def test_a_worker_that_ended_between_the_samples_takes_nothing_away() -> None:
    assert used_by_role({JVM: 5.0, WORKER: 0.75}, {JVM: 5.5}) == {"jvm": 0.5, "python": 0.0}


def test_a_worker_that_began_between_the_samples_counts_whole() -> None:
    assert used_by_role({JVM: 5.0, WORKER: 0.75}, {JVM: 5.5, NEXT_WORKER: 0.25}) == {"jvm": 0.5, "python": 0.25}
