"""`make up` and `make down`: the same platform in the background, under a supervisor that a state file names.

The supervisor holds a lock for as long as it lives, so whether the platform is up is never guessed from a pid that
some other process may have by now.
"""

import contextlib
import fcntl
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import psutil

from deploy.local.demo.wide_tables import AIRPORT_TRAFFIC
from deploy.local.platform import guard
from deploy.local.platform.changes import Change
from deploy.local.platform.emulators import ROOT
from deploy.local.platform.processes import GRACE, TAIL, ProcessDiedError, Processes, StopRequestedError, wait_until
from deploy.local.platform.restarts import Restarts
from deploy.local.platform.services import AnyPipeline, BigtablePipeline, Flow, Pipeline, Service, dead_letters_in
from deploy.local.platform.stack import PrintLine, Sources, Stack, reader_name, running_stack
from deploy.local.proof.launching import source_rows
from deploy.local.proof.run import sides_of, wait_until_loaded
from shared.contracts.errors import MisconfiguredError
from shared.runtime.clock import SystemClock
from shared.runtime.settings import setting
from shared.runtime.stop import Stop

_CHECK_EVERY: Final = timedelta(seconds=1)
_START_TIMEOUT: Final = timedelta(minutes=5)
_APPLY_TIMEOUT: Final = timedelta(minutes=6)  # on a busy machine Spark alone takes minutes
_STOP_TIMEOUT: Final = 5 * GRACE
_COMMAND: Final = ".venv/bin/python -m deploy.local"
_A_FLIGHT: Final = "carrier = 'UA' AND flight = 1545 AND flight_date = '2013-01-01'"  # the first of the year
_AN_HOUR: Final = "JFK#2013-01-01T10"
_IN_SPANNER: Final = f"""change a row in Spanner, and see it in BigQuery:
  {_COMMAND} sql "UPDATE airlines SET name = 'Renamed' WHERE carrier = 'UA'"
  {_COMMAND} query --wait "SELECT * FROM airlines WHERE carrier = 'UA'"
in the database of the PostgreSQL dialect:
  {_COMMAND} sql --database weather "UPDATE stations SET name = 'Idlewild' WHERE code = 'JFK'"
  {_COMMAND} query --wait "SELECT code, name, position FROM stations WHERE code = 'JFK'"
or a flight, and see every version of it and how long each was current:
  {_COMMAND} sql "UPDATE flights SET tail_number = 'N12345' WHERE {_A_FLIGHT}"
  {_COMMAND} query --wait "SELECT tail_number, valid_from, valid_to, is_current FROM flights_history WHERE {_A_FLIGHT}"
"""
_IN_BIGTABLE: Final = f"""count flights in a row of Bigtable, and see it in BigQuery:
  {_COMMAND} add {AIRPORT_TRAFFIC.name} "{_AN_HOUR}" totals:departures 1000
  {_COMMAND} query --wait "SELECT departures, carriers FROM {AIRPORT_TRAFFIC.name} WHERE row_key = '{_AN_HOUR}'"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpSettings:
    """How much data the platform that stays holds."""

    sources: Sources = setting("which sources: both, spanner or bigtable", default="both")
    before: int = setting("flights that are there before the change stream", default=1000, least=0, most=300_000)
    rows: int = setting("flights that come first through the change stream", default=500, least=1, most=30_000)


@dataclass(frozen=True, slots=True)
class State:
    """What `down`, `query`, `sql`, `add` and `status` need to know of the platform that is up."""

    supervisor: int
    sessions: list[int]
    flow: Flow | None
    """None: it is not up yet."""
    text: str
    readers: Sequence[AnyPipeline] = ()
    consumer: str = ""
    """Its ``host:port``."""


class BackgroundPlatform:
    """The platform that `up` leaves running: at most one per directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = directory / "lock"
        self._state = directory / "state.json"
        self._log = directory / "supervisor.log"
        self._changed = directory / "last-change.json"

    def up(self, environment: Mapping[str, str], stop: Stop, print_line: PrintLine) -> int:
        """Start the supervisor and wait until everything runs; print where, and how to query it."""
        self._directory.mkdir(parents=True, exist_ok=True)
        if self._is_up():
            print_line(f"already up\n{self.state().text}")
            return 0
        self._state.unlink(missing_ok=True)
        self._changed.unlink(missing_ok=True)
        for file in self._directory.glob(f"{self.dead_letters.name}*"):  # of an emulator's rows that are gone
            file.unlink()
        for file in self._directory.glob("*-checkpoint/suspects/mirrors-*"):  # of tables that are gone
            file.unlink()
        with self._log.open("wb") as log:
            supervisor = subprocess.Popen(
                [sys.executable, "-m", "deploy.local", "serve"],
                env={**environment, "PYTHONPATH": str(ROOT)},
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        shown = 0

        def ready() -> bool:
            nonlocal shown
            over = supervisor.poll() is not None or self.flow() is not None
            text = self._log.read_text(errors="replace")
            for line in text[shown:].splitlines():
                print_line(line)
            shown = len(text)
            return over

        try:
            wait_until(ready, "the platform", timeout=_START_TIMEOUT, stop=stop)
        except (StopRequestedError, ProcessDiedError):
            supervisor.terminate()
            supervisor.wait()
            raise
        return supervisor.poll() or 0

    def down(self, print_line: PrintLine) -> int:
        """End the platform and wait until nothing of it is left."""
        if not self._is_up():
            print_line("nothing is up")
            return 0
        wait_until(self._state.exists, "the supervisor to write its state")
        state = self.state()
        if not _is_ours(state.supervisor):
            raise MisconfiguredError(
                "not-our-supervisor",
                f"process {state.supervisor} in {self._state} is not a supervisor of this platform: it was not stopped",
            )
        os.kill(state.supervisor, signal.SIGTERM)
        try:
            wait_until(
                lambda: not self._is_up() and not _is_ours(state.supervisor),  # it lets go of the lock before it ends
                "the platform to end",
                timeout=_STOP_TIMEOUT,
            )
        except ProcessDiedError:
            print_line("it does not end when asked; killing it")
            guard.kill_session(state.supervisor)
        for session in self.state().sessions if self._state.exists() else state.sessions:
            guard.kill_session(session)
        self._state.unlink(missing_ok=True)
        print_line("down")
        return 0

    def serve(self, settings: UpSettings, environment: Mapping[str, str], stop: Stop, print_line: PrintLine) -> int:
        """Be the supervisor: hold the lock, run the platform until it is asked to stop or a part of it dies."""
        with self._holding_lock() as got_it:
            if not got_it:
                print_line("already up")
                return 1
            self._write(State(os.getpid(), [], None, ""))
            with (
                Processes(self._directory, environment, stop) as processes,
                running_stack(processes, print_line, settings.sources, settings.before) as stack,
            ):
                print_line("loading, and waiting until it is in BigQuery")
                sides = sides_of(stack, settings.rows, before=settings.before)
                for side in sides:
                    side.load(stop)
                stack.wait()
                if not wait_until_loaded(stack, sides, _APPLY_TIMEOUT, stop) and not stop.requested:
                    raise ProcessDiedError(f"the rows are not applied after {_APPLY_TIMEOUT}; see {self._directory}")
                readers = [*(one.reader for one in stack.databases), *(one.reader for one in stack.wide_tables)]
                services = [one for one in (*readers, stack.consumer, stack.dead_letter) if isinstance(one, Service)]
                write_settings_files(self._directory, {one.process.name: one.settings for one in services})
                text = how_to_use(stack, self._directory)
                sessions = processes.sessions()
                print_line(text)  # before `up` is notified, and ends
                self._write(State(os.getpid(), sessions, stack.flow, text, stack.pipelines, stack.consumer.address))
                restarts = Restarts(processes, services, SystemClock(), print_line)
                while not stop.wait(_CHECK_EVERY):
                    if restarts.restart_ended():
                        self._write(replace(self.state(), sessions=processes.sessions()))
            return 0

    def state(self) -> State:
        """Return what the supervisor wrote."""
        state = json.loads(self._state.read_text())
        flow = Flow(**state["flow"]) if state["flow"] else None
        return State(**{**state, "flow": flow, "readers": [_pipeline(each) for each in state["readers"]]})

    @property
    def dead_letters(self) -> Path:
        """Return the file of the dead-letter service's store."""
        return dead_letters_in(self._directory)

    def restarted(self) -> Sequence[str]:
        """Return what the supervisor has logged of services that it restarted."""
        lines = self._log.read_text(errors="replace").splitlines() if self._log.exists() else []
        return [line for line in lines if line.endswith(" is restarted")]

    def ended(self) -> str:
        """Return how a platform ended that `down` has not ended, or an empty text."""
        if not self._state.exists() or self._is_up() or not self._log.exists():
            return ""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-TAIL:])

    def remember_change(self, change: Change) -> None:
        """Keep what a command of this platform changed, for `query --wait`."""
        self._changed.write_text(json.dumps(asdict(change)))

    def last_change(self) -> Change | None:
        """Return what a command changed last, or None if none has."""
        return Change(**json.loads(self._changed.read_text())) if self._changed.exists() else None

    def flow(self) -> Flow | None:
        """Return what is up, if anything; not yet while it starts."""
        return self.state().flow if self._state.exists() and self._is_up() else None

    def _write(self, state: State) -> None:
        new = self._state.with_suffix(".new")
        new.write_text(json.dumps(asdict(state)))
        new.replace(self._state)

    def _is_up(self) -> bool:
        if not self._lock.exists():
            return False
        with self._holding_lock() as got_it:
            return not got_it

    @contextlib.contextmanager
    def _holding_lock(self) -> Iterator[bool]:
        with self._lock.open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True


