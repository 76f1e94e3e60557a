"""The Cloud SDK's emulators and the BigQuery stand-in as processes on free ports of this machine.

Each is a context manager that yields an address once it answers. What is missing on the machine is named together
with the way to get it, before anything is started.
"""

import json
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Final

from deploy.local.processes import Processes
from shared.contracts.errors import MisconfiguredError

HOST: Final = "127.0.0.1"
ROOT: Final = Path(__file__).resolve().parents[2]
JAVA_NEEDED: Final = 17
PATIENCE: Final = timedelta(seconds=60)

_SPANNER_BINARY: Final = Path("bin/cloud_spanner_emulator/emulator_main")
_BIGTABLE_BINARY: Final = Path("platform/bigtable-emulator/cbtemulator")
_EMULATORS: Final = ("Spanner", "Pub/Sub", "Bigtable")
_PUBSUB_JARS: Final = "platform/pubsub-emulator/lib/cloud-pubsub-emulator-*-all.jar"
_HOW_TO_GET: Final = (
    "gcloud components install cloud-spanner-emulator pubsub-emulator bigtable, or with Google's apt repository: "
    "apt-get install google-cloud-cli-spanner-emulator google-cloud-cli-pubsub-emulator "
    "google-cloud-cli-bigtable-emulator"
)


def find_sdk(environment: Mapping[str, str]) -> Path:
    """Return the Cloud SDK that holds the emulators; MisconfiguredError naming what is missing and how to get it.

    Looked for in CLOUDSDK_ROOT, in CLOUDSDK_ROOT_DIR, and where the `gcloud` on PATH belongs.
    """
    gcloud = shutil.which("gcloud", path=environment.get("PATH"))
    roots = [Path(environment[name]) for name in ("CLOUDSDK_ROOT", "CLOUDSDK_ROOT_DIR") if environment.get(name)]
    roots += [Path(gcloud).resolve().parents[1]] if gcloud else []
    if not roots:
        raise MisconfiguredError(
            "the Cloud SDK was not found: set CLOUDSDK_ROOT to its directory or put `gcloud` on PATH. "
            f"To get it: https://cloud.google.com/sdk/docs/install, and then {_HOW_TO_GET}"
        )
    there = [_emulators_in(root) for root in roots]
    for root, found in zip(roots, there, strict=True):
        if len(found) == len(_EMULATORS):
            return root
    missing = [f"the {name} emulator" for name in _EMULATORS if not any(name in found for found in there)]
    raise MisconfiguredError(
        f"the Cloud SDK in {', '.join(map(str, roots))} lacks {' and '.join(missing) or 'one emulator each'}. "
        f"To get it: {_HOW_TO_GET}"
    )


def find_java(environment: Mapping[str, str]) -> Path:
    """Return a `java` that is new enough; MisconfiguredError naming what is missing and how to get it."""
    home = environment.get("JAVA_HOME")
    found = Path(home, "bin", "java") if home else shutil.which("java", path=environment.get("PATH"))
    how = f"Java {JAVA_NEEDED} or newer is needed (Pub/Sub emulator, Spark): apt-get install openjdk-17-jre-headless"
    if found is None or not Path(found).is_file():
        raise MisconfiguredError(f"{how}; none was found {f'in JAVA_HOME={home}' if home else 'on PATH'}")
    said = subprocess.run([found, "-version"], capture_output=True, text=True, check=False, env=dict(environment))
    version = re.search(r'version "(\d+)', said.stderr + said.stdout)
    if version is None or int(version[1]) < JAVA_NEEDED:
        raise MisconfiguredError(f"{how}; {found} is {version[1] if version else 'not a Java'}")
    return Path(found)


@contextmanager
def spanner_emulator(processes: Processes, **flags: str) -> Iterator[str]:
    """Run the Spanner emulator, gRPC only, and yield ``host:port``.

    ``flags`` are `emulator_main`'s: ``override_change_stream_partition_token_alive_seconds="1"`` splits and merges
    partitions every one to two seconds instead of every 20 to 40. It is started without its REST gateway, which
    leaves it behind, port and all, when it is ended.
    """
    binary = find_sdk(processes.environment) / _SPANNER_BINARY
    arguments = [str(binary), "--host_port", f"{HOST}:0", *(f"--{name}={value}" for name, value in flags.items())]
    process = processes.start("spanner_emulator", arguments)

    def address() -> str | None:
        said = re.search(r"Server address: (\S+:\d+)", process.output())
        return said[1] if said else None

    try:
        yield processes.wait_until(address, "the Spanner emulator", PATIENCE)
    finally:
        process.end()


