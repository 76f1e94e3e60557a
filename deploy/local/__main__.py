"""The local platform: ``python -m deploy.local run | up | down | status | letters | query SQL | sql DML | add``."""

import argparse
import contextlib
import fcntl
import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from google.api_core.exceptions import GoogleAPICallError
from rich.console import Console
from rich.table import Table

from deploy.local.background import BackgroundPlatform, UpSettings
from deploy.local.bigtable import BigtableInstance
from deploy.local.cells import Increment
from deploy.local.containers import ContainerSettings, run_containers
from deploy.local.creation import DATABASES, Addresses, CreateSettings, platform_at, tables_file, wait_for
from deploy.local.demo.wide_tables import AIRPORT_TRAFFIC
from deploy.local.emulators import ROOT, find_java, find_sdk
from deploy.local.processes import Process, ProcessDiedError, Processes, StopRequestedError
from deploy.local.run import RunSettings, run
from deploy.local.services import BigtablePipeline, Flow, LettersCommand, Pipeline, child_environment, show_status
from deploy.local.source import SpannerInstance
from deploy.local.stack import Say
from deploy.local.target import BigQueryDataset
from shared.contracts.errors import MisconfiguredError
from shared.contracts.timestamps import format_timestamp
from shared.runtime.settings import read_settings
from shared.runtime.stop import Stop, stop_on_signals

_RUN: Final = ROOT / ".run" / "run"
_CONTAINERS: Final = ROOT / ".run" / "containers"
_UP: Final = ROOT / ".run" / "up"
_INTERRUPTED: Final = 130


def main() -> int:
    """Do what the command line says; say what went wrong in words."""
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
                return run_containers(settings, os.environ, directory, console, _say(console), stop)
        case "create":
            return _create(_plain(console))
        case "up":
            read_settings(UpSettings, os.environ)
            _check_needs()
            return platform.up(os.environ, stop, _plain(console))
        case "down":
            return platform.down(_plain(console))
        case "serve":
            return platform.serve(read_settings(UpSettings, os.environ), environment, stop, _say(console))
        case "status":
            _up(platform)
            state = platform.state()
            return show_status(environment, state.readers, state.consumer)
        case "letters":
            told = _up(platform).dead_letter_environment(platform.letters)
            return LettersCommand({**environment, **told}).show(*arguments.arguments)
        case "query":
            return _query(_up(platform), arguments.statement, console)
        case "add":
            _up(platform)
            return _add(platform, arguments, console)
        case _:
            _up(platform)
            return _sql(platform, arguments.database, arguments.statement, console)


def _run(console: Console, stop: Stop) -> int:
    settings = read_settings(RunSettings, os.environ)
    _check_needs()
    say = _say(console)

    def on_death(process: Process) -> None:
        say(f"{process.name} died")
        stop.request()

    with (
        _emptied(_RUN) as directory,
        Processes(directory, child_environment(os.environ), stop, on_death) as processes,
    ):
        say(f"logs are in {directory}")
        try:
            return run(settings, processes, console, say)
        except (StopRequestedError, ProcessDiedError, GoogleAPICallError):
            processes.check()  # a process that died is the reason, whatever failed because of it
            raise


def _create(say: Say) -> int:
    """Make everything that services need to find, on emulators and stand-ins that others run."""
    addresses, settings = read_settings(Addresses, os.environ), read_settings(CreateSettings, os.environ)
    wait_for(addresses, settings.patience)
    settings.tables_file.write_text(tables_file())
    with platform_at(addresses, settings.tables_file, create=True, before=settings.before) as made:
        names = [*(one.database for _, one in made.databases), *(one.table for _, one in made.wide_tables)]
        say(f"made {', '.join(names)}, topic and dataset {made.flow.name}, and {settings.tables_file}")
    return 0


def _query(flow: Flow, statement: str, console: Console) -> int:
    with contextlib.closing(BigQueryDataset(flow.bigquery_rest, flow.project, flow.dataset)) as dataset:
        rows = dataset.query(statement)
    if rows:
        table = Table()
        for name in rows[0]:
            table.add_column(name, overflow="fold")
        for row in rows:
            table.add_row(*(str(value) for value in row.values()))
        console.print(table)
    console.print(f"{len(rows)} rows")
    return 0


def _sql(platform: BackgroundPlatform, database: str, statement: str, console: Console) -> int:
    pipeline = next((one for one in platform.state().readers if isinstance(one, Pipeline)), None)
    if pipeline is None:
        raise MisconfiguredError("Spanner is not up: `make down`, and then `make up SOURCES=both`")
    with contextlib.closing(SpannerInstance.connect(pipeline.spanner, pipeline.project, pipeline.instance)) as instance:
        rows, committed = instance.database(database).execute(statement)
    console.print(f"{rows} rows changed, committed at {format_timestamp(committed)}")
    return 0


def _add(platform: BackgroundPlatform, arguments: argparse.Namespace, console: Console) -> int:
    """Add to a counter of a row in Bigtable."""
    pipeline = next((one for one in platform.state().readers if isinstance(one, BigtablePipeline)), None)
    if pipeline is None:
        raise MisconfiguredError("Bigtable is not up: `make down`, and then `make up SOURCES=both`")
    family, _, qualifier = arguments.cell.partition(":")
    amounts = [(family, qualifier.encode(), arguments.amount)]
    with contextlib.closing(BigtableInstance(pipeline.bigtable, pipeline.project, pipeline.instance)) as instance:
        instance.apply(Increment(arguments.table, arguments.row_key.encode(), amounts))
    console.print("1 rows changed")
    return 0


def _up(platform: BackgroundPlatform) -> Flow:
    flow = platform.flow()
    if flow is None:
        raise MisconfiguredError("nothing is up: `make up` first")
    return flow


def _check_needs() -> None:
    find_sdk(os.environ)
    find_java(os.environ)


@contextlib.contextmanager
def _emptied(directory: Path) -> Iterator[Path]:
    """Empty the directory of the last run, whose logs were kept until now; only one run at a time may have it."""
    directory.parent.mkdir(exist_ok=True)
    with directory.with_suffix(".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise MisconfiguredError(f"another run is using {directory}: wait for it to end") from None
        shutil.rmtree(directory, ignore_errors=True)
        yield directory


def _plain(console: Console) -> Say:
    return lambda text: console.print(text, markup=False, soft_wrap=True)


def _say(console: Console) -> Say:
    began = time.monotonic()

    def say(text: str) -> None:
        console.print(f"[{time.monotonic() - began:5.1f} s] {text}", markup=False, soft_wrap=True)

    return say


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m deploy.local", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("run", help="the whole pipeline, from start to proof (SOURCES, BEFORE, ROWS, SECONDS, RATE)")
    commands.add_parser("containers", help="the same in containers, by docker-compose.yaml")
    commands.add_parser("create", help="make the demo's tables, topics and dataset where the environment says")
    commands.add_parser("up", help="the same, left running")
    commands.add_parser("down", help="end what `up` started")
    commands.add_parser("serve")  # what `up` starts; not for people
    commands.add_parser("status", help="how the services that are up are")
    letters = commands.add_parser("letters", help="the command for dead letters: list, show, groups, replay, ...")
    letters.add_argument("arguments", nargs=argparse.REMAINDER)
    commands.add_parser("query", help="ask BigQuery").add_argument("statement")
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
