"""`make containers`: each service its own container, brought up by docker-compose.yaml and proven from outside.

The proof is that of `make run`; beside it one container of each kind is killed while rows are changed, and has to be
brought back by the engine. In the end nothing is left. `make cluster` does the same with pods.
"""

import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final, Protocol

from rich.console import Console
from rich.table import Table

from deploy.local.platform.compose import EMULATORS, Project
from deploy.local.platform.creation import Addresses, platform_at
from deploy.local.platform.processes import ProcessDiedError, wait_until
from deploy.local.platform.services import AnyPipeline, Endpoint, MetricSums
from deploy.local.platform.stack import PrintLine, Sources, Stack, reader_name, stack_of
from deploy.local.proof.image_checks import IMAGES, check_image
from deploy.local.proof.launching import Launcher, source_rows
from deploy.local.proof.run import RunSettings, prove
from shared.contracts.errors import MisconfiguredError
from shared.runtime.settings import setting
from shared.runtime.stop import Stop

READERS: Final = {
    "spanner_reader_flights": "SPANNER_READER_FLIGHTS_PORT",
    "spanner_reader_weather": "SPANNER_READER_WEATHER_PORT",
    "bigtable_reader_hourly_weather": "BIGTABLE_READER_HOURLY_WEATHER_PORT",
    "bigtable_reader_airport_traffic": "BIGTABLE_READER_AIRPORT_TRAFFIC_PORT",
}
CONSUMER: Final = "cdc_consumer"
DEAD_LETTER: Final = "dead_letter"
TOOLBOX: Final = "toolbox"
_RUNNING: Final = (*READERS, CONSUMER, DEAD_LETTER)
_KILLED: Final = ("spanner_reader_flights", "bigtable_reader_hourly_weather", CONSUMER)
"""One of each kind, beside the dead-letter service, which is killed first, before its commands are wanted."""
_BUILT_AS: Final = {
    "spanner_reader": "spanner_reader_flights",
    "bigtable_reader": "bigtable_reader_hourly_weather",
    "cdc_consumer": CONSUMER,
    "dead_letter": DEAD_LETTER,
    "toolbox": TOOLBOX,
    "bigquery": "bigquery",
    "bigtable_streams": "bigtable",
    "local": "create",
}
"""Of each image a service that is made of it."""
_TABLES: Final = Path("/etc/millrace/tables.toml")
_PULL: Final = timedelta(minutes=15)
_BUILD: Final = timedelta(minutes=30)
_START: Final = timedelta(minutes=10)
_STOP: Final = timedelta(minutes=3)
_COMMAND: Final = timedelta(minutes=10)
_POLL: Final = timedelta(seconds=1)
KILL_ALL: Final = ("sh", "-c", "kill -9 -1")
"""Everything that may be signalled, which is all but the init; that ends with what it has started."""
_MB: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerSettings(RunSettings):
    """The size of a run in containers: smaller, and with time for the leases of killed services to end."""

    sources: Sources = setting("both: the compose file has them all", default="both")
    before: int = setting("flights that are there before the change stream", default=5000, least=0, most=300_000)
    rows: int = setting("flights that come first through the change stream", default=1000, least=1, most=30_000)
    seconds: int = setting("how long rows are changed after that", default=60, least=1)
    rate: int = setting("changes a second, in each source", default=30, least=1)
    catch_up_timeout: timedelta = setting("how long BigQuery may take to catch up", default=timedelta(minutes=8))

    def __post_init__(self) -> None:
        """Refuse what the compose file has no services for."""
        if self.sources != "both":
            raise ValueError("SOURCES is for `make run`: the compose file has all sources")


