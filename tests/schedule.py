"""Order and cost of the test modules: costly modules start first, and a run prints what they cost.

With two workers the run ends when the slower one ends, so the costly modules must not come last. The order that
pytest-xdist takes by itself (by the number of tests) means nothing here: the costliest modules have one to three tests.
A worker takes a module as a whole, and the modules of `TOGETHER` as one: they share what is costly to start.
`tests/costs.json` holds the seconds of each costly module, as far as the order needs them: those of a busy machine, or
an estimate, will do. `pytest --write-costs` measures them again.

A run prints the seconds of each folder and the starts of Spark of each test. A run of whole folders fails on more
starts than its limit: seconds depend on the machine, starts do not.
"""

import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler.loadfile import LoadFileScheduling

from tests.spark_starts import EXHAUSTIVE_LIMIT, LIMIT, SparkStarts

COSTS = Path(__file__).with_name("costs.json")
TOGETHER = ("tests/e2e/one_pipeline",)
"""Folders that one worker takes as a whole."""
LEAST = 5.0
"""Seconds below which a module is not worth a line in the file."""
SPARK_STARTS = "spark_starts"


def module_of(node: str) -> str:
    """Return the path of the module of a test: `tests/unit/test_x.py` of `tests/unit/test_x.py::test_y`."""
    return node.partition("::")[0]


def scope_of(node: str) -> str:
    """Return what one worker takes as a whole: the module of a test, or the folder of `TOGETHER` that holds it."""
    module = module_of(node)
    return next((folder for folder in TOGETHER if module.startswith(f"{folder}/")), module)


def costly_first(items: list[pytest.Item], costs: Mapping[str, float]) -> None:
    """Sort tests by the cost of their scope, highest first; the order inside a scope and among cheap ones stays."""
    scopes: defaultdict[str, float] = defaultdict(float)
    for module, cost in costs.items():
        scopes[scope_of(module)] += cost
    items.sort(key=lambda item: -scopes[scope_of(item.nodeid)])


def seconds_by_folder(seconds: Mapping[str, float]) -> Mapping[str, float]:
    """Add up the seconds of the modules of each folder right below `tests`."""
    folders: defaultdict[str, float] = defaultdict(float)
    for module, spent in seconds.items():
        folders["/".join(Path(module).parts[:2])] += spent
    return folders


def are_folders(arguments: Iterable[str]) -> bool:
    """Return whether a run is of whole folders of tests."""
    return all(Path(argument).is_dir() for argument in arguments)


class ByScope(LoadFileScheduling):  # type: ignore[misc]  # pytest-xdist has no types
    """The scheduler of pytest-xdist that hands out whole modules, or whole folders of `TOGETHER`."""

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)


class Schedule:
    """The pytest plugin of a run: it orders the tests and adds up what they take.

    Under xdist there is one in each worker, which notes, and one in front, which adds up.
    """

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.spark_starts: Counter[str] = Counter()
        runs_tests = hasattr(config, "workerinput") or not config.getoption("numprocesses", None)
        self._noted = SparkStarts(os.environ) if runs_tests else None

    def pytest_unconfigure(self) -> None:
        """Remove what notes the starts of Spark."""
        if self._noted is not None:
            self._noted.close()

    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Producer) -> ByScope | None:
        """Hand out scopes where whole modules would be handed out."""
        return ByScope(config, log) if config.getvalue("dist") == "loadfile" else None

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Let costly modules start first."""
        costly_first(items, json.loads(COSTS.read_text()))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
        """Note in the report of a test's tear-down how often it started Spark."""
        if call.when == "teardown" and self._noted is not None:
            item.user_properties.append((SPARK_STARTS, self._noted.new()))
        return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add the seconds of a test's set-up, call or tear-down to its module, and the starts of Spark."""
        self.seconds[module_of(report.nodeid)] += report.duration
        if report.when == "teardown":
            starts = sum(int(str(count)) for name, count in report.user_properties if name == SPARK_STARTS)
            self.spark_starts[report.nodeid] += starts

    @property
    def _limit(self) -> int:
        """Return how often this run may start Spark."""
        return EXHAUSTIVE_LIMIT if any("exhaustive" in argument for argument in self.config.args) else LIMIT

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail a run of whole folders that started Spark too often."""
        if self.spark_starts.total() > self._limit and are_folders(self.config.args):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the seconds by folder; write the costs if asked."""
        for folder, spent in sorted(seconds_by_folder(self.seconds).items()):
            terminalreporter.write_line(f"{folder}: {spent:,.0f} s of tests, added up over the workers")
        for test, starts in sorted(self.spark_starts.items()):
            if starts:
                terminalreporter.write_line(f"{test}: {starts} Spark starts")
        count = self.spark_starts.total()
        terminalreporter.write_line(f"{count} Spark starts (limit {self._limit})", red=count > self._limit)
        if self.config.getoption("--write-costs"):
            kept = json.loads(COSTS.read_text()) | self.seconds
            costly = {name: round(spent) for name, spent in kept.items() if spent >= LEAST and Path(name).exists()}
            COSTS.write_text(json.dumps(dict(sorted(costly.items())), indent=2) + "\n")
