"""The local platform, ``python -m deploy.local``: run, up, down, status, dead-letters, query SQL, sql DML, add."""

import argparse
import contextlib
import fcntl
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from google.api_core.exceptions import GoogleAPICallError
from rich.console import Console
from rich.table import Table

from deploy.local.demo.wide_tables import AIRPORT_TRAFFIC
from deploy.local.platform import needs
from deploy.local.platform.background import BackgroundPlatform, UpSettings
from deploy.local.platform.bigtable import BigtableInstance
from deploy.local.platform.cells import Increment
from deploy.local.platform.changes import Change, change_of, check_dml, is_applied, wait_until_applied
from deploy.local.platform.compose import Project
from deploy.local.platform.creation import (
    DATABASES,
    Addresses,
    CreateSettings,
    platform_at,
    tables_file,
    wait_for,
    write_api_token,
)
from deploy.local.platform.emulators import ROOT
from deploy.local.platform.processes import Process, ProcessDiedError, Processes, StopRequestedError
from deploy.local.platform.services import (
    BigtablePipeline,
    DeadLettersCommand,
    Endpoint,
    Flow,
    Pipeline,
    child_environment,
    show_status,
)
from deploy.local.platform.source import SpannerInstance
from deploy.local.platform.stack import PrintLine
from deploy.local.platform.target import BigQueryDataset
from deploy.local.proof.containers import ContainerSettings, run_containers, save_images
from deploy.local.proof.run import RunSettings, run
from shared.contracts.errors import MisconfiguredError
from shared.contracts.timestamps import Nanoseconds, format_timestamp
from shared.runtime.settings import read_settings
from shared.runtime.stop import Stop, stop_on_signals

_RUN: Final = ROOT / ".run" / "run"
_CONTAINERS: Final = ROOT / ".run" / "containers"
_IMAGES: Final = ROOT / ".run" / "images"
_UP: Final = ROOT / ".run" / "up"
_INTERRUPTED: Final = 130
_WHOLE: Final = ("run", "containers", "images", "up")


def main() -> int:
    """Run the command line; print what went wrong in words."""
    arguments = _arguments()
    console = Console(highlight=False)
    with stop_on_signals() as stop:
        try:
            return _do(arguments, console, stop)
        except StopRequestedError:
            console.print("stopped")
            return _INTERRUPTED
        except (MisconfiguredError, ProcessDiedError, GoogleAPICallError) as error:
            console.print(str(error), markup=False, soft_wrap=True)
            first, *more = str(error).splitlines() or [type(error).__name__]
            if more and arguments.command in _WHOLE:  # the cause is far above the end of a log
                console.print(f"FAILED: {first}", markup=False, soft_wrap=True)
            return 1


def _do(arguments: argparse.Namespace, console: Console, stop: Stop) -> int:
    platform = BackgroundPlatform(_UP)
    environment = child_environment(os.environ)
    match arguments.command:
        case "run":
            return _run(console, stop)
        case "containers":
            settings = read_settings(ContainerSettings, os.environ)
            with _emptied(_CONTAINERS) as directory:
                project = Project({**os.environ, "BEFORE": str(settings.before)}, directory)
                return run_containers(settings, project, console, _timed(console), stop)
        case "images":
            with _emptied(_IMAGES) as directory:
                return save_images(os.environ, directory, _timed(console))
        case "create":
            return _create(_plain(console))
        case "up":
            read_settings(UpSettings, os.environ)
            _check_needs()
            return platform.up(os.environ, stop, _plain(console))
        case "down":
            return platform.down(_plain(console))
        case "serve":
            return platform.serve(read_settings(UpSettings, os.environ), environment, stop, _timed(console))
        case "status":
            _up(platform)
            state = platform.state()
            for line in platform.restarted():
                console.print(line, markup=False, soft_wrap=True)
            return show_status(environment, state.readers, state.consumer)
        case "dead-letters":
            dead_letters = _up(platform).dead_letter_environment(platform.dead_letters)
            return DeadLettersCommand({**environment, **dead_letters}).show(*(arguments.arguments or ["--help"]))
        case "query":
            return _query(platform, arguments, console, stop)
        case "add":
            _up(platform)
            return _add(platform, arguments, console)
        case _:
            _up(platform)
            return _sql(platform, arguments.database, arguments.statement, console)