class RestartedEndpoint(Endpoint):
    """A service whose process may be killed and started again: what it counted before is added."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self._lock = threading.Lock()
        self._before: dict[str, float] = {}
        self._last: dict[str, float] = {}

    def metrics(self) -> MetricSums:
        """Return its counters and gauges; empty while it does not answer. Counts since the last call are lost."""
        with self._lock:
            found = super().metrics()
            for name, value in found.items():
                if name.endswith("_total") and value < self._last.get(name, 0):
                    self._before[name] = self._before.get(name, 0) + self._last[name]
            self._last |= found
            return MetricSums({name: value + self._before.get(name, 0) for name, value in found.items()})


def run_containers(
    settings: ContainerSettings, project: Project, console: Console, print_line: PrintLine, stop: Stop
) -> int:
    """Build, bring up, prove, kill, compare and take down; return 0 where all of it is as it should be."""
    print_line(project.engine)
    with _taken_down(project, print_line):
        built = _build(project, _with_emulators(project, print_line), print_line)
        wrong = [problem for image in IMAGES for problem in check_image(project, image)]
        if not wrong:
            print_line("each image holds what it runs and nothing else, no build tools, and does not run as root")
        started = _up(project, stop, print_line)
        with _stack(project) as stack:
            killer = Killer(_Engine(project), settings, stop, print_line)
            launch = _launcher(project)
            report = prove(settings, stack, killer.command, launch, console, print_line, stop, killer.happen)
        print_line("equal; stopping the services" if report.equal else "NOT equal")
        wrong += _stopped(project, print_line)
    _print(console, built, started)
    report.print(console)
    for line in wrong:
        console.print(line, markup=False, soft_wrap=True)
    console.print(
        f"{', '.join((DEAD_LETTER, *_KILLED))} were killed on the way and restarted by the engine", soft_wrap=True
    )
    return 0 if report.equal and not wrong else 1


@contextmanager
def _taken_down(project: Project, print_line: PrintLine) -> Iterator[None]:
    project.down()  # what a run that was killed has left
    try:
        yield
    finally:
        project.keep_logs()
        print_line(f"taking everything down; the containers' logs are in {project.logs}")
        project.down()


def _with_emulators(project: Project, print_line: PrintLine) -> Mapping[str, str]:
    """Get Google's emulators; return the images that have to be built, each with a service that is made of it."""
    try:
        project.compose("pull", "--quiet", *EMULATORS, timeout=_PULL)
    except ProcessDiedError as error:
        try:
            sdk = project.emulators_of_sdk()
        except MisconfiguredError as also:
            raise MisconfiguredError(
                "emulator-images-missing", f"Google's emulator images cannot be pulled ({error}), and {also.message}"
            ) from error
        print_line(f"Google's emulator images cannot be pulled here; the emulators are those of {sdk}")
        return {**_BUILT_AS, "emulators_of_sdk": EMULATORS[0]}
    return _BUILT_AS


def _build(project: Project, images: Mapping[str, str], print_line: PrintLine) -> Mapping[str, tuple[float, int]]:
    """Build the images; return of each how many seconds that took, and its bytes."""
    built = {}
    for image, service in images.items():
        began = time.monotonic()
        project.compose("build", service, timeout=_BUILD)
        seconds = time.monotonic() - began
        size = int(project.docker("image", "inspect", "--format", "{{.Size}}", project.image(image)))
        built[image] = (seconds, size)
        print_line(f"built {image}: {size / _MB:,.0f} MB in {seconds:.0f} s")
    return built


def save_images(environment: Mapping[str, str], directory: Path, print_line: PrintLine) -> int:
    """Build the services' images and write them into a file, for nodes of Kubernetes that reach no registry.

    Beside them a node needs one that only waits: it keeps the network of a pod.
    """
    project = Project(environment, directory)
    built = _build(project, {image: service for image, service in _BUILT_AS.items() if service in _RUNNING}, print_line)
    waits = f"FROM {project.image(DEAD_LETTER)}\n" + 'ENTRYPOINT ["/usr/bin/tini", "--", "sleep", "infinity"]\n'
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "Dockerfile").write_text(waits)
    project.docker("build", "--quiet", "--tag", project.image("pause"), str(directory))
    every = [project.image(name) for name in (*built, "pause")]
    project.docker("save", "--output", str(directory / "images.tar"), *every, timeout=_BUILD)
    (directory / "tag").write_text(project.name)
    return 0


def _up(project: Project, stop: Stop, print_line: PrintLine) -> Mapping[str, float]:
    """Bring everything up and wait until it is healthy; return of each service after how many seconds it was."""
    print_line("starting")
    began = time.monotonic()
    project.compose("up", "--detach", "--no-build", timeout=_START)
    print_line(f"emulators and stand-ins are healthy, topics and tables made after {time.monotonic() - began:.0f} s")
    healthy: dict[str, float] = {}

    def all_healthy() -> bool:
        for service in _RUNNING:
            if service not in healthy and project.is_ready(service):
                healthy[service] = time.monotonic() - began
        return len(healthy) == len(_RUNNING)

    _wait(all_healthy, "all services to be healthy", stop)
    print_line(f"every service is healthy after {max(healthy.values()):.0f} s")
    return healthy


