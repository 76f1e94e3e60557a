"""One compose project: docker-compose.yaml built, brought up, inspected and taken down by the engine's own commands."""

import json
import shutil
import subprocess
import tomllib
import zlib
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from deploy.local.platform.emulators import ROOT, find_sdk, free_port
from deploy.local.platform.processes import TAIL, ProcessDiedError
from shared.contracts.errors import MisconfiguredError

FILE: Final = "docker-compose.yaml"
FILE_OF_SDK: Final = "deploy/local/emulators_of_sdk/compose.yaml"
EMULATORS: Final = ("pubsub", "spanner", "bigtable-emulator")
PORTS: Final = (
    *("PUBSUB_PORT", "SPANNER_PORT", "BIGTABLE_PORT", "BIGQUERY_PORT", "BIGQUERY_STORAGE_PORT"),
    *("SPANNER_READER_FLIGHTS_PORT", "SPANNER_READER_WEATHER_PORT"),
    *("BIGTABLE_READER_HOURLY_WEATHER_PORT", "BIGTABLE_READER_AIRPORT_TRAFFIC_PORT"),
    *("CDC_CONSUMER_PORT", "DEAD_LETTER_PORT", "DEAD_LETTER_API_PORT"),
)
_BASE: Final = "python:3.11-slim-bookworm"
_SHORT: Final = timedelta(minutes=1)
_READY: Final = ("python", "-S", "-m", "shared.runtime.probe", "ready")
_HOW_TO_GET: Final = (
    "a running container engine is needed, and compose (`docker compose`, or `docker-compose` 1.29 or newer): "
    "https://docs.docker.com/engine/install, or Debian's docker.io and docker-compose"
)