def _run(console: Console, stop: Stop) -> int:
    settings = read_settings(RunSettings, os.environ)
    _check_needs()
    print_line = _timed(console)

    def on_unexpected_end(process: Process) -> None:
        print_line(f"{process.name} died")
        stop.request()

    with (
        _emptied(_RUN) as directory,
        Processes(directory, child_environment(os.environ), stop, on_unexpected_end) as processes,
    ):
        print_line(f"logs are in {directory}")
        try:
            return run(settings, processes, console, print_line)
        except (StopRequestedError, ProcessDiedError, GoogleAPICallError):
            processes.check()  # a process that died is the reason, whatever failed because of it
            raise


def _create(print_line: PrintLine) -> int:
    """Make everything that services need to find, on emulators and stand-ins that others run."""
    addresses, settings = read_settings(Addresses, os.environ), read_settings(CreateSettings, os.environ)
    wait_for(addresses, settings.emulators_timeout)
    settings.tables_file.write_text(tables_file())
    write_api_token(settings)
    with platform_at(addresses, settings.tables_file, create=True, before=settings.before) as made:
        names = [*(one.database for _, one in made.databases), *(one.table for _, one in made.wide_tables)]
        print_line(f"made {', '.join(names)}, topic and dataset {made.flow.name}, and {settings.tables_file}")
    return 0


def _query(platform: BackgroundPlatform, arguments: argparse.Namespace, console: Console, stop: Stop) -> int:
    flow, consumer = _up(platform), Endpoint(platform.state().consumer)
    with contextlib.closing(BigQueryDataset(flow.bigquery_rest, flow.project, flow.dataset)) as dataset:
        show_query(arguments, platform.last_change(), consumer, dataset, console, stop)
    return 0


def show_query(
    arguments: argparse.Namespace,
    change: Change | None,
    consumer: Endpoint,
    dataset: BigQueryDataset,
    console: Console,
    stop: Stop,
) -> None:
    """Print the rows of a query: with ``--wait`` once the last change is applied, else with a word if it is not."""
    if arguments.wait and change is not None:
        wait_until_applied(change, consumer, dataset, stop)
    stale = change is not None and not is_applied(change, consumer, dataset)
    show_rows(rows_of(dataset, arguments.statement), console)
    if stale:
        console.print(f"{change} is not applied yet: `query --wait` waits for it", soft_wrap=True)


def rows_of(dataset: BigQueryDataset, statement: str) -> Sequence[Mapping[str, object]]:
    """Return the rows of a query; MisconfiguredError with BigQuery's words and the tables that there are."""
    try:
        return dataset.query(statement)
    except GoogleAPICallError as error:
        there = ", ".join(dataset.tables())
        raise MisconfiguredError("local-query-failed", f"{_words(error)}\nthe tables are: {there}") from error


def show_rows(rows: Sequence[Mapping[str, object]], console: Console) -> None:
    """Print rows as a table, or a column a line where a line does not hold all columns."""
    widths = [max(len(name), *(len(str(row[name])) for row in rows)) for name in rows[0]] if rows else []
    if rows and 1 + sum(width + 3 for width in widths) <= console.width:
        table = Table()
        for name in rows[0]:
            table.add_column(name, overflow="fold", min_width=len(name))
        for row in rows:
            table.add_row(*(str(value) for value in row.values()))
        console.print(table)
    else:
        width = max((len(name) for row in rows for name in row), default=0)
        for row in rows:
            for name, value in row.items():
                console.print(f"{name:<{width}}  {value}", markup=False, soft_wrap=True)
            console.print()
    console.print(counted(len(rows)))


def counted(rows: int) -> str:
    """Return a number of rows in words."""
    return "1 row" if rows == 1 else f"{rows} rows"


def _words(error: GoogleAPICallError) -> str:
    """Return BigQuery's message, without the request and its address."""
    return str(error.errors[0]["message"]) if error.errors else str(error.message)