@contextmanager
def pubsub_emulator(processes: Processes, heap: str = "512m") -> Iterator[str]:
    """Run the Pub/Sub emulator and yield ``host:port``. It keeps messages in its heap, acked ones too for a while."""
    java, jar = find_java(processes.environment), _pubsub_jar(find_sdk(processes.environment))
    port = free_port()  # asked for port 0 it takes a free one, and does not say which
    options = ["-Xms64m", f"-Xmx{heap}", "-XX:+UseSerialGC", "-jar", str(jar), f"--host={HOST}", f"--port={port}"]
    process = processes.start("pubsub_emulator", [str(java), *options])
    try:
        processes.wait_until(lambda: listens(port), "the Pub/Sub emulator", PATIENCE)
        yield f"{HOST}:{port}"
    finally:
        process.end()


@contextmanager
def bigtable_emulator(processes: Processes) -> Iterator[str]:
    """Run the Bigtable emulator and yield ``host:port``. The change-stream calls end it: use `bigtable_front`."""
    binary = find_sdk(processes.environment) / _BIGTABLE_BINARY
    port = free_port()
    process = processes.start("bigtable_emulator", [str(binary), f"-host={HOST}", f"-port={port}"])
    try:
        processes.wait_until(lambda: listens(port), "the Bigtable emulator", PATIENCE)
        yield f"{HOST}:{port}"
    finally:
        process.end()


@contextmanager
def bigtable_front(processes: Processes, port: int = 0, **options: str) -> Iterator[str]:
    """Run the Bigtable emulator and the front that adds change streams to it; yield the front's ``host:port``.

    ``options`` are the front's: ``garbage_seconds="1"`` lets it collect garbage every second, not on demand only.
    """
    with bigtable_emulator(processes) as emulator:
        arguments = ["-m", "deploy.local.bigtable_change_streams", "--port", str(port), "--emulator", emulator]
        arguments += [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
        process = processes.start("bigtable_front", [sys.executable, *arguments], {"PYTHONPATH": str(ROOT)})

        def address() -> str | None:
            for line in process.output().splitlines():
                if line.startswith("{") and '"port"' in line:
                    return f"{HOST}:{int(json.loads(line)['port'])}"
            return None

        try:
            yield processes.wait_until(address, "the Bigtable front", PATIENCE)
        finally:
            process.end()


@contextmanager
def bigquery_stand_in(
    processes: Processes, rest_port: int = 0, grpc_port: int = 0, directory: Path | None = None
) -> Iterator[tuple[str, str]]:
    """Run the BigQuery stand-in and yield ``host:port`` of its REST and of its gRPC (write API) side.

    With a directory it keeps its data there, and a later one goes on with it; without, in memory.
    """
    arguments = [
        *(sys.executable, "-m", "deploy.local.bigquery", "--rest-port", str(rest_port), "--grpc-port", str(grpc_port)),
        *(() if directory is None else ("--directory", str(directory))),
    ]
    process = processes.start("bigquery_stand_in", arguments, {"PYTHONPATH": str(ROOT)})

    def ports() -> tuple[int, int] | None:
        for line in process.output().splitlines():
            if line.startswith("{") and '"rest_port"' in line:
                said = json.loads(line)
                return int(said["rest_port"]), int(said["grpc_port"])
        return None

    try:
        rest, grpc = processes.wait_until(ports, "the BigQuery stand-in", PATIENCE)
        yield f"{HOST}:{rest}", f"{HOST}:{grpc}"
    finally:
        process.end()


def free_port() -> int:
    """Return a port that was free a moment ago, for those that cannot choose one by themselves."""
    with closing(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def listens(port: int) -> bool:
    """Tell whether something accepts connections on a port of this machine."""
    with closing(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as probe:
        probe.settimeout(0.5)
        return probe.connect_ex((HOST, port)) == 0


def _emulators_in(root: Path) -> frozenset[str]:
    """Return which of the emulators a Cloud SDK holds."""
    there = ((root / _SPANNER_BINARY).is_file(), _pubsub_jar(root), (root / _BIGTABLE_BINARY).is_file())
    return frozenset(name for name, found in zip(_EMULATORS, there, strict=True) if found)


def _pubsub_jar(root: Path) -> Path | None:
    return max(root.glob(_PUBSUB_JARS), default=None)
