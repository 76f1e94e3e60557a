"""`make run`: the whole pipeline on this machine, from start to proof."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from rich.console import Console

from deploy.local.demo.workloads import wide_workload, workloads
from deploy.local.platform.processes import Processes, StopRequestedError
from deploy.local.platform.services import DeadLettersCommand, dead_letters_in
from deploy.local.platform.stack import PrintLine, Sources, Stack, running_stack
from deploy.local.proof.bigtable_side import BigtableSide
from deploy.local.proof.dead_letters import Command, DeadLettersFound, DeadLettersStory
from deploy.local.proof.launching import Launcher, LocalLauncher
from deploy.local.proof.missing_rows import prove_missing_rows
from deploy.local.proof.progress import Progress
from deploy.local.proof.reconciling import reconcile_all
from deploy.local.proof.report import Compared, Report
from deploy.local.proof.sides import Pace, Side
from deploy.local.proof.spanner_side import SpannerSide
from shared.runtime.settings import setting
from shared.runtime.stop import Stop

_COMMANDS_TIMEOUT: Final = timedelta(minutes=2)
_POLL: Final = timedelta(milliseconds=500)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """The size of a run."""

    sources: Sources = setting("which sources: both, spanner or bigtable", default="both")
    before: int = setting("flights that are there before the change stream", default=20_000, least=0, most=300_000)
    rows: int = setting("flights that come first through the change stream", default=3000, least=1, most=30_000)
    seconds: int = setting("how long rows are changed after that", default=30, least=1)
    rate: int = setting("changes a second, in each source", default=60, least=1)
    catch_up_timeout: timedelta = setting("how long BigQuery may take to catch up", default=timedelta(seconds=90))
    seed: int = setting("which changes are made", default=2013)

    @property
    def pace(self) -> Pace:
        """Return how rows are changed after the start."""
        return Pace(self.rate, self.seconds)


def run(settings: RunSettings, processes: Processes, console: Console, print_line: PrintLine) -> int:
    """Run it all; return 0 where BigQuery equals its sources in the end, and 1 with what differs."""
    with running_stack(processes, print_line, settings.sources, settings.before) as stack:
        environment = stack.flow.dead_letter_environment(dead_letters_in(processes.directory))
        launch = LocalLauncher(processes.environment, processes.stop)
        report = prove(settings, stack, DeadLettersCommand(environment), launch, console, print_line, processes.stop)
        processes.check()
    report.print(console)
    return 0 if report.equal else 1


def prove(
    settings: RunSettings,
    stack: Stack,
    command: Command,
    launch: Launcher,
    console: Console,
    print_line: PrintLine,
    stop: Stop,
    meanwhile: Callable[[], None] | None = None,
) -> Report:
    """Load rows, change them, let changes fail and replay them; return what was found when all writes were done.

    In the end the command ``reconcile`` has to agree, and ``delete-missing-rows`` to delete a row that only BigQuery
    has. ``meanwhile`` is done while rows are changed. If it restarts services, their counters prove nothing in the
    end: then only the tables are compared.
    """
    sides = sides_of(stack, settings.rows, settings.pace.changes, settings.seed, settings.before)
    names = " and ".join(side.name for side in sides)
    story = DeadLettersStory(stack, command, max(settings.catch_up_timeout, _COMMANDS_TIMEOUT), stop, print_line)
    with Progress(console, sides, lambda: to_be_applied(stack, sides)) as progress:
        print_line(f"loading {settings.rows:,} flights, with what belongs to them, and the weather, into {names}")
        if settings.before:
            print_line("readers take a snapshot of what was there before, of which rows are changed meanwhile")
        loaded = sum(side.load(stop) for side in sides)
        progress.waits_for = "all services to be ready; Spark takes longest"
        stack.wait()
        progress.waits_for = "cdc_consumer to apply what was loaded"
        print_line(f"loaded {loaded:,} rows; waiting until all are applied")
        wait_until_loaded(stack, sides, settings.catch_up_timeout, stop)  # so that latencies are not those of the load
        progress.waits_for = ""
        story.begin()
        print_line(f"changing rows of {names}: {settings.rate} changes a second for {settings.seconds} s")
        dead_letters = _change(sides, story, meanwhile, settings, stop, print_line)
        _check_goes_on(stop)
        print_line(f"writes have stopped; waiting until BigQuery equals {names}")
        progress.waits_for = "the last changes to be applied, and every row to be compared"
        counted = timedelta(0) if meanwhile else settings.catch_up_timeout / 2
        compared = _until_equal(stack, sides, settings.catch_up_timeout, counted, stop)
        progress.waits_for = "reconcile"
        reconciled = reconcile_all(launch, stack.pipelines)
        _check_goes_on(stop)
        written, missing_rows = stack.dataset.rows_written(), None
        if stack.databases:
            progress.waits_for = "delete-missing-rows"
            timeout = max(settings.catch_up_timeout, _COMMANDS_TIMEOUT)
            missing_rows = prove_missing_rows(launch, stack.databases[0], stack.dataset, timeout, stop)
            _check_goes_on(stop)
    found = [side.found(databases) for side, databases in zip(sides, compared, strict=True)]
    return Report(found, written, dead_letters, reconciled, missing_rows)


def sides_of(stack: Stack, rows: int, changes: int = 0, seed: int = 2013, before: int = 0) -> list[Side]:
    """Return the sources that run, each with so many rows to load and data for so many changes after that.

    So many flights, and what belongs to them, were there ``before`` the change stream; of those in Bigtable a tenth.
    """
    sides: list[Side] = []
    if stack.databases:
        sides.append(SpannerSide(stack, workloads(rows, changes, seed, before)))
    if stack.wide_tables:
        sides.append(BigtableSide(stack, wide_workload(rows, changes, seed, before), seed))
    return sides


def to_be_applied(stack: Stack, sides: Sequence[Side]) -> int:
    """Return how much of what is known to come BigQuery does not have yet."""
    return max(0, sum(side.to_apply() for side in sides) - stack.applied())


def wait_until_loaded(stack: Stack, sides: Sequence[Side], timeout: timedelta, stop: Stop) -> bool:
    """Wait until all that was loaded is applied; return whether that came within ``timeout``."""
    return _wait(lambda: not to_be_applied(stack, sides) and all(side.loaded() for side in sides), timeout, stop)


def _change(
    sides: Sequence[Side],
    story: DeadLettersStory,
    meanwhile: Callable[[], None] | None,
    settings: RunSettings,
    stop: Stop,
    print_line: PrintLine,
) -> DeadLettersFound:
    """Change the rows of all sources at once, poison among them; if that fails with one, the others stop too."""
    with ThreadPoolExecutor(len(sides) + 2, thread_name_prefix="changes") as pool:
        dead_letters = pool.submit(story.happen)
        changing = [pool.submit(meanwhile)] if meanwhile else []
        timeout = settings.catch_up_timeout
        changing += [pool.submit(side.change, settings.pace, timeout, stop, print_line) for side in sides]
        all_of_it: list[Future[Any]] = [dead_letters, *changing]
        done, _ = wait(all_of_it, return_when=FIRST_EXCEPTION)
        if any(one.exception() for one in done):
            stop.request()
    for one in changing:
        one.result()
    for side in sides:
        side.beside(story.changes)
    return dead_letters.result()


def _until_equal(
    stack: Stack, sides: Sequence[Side], timeout: timedelta, counted: timedelta, stop: Stop
) -> list[Sequence[Compared]]:
    """Compare as soon as everything is counted as applied, and again what differs until equal or the timeout.

    The counters are believed as long as ``counted``; after that the tables are compared whatever they show.
    StopRequestedError when asked to stop.
    """
    compared: list[Sequence[Compared]] = [()] * len(sides)

    def equal() -> bool:
        if to_be_applied(stack, sides) and time.monotonic() < deadline:
            return False
        for number, side in enumerate(sides):
            _check_goes_on(stop)
            if not compared[number] or not all(database.equal for database in compared[number]):
                compared[number] = side.compare()
        return all(database.equal for databases in compared for database in databases)

    deadline = time.monotonic() + counted.total_seconds()
    _wait(equal, timeout, stop)
    _check_goes_on(stop)
    return [databases or side.compare() for databases, side in zip(compared, sides, strict=True)]


def _check_goes_on(stop: Stop) -> None:
    if stop.requested:
        raise StopRequestedError("asked to stop")


def _wait(condition: Callable[[], bool], timeout: timedelta, stop: Stop) -> bool:
    deadline = time.monotonic() + timeout.total_seconds()
    while not condition():
        if time.monotonic() > deadline or stop.wait(_POLL):
            return False
    return True