def _pipeline(saved: Mapping[str, Any]) -> AnyPipeline:
    kind = BigtablePipeline if "bigtable" in saved else Pipeline
    return kind(**{each.name: saved[each.name] for each in fields(kind)})


def how_to_use(stack: Stack, directory: Path) -> str:
    """Return what to type while the platform is up, what is needed most first, and where each part of it is."""
    flow = stack.flow
    emulators, services, examples = [], [], []
    if stack.databases:
        spanner = stack.databases[0]
        path = spanner.database.instance.path
        emulators.append(f"Spanner emulator     {spanner.pipeline.spanner}   (SPANNER_EMULATOR_HOST; {path})")
        services += [
            (f"reader of {one.demo.name}", f"{one.reader.address}/metrics   ({one.demo.dialect})")
            for one in stack.databases
        ]
        examples.append(_IN_SPANNER)
    if stack.wide_tables:
        bigtable = stack.wide_tables[0]
        variable = f"(BIGTABLE_EMULATOR_HOST; {bigtable.instance.path})"
        emulators.append(f"Bigtable emulator    {bigtable.pipeline.bigtable}   {variable}")
        services += [
            (f"reader of {one.demo.name}", f"{one.reader.address}/metrics   (Bigtable)") for one in stack.wide_tables
        ]
        examples.append(_IN_BIGTABLE)
    services.append(("cdc_consumer", f"{stack.consumer.address}/metrics"))
    services.append(("dead_letter", f"{stack.dead_letter.address}/metrics"))
    assert stack.dead_letters_api is not None
    services.append(("dead letters", f"{stack.dead_letters_api.url.removeprefix('http://')}   (its HTTP API)"))
    width = max(len(name) for name, _ in services)
    running = "\n".join(
        [
            *(f"  {line}" for line in emulators),
            f"  Pub/Sub emulator     {flow.pubsub}   (PUBSUB_EMULATOR_HOST; {flow.topology.topic})",
            f"  BigQuery stand-in    http://{flow.bigquery_rest} (REST), {flow.bigquery_grpc} (write API)",
            *(f"  {name:<{width}} http://{address}" for name, address in services),
            f"  {'logs':<{width}} {directory}",
        ]
    )
    first = stack.pipelines[0]
    near, reader = os.path.relpath(directory, ROOT), reader_name(first)
    launched = first.module.removeprefix("services.").replace("_", "-")
    source = "" if stack.databases else f" --source {shlex.quote(source_rows(first)['SOURCE_ROWS'])}"
    table, api = "flights" if stack.databases else AIRPORT_TRAFFIC.name, stack.dead_letters_api
    assert api is not None
    token_file = shlex.quote(os.path.relpath(api.token_file, ROOT))
    return f"""up. The console, in a browser: what needs attention, how each table is, and dead letters:
  {api.console}
  cat {token_file}   # the token to sign in with
The state of the services, what could not be applied, and the end of it all:
  {_COMMAND} status
  {_COMMAND} dead-letters groups
  make down
{"".join(examples)}any command of a service, with the settings that it has here:
  (. {near}/{reader}.env; ./millrace {launched} doctor)
  (. {near}/{reader}.env; . {near}/cdc_consumer.env; ./millrace reconcile --all{source})
dead letters over HTTP; changing dead letters and seeing values takes the token:
  curl {api.url}/groups
  curl -H "Authorization: Bearer $(cat {token_file})" "{api.url}/export?values=true"
BigQuery, with the Cloud SDK's own tool:
  bq --api=http://{flow.bigquery_rest} --oauth_access_token=any --project_id={flow.project} query \\
    --nouse_legacy_sql "SELECT COUNT(*) FROM {flow.dataset}.{table}"
where it runs:
{running}"""


def _is_ours(pid: int) -> bool:
    """Return whether a process is a supervisor of this repository."""
    with contextlib.suppress(psutil.Error):
        return "deploy.local" in psutil.Process(pid).cmdline()
    return False


def write_settings_files(directory: Path, services: Mapping[str, Mapping[str, str]]) -> None:
    """Write ``<service>.env`` for each; a shell that has read one has what its commands need.

    A command that compares or deletes missing rows reads two: that of the source's reader, and then the consumer's.
    """
    for name, settings in services.items():
        lines = [f"export {variable}={shlex.quote(value)}\n" for variable, value in sorted(settings.items())]
        (directory / f"{name}.env").write_text("".join(lines))