@contextmanager
def _stack(project: Project) -> Iterator[Stack]:
    """Connect to what runs, by what is published on this machine."""
    addresses = Addresses(
        pubsub=project.address("PUBSUB_PORT"),
        bigquery_rest=project.address("BIGQUERY_PORT"),
        bigquery_grpc=project.address("BIGQUERY_STORAGE_PORT"),
        spanner=project.address("SPANNER_PORT"),
        bigtable=project.address("BIGTABLE_PORT"),
    )
    with platform_at(addresses, _TABLES, create=False) as made:
        readers = [RestartedEndpoint(project.address(port)) for port in READERS.values()]
        consumer = RestartedEndpoint(project.address("CDC_CONSUMER_PORT"))
        yield stack_of(made, readers, consumer, RestartedEndpoint(project.address("DEAD_LETTER_PORT")))


def _launcher(project: Project) -> Launcher:
    """Return what runs commands in a toolbox that has the settings of the source's reader."""

    def launch(pipeline: AnyPipeline, *words: str) -> "subprocess.CompletedProcess[str]":
        reader = project.settings(reader_name(pipeline))
        settings = {**{name: reader[name] for name in pipeline.reader_environment()}, **source_rows(pipeline)}
        return project.run(TOOLBOX, *words, settings=settings, timeout=_COMMAND)

    return launch


class Restarting(Protocol):
    """What runs the services, and starts one again that has ended."""

    def inside(self, service: str, *command: str) -> tuple[int, str]:
        """Run a command beside the service; return its exit code and its output."""

    def start(self, service: str) -> object:
        """Return what is another one after each start of the service."""

    def is_ready(self, service: str) -> bool:
        """Return whether it works."""

    def kill(self, service: str) -> None:
        """Kill it without a warning."""


class _Engine:
    """The container engine."""

    def __init__(self, project: Project) -> None:
        self._project = project
        self.inside, self.is_ready = project.inside, project.is_ready

    def start(self, service: str) -> object:
        return self._project.state(service)["RestartCount"]

    def kill(self, service: str) -> None:
        self._project.inside(service, *KILL_ALL)


class Killer:
    """Kills one service of each kind, spread over the time in which rows are changed."""

    def __init__(self, runs: Restarting, settings: RunSettings, stop: Stop, print_line: PrintLine) -> None:
        self._runs = runs
        self._pause = timedelta(seconds=settings.seconds / (2 * len(_KILLED)))
        self._stop = stop
        self._print_line = print_line
        self._starts: dict[str, object] = {}
        self._whole = threading.Lock()
        """Locked while a command about dead letters runs, or while there is no service to run it in."""

    def command(self, *arguments: str) -> tuple[int, str]:
        """Run the command about dead letters in the container of the service."""
        with self._whole:
            return self._runs.inside(DEAD_LETTER, "python", "-m", "services.dead_letter", *arguments)

    def happen(self) -> None:
        """Kill them while rows are changed, and wait until all are healthy again."""
        with ThreadPoolExecutor(1, thread_name_prefix="kill") as pool:
            dead_letters = pool.submit(self._kill_dead_letter)
            for service in _KILLED:
                if self._stop.wait(self._pause):
                    return
                self._kill(service)
            dead_letters.result()
        for service in _KILLED:
            self._wait(service)
        self._print_line("all that was killed was started again, and is healthy")

    def _kill_dead_letter(self) -> None:
        with self._whole:
            self._kill(DEAD_LETTER)
            self._wait(DEAD_LETTER)

    def _kill(self, service: str) -> None:
        self._print_line(f"killing {service}")
        self._starts[service] = self._runs.start(service)
        self._runs.kill(service)

    def _wait(self, service: str) -> None:
        def again() -> bool:
            return self._runs.start(service) != self._starts[service] and self._runs.is_ready(service)

        _wait(again, f"{service} to be started again and to be healthy", self._stop)


def _wait(condition: Callable[[], bool], what: str, stop: Stop) -> None:
    wait_until(condition, what, timeout=_START, stop=stop, pause=_POLL)


def _stopped(project: Project, print_line: PrintLine) -> list[str]:
    """Stop the services as the engine does, with SIGTERM; return those that did not end well."""
    began = time.monotonic()
    project.compose("stop", *_RUNNING, timeout=_STOP)
    print_line(f"stopped after {time.monotonic() - began:.0f} s")
    codes = {service: project.state(service)["State"]["ExitCode"] for service in _RUNNING}
    return [f"{service}, asked to stop, ended with exit code {code}" for service, code in codes.items() if code]


def _print(console: Console, built: Mapping[str, tuple[float, int]], started: Mapping[str, float]) -> None:
    table = Table("image", "MB", "built in", "healthy after")
    for column in table.columns[1:]:
        column.justify = "right"
    for image, (seconds, size) in built.items():
        after = started.get(_BUILT_AS.get(image, ""))
        table.add_row(image, f"{size / _MB:,.0f}", f"{seconds:.0f} s", "" if after is None else f"{after:.0f} s")
    console.print(table)