def _sql(platform: BackgroundPlatform, database: str, statement: str, console: Console) -> int:
    pipeline = next((one for one in platform.state().readers if isinstance(one, Pipeline)), None)
    if pipeline is None:
        raise MisconfiguredError(
            "local-spanner-not-up", "Spanner is not up: `make down`, and then `make up SOURCES=both`"
        )
    check_dml(statement)
    with contextlib.closing(SpannerInstance.connect(pipeline.spanner, pipeline.project, pipeline.instance)) as instance:
        rows, committed = instance.database(database).execute(statement)
    if rows:
        platform.remember_change(change_of(statement, rows, committed))
    console.print(f"{counted(rows)} changed, committed at {format_timestamp(committed)}")
    return 0


def _add(platform: BackgroundPlatform, arguments: argparse.Namespace, console: Console) -> int:
    """Add to a counter of a row in Bigtable."""
    pipeline = next((one for one in platform.state().readers if isinstance(one, BigtablePipeline)), None)
    if pipeline is None:
        raise MisconfiguredError(
            "local-bigtable-not-up", "Bigtable is not up: `make down`, and then `make up SOURCES=both`"
        )
    family, _, qualifier = arguments.cell.partition(":")
    amounts = [(family, qualifier.encode(), arguments.amount)]
    with contextlib.closing(BigtableInstance(pipeline.bigtable, pipeline.project, pipeline.instance)) as instance:
        began = Nanoseconds(time.time_ns())  # its commit timestamp, which is not returned, is later
        instance.apply(Increment(arguments.table, arguments.row_key.encode(), amounts))
    platform.remember_change(Change(arguments.table, began))
    console.print("1 row changed")
    return 0


def _up(platform: BackgroundPlatform) -> Flow:
    flow = platform.flow()
    if flow is None:
        ended = platform.ended()
        why = f"the platform has ended by itself; the end of its log:\n{ended}\n" if ended else ""
        raise MisconfiguredError("nothing-is-up", f"{why}nothing is up: `make up` first")
    return flow


def _check_needs() -> None:
    if missing := needs.missing(os.environ):
        raise MisconfiguredError("programs-missing", "missing: " + "\nmissing: ".join(missing))


@contextlib.contextmanager
def _emptied(directory: Path) -> Iterator[Path]:
    """Empty the directory of the last run, whose logs were kept until now; only one run at a time may have it."""
    directory.parent.mkdir(exist_ok=True)
    with directory.with_suffix(".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise MisconfiguredError(
                "run-directory-in-use", f"another run is using {directory}: wait for it to end"
            ) from None
        shutil.rmtree(directory, ignore_errors=True)
        yield directory


def _plain(console: Console) -> PrintLine:
    return lambda text: console.print(text, markup=False, soft_wrap=True)


def _timed(console: Console) -> PrintLine:
    began = time.monotonic()

    def print_line(text: str) -> None:
        console.print(f"[{time.monotonic() - began:5.1f} s] {text}", markup=False, soft_wrap=True)

    return print_line


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m deploy.local", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("run", help="the whole pipeline, from start to proof (SOURCES, BEFORE, ROWS, SECONDS, RATE)")
    commands.add_parser("containers", help="the same in containers, by docker-compose.yaml")
    commands.add_parser("images", help="build the services' images into a file, for `make cluster`")
    commands.add_parser("create", help="make the demo's tables, topics and dataset where the environment names them")
    commands.add_parser("up", help="the same, left running")
    commands.add_parser("down", help="end what `up` started")
    commands.add_parser("serve")  # what `up` starts; not for people
    commands.add_parser("status", help="how the services that are up are")
    dead_letters = commands.add_parser(
        "dead-letters", help="the command for dead letters: list, show, groups, replay, ..."
    )
    dead_letters.add_argument("arguments", nargs=argparse.REMAINDER)
    query = commands.add_parser("query", help="ask BigQuery")
    query.add_argument("--wait", action="store_true", help="first wait until the last change by sql or add is applied")
    query.add_argument("statement")
    sql = commands.add_parser("sql", help="change a row in Spanner")
    names = [demo.name for demo in DATABASES]
    sql.add_argument("--database", choices=names, default=names[0], help="which database; %(default)s")
    sql.add_argument("statement")
    add = commands.add_parser("add", help="add to a counter in Bigtable")
    add.add_argument("table", help=f"such as {AIRPORT_TRAFFIC.name}")
    add.add_argument("row_key")
    add.add_argument("cell", help="family:qualifier")
    add.add_argument("amount", type=int)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
