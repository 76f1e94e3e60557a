"""The Cloud SDK's emulators and the BigQuery stand-in as processes on free ports of this machine.

Each is a context manager that yields an address once it answers. What is missing on the machine is named together
with the way to get it, before anything is started.
"""

import json
import re
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Final

from deploy.local.platform import needs
from deploy.local.platform.processes import Processes
from shared.contracts.errors import MisconfiguredError

HOST: Final = "127.0.0.1"
ROOT: Final = Path(__file__).resolve().parents[3]
TIMEOUT: Final = timedelta(seconds=60)
_given: Final[set[int]] = set()  # ports


def find_sdk(environment: Mapping[str, str]) -> Path:
    """Return the Cloud SDK that holds the emulators; MisconfiguredError naming what is missing and how to get it."""
    return _found(needs.sdk(environment))


def find_java(environment: Mapping[str, str]) -> Path:
    """Return a `java` that is new enough; MisconfiguredError naming what is missing and how to get it."""
    return _found(needs.java(environment))


def _found(asked: tuple[Path | None, str]) -> Path:
    path, wrong = asked
    if path is None:
        raise MisconfiguredError("emulators-missing", wrong)
    return path


@contextmanager
def spanner_emulator(processes: Processes, **flags: str) -> Iterator[str]:
    """Run the Spanner emulator, gRPC only, and yield ``host:port``.

    ``flags`` are `emulator_main`'s: ``override_change_stream_partition_token_alive_seconds="1"`` splits and merges
    partitions every one to two seconds instead of every 20 to 40. It is started without its REST gateway, which
    leaves it behind, port and all, when it is ended.
    """
    # It runs one transaction at a time, and throws dice for which of two it aborts. The transaction of a client that
    # was killed lives on until it loses, which at the default of 20 % can take more than a minute of retries.
    flags = {"abort_current_transaction_probability": "50", **flags}
    binary = find_sdk(processes.environment) / needs.SPANNER_BINARY
    arguments = [str(binary), "--host_port", f"{HOST}:0", *(f"--{name}={value}" for name, value in flags.items())]
    process = processes.start("spanner_emulator", arguments)

    def address() -> str | None:
        found = re.search(r"Server address: (\S+:\d+)", process.output())
        return found[1] if found else None

    try:
        yield processes.wait_until(address, "the Spanner emulator", TIMEOUT)
    finally:
        process.end()


@contextmanager
def pubsub_emulator(processes: Processes, heap: str = "512m") -> Iterator[str]:
    """Run the Pub/Sub emulator and yield ``host:port``. It keeps messages in its heap, acked ones too for a while."""
    java, jar = find_java(processes.environment), needs.pubsub_jar(find_sdk(processes.environment))
    port = free_port()  # with port 0 it takes a free one, and does not print which
    options = ["-Xms64m", f"-Xmx{heap}", "-XX:+UseSerialGC", "-jar", str(jar), f"--host={HOST}", f"--port={port}"]
    process = processes.start("pubsub_emulator", [str(java), *options])
    try:
        processes.wait_until(lambda: listens(port), "the Pub/Sub emulator", TIMEOUT)
        yield f"{HOST}:{port}"
    finally:
        process.end()


@contextmanager
def bigtable_emulator(processes: Processes) -> Iterator[str]:
    """Run the Bigtable emulator and yield ``host:port``. The change-stream calls end it: use `bigtable_front`."""
    binary = find_sdk(processes.environment) / needs.BIGTABLE_BINARY
    port = free_port()
    process = processes.start("bigtable_emulator", [str(binary), f"-host={HOST}", f"-port={port}"])
    try:
        processes.wait_until(lambda: listens(port), "the Bigtable emulator", TIMEOUT)
        yield f"{HOST}:{port}"
    finally:
        process.end()


@contextmanager
def bigtable_front(processes: Processes, port: int = 0, **options: str) -> Iterator[str]:
    """Run the Bigtable emulator and the front that adds change streams to it; yield the front's ``host:port``.

    ``options`` are the front's: ``garbage_seconds="1"`` lets it collect garbage every second, not on demand only.
    """
    with bigtable_emulator(processes) as emulator:
        arguments = ["-m", "emulators.bigtable_streams", "--port", str(port), "--emulator", emulator]
        arguments += [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
        process = processes.start("bigtable_front", [sys.executable, *arguments], {"PYTHONPATH": str(ROOT)})

        def address() -> str | None:
            for line in process.output().splitlines():
                if line.startswith("{") and '"port"' in line:
                    return f"{HOST}:{int(json.loads(line)['port'])}"
            return None

        try:
            yield processes.wait_until(address, "the Bigtable front", TIMEOUT)
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
        *(sys.executable, "-m", "emulators.bigquery", "--rest-port", str(rest_port), "--grpc-port", str(grpc_port)),
        *(() if directory is None else ("--directory", str(directory))),
    ]
    process = processes.start("bigquery_stand_in", arguments, {"PYTHONPATH": str(ROOT)})

    def ports() -> tuple[int, int] | None:
        for line in process.output().splitlines():
            if line.startswith("{") and '"rest_port"' in line:
                logged = json.loads(line)
                return int(logged["rest_port"]), int(logged["grpc_port"])
        return None

    try:
        rest, grpc = processes.wait_until(ports, "the BigQuery stand-in", TIMEOUT)
        yield f"{HOST}:{rest}", f"{HOST}:{grpc}"
    finally:
        process.end()


def free_port() -> int:
    """Return a port that was free a moment ago, for those that cannot choose one by themselves.

    Each is given once: who got it may not listen yet when the next one is asked for.
    """
    while True:
        with closing(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as probe:
            probe.bind((HOST, 0))
            port = int(probe.getsockname()[1])
        if port not in _given:
            _given.add(port)
            return port


def listens(port: int) -> bool:
    """Return whether something accepts connections on a port of this machine."""
    with closing(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as probe:
        probe.settimeout(0.5)
        return probe.connect_ex((HOST, port)) == 0