class Project:
    """The compose project of this directory's `make containers`, on ports that were free a moment ago."""

    def __init__(self, environment: Mapping[str, str], logs: Path) -> None:
        """Find the engine; MisconfiguredError with the way to get one. Logs of containers are written to ``logs``."""
        self.name = f"millrace-{zlib.crc32(str(ROOT).encode()):08x}"
        self.logs = logs
        self.ports = {name: free_port() for name in PORTS}
        variables = {name: str(port) for name, port in self.ports.items()}
        variables |= {"TAG": self.name, "VERSION": _version(), "REVISION": _revision()}
        variables |= {"DOCKER_BUILDKIT": "1", "COMPOSE_DOCKER_CLI_BUILD": "1"}
        self._environment = {**environment, **variables}
        self._files = [FILE]
        self._containers: Mapping[str, str] = {}
        self._docker = self._found()
        self._compose = self._compose_found()
        if (base := self._base_of_this_machine()) is not None:
            self._environment.setdefault("BASE", base)
        if "bridge" not in self.docker("network", "ls", "--format", "{{.Name}}").split():
            self._environment["BUILD_NETWORK"] = "host"  # or no build would reach a package

    def _base_of_this_machine(self) -> str | None:
        """Return the tag of the base image where the engine's image of it came from no registry, so has no digest."""
        ran = self._ran([self._docker, "image", "inspect", "--format", "{{len .RepoDigests}}", _BASE], _SHORT)
        return _BASE if ran.returncode == 0 and ran.stdout.strip() == "0" else None

    @property
    def engine(self) -> str:
        """Return which engine and which compose these are."""
        version = self.docker("version", "--format", "{{.Server.Version}}").strip()
        return f"engine {version}, {' '.join(self._compose)} {self.compose('version', '--short').strip()}"

    def emulators_of_sdk(self) -> Path:
        """Stand the emulators in from the Cloud SDK of this machine, from now on; return its directory."""
        sdk = find_sdk(self._environment)
        self._environment["CLOUDSDK_ROOT"] = str(sdk)
        self._files = [FILE, FILE_OF_SDK]
        return sdk

    def compose(self, *arguments: str, timeout: timedelta = _SHORT) -> str:
        """Run a compose command; return its output, or raise ProcessDiedError with the end of it."""
        return self._run(self._compose_command(*arguments), timeout)

    def docker(self, *arguments: str, timeout: timedelta = _SHORT) -> str:
        """Run a command of the engine; return its output, or raise ProcessDiedError with the end of it."""
        return self._run([self._docker, *arguments], timeout)

    def inside(self, service: str, *command: str, timeout: timedelta = _SHORT) -> tuple[int, str]:
        """Run a command in the container of a service; return its exit code and its output."""
        ran = self._ran([self._docker, "exec", self.container(service), *command], timeout)
        return ran.returncode, ran.stdout if ran.returncode == 0 else ran.stdout + ran.stderr

    def run(
        self, service: str, *command: str, settings: Mapping[str, str], timeout: timedelta
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in a new container of a service, with more settings than the compose file has for it."""
        more = [word for name, value in settings.items() for word in ("-e", f"{name}={value}")]
        return self._ran(self._compose_command("run", "--rm", "-T", *more, service, *command), timeout)

    def address(self, port: str) -> str:
        """Return the ``host:port`` that a port of the compose file is published at."""
        return f"127.0.0.1:{self.ports[port]}"

    def containers(self) -> Mapping[str, str]:
        """Return the containers that are there, by service."""
        form = '{{.Label "com.docker.compose.service"}} {{.ID}}'
        lines = self.docker("container", "ls", "--all", "--filter", self._label, "--format", form).splitlines()
        return {service: container for service, _, container in (line.partition(" ") for line in lines)}

    def container(self, service: str) -> str:
        """Return the container of a service, which stays the same however often it starts."""
        if service not in self._containers:
            self._containers = self.containers()
        return self._containers[service]

    def state(self, service: str) -> Mapping[str, Any]:
        """Return how a service's container is (`docker inspect`)."""
        found: Mapping[str, Any] = json.loads(self.docker("inspect", self.container(service)))[0]
        return found

    def settings(self, service: str) -> Mapping[str, str]:
        """Return the environment of a service's container."""
        lines: Sequence[str] = self.state(service)["Config"]["Env"]
        return {name: value for name, _, value in (line.partition("=") for line in lines)}

    def health(self, service: str) -> str:
        """Return ``healthy``, ``starting`` or ``unhealthy``, or of a container without a test what it is doing."""
        state = self.state(service)["State"]
        return str(state["Health"]["Status"] if "Health" in state else state["Status"])

    def is_ready(self, service: str) -> bool:
        """Return whether a service is healthy, and works: its HEALTHCHECK asks only whether it is alive."""
        return self.health(service) == "healthy" and self.inside(service, *_READY)[0] == 0

    def image(self, name: str) -> str:
        """Return the full name of an image of this project."""
        return f"millrace/{name}:{self.name}"

    def images(self) -> Sequence[str]:
        """Return the images of this project that are there."""
        reference = f"reference=millrace/*:{self.name}"
        return self.docker("image", "ls", "--filter", reference, "--format", "{{.Repository}}:{{.Tag}}").split()

    def keep_logs(self) -> None:
        """Write the log of each container to a file of its own."""
        self.logs.mkdir(parents=True, exist_ok=True)
        for service, container in self.containers().items():
            with (self.logs / f"{service}.log").open("wb") as log:
                subprocess.run(
                    [self._docker, "logs", container], env=self._environment, stdout=log, stderr=log, check=False
                )

    def down(self) -> None:
        """Take away all that is there of this project, its images too; ProcessDiedError where something stays."""
        self.compose("down", "--volumes", "--remove-orphans", "--timeout", "10", timeout=5 * _SHORT)
        images = self.images()
        if images:
            self.docker("image", "rm", "--force", *images)
        left = [f"{kind} {name}" for kind in ("container", "volume", "network") for name in self._left(kind)]
        if left:
            raise ProcessDiedError(f"something of {self.name} is left: {', '.join(left)}")

    def _left(self, kind: str) -> Sequence[str]:
        every = ("--all",) if kind == "container" else ()
        return self.docker(kind, "ls", *every, "--quiet", "--filter", self._label).split()

    @property
    def _label(self) -> str:
        return f"label=com.docker.compose.project={self.name}"

    def _found(self) -> str:
        docker = shutil.which("docker", path=self._environment.get("PATH"))
        if docker is None:
            raise MisconfiguredError("docker-missing", f"there is no `docker` on PATH; {_HOW_TO_GET}")
        try:
            self._run([docker, "version", "--format", "{{.Server.Version}}"], _SHORT)
        except ProcessDiedError as error:
            raise MisconfiguredError(
                "docker-does-not-answer", f"no engine answers `docker`; {_HOW_TO_GET}. {error}"
            ) from error
        return docker

    def _compose_found(self) -> Sequence[str]:
        for words in ([self._docker, "compose"], ["docker-compose"]):
            try:
                self._run([*words, "version"], _SHORT)
            except (ProcessDiedError, FileNotFoundError):
                continue
            return words
        raise MisconfiguredError("compose-missing", f"there is no compose; {_HOW_TO_GET}")

    def _compose_command(self, *arguments: str) -> Sequence[str]:
        files = [word for file in self._files for word in ("-f", file)]
        return [*self._compose, "-p", self.name, *files, *arguments]

    def _run(self, command: Sequence[str], timeout: timedelta) -> str:
        ran = self._ran(command, timeout)
        if ran.returncode:
            lines = "\n".join(f"  | {line}" for line in (ran.stdout + ran.stderr).splitlines()[-TAIL:])
            raise ProcessDiedError(f"`{' '.join(command)}` ended with exit code {ran.returncode}:\n{lines}")
        return ran.stdout

    def _ran(self, command: Sequence[str], timeout: timedelta) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                command,
                env=self._environment,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
                timeout=timeout.total_seconds(),
            )
        except subprocess.TimeoutExpired:
            raise ProcessDiedError(f"`{' '.join(command)}` did not end within {timeout}") from None


def _version() -> str:
    with (ROOT / "pyproject.toml").open("rb") as file:
        return str(tomllib.load(file)["project"]["version"])


def _revision() -> str:
    """Return the commit that is built; nothing known where this is no clone."""
    command = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "unknown"
    return found.stdout.strip() or "unknown"
